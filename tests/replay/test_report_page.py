"""The page of a report as readers open it: in a real browser, with scripts off, on a phone and on a desk."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hangdoc.incident.incident import Incident
from hangdoc.render.html import page
from tests.support import requirements
from tests.support.chromium import Chromium, chromium
from tests.support.incidents import captured, full, recorded
from tests.support.verdicts import dead_link

WIDTHS = (390, 1280)
PAGES: dict[str, Callable[[], list[Incident]]] = {
    "uneven": lambda: [captured("uneven-batches")],
    "dead link": lambda: [captured("dead-link"), Incident(dead_link())],
    "healthy": lambda: [recorded("slow_steps")],
    "large": lambda: [captured("uneven-batches", 512, 300, 2)],
    "hostile": lambda: [full()],
}


class Site:
    """Pages on a port of this host, and every path that anybody asked for."""

    def __init__(self) -> None:
        self.pages: dict[str, str] = {}
        self.asked: list[str] = []
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                site.asked.append(self.path)
                found = site.pages.get(self.path)
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.end_headers()
                self.wfile.write((found or "").encode())

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def put(self, text: str) -> str:
        """The address of a page that holds this text; what was asked for before is forgotten."""
        self.asked.clear()
        self.pages["/report.html"] = text
        return f"{self.url}/report.html"

    def later(self) -> list[str]:
        """What is asked for once a page was loaded: browsers look for an icon then."""
        seen, deadline = len(self.asked), time.monotonic() + 1.5
        while len(self.asked) == seen and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.asked[seen:]


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    made = Site()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    requirements.met(requirements.commands(("chromium",), "chromium"))
    with chromium(tmp_path_factory.mktemp("profile")) as made:
        yield made


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", WIDTHS)
def test_reads_well_everywhere_and_asks_for_nothing(browser: Chromium, site: Site, name: str, width: int) -> None:
    incidents = PAGES[name]()
    shown = browser.open(site.put(page(incidents)), width, ("h1", ".status", ".lead", "main"))
    assert shown.content_width <= shown.width <= width
    assert shown.requests == ()
    assert site.asked == ["/report.html"]
    assert all(height > 0 for _, height in shown.texts.values())
    verdict = incidents[0].verdict
    if name != "hostile" and verdict.findings:
        assert verdict.findings[0].title in shown.texts["h1"][0]
        assert verdict.findings[0].summary in shown.texts[".lead"][0]
    assert verdict.status.upper() in shown.texts[".status"][0]


def test_asks_for_nothing_later(browser: Chromium, site: Site) -> None:
    browser.open(site.put(page([captured("uneven-batches")])), 390)
    assert site.later() == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_has_colours_for_day_and_night(browser: Chromium, site: Site, scheme: str) -> None:
    browser.open(site.put(page([captured("uneven-batches")])), 390, scheme=scheme)
    red, green, blue = browser.colour("body", "background-color")
    ink = browser.colour("h2", "color")
    dark = scheme == "dark"
    assert (red + green + blue < 3 * 64) is dark
    assert (sum(ink) > 3 * 192) is dark


def test_prints_what_is_folded(browser: Chromium, site: Site) -> None:
    url = site.put(page([captured("uneven-batches")]))
    assert browser.open(url, 800, ("details",)).texts["details"][1] < 60
    assert browser.open(url, 800, ("details",), media="print").texts["details"][1] > 300


def test_these_checks_can_fail(browser: Chromium, site: Site) -> None:
    """A page that loads, one that would if its policy let it, one that is too wide, and one whose verdict is hidden."""
    good = page([captured("uneven-batches")])
    greedy = good.replace("</main>", f'<img src="{site.url}/spy.png" alt=""></main>')
    open_page = greedy.replace("http-equiv", "data-nothing")
    shown = browser.open(site.put(open_page), 390)
    assert f"{site.url}/spy.png" in shown.requests
    site.later()
    assert {"/spy.png", "/favicon.ico"} <= set(site.asked)
    shown = browser.open(site.put(greedy), 390)
    assert shown.requests  # the browser says that it refused
    assert site.asked == ["/report.html"]
    for width in WIDTHS:
        shown = browser.open(site.put(good.replace("<main>", '<main><p style="width:1400px">wide</p>')), width)
        assert shown.content_width > width
    shown = browser.open(site.put(good.replace("<h1 ", "<h1 hidden ")), 390, ("h1",))
    assert shown.texts["h1"][1] == 0


def test_no_script_runs(browser: Chromium, site: Site) -> None:
    """Were a hostile text to become a script: here scripts are off, and where they are on the policy forbids them."""
    script = "<script>document.querySelector('h1').textContent = 'owned'</script></main>"
    told = page([captured("uneven-batches")]).replace("</main>", script)
    assert "owned" not in browser.open(site.put(told), 390, ("h1",)).texts["h1"][0]
    assert "owned" not in browser.open(site.put(told), 390, ("h1",), scripts=True).texts["h1"][0]
    freed = told.replace("http-equiv", "data-nothing")
    assert "owned" in browser.open(site.put(freed), 390, ("h1",), scripts=True).texts["h1"][0]
