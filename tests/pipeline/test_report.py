"""The report without a browser: its content, its markup, and that texts of clients stay texts."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup
from rich.cells import cell_len

from gateway.errors import PipelineError, UsageError
from gateway.journal.histogram import bucket_of, highest_of, percentile
from gateway.pipeline.lake import Lake
from gateway.pipeline.report import FORMATS, ReportOptions, charts, write_report
from gateway.pipeline.report.charts import latency_ticks, lines
from gateway.pipeline.report.formats import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    duration,
    latency,
    name_of,
    rate,
    share,
    shortened,
    si,
    size,
    visible,
)
from gateway.pipeline.report.queries import MOST_POINTS, WIDTHS, Span
from gateway.pipeline.table_schemas import COLUMNS
from gateway.texts import count
from gateway.times import micros_of
from tests.support.report_tables import A_DAY, A_MONTH, A_POINT, AN_HOUR, DEMO, START, Recipe, Rows, made_up

SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "br", "path", "rect", "circle", "line", "polygon"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"\' onload=alert(1) x="',
    "]]></svg><img src=x onerror=alert(1)>",
    "&amp;&lt;b&gt;",
    "\u202egnp.exe",
    "مرحبا بالعالم",
    "nul\0bell\x07esc\x1b[31m",
    "x" * 5000,
    "",
)

Page = Callable[..., str]
Said = Callable[..., str]


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(Lake(tmp_path / "lake"))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return partial(page_text, tmp_path / "report.html")


def page_text(output: Path, lake: Lake, start: datetime | None = None, end: datetime | None = None) -> str:
    # Long after: what is fresh or not has tests of its own.
    write_report(lake.snapshot().sql, ReportOptions(output, start, end, lag=1e9))
    return output.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def page_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Recipe], str]:
    """The page of a recipe, which is made once."""

    @cache
    def made(recipe: Recipe) -> str:
        place = tmp_path_factory.mktemp("made")
        return page_text(place / "report.html", made_up(Lake(place / "lake"), recipe))

    return made


class Outline(HTMLParser):
    """Checks that elements are closed in order, and collects their attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def once(draw: Callable[..., Markup]) -> Callable[..., Markup]:
    """Draw the same chart only once, which takes most of a report's time."""
    known: dict[str, Markup] = {}

    def drawn(*arguments: object, **options: object) -> Markup:
        what = repr((arguments, options))
        if what not in known:
            known[what] = draw(*arguments, **options)
        return known[what]

    return drawn


def plots_of(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r'<svg [^>]*class="plot.*?</svg>', page, re.DOTALL)]  # noqa: S314


def wide_plot(page: str, key: str) -> ET.Element:
    return next(plot for plot in plots_of(page) if f"{key}-wide" in str(plot.get("aria-labelledby")))


def tables_of(page: str) -> dict[str, list[list[str]]]:
    """Rows of cells by caption."""
    found = {}
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        caption = re.search(r"<caption>(.*?)</caption>", table)
        assert caption
        lines = re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
        cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", line, re.DOTALL) for line in lines]
        found[unescape(caption[1])] = [[words_of(cell) for cell in line] for line in cells]
    return found


