"""The report in a browser: Chromium, driven over a pipe."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import pytest

from gateway.pipeline.lake import Lake
from gateway.pipeline.report import write_report
from tests.support.report_tables import A_MONTH, DEMO, Recipe, Rows, made_up

Answer = Mapping[str, object]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")

OPTIONS = (
    "--headless",
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
PHONE, SMALL_PHONE, DESKTOP = 390, 360, 1280
A4 = 680  # without its margins


class Browser:
    """One Chromium with one page."""

    def __init__(self, profile: Path) -> None:
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        # Chromium expects its commands on descriptor 3 and answers on 4.
        start = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
        assert CHROMIUM
        with (profile / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", start, CHROMIUM, *OPTIONS, f"--user-data-dir={profile / 'profile'}"],
                pass_fds=(reads, writes), stdout=log, stderr=log,
            )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self.events: list[Answer] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: object) -> Answer:
        """Give a command and wait for its answer; what happens meanwhile is kept."""
        self._number += 1
        command: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return cast(Answer, answer["result"])
            self.events.append(answer)

    def open(self, page: Path, width: int, *, dark: bool = False) -> None:
        """Load a page from disk into a window so many pixels wide."""
        self.events.clear()
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1,
                 mobile=width < DESKTOP)  # fmt: skip
        self.ask("Page.navigate", url=page.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def value(self, expression: str) -> object:
        """What an expression is in the page; the page itself runs none."""
        answer = cast(
            dict[str, dict[str, object]], self.ask("Runtime.evaluate", expression=expression, returnByValue=True)
        )
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as PNG."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        return base64.b64decode(str(answer["data"]))

    def paper(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(str(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"]))

    def close(self) -> None:
        """End it."""
        self._session = None
        self.ask("Browser.close")
        os.close(self._commands)
        os.close(self._answers)
        self._process.wait(20)

    def _next(self) -> Answer:
        while b"\0" not in self._unread:
            octets = os.read(self._answers, 1 << 20)
            assert octets, "Chromium is gone"
            self._unread += octets
        line, self._unread = self._unread.split(b"\0", 1)
        return cast(Answer, json.loads(line))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    started = Browser(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Reports by name: of minutes, of a month, of clients that mean harm, and of nothing."""
    place = tmp_path_factory.mktemp("reports")
    recipes: Mapping[str, Recipe] = {"demo": DEMO, "month": A_MONTH}
    lakes = {name: made_up(Lake(place / name), recipe) for name, recipe in recipes.items()}
    lakes["hostile"] = _hostile(Lake(place / "hostile"))
    lakes["empty"] = Lake(place / "empty")
    lakes["empty"].batches.mkdir(parents=True)
    for name, lake in lakes.items():
        write_report(lake, place / f"{name}.html", None, None)
    return {name: place / f"{name}.html" for name in lakes}


def _hostile(lake: Lake) -> Lake:
    rows = Rows(made_up(lake, DEMO))
    for name in ("<script>console.error(1)</script>", "x" * 4000, "\u202etxt.exe", "a\0b\x1b[31m", "الطلبات" * 40):
        rows.durable(name, "abandoned", 9, user=name, destination=name)
    return rows.write()


@pytest.mark.parametrize("name", ["demo", "month", "hostile", "empty"])
@pytest.mark.parametrize("width", [SMALL_PHONE, 800, DESKTOP])
def test_nothing_is_wider_than_the_window(browser: Browser, pages: Mapping[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width)
    assert browser.value("innerWidth") == width
    assert browser.value("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    inside = "[...document.querySelectorAll('section, figure, header, p, ul, dl, .scroll')]"
    assert browser.value(f"Math.max(...{inside}.map(one => Math.ceil(one.getBoundingClientRect().right)))") <= width  # type: ignore[operator]


@pytest.mark.parametrize("name", ["month", "hostile", "empty"])
def test_the_page_asks_for_nothing_and_complains_of_nothing(
    browser: Browser, pages: Mapping[str, Path], name: str
) -> None:
    browser.open(pages[name], DESKTOP)
    methods = [str(event["method"]) for event in browser.events]
    assert not [method for method in methods if method.startswith(("Log.", "Runtime.exception", "Runtime.console"))]
    requested = [event for event in browser.events if event["method"] == "Network.requestWillBeSent"]
    urls = [cast(dict[str, dict[str, str]], event["params"])["request"]["url"] for event in requested]
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in urls) == 1


@pytest.mark.parametrize("width", [SMALL_PHONE, DESKTOP])
def test_no_text_of_a_plot_is_cut(browser: Browser, pages: Mapping[str, Path], width: int) -> None:
    cut = """[...document.querySelectorAll('svg.plot')].filter(svg =>
      getComputedStyle(svg).display != 'none').flatMap(svg => {
      const box = svg.viewBox.baseVal;
      return [...svg.querySelectorAll('text')].filter(text => {
        const at = text.getBBox();
        return at.x < -1 || at.x + at.width > box.width + 1 || at.y < -1 || at.y + at.height > box.height + 1;
      }).map(text => text.textContent);
    })"""
    for name in ("demo", "month", "hostile"):
        browser.open(pages[name], width)
        assert browser.value(f"JSON.stringify({cut})") == "[]"


def test_one_of_both_drawings_is_shown(browser: Browser, pages: Mapping[str, Path]) -> None:
    shown = "[...document.querySelectorAll('svg.plot.{}')].filter(one => one.getBoundingClientRect().width > 0).length"
    for width, present, absent in ((PHONE, "narrow", "wide"), (DESKTOP, "wide", "narrow")):
        browser.open(pages["demo"], width)
        assert browser.value(shown.format(present)) == 9
        assert browser.value(shown.format(absent)) == 0


def test_dark_and_light_pictures_are_not_blank_and_differ(browser: Browser, pages: Mapping[str, Path]) -> None:
    pictures = []
    for dark in (False, True):
        browser.open(pages["demo"], DESKTOP, dark=dark)
        pictures.append(_points(browser.picture()))
    for points in pictures:
        assert len({points[place : place + 3] for place in range(0, len(points), 3 * 101)}) > 8
    assert pictures[0][3:6] != pictures[1][3:6]


def test_tables_are_open_on_paper(browser: Browser, pages: Mapping[str, Path]) -> None:
    browser.open(pages["demo"], DESKTOP)
    opened = """[...document.querySelectorAll('details')].map(one =>
        one.getBoundingClientRect().height > 1.5 * one.querySelector('summary').getBoundingClientRect().height)"""
    assert set(cast(list[bool], browser.value(opened))) == {False}
    browser.ask("Emulation.setEmulatedMedia", media="print")
    assert set(cast(list[bool], browser.value(opened))) == {True}
    assert browser.paper().startswith(b"%PDF")


@pytest.mark.parametrize("name", ["demo", "month", "hostile"])
def test_no_table_is_wider_than_paper(browser: Browser, pages: Mapping[str, Path], name: str) -> None:
    browser.open(pages[name], A4)
    browser.ask("Emulation.setEmulatedMedia", media="print")
    wide = "[...document.querySelectorAll('table')].filter(one => one.getBoundingClientRect().right > innerWidth + 1)"
    assert browser.value(f"JSON.stringify({wide}.map(one => one.caption.textContent))") == "[]"


def _points(png: bytes) -> bytes:
    """The octets of a PNG's rows, filters and all: enough to see that it is not blank."""
    place, found = 8, b""
    while place < len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == b"IDAT":
            found += png[place + 8 : place + 8 + length]
        place += length + 12
    return zlib.decompress(found)
