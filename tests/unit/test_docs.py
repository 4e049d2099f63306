"""The documentation: links resolve, commands exist, examples load, generated pages are up to date."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

import playbooks
from docs.tools import message_index, playbook_index
from hangdoc.analysis.facts import schema
from hangdoc.analysis.thresholds import THRESHOLDS
from hangdoc.commands.app import app
from hangdoc.postmortem.readers._logs.catalogue import catalogue
from hangdoc.rules.loader import load
from hangdoc.verdict import CLASSES
from tests.benchmarks.publish import SectionError, replace_section, section
from tests.support import requirements
from tests.support.paths import ROOT

TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")
PAGES = [*(ROOT / name for name in TOP), *sorted(ROOT.glob("docs/*.md"))]
RUNBOOKS = sorted(ROOT.glob("playbooks/*/runbook.md"))
DATA = {"json", "jsonl", "yaml"}  # languages of code blocks that hold data
OPTIONS_WITH_VALUE = {"-u"}  # of sudo


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


every_page = pytest.mark.parametrize("page", [*PAGES, *RUNBOOKS], ids=name)


@cache
def tokens(page: Path) -> list[Token]:
    """The page as Markdown, inline tokens after the block that holds them."""
    found: list[Token] = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        found += [token, *(token.children or ())]
    return found


def blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """Line, language and text of each code block."""
    for token in tokens(page):
        if token.type in ("fence", "code_block") and token.map:
            yield token.map[0] + 1, token.info.strip(), token.content


@cache
def anchors(page: Path) -> frozenset[str]:
    """Anchors of the headings that GitHub and MkDocs agree on."""
    headings = [
        after.content
        for token, after in zip(tokens(page), tokens(page)[1:], strict=False)
        if token.type == "heading_open"
    ]
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return frozenset(text.replace(" ", "-") for text in plain if not re.search(r"[- ]{2}", text))


# --- links ----------------------------------------------------------------------------------------


@every_page
def test_links_resolve(page: Path) -> None:
    broken = []
    for link in (str(token.attrs["href"]) for token in tokens(page) if token.type == "link_open"):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or ROOT not in target.parents:
            broken.append(link)
        elif anchor and anchor not in anchors(target):
            broken.append(f"{link} (no such heading)")
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_files_and_targets_exist(page: Path) -> None:
    """Files of the repository and targets of the Makefile that a page names in code spans and blocks."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    spans = [token.content for token in tokens(page) if token.type == "code_inline"]
    spans += [line for _, _, text in blocks(page) for line in text.splitlines()]
    named = re.findall(r"(?<![\w/.-])(?:docs|hangdoc|playbooks|probes|tests)/[\w./-]*", "\n".join(spans))
    missing = [path for path in named if not re.search("ID|NAME", path) and not (ROOT / path.rstrip("/.")).exists()]
    modules = re.findall(r"python -m (tests[\w.]+)", "\n".join(spans))
    missing += [module for module in modules if not (ROOT / f"{module.replace('.', '/')}.py").exists()]
    made = [word for span in spans for word in re.findall(r"^(?:\$ )?make ([a-z-]+)", span)]
    assert not [*missing, *(set(made) - targets)]


def test_every_page_of_docs_is_reached_from_the_index() -> None:
    reached, left = set[Path](), [ROOT / "docs/index.md"]
    while left:
        page = left.pop()
        if page in reached or page.suffix != ".md" or not page.exists():
            continue
        reached.add(page)
        hrefs = (str(token.attrs["href"]) for token in tokens(page) if token.type == "link_open")
        left += [(page.parent / href.partition("#")[0]).resolve() for href in hrefs if ":" not in href]
    assert set(ROOT.glob("docs/*.md")) <= reached


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


# --- commands -------------------------------------------------------------------------------------


