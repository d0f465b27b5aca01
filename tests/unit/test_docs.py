"""The documents and the code say the same, as far as that can be checked cheaply."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.local import address
from deploy.release.checkout import dead_links, prose
from gateway.config.loader import parse
from gateway.config.virtual_host import VirtualHost
from gateway.errors import CloseReason, ExitCode
from gateway.parity.transcript import read_transcript
from gateway.session import error_frames
from gateway.session.context import Hold
from tests.bench.targets import DEFAULT_ROWS, ROWS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")])
BEHAVIOUR = DOCS / "stomp-behaviour.md"
TRANSCRIPTS = ROOT / "tests" / "transcripts"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def _blocks(language: str) -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for found, text in _FENCE.findall(page.read_text("utf-8")):
            if found == language:
                yield page, text


@every_page
def test_relative_links_lead_somewhere(page: Path) -> None:
    assert not list(dead_links(page))


_WIDTH = 120


@every_page
def test_lines_of_prose_are_short(page: Path) -> None:
    """Tables and images have to be in one line; decisions and the contract are left as they were written."""
    if page.parent.name == "adr" or page == BEHAVIOUR:
        return
    lines = [line for line in prose(page).splitlines() if not line.lstrip().startswith(("|", "!["))]
    assert not [line for line in lines if len(line) > _WIDTH]


def test_yaml_in_the_documents_is_a_configuration() -> None:
    examples = list(_blocks("yaml"))
    assert examples
    for page, text in examples:
        parse(text, directory=page.parent, name=page.name, environment={})


def test_python_in_the_documents_compiles() -> None:
    examples = list(_blocks("python"))
    assert examples
    for page, text in examples:
        compile(text, page.name, "exec")


# ERROR frames.


def _template(node: ast.expr) -> str | None:
    """A text in the code with NUL for each thing that is filled in; None for what is no text."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return _template(node.left)
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "\0" for part in node.values)
    if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes):
        text = node.value if isinstance(node.value, str) else node.value.decode()
        return re.sub(r"%[bdg]", "\0", text)
    return None


