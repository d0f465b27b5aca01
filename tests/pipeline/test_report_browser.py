"""The report in a browser: Chromium, driven over a pipe."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import pytest

from gateway.pipeline.lake import Lake
from gateway.pipeline.report import ReportOptions, write_report
from tests.support.browser import DESKTOP, PHONE, SMALL_PHONE, Browser
from tests.support.report_tables import A_MONTH, DEMO, Recipe, Rows, made_up

A4 = 680  # without its margins


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Reports by name: on minutes, on a month, on hostile clients, and on an empty lake."""
    place = tmp_path_factory.mktemp("reports")
    recipes: Mapping[str, Recipe] = {"demo": DEMO, "month": A_MONTH}
    lakes = {name: made_up(Lake(place / name), recipe) for name, recipe in recipes.items()}
    lakes["hostile"] = _hostile(Lake(place / "hostile"))
    lakes["empty"] = Lake(place / "empty")
    for name, lake in lakes.items():
        write_report(lake.snapshot().sql, ReportOptions(place / f"{name}.html"))
    return {name: place / f"{name}.html" for name in lakes}


def _hostile(lake: Lake) -> Lake:
    rows = Rows(made_up(lake, DEMO))
    for name in (
        "<script>console.error(1)</script>",
        "x" * 4000,
        "W" * 4000,
        "日本" * 99,
        "\u202etxt.exe",
        "a\0b\x1b[31m",
        "الطلبات" * 40,
    ):
        rows.durable(name, "abandoned", 9, login=name, destination=name)
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
    assert not browser.complaints
    urls = browser.requested
    assert {url.partition(":")[0] for url in urls} <= {"file", "data"}
    assert sum(url.startswith("file:") for url in urls) == 1


@pytest.mark.parametrize("width", [SMALL_PHONE, DESKTOP])
def test_no_text_of_a_plot_is_cut(browser: Browser, pages: Mapping[str, Path], width: int) -> None:
    cut = """[...document.querySelectorAll('svg.plot')].filter(svg =>
      getComputedStyle(svg).display != 'none').flatMap(svg => {
      const box = svg.getBoundingClientRect();
      return [...svg.querySelectorAll('text')].filter(text => {
        const at = text.getBoundingClientRect();
        return at.left < box.left - 1 || at.right > box.right + 1 || at.top < box.top - 1 || at.bottom > box.bottom + 1;
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
    """The bytes of a PNG's rows, filters and all: enough to see that it is not blank."""
    place, found = 8, b""
    while place < len(png):
        length = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == b"IDAT":
            found += png[place + 8 : place + 8 + length]
        place += length + 12
    return zlib.decompress(found)
