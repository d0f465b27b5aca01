"""The examples of docs/clients.md work, and its versions are those that are installed."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.clients.client_program import ROOT
from tests.clients.library import LIBRARIES, NODE, PERL, RUBY, STOMP_PY, STOMPMAN, Library
from tests.support.gateway import Address

PAGE = ROOT / "docs" / "clients.md"
MANIFEST = Path(__file__).parent / "node" / "package.json"
HEADINGS = {
    STOMP_PY.name: "stomp.py",
    STOMPMAN.name: "stompman",
    RUBY.name: "stomp (Ruby)",
    PERL.name: "Net::Stomp",
    NODE.name: "@stomp/stompjs",
}

each_library = pytest.mark.parametrize(
    "library",
    [
        pytest.param(library, marks=() if library.in_python else (pytest.mark.clients,), id=library.name)
        for library in LIBRARIES
    ],
)


def _example(library: Library) -> str:
    section = PAGE.read_text("utf-8").partition(f"\n## {HEADINGS[library.name]}\n")[2]
    found = re.search(r"^```\w+\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


@pytest.mark.system
@each_library
def test_the_example_prints_hello(library: Library, gateway_address: Address, tmp_path: Path) -> None:
    if reason := library.missing():
        pytest.skip(reason)
    program = tmp_path / "example"
    program.write_text(_example(library).replace("61613", str(gateway_address[1])))
    done = subprocess.run(
        [library.interpreter, str(program)],
        env=library.environment(),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "Hello\n", "")


def test_the_versions_in_the_document_are_those_that_are_pinned() -> None:
    page = PAGE.read_text("utf-8")
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    npm = json.loads(MANIFEST.read_text())["dependencies"]
    for row in (
        f"[stomp.py](#stomppy) | {pins['stomp.py']} |",
        f"[stompman](#stompman) | {pins['stompman']} |",
        f"over TCP | {npm['@stomp/stompjs']}, with @stomp/tcp-wrapper {npm['@stomp/tcp-wrapper']} |",
    ):
        assert row in page