def words_of(markup: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", markup)).replace("\u00a0", " ")


class TestAsAWhole:
    @pytest.mark.parametrize("recipe", [DEMO, AN_HOUR, A_DAY, A_MONTH, A_POINT], ids=str)
    def test_any_length_makes_a_sound_page(self, page_of: Callable[[Recipe], str], recipe: Recipe) -> None:
        text = page_of(recipe)
        outline = Outline(text)
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert len(plots_of(text)) >= 12

    def test_it_runs_nothing_and_asks_for_nothing(self, page_of: Callable[[Recipe], str]) -> None:
        outline = Outline(page_of(DEMO))
        assert not {"script", "iframe", "img", "object", "form"} & {name for name, _ in outline.tags}
        for name, attributes in outline.tags:
            assert not [key for key in attributes if key.startswith("on")]
            target = attributes.get("href") or attributes.get("src") or "#"
            assert target.startswith("#") or (name == "link" and target == "data:,")
            assert "url(" not in (attributes.get("fill") or "").replace("url(#", "")
        policy = next(attributes for _, attributes in outline.tags if "http-equiv" in attributes)
        assert "default-src 'none'" in str(policy["content"])

    def test_each_plot_says_what_it_shows_and_has_a_table(self, page_of: Callable[[Recipe], str]) -> None:
        text = page_of(DEMO)
        for plot in plots_of(text):
            title, described = plot.find(f"{SVG}title"), plot.find(f"{SVG}desc")
            assert plot.get("role") == "img"
            assert title is not None
            assert described is not None
            assert title.text
            assert described.text
            assert str(plot.get("aria-labelledby")).split() == [title.get("id"), described.get("id")]
        for figure in re.findall(r"<figure>.*?</figure>", text, re.DOTALL):
            assert figure.count('class="plot') == 2
            assert "<table>" in figure
        assert text.count("<caption>") == text.count("<table")
        assert 'scope="col"' in text
        assert 'scope="row"' in text

    def test_no_figure_is_not_a_number(self, page_of: Callable[[Recipe], str]) -> None:
        assert not re.search(r"\b(nan|inf|None)\b", page_of(A_POINT))

    def test_each_table_may_be_missing(self, tmp_path: Path, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("lines", "bars", "stacks", "flows", "lifelines"):
            monkeypatch.setattr(charts, name, once(getattr(charts, name)))
        lake = made_up(Lake(tmp_path / "lake"), DEMO)
        for table in COLUMNS:
            if (place := Path(lake.table_url(table))).exists():
                place.rename(tmp_path / "aside")
                Outline(page(lake))
                (tmp_path / "aside").rename(place)

    def test_the_first_of_a_kind_are_named_and_the_rest_is_counted(self, rows: Rows, page: Page) -> None:
        for number in range(7):
            rows.durable(f"old{number}", "abandoned", 12 + number)
        rows.event(START, "send")
        text = page(rows.write())
        assert words_of(text).count("has not been connected for") == 5
        assert "… and 2 more abandoned durable subscriptions; see the table." in text

    def test_any_name_or_code_may_be_absent(self, rows: Rows, page: Page) -> None:
        rows.event(START, "error", 3, code=None, vhost=None)
        rows.event(START, "blocked", 1, code=None, latency_us=5)
        rows.event(START, "ack", 1, latency_us=0)
        rows.durable("d", "strange", 1, login=None, destination=None, first_seen=None, last_connected=START)
        rows.add("errors_hour", START, hour=START, login=None, code=None, n=3)
        rows.add("features_used", START, vhost=None, login=None, version=None, feature="new", sessions=1)
        rows.add("unacked_hotspots", START, deliveries=3, acked=None, nacked=0)
        text = page(rows.write())
        Outline(text)
        assert "(none)" in text


class TestNumbers:
    def test_the_table_of_traffic_has_what_happened(self, rows: Rows, page: Page) -> None:
        for second, sent in ((0, 30), (10, 50), (20, 0)):
            rows.event(START + timedelta(seconds=second), "send", sent, bytes=sent * 100.0)
        rows.event(START + timedelta(seconds=10), "deliver", 7)
        rows.event(START + timedelta(seconds=10), "deliver", 3, code="redelivered")
        found = tables_of(text := page(rows.write()))["Messages over time"]
        assert [line[:5] for line in found[1:]] == [
            ["2026-11-21 10:00:00", "30", "3/s", "0", "0/s"],
            ["2026-11-21 10:00:10", "50", "5/s", "10", "1/s"],
            ["2026-11-21 10:00:20", "0", "0/s", "0", "0/s"],
        ]
        # In the drawing the second point of "sent" is as high as 5/s on the axis.
        wide = next(plot for plot in plots_of(text) if "wide" in str(plot.get("class")))
        line = next(path for path in wide.iter(f"{SVG}path") if path.get("stroke") == "var(--c1)")
        heights = [float(step.split(",")[1]) for step in str(line.get("d"))[1:].split("L")]
        ticks = {"".join(mark.itertext()): _moved(mark)[1] for mark in wide.iter(f"{SVG}text")}
        per_second = (ticks["0/s"] - ticks["4/s"]) / 4
        assert [(heights[2] - height) / per_second for height in heights] == pytest.approx([3, 5, 0], abs=0.1)

    def test_a_rate_is_of_the_part_of_a_bin_that_was_asked_for(self, rows: Rows, page: Page) -> None:
        for second in range(0, 3620, 10):
            rows.event(START + timedelta(seconds=second), "send", 20)
        text = page(rows.write(), START + timedelta(seconds=10), START + timedelta(seconds=3610))
        found = tables_of(text)["Messages over time"][1:]
        assert [found[0][:3], found[1][:3], found[-1][:3]] == [
            ["2026-11-21 10:00:00", "40", "2/s"], ["2026-11-21 10:00:30", "60", "2/s"],
            ["2026-11-21 11:00:00", "20", "2/s"],
        ]  # fmt: skip

    def test_archived_messages_stand_beside_what_was_sent_in_the_same_hour(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        rows.event(START + timedelta(hours=3), "send")
        assert "Archived messages" not in page(rows.write())
        for at, kept, sent in ((START, 2, 3), (START + timedelta(hours=1), 4, 0), (START + timedelta(hours=2), 0, 7)):
            about = {"vhost": "/", "destination": "/topic/orders"}
            for number in range(kept):
                rows.add("messages", at, **about, archived=at + timedelta(minutes=number), body_bytes=100)
            if sent:
                rows.add("dest_hour", at, **about, hour=at, sent=sent, sent_bytes=sent * 100)
                rows.add("dest_hour", at, vhost="/", destination="/topic/others", hour=at, sent=sent)
        rows.add("messages", START, vhost="/", destination="/topic/orders", archived=START - timedelta(days=2))
        found = tables_of(page(rows.write()))["Archived messages by hour and destination"]
        assert [[*line[:2], line[3], line[5]] for line in found[1:]] == [
            ["2026-11-21 10:00:00", "/topic/orders", "2", "3"], ["2026-11-21 11:00:00", "/topic/orders", "4", "0"],
            ["2026-11-21 12:00:00", "/topic/orders", "0", "7"],
        ]  # fmt: skip

    def test_percentiles_come_from_merged_buckets(self, rows: Rows, page: Page) -> None:
        values = [100 * number for number in range(1, 101)]
        for number, value in enumerate(values):
            rows.event(START + timedelta(minutes=number % 30), "confirm", latency_us=value)
        rows.event(START + timedelta(minutes=60), "send")
        text = page(rows.write())
        counts = {bucket_of(value): 0.0 for value in values}
        for value in values:
            counts[bucket_of(value)] += 1
        p99 = percentile(counts, 0.99)
        assert p99 == highest_of(bucket_of(9900))
        assert f"p99 {latency(p99)}" in text
        first = tables_of(text)["Publish → confirm over time"][1]
        assert first[1:] == [
            "4",
            *(latency(highest_of(bucket_of(value))).replace("\u00a0", " ") for value in (3100, 9100, 9100)),
        ]

    def test_a_point_without_neighbours_is_drawn(self, rows: Rows, page: Page) -> None:
        for second in (0, 600, 630, 1800):
            rows.event(START + timedelta(seconds=second), "ack", latency_us=5000)
        drawn = wide_plot(page(rows.write()), "latency-ack")
        assert len([mark for mark in drawn.iter(f"{SVG}path") if mark.get("fill") == "var(--c4)"]) == 2

    def test_bars_of_errors_stand_on_one_another(self, rows: Rows, page: Page) -> None:
        for code, n in (("a", 30), ("b", 10)):
            rows.event(START, "error", n, code=code)
        drawn = wide_plot(page(rows.write()), "errors")
        boxes = [re.findall(r"[-\d.]+", str(mark.get("d"))) for mark in drawn.iter(f"{SVG}path")
                 if "hatch" in str(mark.get("fill"))]  # fmt: skip
        (_, top1, _, height1), (_, top2, _, height2) = (map(float, box[:4]) for box in boxes)
        assert height1 == pytest.approx(3 * height2, rel=0.01)
        assert top2 + height2 == pytest.approx(top1, abs=0.1)

    def test_errors_by_code_add_up(self, rows: Rows, page: Page) -> None:
        for number in range(12):
            rows.event(START + timedelta(minutes=number), "error", number + 1, code=f"code{number}")
        found = tables_of(page(rows.write()))["Errors over time"]
        assert found[0][1:] == [*(f"code{number}" for number in range(11, 5, -1)), "6 other codes"]
        assert sum(int(cell) for line in found[1:] for cell in line[1:]) == 78

    def test_days_and_nodes_are_added_up(self, rows: Rows, page: Page) -> None:
        for day in range(3):
            at = START + timedelta(days=day)
            rows.event(at, "send", 5)
            rows.add("dest_hour", at, hour=at, destination="/queue/a", sent=5, delivered=1)
            rows.boot(at, at + timedelta(hours=1), closed=day == 2)
        text = page(rows.write())
        assert tables_of(text)["Destinations"][1][:5] == ["/queue/a", "/", "(none)", "15", "0 B"]
        boots = tables_of(text)["Gateways and their boots"]
        assert len(boots) == 2
        assert boots[1][6:] == ["yes", "3,000", "0"]

    def test_sessions_at_once(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        rows.event(START + timedelta(hours=1), "send")
        for begin, end in ((0, 10), (5, 20), (20, 30), (20, 25), (40, None)):
            started, ended = (None if minute is None else START + timedelta(minutes=minute) for minute in (begin, end))
            rows.add("sessions", START, boot="a", started=started, ended=ended)
        assert '<dd class="big">5</dd><dd class="remark">at most 2 at once</dd>' in page(rows.write())

    def test_a_killed_gateway_ended_its_sessions(self, rows: Rows, page: Page) -> None:
        for hour, boot in enumerate(("killed", "next")):
            at = START + timedelta(hours=hour)
            rows.boot(at, at + timedelta(minutes=10), boot=boot, closed=False)
            rows.add("sessions", at, boot=boot, started=at, ended=None)
        assert '<dd class="big">2</dd><dd class="remark">at most 1 at once</dd>' in page(rows.write())

    def test_more_destinations_than_bars(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        for number in range(20):
            rows.add("dest_hour", START, hour=START, destination=f"/queue/{number:02}", sent=100 - number, delivered=1)
        text = page(rows.write())
        drawn = wide_plot(text, "destinations")
        names = [mark.text for mark in drawn.iter(f"{SVG}text") if mark.get("text-anchor") == "end"]
        assert names == [*(f"/queue/{number:02}" for number in range(15)), "5 others together"]
        assert len(tables_of(text)["Destinations"]) == 21

    def test_one_destination_more_than_bars_has_its_name(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        for number in range(16):
            rows.add("dest_hour", START, hour=START, destination=f"/queue/{number:02}", sent=100 - number, delivered=1)
        drawn = wide_plot(page(rows.write()), "destinations")
        names = [mark.text for mark in drawn.iter(f"{SVG}text") if mark.get("text-anchor") == "end"]
        assert names == [f"/queue/{number:02}" for number in range(16)]


def _moved(mark: ET.Element) -> tuple[float, ...]:
    found = re.search(r"translate\(([-\d.]+),([-\d.]+)\)", str(mark.get("transform")))
    assert found
    return tuple(float(part) for part in found.groups())


class TestByMail:
    """What somebody who was not there understands without asking."""

    def test_the_login_of_a_long_destination_is_drawn(self, rows: Rows, page: Page) -> None:
        for login in ("billing", "shipping"):
            rows.add("redeliveries_hour", START, hour=START, login=login, destination="/queue/" + "long" * 20,
                     delivered=50, redelivered=30)  # fmt: skip
        rows.event(START, "deliver", 100)
        drawn = wide_plot(page(rows.write()), "redelivered")
        texts = {str(mark.text) for mark in drawn.iter(f"{SVG}text")}
        assert {name for name in texts if name.endswith((" · billing", " · shipping"))} == {
            "/queue/longlo…glonglonglong · billing", "/queue/longlo…glonglonglong · shipping",
        }  # fmt: skip

    def test_a_p99_is_that_of_one_virtual_host(self, rows: Rows, page: Page) -> None:
        for vhost, latency_us in (("/", 1000), ("slow", 900_000)):
            rows.event(START, "confirm", 100, vhost=vhost, latency_us=latency_us)
        text = page(rows.write())
        assert "99th percentile of slow, the slowest of 2 virtual hosts" in text
        rows.by_table.clear()
        rows.event(START, "confirm", 100, latency_us=1000)
        assert "99th percentile</dd>" in page(rows.write())

    def test_what_was_sent_to_nobody_is_no_loss(self, rows: Rows, page: Page) -> None:
        for place, kind, subscribed, delivered in (
            ("/topic/a", "topic", None, 0), ("/topic/b", "topic", "/topic/#", 0), ("/queue/a", "queue", None, 0),
            ("/queue/b", "queue", "/queue/b", 7),
        ):  # fmt: skip
            rows.add("dest_hour", START, hour=START, destination=place, dest_kind=kind, sent=960, delivered=delivered)
            rows.add("flows_hour", START, hour=START, destination=place, sender="app", subscribed=subscribed,
                     receiver=subscribed and "reader", messages=960.0, bytes=1.0)  # fmt: skip
        rows.add("dest_hour", START, hour=START, destination="/topic/old", dest_kind="topic", sent=1, delivered=0)
        rows.event(START, "send", 960)
        found = {row[0]: row[-1] for row in tables_of(page(rows.write()))["Destinations"][1:]}
        assert found == {
            "/topic/a": "nobody subscribed here", "/topic/b": "delivered to wildcards",
            "/queue/a": "nobody consumed here", "/queue/b": "", "/topic/old": "",
        }  # fmt: skip

    def test_a_line_for_each_node(self, rows: Rows, page: Page) -> None:
        for node, first, written in (("a", 0, 10), ("b", 1, 20), ("a", 2, 30)):
            at = START + timedelta(minutes=first)
            rows.boot(at, at + timedelta(minutes=1), node=node, boot=f"{node}{first}", lines=written)
        rows.add("sessions", START, node="a", started=START, bytes_in=2000, bytes_out=1)
        for minutes in (0, 5):
            rows.event(START + timedelta(minutes=minutes), "send", 1)
        _, *found = tables_of(page(rows.write()))["A line for each node"]
        assert [(row[0], row[3], row[6], row[9]) for row in found] == [("b", "1", "0", "20"), ("a", "2", "1", "40")]

    def test_the_last_day_against_the_one_before_and_a_week_before(self, rows: Rows, page: Page) -> None:
        for days, sent in ((0, 10), (1, 20), (2, 3), (6, 4), (7, 50), (8, 6)):
            rows.event(START + timedelta(days=8 - days), "send", sent)
        caption = "The last day against the one before, and a week before"
        _, *found = tables_of(page(rows.write()))[caption]
        assert [row[:2] for row in found] == [
            ["The last 24 hours", "10"], ["The 24 hours before", "20"], ["A week before", "50"],
        ]  # fmt: skip

    def test_who_talks_to_whom_with_200_nodes(self, rows: Rows, page: Page) -> None:
        for number in range(200):
            place = f"/queue/{number}"
            rows.add("flows_hour", START, hour=START, sender=f"s{number}", destination=place, subscribed=place,
                     receiver=f"r{number}", messages=1000.0 - number, bytes=1.0)  # fmt: skip
        rows.add("flows_hour", START, hour=START, sender="s0", destination="/topic/a", messages=5000.0, bytes=1.0)
        rows.event(START, "send", 1)
        text = page(rows.write())
        drawn = wide_plot(text, "flows")
        names = [str(mark.text) for mark in drawn.iter(f"{SVG}text")]
        assert len(names) == 48
        assert {"s0", "/topic/a", "(nobody)", "185 others", "186 others"} <= {*names}
        assert len(tables_of(text)["Who sends to whom"]) == 202


class TestTime:
    def test_only_the_span_asked_for_counts(self, rows: Rows, page: Page) -> None:
        for hour in range(30):
            at = START + timedelta(hours=hour)
            rows.event(at, "send", 1)
            rows.event(at, "error", 1, code="x")
            rows.add("dest_hour", at, hour=at, destination="/queue/a", sent=1)
            rows.add("errors_hour", at, hour=at, code="x", n=1)
        lake = rows.write()
        text = page(lake, START + timedelta(hours=10), START + timedelta(hours=20))
        assert "2026-11-21 20:00:00" in text
        assert '<dt>Messages sent</dt><dd class="big">10</dd>' in text
        assert tables_of(text)["Destinations"][1][3] == "10"
        assert tables_of(text)["Errors by code and login"][1][3] == "10"
        assert '<dd class="big">30</dd>' in page(lake, START - timedelta(days=900), START + timedelta(days=900))

    def test_another_zone_means_the_same_moment(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send", 1)
        rows.event(START + timedelta(hours=2), "send", 1)
        asked = datetime.fromisoformat("2026-11-21T13:00:00+02:00")
        assert "2026-11-21 11:00:00" in page(rows.write(), asked)

    def test_nothing_in_the_span(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send", 1)
        text = page(rows.write(), START + timedelta(days=1), START + timedelta(days=2))
        assert "nothing in the lake for the time" in text
        assert "2026-11-21 10:00:00 to 2026-11-21 10:00:10" in text

    def test_a_span_that_is_none_is_refused(self, tmp_path: Path, page: Page) -> None:
        with pytest.raises(UsageError, match=r"--from .* is not before --to"):
            page(Lake(tmp_path), START + timedelta(hours=1), START)
        with pytest.raises(UsageError, match="time zone"):
            page(Lake(tmp_path), START.replace(tzinfo=None))

    def test_what_was_there_before_the_epoch_counts(self, rows: Rows, page: Page) -> None:
        rows.event(datetime(1969, 12, 31, 23, 59, 50, tzinfo=UTC), "send", 40)
        rows.event(datetime(1970, 1, 1, 0, 45, tzinfo=UTC), "send", 2)
        found = tables_of(page(rows.write()))["Messages over time"]
        assert found[1][:2] == ["1969-12-31 23:59:30", "40"]
        assert sum(int(line[1]) for line in found[1:]) == 42

    @pytest.mark.parametrize("length", [SECOND * 10, 3 * MINUTE, HOUR, DAY, 30 * DAY, 180 * DAY])
    def test_bins_are_neither_few_nor_many(self, length: int) -> None:
        span = Span(micros_of(START), micros_of(START) + length)
        width = span.width(MOST_POINTS)
        assert width in WIDTHS
        assert len(span.bins(width)) <= MOST_POINTS + 1
        assert len(span.bins(width)) >= min(MOST_POINTS // 6, length // WIDTHS[0])

    def test_clocks_that_were_wrong_make_no_endless_report(self, rows: Rows, page: Page) -> None:
        for at in (datetime(1970, 1, 1, tzinfo=UTC), START, datetime(9999, 12, 31, 23, 59, 50, tzinfo=UTC)):
            rows.event(at, "send", 5)
            rows.event(at, "error", 2, code="bad-header")
            rows.event(at, "confirm", 5, latency_us=2000)
        text = page(rows.write())
        Outline(text)
        assert {len(lines) for caption, lines in tables_of(text).items() if "over time" in caption} == {501}
        assert len(text) < 5_000_000
        assert "1970-01-01 00:00:00 to 9999-12-31 23:59:59 UTC" in text

    @pytest.mark.parametrize("years", [9, 30, 300, 8029])
    def test_bins_of_centuries_are_not_too_many(self, years: int) -> None:
        span = Span(0, years * 365 * DAY)
        assert len(span.bins(span.width(MOST_POINTS))) <= 3001
        assert len(span.bins(span.period)) <= 10 * 366 * 24
        assert span.width(60) % span.width(MOST_POINTS) == 0

    def test_each_width_divides_the_next(self) -> None:
        assert all(wide % narrow == 0 for narrow, wide in pairwise(WIDTHS))


class TestEmptyLake:
    def test_it_says_so_and_what_to_do(self, tmp_path: Path, page: Page) -> None:
        text = page(Lake(tmp_path / "none"))
        Outline(text)
        assert "The lake is empty" in text
        assert "stomp-gateway pipeline ingest" in text

    def test_tables_without_rows_are_no_trouble(self, tmp_path: Path, page: Page) -> None:
        lake = Lake(tmp_path / "lake")
        for table in COLUMNS:
            lake.create(table)
        assert "The lake is empty" in page(lake)

    def test_boots_alone_are_enough(self, rows: Rows, page: Page) -> None:
        rows.boot(START, START + timedelta(hours=1))
        text = page(rows.write())
        assert "Nothing needs attention." in text
        assert "No ERROR frame was sent" in text


class TestFiles:
    def test_a_place_that_cannot_be_written(self, rows: Rows, tmp_path: Path) -> None:
        sql = rows.write().snapshot().sql
        with pytest.raises(PipelineError, match=r"cannot write .*report.html: No such file"):
            write_report(sql, ReportOptions(tmp_path / "no" / "report.html"))
        (tmp_path / "directory").mkdir()
        for directory in (tmp_path / "directory", Path(), Path(".."), Path("/")):
            with pytest.raises(PipelineError, match=f"-o {directory} is a directory"):
                write_report(sql, ReportOptions(directory))
        assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "lake"]

    def test_the_old_report_stays_until_the_new_one_is_whole(
        self, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lake = rows.write()
        output = tmp_path / "report.html"
        output.write_text("old")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(PipelineError, match="No space left"):
            write_report(lake.snapshot().sql, ReportOptions(output))
        assert output.read_text() == "old"
        assert sorted(tmp_path.iterdir()) == [Path(lake.url), output]

    def test_a_damaged_table_is_an_error_that_names_the_file(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        lake = rows.write()
        for file in lake.files("traffic_10s"):
            Path(file).write_bytes(b"PAR1 and no more")
        with pytest.raises(PipelineError, match="traffic_10s"):
            page(lake)


class TestTextsOfClients:
    def test_they_are_never_markup(self, rows: Rows, page: Page) -> None:
        for number, text in enumerate(HOSTILE):
            at = START + timedelta(seconds=10 * number)
            rows.event(at, "error", 50, code=text)
            rows.event(at, "blocked", 5, code=text, latency_us=100)
            rows.durable(text, "abandoned", 9, login=text, destination=text, vhost=text)
            rows.boot(at, at, node=text, boot=str(number), impl=text, gateway_version=text, dropped=3)
            where = {"vhost": text, "login": text, "destination": text, "hour": START}
            rows.add("dest_hour", START, vhost=text, hour=START, destination=text, dest_kind=text, sent=9, delivered=9,
                     redelivered=50, rejected=1)  # fmt: skip
            rows.add("redeliveries_hour", START, **where, delivered=50, redelivered=25)
            rows.add("errors_hour", START, vhost=text, hour=START, login=text, code=text, n=50)
            rows.add("latency_hour", START, vhost=text, hour=START, destination=text, event="ack", n=50, p99_us=9)
            rows.add("unacked_hotspots", START, vhost=text, login=text, destination=text, deliveries=50, acked=0)
            rows.add("features_used", START, vhost=text, login=text, version=text, feature=text,
                     sessions=1, first_seen=START, last_seen=START)  # fmt: skip
        text = page(rows.write())
        outline = Outline(text)
        for plot in plots_of(text):
            assert plot.get("role") == "img"
        assert not {"script", "img", "b"} & {name for name, _ in outline.tags}
        assert not [key for _, attributes in outline.tags for key in attributes if key in ("onload", "onerror")]
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
        assert "nul\\x00bell\\x07esc\\x1b[31m" in text
        assert "\\u202egnp.exe" in text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", text)
        assert "(empty)" in text
        assert "x" * 2001 not in text
        assert max(map(len, re.findall(r"(?<!<title)>(x[x…]+)<", text))) <= 60

    def test_what_cannot_be_seen_is_written_out(self) -> None:
        assert visible("plain /topic/a b") == "plain /topic/a b"
        assert visible("søren مرحبا 日本 😀") == "søren مرحبا 日本 😀"
        assert visible("\x7f\u2028\ufffe\U0001ffff") == "\\x7f\\u2028\\ufffe\\U0001ffff"
        assert [name_of(text) for text in (None, "", " a")] == ["(none)", "(empty)", " a"]

    def test_both_ends_of_a_long_name_stay(self) -> None:
        assert shortened("/queue/short", 20) == "/queue/short"
        assert shortened("/queue/one-that-is-long.7", 15) == "/queue/…-long.7"
        assert cell_len(shortened("日本語" * 20, 11)) <= 11

    @pytest.mark.parametrize("letter", ["e\u0301", "\u0301", "\u2764\ufe0f", "\U0001f468\u200d\U0001f469"])
    def test_signs_without_a_width_do_not_make_a_name_long(self, letter: str) -> None:
        assert len(shortened(letter * 500, 40)) <= 40


class TestWhatStandsOut:
    """Each threshold, just reached and just missed."""

    @pytest.fixture
    def said(self, rows: Rows, tmp_path: Path) -> Callable[..., str]:
        """Writes the lake and returns the sentences, those of rules that need attention with an exclamation mark."""

        def ask(now: datetime = START, **options: Any) -> str:  # noqa: ANN401 - of ReportOptions
            rows.event(START, "connect")
            found = findings(rows.write(), tmp_path, now, **options)["findings"]
            return "\n".join(f"{'! ' if one['attention'] else ''}{one['text']}" for one in found)

        return ask

    def test_calm(self, said: Said) -> None:
        assert "!" not in said()

    def test_busiest_and_largest(self, rows: Rows, said: Said) -> None:
        for second, sent, delivered in ((0, 50, 10), (10, 30, 40), (20, 60, 10)):
            rows.event(START + timedelta(seconds=second), "send", sent)
            rows.event(START + timedelta(seconds=second), "deliver", delivered)
        rows.add("dest_hour", START, hour=START, destination="/queue/a", sent=40, delivered=20)
        rows.add("dest_hour", START, hour=START, destination="/queue/b", sent=100, delivered=40)
        text = said()
        assert "The busiest ten seconds began at 10:00:10 on 21 Nov 2026: 3/s sent and 4/s delivered." in text
        assert "/queue/b has the most traffic: 70 % of all messages (100 sent, 40 delivered)." in text

    def test_abandoned(self, rows: Rows, said: Said) -> None:
        for number in range(7):
            rows.durable(f"old{number}", "abandoned", 12 + number)
        rows.durable("resting", "idle", 3)
        text = said()
        assert "The durable subscription old6 of billing to /topic/prices has not been connected for 18 d" in text
        assert "unless it expires: delete it" in text
        assert text.count("! The durable subscription") == 7
        assert "resting" not in text

    @pytest.mark.parametrize(("acked", "says"), [(180, True), (181, False)])
    def test_unacknowledged_share(self, rows: Rows, said: Said, acked: int, says: bool) -> None:
        rows.add("unacked_hotspots", START, login="a", destination="/queue/a", deliveries=200, acked=acked, nacked=0)
        assert ("/queue/a: 10 % of its deliveries (20 of 200) were not acknowledged" in said()) is says

    def test_few_unacknowledged_are_not_many(self, rows: Rows, said: Said) -> None:
        rows.add("unacked_hotspots", START, login="a", destination="/queue/a", deliveries=19, acked=0, nacked=0)
        assert "not acknowledged" not in said()

    def test_answers_of_the_next_day_count(self, rows: Rows, said: Said) -> None:
        rows.event(START + timedelta(days=1), "connect")
        for day, deliveries, acked in ((0, 100, 20), (1, 0, 80)):
            rows.add("unacked_hotspots", START + timedelta(days=day), login="a", destination="/queue/a",
                     deliveries=deliveries, acked=acked, nacked=0)  # fmt: skip
        assert "not acknowledged" not in said()

    @pytest.mark.parametrize(("delivered", "again", "says"), [(200, 10, True), (201, 10, False), (20, 9, False)])
    def test_redelivered(self, rows: Rows, said: Said, delivered: int, again: int, says: bool) -> None:
        rows.add("dest_hour", START, hour=START, destination="/queue/a", delivered=delivered, redelivered=again)
        assert (f"/queue/a: 5.0 % of its deliveries (10 of {delivered}) were redeliveries" in said()) is says

    def test_rejected(self, rows: Rows, said: Said) -> None:
        rows.add("dest_hour", START, hour=START, destination="/queue/a", sent=1, rejected=1)
        assert "The broker rejected 1 message to /queue/a." in said()

    @pytest.mark.parametrize(("worst", "usual", "says"), [(10, 2, True), (10, 3, False), (9, 0, False)])
    def test_an_error_jumped(self, rows: Rows, said: Said, worst: int, usual: int, says: bool) -> None:
        for hour in range(12):
            rows.event(START + timedelta(hours=hour), "error", worst if hour == 5 else usual, code="not_found")
        jump = "The error not_found jumped: 10 in the hour from 15:00:00 on 21 Nov 2026, against 2.0 in other hours"
        assert (jump in said()) is says

    @pytest.mark.parametrize(("worst", "n", "says"), [(61_000, 100, True), (55_000, 100, False), (61_000, 99, False)])
    def test_a_slow_hour(self, rows: Rows, said: Said, worst: int, n: int, says: bool) -> None:
        for hour in range(12):
            slow = hour == 3
            value = worst if slow else 20_000
            rows.event(START + timedelta(hours=hour), "ack", n if slow else 100, latency_us=value)
        text = said()
        assert ("Deliver → acknowledge was slow in the hour from 13:00:00 on 21 Nov 2026" in text) is says

    def test_nobody_waits_for_what_is_short(self, rows: Rows, said: Said) -> None:
        for hour in range(12):
            rows.event(START + timedelta(hours=hour), "confirm", 100, latency_us=9_000 if hour == 3 else 100)
        assert "slow" not in said()

    def test_minutes_are_compared_in_a_few_hours(self, rows: Rows, said: Said) -> None:
        for minute in range(30):
            rows.event(START + timedelta(minutes=minute), "error", 40 if minute == 9 else 1, code="x")
        assert "The error x jumped: 40 in the minute from 10:09:00" in said()

    def test_a_boot_that_never_closed(self, rows: Rows, said: Said) -> None:
        rows.boot(START, START + timedelta(minutes=5), closed=False)
        rows.boot(START + timedelta(minutes=6), START + timedelta(minutes=9), boot="b", closed=False)
        rows.boot(START, START + timedelta(minutes=5), node="gw2", boot="c", dropped=17)
        rows.event(START + timedelta(minutes=9), "connect")
        text = said()
        assert text.count("never closed its journal") == 1
        assert "the boot of 10:00:00 on 21 Nov 2026 wrote its last line at 10:05:00" in text
        assert "gw2 dropped 17 journal lines" in text
        assert text.count("lower bound") == 2

    def test_unknown_features_and_mixed_recorders(self, rows: Rows, said: Said) -> None:
        rows.boot(START, START + timedelta(minutes=1))
        rows.boot(START, START + timedelta(minutes=1), boot="b", impl="tap")
        rows.add("features_used", START, login="a", version="1.2", feature="telepathy", sessions=1)
        text = said()
        assert "Clients use a feature that this version does not know: telepathy." in text
        assert "answers differently" not in text
        assert "several kinds wrote this (gateway, tap)" in text

    def test_uses_that_the_gateway_answers_differently(self, rows: Rows, said: Said) -> None:
        for login, sessions in (("a", 3), ("b", 4)):
            rows.add("features_used", START, login=login, feature="subscribe/prefetch-next", sessions=sessions)
        text = said()
        assert (
            "! In 7 sessions clients do what the gateway answers differently than RabbitMQ's plugin: "
            "subscribe/prefetch-next."
        ) in text
        assert "does not know" not in text

    def test_redeliveries_jumped(self, rows: Rows, said: Said) -> None:
        for hour in range(12):
            rows.event(START + timedelta(hours=hour), "deliver", 20 if hour == 5 else 4, code="redelivered")
            rows.event(START + timedelta(hours=hour), "deliver", 500 if hour == 6 else 4)
        text = said()
        assert "! Redeliveries jumped: 20 in the hour from 15:00:00 on 21 Nov 2026, against 4.0" in text
        assert text.count("jumped") == 1

    def test_the_newest_line_is_old(self, rows: Rows, said: Said) -> None:
        rows.boot(START, START + timedelta(minutes=10))
        now = START + timedelta(minutes=41)
        assert "newest line" not in said(now)
        assert "! The newest line in the lake is 31 min old" in said(now, lag=1800)
        assert "newest line" not in said(now, lag=1860)
        assert "newest line" not in said(now, lag=60, end=START + timedelta(minutes=20))

    def test_one_node_is_silent_and_others_live(self, rows: Rows, said: Said) -> None:
        """A line that is dated ahead, and nodes that live, hide nothing; a node that has closed is not expected."""
        now = START + timedelta(hours=3)
        for node, newest, ingested in (
            ("lives", now - timedelta(minutes=5), now - timedelta(minutes=1)),
            ("silent", START, START + timedelta(minutes=1)),
            ("ahead", START + timedelta(days=400), START + timedelta(minutes=1)),
            ("closed", START, START + timedelta(minutes=1)),
            ("gone", START - timedelta(days=7, hours=22), START),
        ):
            rows.add("segments", newest, node=node, impl="gateway", newest=newest, ingested=ingested, d="2026-11-21")
            rows.boot(newest, newest, node=node, boot=node, closed=node == "closed")
        text = said(now)
        assert "! silent has written no line for 3 h, and has not closed its journal" in text
        assert "! ahead has written no line for 2 h 59 min" in text
        assert text.count("has written no line") == 2
        assert "! The clock of ahead is 399 d 23 h ahead" in text
        assert text.count("ahead:") == 1
        assert "newest line" not in text
        late = said(now + timedelta(hours=2))
        assert "! The newest line in the lake is 2 h" in late
        assert "has written no line" not in late

    def test_the_busiest_second_where_messages_have_lines(self, rows: Rows, said: Said) -> None:
        for second, sent in ((0, 100), (10, 90), (20, 10)):
            rows.event(START + timedelta(seconds=second), "send", sent)
        # 60 of the 90 in one second; a sampled line counts with its weight; other lines are no messages.
        for _ in range(30):
            rows.add("events", START, ts=START + timedelta(seconds=13), event="send", level="message", weight=2.0)
        for second, event in ((12, "send"), (13, "confirm"), (13, "ack"), (3, "send"), (4, "send")):
            rows.add("events", START, ts=START + timedelta(seconds=second), event=event, level="message")
        text = said()
        assert "The busiest second was 10:00:13 on 21 Nov 2026: 60/s sent and 0/s delivered." in text
        assert "!" not in text
        assert "! The busiest second" in said(peak=59)
        assert "! The busiest" not in said(peak=60)


class TestForPrograms:
    def test_json_has_rules_values_and_times(self, rows: Rows, tmp_path: Path) -> None:
        rows.event(START, "send", 5)
        for number in range(120):
            rows.durable(f"old{number:03}\x1b", "abandoned", 12)
        found = findings(rows.write(), tmp_path, START + timedelta(minutes=1))
        assert (found["version"], found["from"], found["to"]) == (1, "2026-11-21T10:00:00Z", "2026-11-21T10:00:10Z")
        assert (found["generated"], found["newest_line"]) == ("2026-11-21T10:01:00Z", "2026-11-21T10:00:10Z")
        assert {rule: n for rule, n in found["counts"].items() if n} == {"abandoned-subscription": 120, "peak": 1}
        first = found["findings"][0]
        assert first.pop("text").startswith("The durable subscription old000\\x1b of billing to /topic/prices has")
        assert first == {
            "rule": "abandoned-subscription", "attention": True, "vhost": "/", "login": "billing",
            "sub_name": "old000\\x1b", "destination": "/topic/prices", "days_idle": 12.0,
        }  # fmt: skip
        assert len(found["findings"]) == 101
        assert found["findings"][-1]["at"] == "2026-11-21T10:00:00Z"

    def test_prometheus_has_a_gauge_for_each_rule(self, rows: Rows, tmp_path: Path) -> None:
        rows.event(START, "send", 500)
        for name in ("a", "b"):
            rows.durable(name, "abandoned", 12)
        lake = rows.write()
        text = written(lake, tmp_path, START + timedelta(hours=3), form="prometheus")
        lines = text.splitlines()
        assert 'stomp_lake_findings{rule="abandoned-subscription"} 2' in lines
        assert 'stomp_lake_findings{rule="lake-lag"} 1' in lines
        assert 'stomp_lake_findings{rule="error-jump"} 0' in lines
        assert 'stomp_lake_findings{rule="peak"} 0' in lines
        assert f"stomp_lake_newest_line_timestamp_seconds {START.timestamp() + 10!r}" in lines
        assert f"stomp_lake_report_timestamp_seconds {START.timestamp() + 3 * 3600!r}" in lines
        assert "stomp_lake_peak_messages_per_second 50.0" in lines
        assert 'stomp_lake_findings{rule="node-silent"} 0' in lines
        assert re.fullmatch(r"(# HELP \w+ .+\n# TYPE \w+ gauge\n(\w+(\{rule=\"[a-z-]+\"\})? [\d.e+-]+\n)*)+", text)
        alert = written(lake, tmp_path, START, form="prometheus", peak=49)
        assert 'stomp_lake_findings{rule="peak"} 1' in alert.splitlines()

    @pytest.mark.parametrize("form", ["json", "prometheus"])
    def test_an_empty_lake_is_late_and_nothing_else(self, tmp_path: Path, form: str) -> None:
        text = written(Lake(tmp_path / "none"), tmp_path, START, form=form)
        if form == "json":
            found = json.loads(text)
            assert {rule: n for rule, n in found["counts"].items() if n} == {"lake-lag": 1}
            assert found["findings"][0]["lag_seconds"] is None
            assert found["findings"][0]["text"].startswith("The lake has no lines: ingest does not run")
            assert found["newest_line"] is None
        else:
            assert re.findall(r"stomp_lake_findings.* [^0]$", text, re.MULTILINE) == [
                'stomp_lake_findings{rule="lake-lag"} 1'
            ]
            assert "\nstomp_lake_newest_line" not in text

    @pytest.mark.parametrize("end", [None, START + timedelta(hours=1)])
    @pytest.mark.parametrize("form", FORMATS)
    def test_without_traffic_all_formats_find_the_same(
        self, rows: Rows, tmp_path: Path, form: str, end: datetime | None
    ) -> None:
        for number in range(7):
            rows.durable(f"old{number}<&", "abandoned", 12)
        sql, now = rows.write().snapshot().sql, START + timedelta(days=1)
        found = write_report(sql, ReportOptions(tmp_path / "out", form=form, start=START, end=end), now)
        assert found == [*(["lake-lag"] if end is None else []), "abandoned-subscription"]
        if form == "html":
            text = (tmp_path / "out").read_text("utf-8")
            Outline(text)
            assert "old0&lt;&amp;" in text
            assert "and 2 more abandoned durable subscriptions.<" in text
            assert ("The lake has no lines" in text) == (end is None)

    def test_it_returns_the_rules_that_need_attention(self, rows: Rows, tmp_path: Path) -> None:
        rows.event(START, "send", 5)
        rows.add("dest_hour", START, hour=START, destination="/queue/a", sent=5, rejected=1)
        lake = rows.write()
        for form in FORMATS:
            options = ReportOptions(tmp_path / "out", form=form)
            assert write_report(lake.snapshot().sql, options, START) == ["rejected"]


def written(lake: Lake, place: Path, now: datetime, **options: Any) -> str:  # noqa: ANN401 - of ReportOptions
    write_report(lake.snapshot().sql, ReportOptions(place / "out", **options), now)
    return (place / "out").read_text("utf-8")


def findings(lake: Lake, place: Path, now: datetime, **options: Any) -> dict[str, Any]:  # noqa: ANN401 - as above
    found: dict[str, Any] = json.loads(written(lake, place, now, form="json", **options))
    return found


class TestUnits:
    def test_numbers(self) -> None:
        assert [si(value) for value in (0, 0.1234, 1, 999.6, 12_345, 1.5e9)] == [
            "0",
            "0.123",
            "1",
            "1k",
            "12.3k",
            "1.5G",
        ]
        assert [count(value) for value in (0, 9999, 10_000)] == ["0", "9,999", "10k"]
        assert size(1_234_567).split() == ["1.23", "MB"]
        assert rate(1500) == "1.5k/s"
        assert [words_of(share(part)) for part in (0, 0.0004, 0.05, 0.5)] == ["0.0 %", "under 0.1 %", "5.0 %", "50 %"]

    def test_spans_of_time_stay_on_one_line(self) -> None:
        assert [latency(value) for value in (850, 12_345, None)] == ["850\u00a0µs", "12.3\u00a0ms", "-"]
        assert duration(12 * DAY + 4 * HOUR + MINUTE) == "12\u00a0d\u00a04\u00a0h"


class TestScales:
    @pytest.mark.parametrize("values", [[0], [1, 2], [900, 70_000], [3, 90_000_000], [1, 9e13], [5e9, 9e11], [1e13]])
    def test_latency_ticks_hold_all(self, values: Sequence[float]) -> None:
        ticks = latency_ticks(values)
        assert 2 <= len(ticks) <= 10
        assert ticks == sorted(set(ticks))
        assert all(ticks[0] <= max(value, 1) <= ticks[-1] for value in values)

    @pytest.mark.parametrize(
        ("length", "first", "under"),
        [
            (30 * SECOND, "10:00:00", "21 Nov 2026"),
            (HOUR, "10:00", "21 Nov 2026"),
            (3 * DAY, "12:00", "21 Nov 2026"),
            (30 * DAY, "23 Nov", "2026"),
            (400 * DAY, "1 Dec", "2026"),
            (4000 * DAY, "2027", ""),
        ],
    )
    def test_ticks_of_time_are_of_the_calendar(self, length: int, first: str, under: str) -> None:
        labels = _time_labels(micros_of(START), length)
        assert labels[0] == [first, under]
        assert 2 <= len(labels) <= 16

    def test_midnight_shows_the_date(self) -> None:
        labels = _time_labels(micros_of(datetime(2026, 12, 31, 20, tzinfo=UTC)), 8 * HOUR)
        assert [under for _, under in labels if under] == ["31 Dec 2026", "1 Jan"]
        assert ["00:00", "1 Jan"] in labels


def _time_labels(start: int, length: int) -> list[list[str]]:
    """Both lines of the labels along the bottom of a plot for wide screens."""
    drawn = lines("a", "title", "what", Span(start, start + length), [{"middle": start, "sent": 1.0}], ["sent"])
    texts = (mark.findall(f"{SVG}tspan") for mark in plots_of(drawn)[0].iter(f"{SVG}text"))
    return [[line.text or "" for line in pair] for pair in texts if pair]


class TestColours:
    STYLE = (Path(__file__).parents[2] / "gateway/pipeline/report/style.css").read_text(encoding="utf-8")

    @pytest.mark.parametrize("mode", [0, 1], ids=["light", "dark"])
    def test_contrast(self, mode: int) -> None:
        found = re.findall(r":root \{(.*?)\}", self.STYLE, re.DOTALL)[mode]
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", found))
        for ground in ("paper", "soft", "warn-paper"):
            for ink in ("ink", "quiet", "link", "warn"):
                assert contrast(colours[ink], colours[ground]) >= 4.5, (ink, ground)
        assert contrast(colours["ink"], colours["used"]) >= 4.5
        for drawn in ("c1", "c2", "c3", "c4", "c5", "c6", "c7", "axis"):
            assert contrast(colours[drawn], colours["paper"]) >= 3, drawn


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def _luminance(colour: str) -> float:
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
