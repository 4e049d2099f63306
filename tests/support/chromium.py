"""A headless Chromium, driven over its DevTools pipe: pages are opened as a reader would see them."""

from __future__ import annotations

import base64
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ANSWER_S = 20.0
START_S = 90.0  # where nobody has started it lately, 130 MB are read from the disk first, beside other tests
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)


@dataclass(frozen=True, slots=True)
class Shown:
    """A page as it was laid out, in CSS pixels."""

    width: float  # of the window
    content_width: float  # more than that: the reader must scroll to the side
    content_height: float
    requests: tuple[str, ...]  # addresses that were asked for, or would have been, besides the page's own
    texts: dict[str, tuple[str, float]]  # by selector: its text, and the height of its box (0: not to be seen)


class Chromium:
    """One browser with one tab."""

    def __init__(self, process: subprocess.Popen[bytes], read: int, write: int) -> None:
        self._process, self._read, self._write = process, read, write
        self._buffer = b""
        self._number = 0
        self._patience_s = START_S
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "DOM", "Network", "Log"):
            self.ask(f"{domain}.enable")
        self._patience_s = ANSWER_S

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """The answer to one command of the DevTools protocol; raises RuntimeError where it is an error."""
        self._number += 1
        told = {"id": self._number, "method": method, "params": params}
        if self._session:
            told["sessionId"] = self._session
        os.write(self._write, json.dumps(told).encode() + b"\0")
        deadline = time.monotonic() + self._patience_s
        while (message := self._next(deadline)).get("id") != self._number:
            self.events.append(message)
        if "error" in message:
            raise RuntimeError(f"{method}: {message['error']}")
        result: dict[str, Any] = message["result"]
        return result

    def wait(self, event: str) -> None:
        """Until the tab reports it."""
        deadline = time.monotonic() + self._patience_s
        while not any(one.get("method") == event for one in self.events):
            self.events.append(self._next(deadline))

    def open(
        self,
        url: str,
        width: int,
        selectors: tuple[str, ...] = (),
        *,
        scripts: bool = False,
        media: str = "screen",
        scheme: str = "light",
    ) -> Shown:
        """A page in a window of this width, for `media` (screen | print) in a colour `scheme` (light | dark)."""
        self.ask("Emulation.setScriptExecutionDisabled", value=not scripts)
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=844, deviceScaleFactor=1, mobile=width < 600)
        self.ask(
            "Emulation.setEmulatedMedia", media=media, features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self.events.clear()
        self.ask("Page.navigate", url=url)
        self.wait("Page.loadEventFired")
        sizes = self.ask("Page.getLayoutMetrics")
        asked = [one["params"]["request"]["url"] for one in self.events if one.get("method") == REQUESTED]
        blocked = [one["params"]["entry"].get("text", "") for one in self.events if one.get("method") == LOGGED]
        return Shown(
            sizes["cssLayoutViewport"]["clientWidth"],
            sizes["cssContentSize"]["width"],
            sizes["cssContentSize"]["height"],
            (*(one for one in asked if one != url), *(text for text in blocked if text)),
            {selector: self._text(selector) for selector in selectors},
        )

    def picture(self, path: Path, most: float = 6000.0) -> None:
        """The page that is open, down to its end, as PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], most), "scale": 1}
        made = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(made["data"]))

    def colour(self, selector: str, name: str) -> tuple[int, ...]:
        """Red, green and blue (0..255) of a property of an element of the page that is open."""
        self.ask("CSS.enable")
        styles = self.ask("CSS.getComputedStyleForNode", nodeId=self._node(selector))["computedStyle"]
        value = next(one["value"] for one in styles if one["name"] == name)
        return tuple(map(int, re.findall(r"\d+", value)[:3]))

    def _node(self, selector: str) -> int:
        root = self.ask("DOM.getDocument", depth=0)["root"]["nodeId"]
        found: int = self.ask("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        return found

    def _text(self, selector: str) -> tuple[str, float]:
        node = self._node(selector)
        if not node:
            return "", 0.0
        html = self.ask("DOM.getOuterHTML", nodeId=node)["outerHTML"]
        try:
            height = self.ask("DOM.getBoxModel", nodeId=node)["model"]["height"]
        except RuntimeError:  # it has no box
            height = 0.0
        return html, float(height)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError(f"Chromium (PID {self._process.pid}) does not answer")
            chunk = os.read(self._read, 1 << 16)
            if not chunk:
                raise RuntimeError("Chromium has ended")
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message


# Shells know descriptors of one digit only.
_AS_3_AND_4 = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execvp("chromium", ["chromium", *sys.argv[3:]])
"""
REQUESTED, LOGGED = "Network.requestWillBeSent", "Log.entryAdded"


@contextmanager
def chromium(profile: Path) -> Iterator[Chromium]:
    """A browser with a new profile in an empty folder; it reads commands from descriptor 3 and answers on 4."""
    there_read, write = os.pipe()
    read, there_write = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", _AS_3_AND_4, str(there_read), str(there_write), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=(there_read, there_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": str(profile)},
    )
    os.close(there_read)
    os.close(there_write)
    try:
        yield Chromium(process, read, write)
    finally:
        os.close(write)  # it ends by itself once nobody commands it
        os.close(read)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