def command_lines(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Where it is, and the arguments, of each call of `hangdoc` in the code blocks and code spans of a page."""
    texts = [(line, text) for line, language, text in blocks(page) if language not in DATA]
    spans = [(0, token.content) for token in tokens(page) if token.type == "code_inline"]
    for line, text in (*texts, *spans):
        for written in text.replace("\\\n", " ").splitlines():
            if re.match(r"\s*(?:\$ |sudo |[A-Z_]+=\S+ |\S*/)*hangdoc(?: |$)", written):
                for arguments in calls(written.strip().removeprefix("$ ")):
                    named = line == 0 and len(arguments) <= 1  # "`hangdoc report` says": the command, not a call
                    yield f"{name(page)}:{line}: {written.strip()}", [*arguments, "--help"] if named else arguments


def calls(written: str) -> Iterator[list[str]]:
    """Arguments of each call of `hangdoc` in a line for a shell."""
    lexer = shlex.shlex(written, posix=True, punctuation_chars=True)
    lexer.wordchars += "[]@%$"
    command: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(lexer.punctuation_chars):
            while command and (re.match(r"[A-Z_]+=|sudo$|-", command[0])):
                command = command[1 + (command[0] in OPTIONS_WITH_VALUE) :]
            if command and Path(command[0]).name == "hangdoc" and word not in ("(", ")"):
                yield command[1:]
            command = []
        else:
            command.append(word)


def parse(arguments: list[str]) -> None:
    """Parse a command line as `hangdoc` does, but run nothing; raises what click raises for wrong usage.

    The folders that it names are made in the current one. `--html` alone names a file.
    """
    for option, word in zip(["", *arguments], arguments, strict=False):
        if option != "--html" and re.fullmatch(r"\w[\w./-]*", word):
            Path(word).mkdir(parents=True, exist_ok=True)
    group: Any = typer.main.get_command(app)
    left = list(group.commands.values())
    while left:
        command = left.pop()
        command.callback = lambda **given: 0
        left += getattr(command, "commands", {}).values()
    group(list(arguments), prog_name="hangdoc", standalone_mode=False)


@every_page
def test_commands_parse(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wrong = []
    for where, arguments in command_lines(page):
        try:
            parse(arguments)
        except Exception as error:
            wrong.append(f"{where}: {error}")
    assert not wrong


@pytest.mark.parametrize(
    "written",
    ["hangdoc wach", "hangdoc watch --onec", "sudo -n hangdoc report", "hangdoc runbook a b", "x | hangdoc demo --no"],
)
def test_a_wrong_command_is_noticed(written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (arguments,) = calls(written)
    with pytest.raises(Exception, match=r"(?i)no such|missing|unexpected"):
        parse(arguments)


def test_commands_are_found() -> None:
    found = {arguments[0] for page in PAGES for _, arguments in command_lines(page) if arguments}
    assert found >= {"watch", "report", "runbook", "demo", "doctor"}


# --- data -----------------------------------------------------------------------------------------


@every_page
def test_data_in_code_blocks_parses(page: Path) -> None:
    for line, language, text in blocks(page):
        try:
            if language == "yaml":
                yaml.safe_load(text)
            elif language == "json":
                json.loads(text)
            elif language == "jsonl":
                for written in text.splitlines():
                    json.loads(written)
        except (yaml.YAMLError, ValueError) as error:
            pytest.fail(f"{name(page)}:{line}: {error}")


def examples() -> list[tuple[str, str]]:
    """The whole playbooks that pages show."""
    shown = [(page, *block) for page in PAGES for block in blocks(page)]
    return [
        (f"{name(page)}:{line}", text)
        for page, line, language, text in shown
        if language == "yaml" and re.search(r"^id:", text, re.MULTILINE) and re.search(r"^when:", text, re.MULTILINE)
    ]


def test_the_guide_shows_a_whole_playbook() -> None:
    assert any(where.startswith("docs/writing-a-playbook.md") for where, _ in examples())


@pytest.mark.parametrize("text", [text for _, text in examples()], ids=[where for where, _ in examples()])
def test_playbooks_in_the_pages_load(text: str, tmp_path: Path) -> None:
    folder = tmp_path / yaml.safe_load(text)["id"]
    folder.mkdir()
    (folder / "playbook.yaml").write_text(text)
    library = load([playbooks.ROOT, tmp_path], schema())  # as `--playbooks` does
    assert not library.problems
    assert folder in [playbook.file.parent for playbook in library.playbooks]


# --- generated pages ------------------------------------------------------------------------------


def test_the_index_of_playbooks_is_up_to_date() -> None:
    assert playbook_index.PAGE.read_text() == playbook_index.page(), (
        f"run: {sys.executable} docs/tools/playbook_index.py"
    )


def test_the_list_of_messages_is_up_to_date() -> None:
    assert message_index.PAGE.read_text() == message_index.page(), f"run: {sys.executable} docs/tools/message_index.py"
    rows = [line for line in message_index.page().splitlines() if line.startswith("| `")]
    assert len(rows) == len(catalogue())


def test_the_index_of_playbooks_is_complete() -> None:
    assert tuple(playbook_index.CLASSES) == CLASSES
    listed = re.findall(r"^\| \[`([\w-]+)`\]", playbook_index.page(), re.MULTILINE)
    assert sorted(listed) == [runbook.parent.name for runbook in RUNBOOKS]


def test_the_index_lists_every_threshold_with_its_value_and_source() -> None:
    listed = re.findall(
        r"^\| `([A-Z]\w+)` \| ([\d.,e-]+) \| ([^|]+) \| ([^|]+) \|$", playbook_index.page(), re.MULTILINE
    )
    assert {name: (float(value.replace(",", "")), unit, source) for name, value, unit, source in listed} == {
        name: (one, one.unit, one.source) for name, one in THRESHOLDS.items()
    }


def test_every_benchmark_has_a_section() -> None:
    page = (ROOT / "docs/benchmarks.md").read_text()
    modules = {file.stem for file in ROOT.glob("tests/benchmarks/*.py") if "def main(" in file.read_text()}
    for benchmark in (modules - {"publish"}) | {"matrix", "calm", "pasted"}:
        assert replace_section(page, benchmark, "x") != page


def test_only_the_section_of_a_benchmark_changes() -> None:
    requirements.met(requirements.torch())  # its version is written there
    page = "a\n<!-- bench:one -->\nold\n<!-- /bench:one -->\nb\n<!-- bench:two -->\nkept\n<!-- /bench:two -->\n"
    body = section(("python", "-m", "x y"), "| a |\n|---|\n", code=0)
    assert replace_section(page, "one", body) == page.replace("old", body)
    assert "with `python -m 'x y'`" in body
    assert "```" not in body
    assert "```text\nplain\n```" in section(("x",), "plain\n", code=0)
    assert "exited with code 1" in section(("x",), "plain\n", code=1)


@pytest.mark.parametrize(
    "page",
    [
        "",
        "<!-- bench:one -->\n",
        "<!-- /bench:one -->\n<!-- bench:one -->\n",
        2 * "<!-- bench:one -->\n<!-- /bench:one -->\n",
    ],
)
def test_a_page_without_the_section_is_refused(page: str) -> None:
    with pytest.raises(SectionError):
        replace_section(page, "one", "x")
