"""The charts: Altair describes them, vl-convert draws them as SVG, without a browser and without a network.

Colours are CSS variables of the page, so one drawing is light, dark or on paper. Each chart is drawn for wide and for
narrow screens, so that text keeps its size. A row of data is a mapping; Altair gets only the name of the data, since it
would copy and check each row many times.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import altair as alt
import vl_convert
from markupsafe import Markup

from gateway.pipeline.report.formats import (
    DAY,
    HOUR,
    MILLISECOND,
    MINUTE,
    SECOND,
    columns_of,
    duration,
    latency,
    name_of,
    shortened,
    shown,
)
from gateway.pipeline.report.queries import TEN_SECONDS, Span
from gateway.texts import count

LINES: Final = (
    ("var(--c1)", [1, 0], "circle"),
    ("var(--c2)", [7, 4], "diamond"),
    ("var(--c4)", [10, 4, 1.5, 4], "square"),
)
"""The colour of a line; its dashes, and the shape of single points, by which it is told apart without colours."""
_THEME: Final = {
    "aria": False, "background": "transparent", "view": {"stroke": None},
    "axis": {
        "title": None, "labelFontSize": 12, "labelColor": "var(--quiet)", "gridColor": "var(--rule)",
        "domainColor": "var(--axis)", "tickColor": "var(--axis)", "labelOverlap": True,
    },
    "axisX": {"grid": False, "labelFlush": 26, "labelSeparation": 8, "labelPadding": 4, "labelLineHeight": 15},
    "axisY": {"domain": False, "ticks": False, "labelPadding": 8},
    "text": {"fontSize": 12, "baseline": "middle", "color": "var(--quiet)"},
    "line": {"strokeWidth": 2, "strokeCap": "round"}, "point": {"opacity": 1},
    "legend": {"disable": True},
}  # fmt: skip
_LETTER: Final = 7.3
"""The width of a letter in the widest of the usual system fonts."""

_VERDICTS: Final = {
    "abandoned": ("var(--c2)", "M-1,-1L1,1M1,-1L-1,1", "none"), "idle": ("var(--c5)", "circle", "var(--paper)"),
    "active": ("var(--c3)", "circle", "var(--c3)"), "deleted": ("var(--c7)", "M0,-1L0,1", "none"),
}  # fmt: skip
"""The colour, the shape and the filling at the end of a lifeline."""

_LADDER: Final[tuple[int, ...]] = (
    *(step * unit for unit in (1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND) for step in (1, 2, 5)),
    SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, HOUR,
    3 * HOUR, 10 * HOUR, DAY, 4 * DAY, 10 * DAY, 40 * DAY, 400 * DAY, 4000 * DAY,
)  # fmt: skip
"""Round latencies, in microseconds."""
_MANY_TICKS: Final = 7


@dataclass(frozen=True, slots=True)
class Canvas:
    """The room of a drawing: the height of the chart in it, and its margins."""

    wide: bool
    height: float
    left: float = 62
    right: float = 14
    top: float = 10
    bottom: float = 42

    @property
    def width(self) -> float:
        """The width of the chart."""
        return (960 if self.wide else 360) - self.left - self.right


Rows = Sequence[Mapping[str, Any]]
_DATA: Final = alt.Chart(alt.NamedData("rows"))


def _drawn(key: str, title: str, description: str, rows: Rows, draw: Callable[[bool], tuple[Canvas, Any]]) -> Markup:
    """A chart for wide and one for narrow screens; ``key`` must be unique in the page, for ids."""
    return Markup("").join(_svg(key, title, description, rows, *draw(wide)) for wide in (True, False))


def _svg(key: str, title: str, description: str, rows: Rows, canvas: Canvas, chart: Any) -> Markup:
    margins = {side: getattr(canvas, side) for side in ("left", "right", "top", "bottom")}
    chart = chart.properties(width=canvas.width, height=canvas.height, padding=margins, autosize="none")
    spec = {**chart.to_dict(validate=False), "datasets": {"rows": rows}}
    drawn = vl_convert.vegalite_to_svg(spec, config=_THEME, allowed_base_urls=[])
    inside = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), drawn.partition(">")[2])
    shape = "wide" if canvas.wide else "narrow"
    return _SVG.format(
        key=f"{key}-{shape}", shape=shape, title=title, description=description,
        width=canvas.left + canvas.width + canvas.right, height=canvas.top + canvas.height + canvas.bottom,
    ) + Markup(inside)  # fmt: skip  # noqa: S704 - Vega escapes its texts


_SVG: Final = Markup(
    '<svg xmlns="http://www.w3.org/2000/svg" class="plot {shape}" viewBox="0 0 {width:g} {height:g}" role="img" '
    'aria-labelledby="{key}-title {key}-desc"><title id="{key}-title">{title}</title>'
    '<desc id="{key}-desc">{description}</desc>'
)


def lines(
    key: str, title: str, description: str, span: Span, rows: Rows, series: Sequence[str], *,
    latencies: bool = False,
) -> Markup:  # fmt: skip
    """Lines over time: ``series`` are columns. A line has a gap where a value is missing.

    Rates, of which the first is filled below; or latencies on a logarithmic scale.
    """
    points = [{"at": row["middle"] / 1000, "name": name, "value": row[name]} for name in series for row in rows]
    values = [point["value"] for point in points if point["value"] is not None]
    up = _latency_scale(values) if latencies else _amounts("value", max(values, default=0), "/s")

    def of_series(channel: Any, what: int) -> Any:
        return channel("name:N", scale=alt.Scale(domain=list(series), range=[line[what] for line in LINES]))

    def draw(wide: bool) -> tuple[Canvas, Any]:
        canvas = Canvas(wide, 248 if wide else 188)
        base = _DATA.encode(x=_time(span, canvas), y=up)
        coloured = base.encode(color=of_series(alt.Color, 0))
        below = base.transform_filter("false" if latencies else alt.datum.name == series[0])
        # A line of one point would not be seen.
        alone = coloured.transform_window(before="lag(value)", after="lead(value)", groupby=["name"]).transform_filter(
            "isValid(datum.value) && !isValid(datum.before) && !isValid(datum.after)"
        )
        return canvas, alt.layer(
            below.mark_area(color=LINES[0][0], opacity=0.1),
            coloured.mark_line().encode(strokeDash=of_series(alt.StrokeDash, 1)),
            alone.mark_point(size=60, filled=True).encode(
                shape=of_series(alt.Shape, 2)
            ),
        )  # fmt: skip

    return _drawn(key, title, description, points, draw)


def _time(span: Span, canvas: Canvas, column: str = "at") -> Any:
    """A scale of time, UTC, with what has changed since the tick before in a second line."""
    if span.length <= 5 * DAY:
        name = "%H:%M:%S" if span.length <= 8 * MINUTE else "%H:%M"
        first, later, when = "%-d %b %Y", "%-d %b", "utchours(datum.value) + utcminutes(datum.value) === 0"
    elif span.length <= 800 * DAY:
        name, first, later, when = "%-d %b", "%Y", "%Y", "utcmonth(datum.value) === 0 && utcdate(datum.value) <= 7"
    else:
        name, first, later, when = "%b %Y" if span.length <= 3000 * DAY else "%Y", "", "", "false"
    label = (
        f"[utcFormat(datum.value, '{name}'), datum.index === 0 ? utcFormat(datum.value, '{first}') : "
        f"{when} ? utcFormat(datum.value, '{later}') : '']"
    )
    return alt.X(
        f"{column}:T", axis=alt.Axis(labelExpr=label, tickCount=max(2, int(canvas.width // 92))),
        scale=alt.Scale(type="utc", domain=[span.start / 1000, span.end / 1000], nice=False),
    )  # fmt: skip


def _amounts(column: str, highest: float, unit: str = "") -> Any:
    label = f"format(datum.value, datum.value < 1 ? '~g' : '~s') + '{unit}'"
    return alt.Y(
        f"{column}:Q", scale=alt.Scale(domain=[0, highest or 1], nice=4), axis=alt.Axis(labelExpr=label, tickCount=4)
    )


def _latency_scale(values: Sequence[float]) -> Any:
    ticks = latency_ticks(values)
    names = json.dumps({tick: latency(tick) for tick in ticks})
    return alt.Y(
        "value:Q", axis=alt.Axis(values=ticks, labelExpr=f"({names})[datum.value]"),
        # It has no 0, which is drawn as its lowest value.
        scale=alt.Scale(type="log", domain=[ticks[0], ticks[-1]], nice=False, clamp=True),
    )  # fmt: skip


def latency_ticks(values: Sequence[float]) -> list[int]:
    """Round latencies, the first not above all values, the last not below, and at most seven or so between."""
    first = max(0, bisect_right(_LADDER, min(values, default=1)) - 1)
    last = min(len(_LADDER) - 1, max(bisect_left(_LADDER, max(values, default=1)), first + 1))
    first = min(first, last - 1)
    step = next(step for step in (1, 3, 6) if last - first <= step * _MANY_TICKS)
    first -= first % step
    last = min(len(_LADDER) - 1, last + (first - last) % step)
    return [*_LADDER[first:last:step], _LADDER[last]]


def stacks(key: str, title: str, description: str, span: Span, rows: Rows, width: int) -> Markup:
    """Stacked bars over time: of each bin, ``width`` microseconds wide, ``n`` by ``layer``, from the bottom up."""
    values = [{"at": row["middle"] / 1000, "layer": row["layer"], "n": row["n"]} for row in rows]
    sums = dict.fromkeys((value["at"] for value in values), 0.0)
    for value in values:
        sums[value["at"]] += value["n"]
    layers = sorted({value["layer"] for value in values})
    hatches = alt.Scale(domain=layers, range=[f"url(#hatch{layer})" for layer in layers])

    def draw(wide: bool) -> tuple[Canvas, Any]:
        canvas = Canvas(wide, 200 if wide else 170)
        return canvas, _DATA.mark_bar(size=min(0.78 * width * canvas.width / span.length, 44), clip=True).encode(
            x=_time(span, canvas), y=_amounts("n", max(sums.values())), color=alt.Color("layer:N", scale=hatches),
            order=alt.Order("layer:Q"),
        )  # fmt: skip

    return _drawn(key, title, description, values, draw)


def bars(
    key: str, title: str, description: str, rows: Rows, names: Sequence[str],
    values: Sequence[str], label: str = "{0}", remark: str = "",
) -> Markup:  # fmt: skip
    """Rows of horizontal bars to one scale, each row with its name.

    ``names`` and ``values`` are columns; ``label`` is the text at the end of a bar, made of its value and the remark.
    """
    drawn = [
        {"row": place, "slot": slot, "value": row[column],
         "label": label.format(count(row[column]), shown(row, remark) if remark else "")}
        for place, row in enumerate(rows) for slot, column in enumerate(values, start=1)
    ]  # fmt: skip
    slots = len(values)
    highest = max(bar["value"] for bar in drawn) or 1
    longest = max(columns_of(bar["label"]) for bar in drawn)
    across = alt.X("value:Q", axis=None, scale=alt.Scale(domain=[0, highest], nice=False))
    colours = alt.Scale(domain=[1, 2], range=["var(--c1)", "var(--c2)"])
    opacity = alt.Scale(domain=[1, 2], range=[1, 0.3])  # tells them apart without colours

    def draw(wide: bool) -> tuple[Canvas, Any]:
        steps = slots if wide else slots + 1
        height, left = len(rows) * (steps * 15 + 10), 310 if wide else 2
        canvas = Canvas(wide, height, left, right=longest * _LETTER + 8, top=4, bottom=4)
        place = _row(canvas, slots, gap=0.22)
        base = _DATA.transform_filter(alt.datum.slot > 0).encode(x=across, **place)
        return canvas, alt.layer(
            base.mark_bar(strokeWidth=1).encode(
                fill=alt.Fill("slot:O", scale=colours), stroke=alt.Stroke("slot:O", scale=colours),
                fillOpacity=alt.FillOpacity("slot:O", scale=opacity),
            ),
            base.mark_text(align="left", dx=6).encode(text="label:N"),
            _names(canvas, place, 340),
        )  # fmt: skip

    named = _named((tuple(name_of(row[name]) for name in names if row[name] is not None) for row in rows), 38, 44)
    return _drawn(key, title, description, [*drawn, *named], draw)


_SIDES: Final = ("sender", "destination", "receiver")
_LABELS: Final[tuple[Mapping[str, Any], ...]] = (
    {"align": "right", "dx": -8}, {"align": "center", "dy": -10}, {"align": "left", "dx": 8},
)  # fmt: skip
"""Where the names of a side stand."""


def flows(key: str, title: str, description: str, rows: Rows) -> Markup:
    """Lines from senders through destinations to receivers, as wide as they have ``messages``."""
    ends = [_ends(rows, side) for side in _SIDES]
    most = max(max(each.values()) for each in ends)
    places = [{name: (place + 0.5) / len(each) for place, name in enumerate(each)} for each in ends]
    links = Counter[tuple[int, str, str]]()
    for row in rows:
        for side in (0, 1):
            links[side, row[_SIDES[side]], row[_SIDES[side + 1]]] += row["messages"]
    drawn = [
        {"x": side, "to": side + 1, "y": places[side][start], "end": places[side + 1][end],
         "width": 1 + 11 * n / most}
        for (side, start, end), n in links.items()
    ]  # fmt: skip
    named = [
        {"side": side, "y": places[side][name], "wide": shortened(name_of(name), 28),
         "narrow": shortened(name_of(name), 13)}
        for side, each in enumerate(ends) for name in each
    ]  # fmt: skip

    def draw(wide: bool) -> tuple[Canvas, Any]:
        height = max(map(len, ends)) * (30 if wide else 34)
        margin = 220 if wide else 96
        canvas = Canvas(wide, height, left=margin, right=margin, top=8, bottom=8)
        across, down = alt.Scale(domain=[0, 2], nice=False), alt.Scale(domain=[0, 1], nice=False, reverse=True)
        base = _DATA.encode(y=alt.Y("y:Q", axis=None, scale=down))
        link = base.transform_filter("isValid(datum.to)").mark_rule(color="var(--c1)", opacity=0.35).encode(
            x=alt.X("x:Q", axis=None, scale=across), x2="to:Q", y2="end:Q",
            strokeWidth=alt.StrokeWidth("width:Q", scale=None),
        )  # fmt: skip
        text = "wide" if wide else "narrow"
        labels = [
            base.transform_filter(f"datum.side === {side}").mark_text(color="var(--ink)", **where).encode(
                x=alt.X("side:Q", axis=None, scale=across), text=f"{text}:N"
            )
            for side, where in enumerate(_LABELS)
        ]  # fmt: skip
        dots = base.transform_filter("isValid(datum.side)").mark_point(size=40, filled=True, color="var(--c2)")
        return canvas, alt.layer(link, dots.encode(x=alt.X("side:Q", axis=None, scale=across)), *labels)

    return _drawn(key, title, description, [*drawn, *named], draw)


def _ends(rows: Rows, side: str) -> Mapping[str, float]:
    """The names on a side with their messages, the busiest first, and others together last."""
    found = Counter[str]()
    for row in rows:
        found[row[side]] += row["messages"]
    return dict(sorted(found.items(), key=lambda pair: (pair[0].endswith(" others"), -pair[1], pair[0])))


def _row(canvas: Canvas, slots: int, gap: float) -> dict[str, Any]:
    """The place of a row, and in it of a slot; on narrow screens slot 0, for names, is above the others."""
    domain = list(range(1 if canvas.wide else 0, slots + 1))
    return {
        "y": alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=gap, paddingOuter=gap / 4)),
        "yOffset": alt.YOffset("slot:O", scale=alt.Scale(domain=domain, paddingInner=gap)),
    }


def _named(names: Iterable[Sequence[str]], wide: int, narrow: int) -> Iterator[Mapping[str, Any]]:
    """Rows with the names, in so many columns beside the rows and above them; each has one or several parts."""
    for row, parts in enumerate(names):
        yield {"row": row, "slot": 0, "wide": _joined(parts, wide), "narrow": _joined(parts, narrow)}


def _joined(parts: Sequence[str], columns: int) -> str:
    """Parts in so many columns. The others tell rows apart whose first part is the same, so that one gives way."""
    first, *others = parts or [name_of(None)]
    rest = shortened("".join(f" · {part}" for part in others), columns // 2)
    return shortened(first, columns - columns_of(rest)) + rest


def _names(canvas: Canvas, place: Mapping[str, Any], room: float) -> Any:
    """Names beside the rows; or above them, with so much room."""
    room = canvas.left - 12 if canvas.wide else room
    # The fonts by which vl-convert measures may be narrower than those of the browser.
    names = _DATA.transform_filter(alt.datum.slot == 0).mark_text(
        align="right" if canvas.wide else "left", limit=0.85 * room, color="var(--ink)"
    )  # fmt: skip
    if canvas.wide:
        return names.encode(text="wide:N", x=alt.value(-10), y=place["y"])
    return names.encode(text="narrow:N", x=alt.value(0), **place)


def lifelines(key: str, title: str, description: str, rows: Rows, end: int) -> Markup:
    """From when durable subscriptions were first seen to when they were last connected, and dashed until ``end``."""
    lasts = [max(row["first"], row["last"], end if row["connected"] else row["first"]) for row in rows]
    span = Span(min(row["first"] for row in rows), max(end, *lasts) + TEN_SECONDS)
    values = [
        {"row": place, "slot": 1, "at": row["first"] / 1000, "to": last / 1000,
         "verdict": row["verdict"] if row["verdict"] in _VERDICTS else "idle",
         "remark": row["verdict"] if row["connected"] or row["verdict"] == "deleted" else
         f"{row['verdict']} {duration(row['idle'])}"}
        for place, (row, last) in enumerate(zip(rows, lasts, strict=True))
    ]  # fmt: skip

    def of_verdict(channel: Any, what: int) -> Any:
        scale = alt.Scale(domain=list(_VERDICTS), range=[looks[what] for looks in _VERDICTS.values()])
        return channel("verdict:N", scale=scale)

    def draw(wide: bool) -> tuple[Canvas, Any]:
        height = len(rows) * (26 if wide else 42)
        canvas = Canvas(wide, height, 282, 160, top=8) if wide else Canvas(wide, height, 12, 12, top=8)
        place = _row(canvas, 1, gap=0)
        lived = _DATA.transform_filter(alt.datum.slot == 1).encode(x=_time(span, canvas, "to"), **place)
        gone = lived.transform_filter(alt.datum.verdict != "deleted")
        return canvas, alt.layer(
            gone.mark_rule(strokeDash=[2, 4], color="var(--axis)", strokeWidth=1.5).encode(x2=alt.value(canvas.width)),
            lived.mark_rule(strokeWidth=4, strokeCap="round").encode(x2="at:T", color=of_verdict(alt.Color, 0)),
            lived.mark_point(size=70, strokeWidth=2.5).encode(
                stroke=of_verdict(alt.Stroke, 0), shape=of_verdict(alt.Shape, 1), fill=of_verdict(alt.Fill, 2)
            ),
            lived.mark_text(align="left" if wide else "right", dx=10, dy=0 if wide else -21).encode(
                text="remark:N", x=alt.value(canvas.width)
            ),
            _names(canvas, place, 200),
        )  # fmt: skip

    return _drawn(
        key, title, description, [*values, *_named(([name_of(row["sub_name"])] for row in rows), 35, 25)], draw
    )
