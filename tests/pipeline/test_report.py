"""The report without a browser: its content, its markup, and that texts of clients stay texts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from html import unescape
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.errors import PipelineError, UsageError
from gateway.journal.histogram import bucket_of, highest_of, percentile
from gateway.pipeline.parquet_lake import ParquetLake
from gateway.pipeline.report import write_report
from gateway.pipeline.report.axes import AxisRange, LatencyScale, LinearScale, time_ticks
from gateway.pipeline.report.markup import columns_of, name_of, shortened, shown
from gateway.pipeline.report.span import MOST_POINTS, WIDTHS, Span
from gateway.pipeline.report.time_charts import spread
from gateway.pipeline.report.units import (
    DAY,
    HOUR,
    MINUTE,
    SECOND,
    count,
    duration,
    latency,
    micros_of,
    rate,
    share,
    si,
    size,
)
from tests.support.report_tables import A_DAY, A_MONTH, A_POINT, AN_HOUR, DEMO, SCHEMAS, START, Recipe, Rows, made_up

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


@pytest.fixture
def rows(tmp_path: Path) -> Rows:
    return Rows(ParquetLake(tmp_path / "lake"))


@pytest.fixture
def page(tmp_path: Path) -> Page:
    def write(lake: ParquetLake, start: datetime | None = None, end: datetime | None = None) -> str:
        output = tmp_path / "report.html"
        write_report(lake, output, start, end)
        return output.read_text(encoding="utf-8")

    return write


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


def plots_of(page: str) -> list[ET.Element]:
    return [ET.fromstring(text) for text in re.findall(r'<svg [^>]*class="plot.*?</svg>', page, re.DOTALL)]  # noqa: S314


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


def standing_out(page: str) -> str:
    found = re.search(r'<section id="standing-out".*?</section>', page, re.DOTALL)
    assert found
    return words_of(found[0])


class TestAsAWhole:
    @pytest.mark.parametrize("recipe", [DEMO, AN_HOUR, A_DAY, A_MONTH, A_POINT], ids=str)
    def test_any_length_makes_a_sound_page(self, tmp_path: Path, page: Page, recipe: Recipe) -> None:
        text = page(made_up(ParquetLake(tmp_path / "lake"), recipe))
        outline = Outline(text)
        ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        assert len(plots_of(text)) >= 12

    def test_it_runs_nothing_and_asks_for_nothing(self, tmp_path: Path, page: Page) -> None:
        outline = Outline(page(made_up(ParquetLake(tmp_path / "lake"), DEMO)))
        assert not {"script", "iframe", "img", "object", "form"} & {name for name, _ in outline.tags}
        for name, attributes in outline.tags:
            assert not [key for key in attributes if key.startswith("on")]
            target = attributes.get("href") or attributes.get("src") or "#"
            assert target.startswith("#") or (name == "link" and target == "data:,")
            assert "url(" not in (attributes.get("fill") or "").replace("url(#", "")
        policy = next(attributes for _, attributes in outline.tags if "http-equiv" in attributes)
        assert "default-src 'none'" in str(policy["content"])

    def test_each_plot_says_what_it_shows_and_has_a_table(self, tmp_path: Path, page: Page) -> None:
        text = page(made_up(ParquetLake(tmp_path / "lake"), DEMO))
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

    def test_no_figure_is_not_a_number(self, tmp_path: Path, page: Page) -> None:
        assert not re.search(r"\b(nan|inf|None)\b", page(made_up(ParquetLake(tmp_path / "lake"), A_POINT)))

    @pytest.mark.parametrize("table", SCHEMAS)
    def test_each_table_may_be_missing(self, tmp_path: Path, page: Page, table: str) -> None:
        lake = made_up(ParquetLake(tmp_path / "lake"), DEMO)
        for file in lake.table(table).rglob("*.parquet"):
            file.unlink()
        Outline(page(lake))

    def test_any_name_or_code_may_be_absent(self, rows: Rows, page: Page) -> None:
        rows.event(START, "err", 3, code=None, vhost=None)
        rows.event(START, "blk", 1, code=None, latency_us=5)
        rows.event(START, "ack", 1, latency_us=0)
        rows.durable("d", "strange", 1, user=None, destination=None, first_seen=None, last_connected=START)
        rows.add("errors_hour", START, hour=START, user=None, code=None, n=3)
        rows.add(
            "features_used", START, vhost=None, user=None, version=None, feature="new", supported=False, sessions=1
        )
        rows.add("unacked_hotspots", START, deliveries=3, acked=None, nacked=0)
        text = page(rows.write())
        Outline(text)
        assert "(none)" in text


class TestNumbers:
    def test_the_table_of_traffic_has_what_happened(self, rows: Rows, page: Page) -> None:
        for second, sent in ((0, 30), (10, 50), (20, 0)):
            rows.event(START + timedelta(seconds=second), "send", sent, bytes=sent * 100.0)
        rows.event(START + timedelta(seconds=10), "dlv", 7)
        rows.event(START + timedelta(seconds=10), "dlv", 3, code="redelivered")
        found = tables_of(text := page(rows.write()))["Messages over time"]
        assert [line[:5] for line in found[1:]] == [
            ["2026-11-21 10:00:00", "30", "3/s", "0", "0/s"],
            ["2026-11-21 10:00:10", "50", "5/s", "10", "1/s"],
            ["2026-11-21 10:00:20", "0", "0/s", "0", "0/s"],
        ]
        # In the drawing the second point of "sent" is as high as 5/s on the axis.
        wide = next(plot for plot in plots_of(text) if "wide" in str(plot.get("class")))
        line = next(path for path in wide.iter(f"{SVG}path") if path.get("class") == "line1")
        heights = [float(step.split()[1]) for step in str(line.get("d"))[1:].split("L")]
        top, bottom = _axis(wide, "6/s", "0/s")
        assert [(bottom - height) / (bottom - top) * 6 for height in heights] == pytest.approx([3, 5, 0], abs=0.01)

    def test_percentiles_come_from_merged_buckets(self, rows: Rows, page: Page) -> None:
        values = [100 * number for number in range(1, 101)]
        for number, value in enumerate(values):
            rows.event(START + timedelta(minutes=number % 30), "conf", latency_us=value)
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

    def test_errors_by_code_add_up(self, rows: Rows, page: Page) -> None:
        for number in range(12):
            rows.event(START + timedelta(minutes=number), "err", number + 1, code=f"code{number}")
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
        for begin, end in ((0, 10), (5, 20), (20, 30), (40, None)):
            started, ended = (None if minute is None else START + timedelta(minutes=minute) for minute in (begin, end))
            rows.add("sessions", START, boot="a", started=started, ended=ended)
        assert '<dd class="big">4</dd><dd class="remark">at most 2 at once</dd>' in page(rows.write())

    def test_more_destinations_than_bars(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        for number in range(20):
            rows.add("dest_hour", START, hour=START, destination=f"/queue/{number:02}", sent=100 - number, delivered=1)
        text = page(rows.write())
        drawn = next(plot for plot in plots_of(text) if "destinations-wide" in str(plot.get("aria-labelledby")))
        names = [mark.text for mark in drawn.iter(f"{SVG}text") if "name" in str(mark.get("class"))]
        assert names == [*(f"/queue/{number:02}" for number in range(15)), "5 others together"]
        assert len(tables_of(text)["Destinations"]) == 21


def _axis(plot: ET.Element, *names: str) -> list[float]:
    by_name = {mark.text: float(mark.get("y", 0)) - 4 for mark in plot.iter(f"{SVG}text")}
    return [by_name[name] for name in names]


class TestTime:
    def test_only_the_span_asked_for_counts(self, rows: Rows, page: Page) -> None:
        for hour in range(30):
            at = START + timedelta(hours=hour)
            rows.event(at, "send", 1)
            rows.event(at, "err", 1, code="x")
            rows.add("dest_hour", at, hour=at, destination="/queue/a", sent=1)
            rows.add("errors_hour", at, hour=at, code="x", n=1)
        lake = rows.write()
        text = page(lake, START + timedelta(hours=10), START + timedelta(hours=20))
        assert "2026-11-21 20:00:00" in text
        assert '<dt>Messages sent</dt><dd class="big">10</dd>' in text
        assert tables_of(text)["Destinations"][1][3] == "10"
        assert tables_of(text)["Errors by code and user"][1][3] == "10"
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
            page(ParquetLake(tmp_path), START + timedelta(hours=1), START)
        with pytest.raises(UsageError, match="time zone"):
            page(ParquetLake(tmp_path), START.replace(tzinfo=None))

    @pytest.mark.parametrize("length", [SECOND * 10, 3 * MINUTE, HOUR, DAY, 30 * DAY, 180 * DAY])
    def test_bins_are_neither_few_nor_many(self, length: int) -> None:
        span = Span(micros_of(START), micros_of(START) + length)
        width = span.width(MOST_POINTS)
        assert width in WIDTHS
        assert len(span.bins(width)) <= MOST_POINTS + 1
        assert len(span.bins(width)) >= min(MOST_POINTS // 6, length // WIDTHS[0])
        assert sum(span.seconds_of(begin, width) for begin in span.bins(width)) * SECOND == length

    def test_clocks_that_were_wrong_make_no_endless_report(self, rows: Rows, page: Page) -> None:
        for at in (datetime(1970, 1, 1, tzinfo=UTC), START, datetime(9999, 12, 31, 23, 59, 50, tzinfo=UTC)):
            rows.event(at, "send", 5)
            rows.event(at, "err", 2, code="bad-header")
            rows.event(at, "conf", 5, latency_us=2000)
        text = page(rows.write())
        Outline(text)
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
        lake = ParquetLake(tmp_path / "none")
        lake.batches.mkdir(parents=True)
        text = page(lake)
        Outline(text)
        assert "The lake is empty" in text
        assert "stomp-gateway pipeline ingest" in text

    def test_a_lake_that_is_not_there_is_no_empty_one(self, tmp_path: Path, page: Page) -> None:
        with pytest.raises(PipelineError, match=f"there is no lake at {tmp_path}/nosuch"):
            page(ParquetLake(tmp_path / "nosuch"))

    def test_tables_without_rows_are_no_trouble(self, tmp_path: Path, page: Page) -> None:
        rows = Rows(ParquetLake(tmp_path / "lake"))
        for table in SCHEMAS:
            rows.by_file[table, "2026-11-21"] = []
        assert "The lake is empty" in page(rows.write())

    def test_boots_alone_are_enough(self, rows: Rows, page: Page) -> None:
        rows.boot(START, START + timedelta(hours=1))
        text = page(rows.write())
        assert "Nothing needs attention." in text
        assert "No ERROR frame was sent" in text


class TestFiles:
    def test_a_place_that_cannot_be_written(self, rows: Rows, tmp_path: Path) -> None:
        rows.write()
        with pytest.raises(PipelineError, match=r"cannot write .*report.html: No such file"):
            write_report(rows.lake, tmp_path / "no" / "report.html", None, None)
        (tmp_path / "directory").mkdir()
        for directory in (tmp_path / "directory", Path(), Path(".."), Path("/")):
            with pytest.raises(PipelineError, match=f"-o {directory} is a directory"):
                write_report(rows.lake, directory, None, None)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["directory", "lake"]

    def test_the_old_report_stays_until_the_new_one_is_whole(
        self, rows: Rows, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rows.write()
        output = tmp_path / "report.html"
        output.write_text("old")

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("os.fsync", full)
        with pytest.raises(PipelineError, match="No space left"):
            write_report(rows.lake, output, None, None)
        assert output.read_text() == "old"
        assert sorted(tmp_path.iterdir()) == [rows.lake.root, output]

    def test_a_damaged_table_is_named(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        lake = rows.write()
        lake.day_file("traffic_10s", "2026-11-21").write_bytes(b"PAR1 and no more")
        with pytest.raises(PipelineError, match=r"cannot read .*traffic_10s\.parquet"):
            page(lake)

    def test_a_table_of_another_version_is_named(self, rows: Rows, page: Page) -> None:
        rows.event(START, "send")
        lake = rows.write()
        path = lake.day_file("boots", "2026-11-21")
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"node": ["a"]}), path)
        with pytest.raises(PipelineError, match="has no column boot"):
            page(lake)


class TestTextsOfClients:
    def test_they_are_never_markup(self, rows: Rows, page: Page) -> None:
        for number, text in enumerate(HOSTILE):
            at = START + timedelta(seconds=10 * number)
            rows.event(at, "err", 50, code=text)
            rows.event(at, "blk", 5, code=text, latency_us=100)
            rows.durable(text, "abandoned", 9, user=text, destination=text, vhost=text)
            rows.boot(at, at, node=text, boot=str(number), impl=text, gateway_version=text, dropped=3)
            where = {"vhost": text, "user": text, "destination": text, "hour": START}
            rows.add("dest_hour", START, vhost=text, hour=START, destination=text, dest_kind=text, sent=9, delivered=9,
                     redelivered=50, rejected=1)  # fmt: skip
            rows.add("redeliveries_hour", START, **where, delivered=50, redelivered=25)
            rows.add("errors_hour", START, vhost=text, hour=START, user=text, code=text, n=50)
            rows.add("latency_hour", START, vhost=text, hour=START, destination=text, event="ack", n=50, p99_us=9)
            rows.add("unacked_hotspots", START, vhost=text, user=text, destination=text, deliveries=50, acked=0)
            rows.add("features_used", START, vhost=text, user=text, version=text, feature=text, supported=False,
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
        assert shown("plain /topic/a b") == "plain /topic/a b"
        assert shown("søren مرحبا 日本 😀") == "søren مرحبا 日本 😀"
        assert shown("\x7f\u2028\ufffe\U0001ffff") == "\\x7f\\u2028\\ufffe\\U0001ffff"
        assert [name_of(text) for text in (None, "", " a")] == ["(none)", "(empty)", " a"]

    def test_both_ends_of_a_long_name_stay(self) -> None:
        assert shortened("/queue/short", 20) == "/queue/short"
        assert shortened("/queue/one-that-is-long.7", 15) == "/queue/…-long.7"
        assert columns_of(shortened("日本語" * 20, 11)) <= 11


class TestWhatStandsOut:
    """Each threshold, just reached and just missed."""

    def said(self, rows: Rows, page: Page) -> str:
        rows.event(START, "conn")
        return standing_out(page(rows.write()))

    def test_calm(self, rows: Rows, page: Page) -> None:
        assert "Nothing needs attention." in self.said(rows, page)

    def test_busiest_and_largest(self, rows: Rows, page: Page) -> None:
        for second, sent, delivered in ((0, 50, 10), (10, 30, 40), (20, 60, 10)):
            rows.event(START + timedelta(seconds=second), "send", sent)
            rows.event(START + timedelta(seconds=second), "dlv", delivered)
        rows.add("dest_hour", START, hour=START, destination="/queue/a", sent=40, delivered=20)
        rows.add("dest_hour", START, hour=START, destination="/queue/b", sent=100, delivered=40)
        said = self.said(rows, page)
        assert "The busiest ten seconds began at 10:00:10 on 21 Nov 2026: 3/s sent and 4/s delivered." in said
        assert "/queue/b has the most traffic: 70 % of all messages (100 sent, 40 delivered)." in said

    def test_abandoned(self, rows: Rows, page: Page) -> None:
        for number in range(7):
            rows.durable(f"old{number}", "abandoned", 12 + number)
        rows.durable("resting", "idle", 3)
        said = self.said(rows, page)
        assert "The durable subscription old6 of billing to /topic/prices has not been connected for 18 d" in said
        assert "unless it expires: delete it" in said
        assert "… and 2 more abandoned durable subscriptions" in said
        assert "resting" not in said

    @pytest.mark.parametrize(("acked", "says"), [(180, True), (181, False)])
    def test_unacknowledged_share(self, rows: Rows, page: Page, acked: int, says: bool) -> None:
        rows.add("unacked_hotspots", START, user="a", destination="/queue/a", deliveries=200, acked=acked, nacked=0)
        assert ("/queue/a: 10 % of its deliveries (20 of 200) were not acknowledged" in self.said(rows, page)) is says

    def test_few_unacknowledged_are_not_many(self, rows: Rows, page: Page) -> None:
        rows.add("unacked_hotspots", START, user="a", destination="/queue/a", deliveries=19, acked=0, nacked=0)
        assert "not acknowledged" not in self.said(rows, page)

    def test_answers_of_the_next_day_count(self, rows: Rows, page: Page) -> None:
        rows.event(START + timedelta(days=1), "conn")
        for day, deliveries, acked in ((0, 100, 20), (1, 0, 80)):
            rows.add("unacked_hotspots", START + timedelta(days=day), user="a", destination="/queue/a",
                     deliveries=deliveries, acked=acked, nacked=0)  # fmt: skip
        assert "not acknowledged" not in self.said(rows, page)

    @pytest.mark.parametrize(("delivered", "again", "says"), [(200, 10, True), (201, 10, False), (20, 9, False)])
    def test_redelivered(self, rows: Rows, page: Page, delivered: int, again: int, says: bool) -> None:
        rows.add("dest_hour", START, hour=START, destination="/queue/a", delivered=delivered, redelivered=again)
        assert (
            f"/queue/a: 5.0 % of its deliveries (10 of {delivered}) were redeliveries" in self.said(rows, page)
        ) is says

    def test_rejected(self, rows: Rows, page: Page) -> None:
        rows.add("dest_hour", START, hour=START, destination="/queue/a", sent=1, rejected=1)
        assert "The broker rejected 1 message to /queue/a." in self.said(rows, page)

    @pytest.mark.parametrize(("worst", "usual", "says"), [(10, 2, True), (10, 3, False), (9, 0, False)])
    def test_an_error_jumped(self, rows: Rows, page: Page, worst: int, usual: int, says: bool) -> None:
        for hour in range(12):
            rows.event(START + timedelta(hours=hour), "err", worst if hour == 5 else usual, code="not_found")
        text = "The error not_found jumped: 10 in the hour from 15:00:00 on 21 Nov 2026, against 2.0 in other hours"
        assert (text in self.said(rows, page)) is says

    @pytest.mark.parametrize(("worst", "n", "says"), [(61_000, 100, True), (55_000, 100, False), (61_000, 99, False)])
    def test_a_slow_hour(self, rows: Rows, page: Page, worst: int, n: int, says: bool) -> None:
        for hour in range(12):
            slow = hour == 3
            value = worst if slow else 20_000
            rows.event(START + timedelta(hours=hour), "ack", n if slow else 100, latency_us=value)
        said = self.said(rows, page)
        assert ("Deliver → acknowledge was slow in the hour from 13:00:00 on 21 Nov 2026" in said) is says

    def test_nobody_waits_for_what_is_short(self, rows: Rows, page: Page) -> None:
        for hour in range(12):
            rows.event(START + timedelta(hours=hour), "conf", 100, latency_us=9_000 if hour == 3 else 100)
        assert "slow" not in self.said(rows, page)

    def test_minutes_are_compared_in_a_few_hours(self, rows: Rows, page: Page) -> None:
        for minute in range(30):
            rows.event(START + timedelta(minutes=minute), "err", 40 if minute == 9 else 1, code="x")
        assert "The error x jumped: 40 in the minute from 10:09:00" in self.said(rows, page)

    def test_a_boot_that_never_closed(self, rows: Rows, page: Page) -> None:
        rows.boot(START, START + timedelta(minutes=5), closed=False)
        rows.boot(START + timedelta(minutes=6), START + timedelta(minutes=9), boot="b", closed=False)
        rows.boot(START, START + timedelta(minutes=5), node="gw2", boot="c", dropped=17)
        rows.event(START + timedelta(minutes=9), "conn")
        said = self.said(rows, page)
        assert said.count("never closed its journal") == 1
        assert "the boot of 10:00:00 on 21 Nov 2026 wrote its last line at 10:05:00" in said
        assert "gw2 dropped 17 journal lines" in said
        assert said.count("lower bound") == 2

    def test_unknown_features_and_mixed_recorders(self, rows: Rows, page: Page) -> None:
        rows.boot(START, START + timedelta(minutes=1))
        rows.boot(START, START + timedelta(minutes=1), boot="b", impl="tap")
        rows.add("features_used", START, user="a", version="1.2", feature="telepathy", supported=False, sessions=1)
        said = self.said(rows, page)
        assert "features that this version does not know: telepathy" in said
        assert "several kinds wrote this (gateway, tap)" in said


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

    def test_latencies(self) -> None:
        values = (0, 850, 999.9, 12_345, 999_950, 59_949_000, 59_999_000, 7_260_000_000)
        said = ["0 µs", "850 µs", "1 ms", "12.3 ms", "1 s", "59.9 s", "1 min", "2 h 1 min"]
        assert [latency(value).replace("\u00a0", " ") for value in values] == said
        assert duration(12 * DAY + 4 * HOUR + MINUTE).replace("\u00a0", " ") == "12 d 4 h"
        assert duration(12 * DAY + MINUTE).replace("\u00a0", " ") == "12 d"


class TestScales:
    def test_linear_ticks_are_round_and_hold_all(self) -> None:
        for highest in (0.3, 1, 7, 99.9, 101, 12_345):
            scale = LinearScale(highest, AxisRange(100, 0), si)
            assert scale.place(highest) >= 0
            assert scale.place(0) == 100
            assert 3 <= len(scale.ticks) <= 6

    @pytest.mark.parametrize("values", [[0], [1, 2], [900, 70_000], [3, 90_000_000], [5e9, 9e11], [1e13]])
    def test_latency_ticks_hold_all(self, values: Sequence[float]) -> None:
        scale = LatencyScale(values, AxisRange(100, 0))
        assert 2 <= len(scale.ticks) <= 12
        assert all(-0.01 <= scale.place(value) <= 100.01 for value in values)
        assert scale.place(scale.ticks[0][0]) == pytest.approx(100)

    @pytest.mark.parametrize(
        ("length", "most", "first", "names"),
        [
            (30 * SECOND, 8, "10:00:00", "21 Nov 2026"),
            (HOUR, 8, "10:00", "21 Nov 2026"),
            (3 * DAY, 8, "12:00", "21 Nov 2026"),
            (30 * DAY, 8, "23 Nov", "2026"),
            (400 * DAY, 8, "Jan", "2027"),
            (4000 * DAY, 8, "2028", ""),
        ],
    )
    def test_time_ticks_are_of_the_calendar(self, length: int, most: int, first: str, names: str) -> None:
        span = Span(micros_of(START), micros_of(START) + length)
        ticks = time_ticks(span, most)
        assert (ticks[0].name, ticks[0].under) == (first, names)
        assert len(ticks) <= most + 1
        assert all(span.start <= tick.at < span.end for tick in ticks)

    def test_midnight_shows_the_date(self) -> None:
        start = micros_of(datetime(2026, 12, 31, 20, tzinfo=UTC))
        ticks = time_ticks(Span(start, start + 8 * HOUR), 8)
        assert [tick.under for tick in ticks if tick.under] == ["31 Dec 2026", "1 Jan 2027"]
        assert next(tick.name for tick in ticks if tick.under == "1 Jan 2027") == "00:00"

    def test_names_of_lines_do_not_cover_each_other(self) -> None:
        places = spread([50, 50, 52, 99, 100], 10, 100)
        assert all(later - sooner >= 15 for sooner, later in pairwise(places))
        assert places[-1] <= 100


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