def _calls(names: frozenset[str]) -> Iterator[ast.Call]:
    for module in sorted((ROOT / "gateway").rglob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                called = _name(node.func)
                if called == "partial" and node.args:
                    called = _name(node.args[0])
                if called in names:
                    yield node


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _texts(names: frozenset[str]) -> set[str]:
    """The literal texts among the arguments of some calls."""
    texts = {_template(argument) for call in _calls(names) for argument in call.args}
    return {text for text in texts if text}


def _assigned_bodies() -> set[str]:
    """The literal texts that get the name `body` or `text` before an error is made of them."""
    texts = set()
    for module in (
        "session/error_frames.py",
        "session/session.py",
        "session/destinations.py",
        "server/client/connection.py",
    ):
        for node in ast.walk(ast.parse((ROOT / "gateway" / module).read_text("utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                if node.targets[0].id in ("body", "template", "text") and (text := _template(node.value)):
                    texts.add(text)
    return texts


def _shown(template: str, page: str) -> bool:
    pattern = "[^|\n]*".join(re.escape(part.replace("\n", "⏎")) for part in template.split("\0"))
    return re.search(pattern, page) is not None


def test_every_error_is_in_the_contract() -> None:
    page = BEHAVIOUR.read_text("utf-8")
    texts = _texts(frozenset(("StompError", "ErrorText", "closing", "bad_connect"))) | _assigned_bodies()
    assert "You must log in using CONNECT first" in texts
    assert not sorted(text for text in texts if not _shown(text, page))


def test_every_violation_of_the_grammar_is_in_the_contract() -> None:
    page = BEHAVIOUR.read_text("utf-8")
    texts = _texts(frozenset(("FrameError",)))
    assert "more than \0 headers" in texts
    assert not sorted(text for text in texts if not _shown(text, page))


def test_every_name_of_an_amqp_error_is_in_the_contract() -> None:
    page = BEHAVIOUR.read_text("utf-8")
    names = {error_frames.broker_error(code, "", VirtualHost(name="/")).message for code in range(300, 600)}
    assert not sorted(name for name in names if f"`{name}`" not in page)


def test_every_departure_is_in_the_contract() -> None:
    """Each row of departures.md is shown by at least one transcript that the contract's table names."""
    table = BEHAVIOUR.read_text("utf-8").partition("## Departures")[2]
    named = {
        departure
        for path in TRANSCRIPTS.rglob("*.stomp")
        if f"`{path.relative_to(TRANSCRIPTS).with_suffix('')}`" in table
        for departure in read_transcript(path).departures
    }
    shown = {departure for path in TRANSCRIPTS.rglob("*.stomp") for departure in read_transcript(path).departures}
    assert shown
    assert not sorted(shown - named)


def test_transcripts_named_in_the_contract_exist() -> None:
    table = BEHAVIOUR.read_text("utf-8").partition("## Departures")[2]
    names = re.findall(r"`([a-z]+/[a-z0-9.-]+)`", table)
    assert names
    assert not [name for name in names if not (TRANSCRIPTS / f"{name}.stomp").is_file()]


# The other pages.


def test_every_hold_is_explained() -> None:
    page = (DOCS / "flow-control.md").read_text("utf-8")
    assert not [hold for hold in Hold if f"`{hold.value}`" not in page]


def test_every_close_reason_and_exit_code_is_explained() -> None:
    logs, operations = (DOCS / "logs.md").read_text("utf-8"), (DOCS / "operations.md").read_text("utf-8")
    assert not [reason for reason in CloseReason if f"| `{reason.value}` |" not in logs]
    assert not [code for code in ExitCode if not re.search(rf"^\| {code.value}\b", operations, re.MULTILINE)]


def test_every_log_event_is_explained() -> None:
    page = (DOCS / "logs.md").read_text("utf-8")
    levels = frozenset(("debug", "info", "warning", "error"))
    logged = (call for call in _calls(levels | {"_log"}) if call.args)
    events = {text for call in logged if (text := _template(call.args[0]))}
    assert "session started" in events
    assert not sorted(event for event in events if f"| `{event}` |" not in page)


def test_every_field_of_a_log_event_is_explained() -> None:
    """In the row of its event, as far as the code says at one place what the fields are."""
    rows = dict(re.findall(r"^\| `([^`]+)` \| (.*)$", (DOCS / "logs.md").read_text("utf-8"), re.MULTILINE))
    missing = {
        f"{event}: {field.arg}"
        for call in _calls(frozenset(("debug", "info", "warning", "error", "_log")))
        if call.args and (event := _template(call.args[0])) in rows
        for field in call.keywords
        if field.arg not in (None, "exc_info") and f"`{field.arg}`" not in rows[event]
    }
    assert "session started" in rows
    assert not sorted(missing)


def test_every_variable_and_make_target_is_explained() -> None:
    development = (DOCS / "development.md").read_text("utf-8")
    code = "".join(path.read_text("utf-8") for path in Path(address.__file__).parent.iterdir() if path.is_file())
    for variable in ("STOMP_PORT", "AMQP_URL", "PYTHON"):
        assert variable in code
        assert f"`{variable}`" in development
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    assert "test" in targets
    assert not [target for target in targets if target != "help" and f"`make {target}`" not in development]


def test_the_benchmark_rows_are_those_that_are_measured() -> None:
    readme, development = (ROOT / "README.md").read_text("utf-8"), (DOCS / "development.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)`,", readme, re.MULTILINE) == [row.name for row in DEFAULT_ROWS]
    assert [name for name in re.findall(r"^\| `(\w+)` \|", development, re.MULTILINE) if name in ROWS] == list(ROWS)


def test_every_decision_is_listed_once() -> None:
    files = sorted(path.name for path in (DOCS / "adr").glob("[0-9]*.md"))
    assert sorted(_LINK.findall((DOCS / "adr" / "README.md").read_text("utf-8"))) == files
    numbers = [int(name[:4]) for name in files]
    # Decisions that were given up before they were made have left some numbers unused.
    assert numbers == [number for number in range(1, numbers[-1] + 1) if number not in (32, 33, 35, 56, 64, 65)]


def test_a_decision_that_another_one_replaced_says_so_first() -> None:
    """In its first line, with a link to each of those that the index names."""
    index = re.split(r"^\* ", (DOCS / "adr" / "README.md").read_text("utf-8"), flags=re.MULTILINE)[1:]
    replaced = {}
    for entry in index:
        [name] = _LINK.findall(entry)
        if by := re.search(r"replaced\s+by ([\d,\sand]+)", entry):
            replaced[name] = re.findall(r"\d+", by[1])
    assert replaced
    for path in (DOCS / "adr").glob("[0-9]*.md"):
        first = path.read_text("utf-8").split("\n\n")[1]
        said = re.findall(r"\[ADR (\d+)\]", first) if re.match(r"\*\*(Partly r|R)eplaced by ", first) else []
        assert said == replaced.get(path.name, []), path.name


def test_every_word_of_the_glossary_is_used() -> None:
    """A word that nobody uses is not worth defining, or another one is used in its place."""
    glossary = DOCS / "glossary.md"
    words = {word.lower() for word in re.findall(r"\*\*([^*]+)\*\*", glossary.read_text("utf-8"))}
    sources = [*PAGES, *(ROOT / "gateway").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    text = "\n".join(path.read_text("utf-8").lower() for path in sources if path not in (glossary, Path(__file__)))
    text = re.sub(r"[\s_]+", " ", text)
    assert words
    assert not sorted(word for word in words if not re.search(rf"\b{re.escape(word)}", text))
