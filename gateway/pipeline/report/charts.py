"""The charts: Altair describes them, vl-convert draws them as SVG, without a browser and without a network.

Colours are CSS variables of the page, so one drawing is light, dark or on paper. Each chart is drawn for wide and for
narrow screens, so that text keeps its size.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import altair as alt
import vl_convert
from markupsafe import Markup

from gateway.pipeline.report.client_text import columns_of, name_of, shortened
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import DAY, HOUR, MILLISECOND, MINUTE, SECOND, latency

_DASHES: Final = ([1, 0], [7, 4], [1, 4.5], [10, 4, 1.5, 4])
_SHAPES: Final = ("circle", "diamond", "square", "triangle-up")
LAYERS: Final = 7
"""How many layers of stacked bars can be told apart: each has a colour and a hatch of its own."""

_OPACITY: Final = {1: 1, 2: 0.3}
"""How full the first and the second bar of a row are: it tells them apart without colours."""

_FONT: Final = 12
_LETTER: Final = 7.3
_WIDER_LETTER: Final = 7.7
"""The width of a letter in the widest of the usual system fonts."""
_CROSS: Final = "M-1,-1L1,1M1,-1L-1,1"
_TICK: Final = "M0,-1L0,1"
_VERDICTS: Final = ("abandoned", "idle", "active", "deleted")
_VERDICT_COLOURS: Final = ("var(--c2)", "var(--c5)", "var(--c3)", "var(--c7)")
_LADDER: Final[tuple[int, ...]] = (
    *(step * unit for unit in (1, 10, 100, MILLISECOND, 10 * MILLISECOND, 100 * MILLISECOND) for step in (1, 2, 5)),
    SECOND, 2 * SECOND, 5 * SECOND, 10 * SECOND, 20 * SECOND, MINUTE, 2 * MINUTE, 5 * MINUTE, 10 * MINUTE, HOUR,
    3 * HOUR, 10 * HOUR, DAY, 4 * DAY, 10 * DAY, 40 * DAY, 400 * DAY, 4000 * DAY, 40_000 * DAY, 150_000 * DAY,
)  # fmt: skip
"""Round latencies, in microseconds."""
_MANY_TICKS: Final = 7


@dataclass(frozen=True, slots=True)
class Canvas:
    """The width of a drawing, in its units."""

    width: int
    wide: bool

    def margins(self, left: float, right: float, top: float = 10, bottom: float = 42) -> dict[str, float]:
        """The room around a chart."""
        return {"left": left, "right": right, "top": top, "bottom": bottom}


_CANVASES: Final = (Canvas(960, wide=True), Canvas(360, wide=False))


Values = Iterable[Mapping[str, object]]


@dataclass(frozen=True, slots=True)
class Drawing:
    """The layers of a chart, each with the name of its data, and the room around it.

    Altair gets the names only: it would copy and check each row many times.
    """

    height: float
    margins: Mapping[str, float]
    data: dict[str, list[Mapping[str, object]]] = field(default_factory=dict)
    layers: list[Any] = field(default_factory=list)

    def of(self, values: Values) -> Any:
        """A chart of some data, to be encoded and added to the layers."""
        name = f"data{len(self.data)}"
        self.data[name] = list(values)
        return alt.Chart(alt.NamedData(name))


def plot(key: str, title: str, description: str, draw: Callable[[Canvas], Drawing]) -> Markup:
    """A chart for wide and one for narrow screens; ``key`` must be unique in the page, for ids."""
    return Markup("").join(_svg(key, title, description, canvas, draw(canvas)) for canvas in _CANVASES)


def _svg(key: str, title: str, description: str, canvas: Canvas, drawing: Drawing) -> Markup:
    margins = drawing.margins
    spec = (
        alt.layer(*drawing.layers).properties(
            width=canvas.width - margins["left"] - margins["right"], height=drawing.height, padding=dict(margins),
            autosize="none", background="transparent",
        )
        .configure(aria=False)
        .configure_view(stroke=None)
        .configure_axis(
            labelFontSize=_FONT, labelColor="var(--quiet)", gridColor="var(--rule)", domainColor="var(--axis)",
            tickColor="var(--axis)", labelOverlap=True,
        )
        .configure_text(fontSize=_FONT, baseline="middle")
    ).to_dict(validate=False)  # fmt: skip
    spec["datasets"] = drawing.data
    drawn = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    inside = drawn.partition(">")[2].rpartition("</svg>")[0]
    inside = re.sub(r"<[^>]*>", lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), inside)
    key = f"{key}-{'wide' if canvas.wide else 'narrow'}"
    height = drawing.height + margins["top"] + margins["bottom"]
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" class="plot {}" viewBox="0 0 {} {:.0f}" role="img" '
        'aria-labelledby="{}-title {}-desc"><title id="{}-title">{}</title><desc id="{}-desc">{}</desc>'
    ).format(
        "wide" if canvas.wide else "narrow", canvas.width, height, key, key, key, title, key, description
    ) + Markup(f"{inside}</svg>")  # fmt: skip  # noqa: S704 - Vega escapes its texts


def _labels(names: Mapping[float, str]) -> dict[str, Any]:
    """An axis with these ticks and labels."""
    return {"values": list(names), "labelExpr": f"({json.dumps(names)})[datum.value]"}


def _time_axis(span: Span, width: float, column: str = "at") -> Any:
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
        f"{column}:T",
        scale=alt.Scale(type="utc", domain=[span.start / 1000, span.end / 1000], nice=False),
        axis=alt.Axis(
            title=None, grid=False, labelExpr=label, tickCount=max(2, int(width // 92)),
            labelFlush=26, labelSeparation=8, labelPadding=4, labelLineHeight=15,
        ),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Series:
    """Values over time, None where one is missing. ``style``, from 1, is a colour and a dash pattern."""

    name: str
    style: int
    values: Sequence[float | None]
    filled: bool = False


def lines(
    key: str, title: str, description: str, span: Span, moments: Sequence[float], series: Sequence[Series], *,
    latencies: bool = False,
) -> Markup:  # fmt: skip
    """Lines over time, with a gap where a value is missing; of rates, or of latencies on a logarithmic scale."""
    values, alone, filled = [], [], []
    for each in series:
        for place, (moment, value) in enumerate(zip(moments, each.values, strict=True)):
            # A logarithmic scale has no 0.
            shown = max(value, 1.0) if latencies and value is not None else value
            row = {"at": moment / 1000, "name": each.name, "value": shown}
            values.append(row)
            filled += [row] if each.filled else []
            around = (*each.values[max(place - 1, 0) : place], *each.values[place + 1 : place + 2])
            if value is not None and all(other is None for other in around):
                alone.append(row)
    up = _latency_scale(values) if latencies else _rate_scale(values)

    def draw(canvas: Canvas) -> Drawing:
        drawing = Drawing(248 if canvas.wide else 188, canvas.margins(62, 14))
        across = _time_axis(span, canvas.width - 76)
        colours = _styled(series, [f"var(--c{each.style})" for each in series], alt.Color)
        dashes = _styled(series, [_DASHES[each.style - 1] for each in series], alt.StrokeDash)
        shapes = _styled(series, [_SHAPES[each.style - 1] for each in series], alt.Shape)
        area = drawing.of(filled).mark_area(color="var(--c1)", opacity=0.1)
        drawn = drawing.of(values).mark_line(strokeWidth=2, strokeCap="round")
        points = drawing.of(alone).mark_point(size=60, filled=True, opacity=1)
        drawing.layers.extend((
            area.encode(x=across, y=up),
            drawn.encode(x=across, y=up, color=colours, strokeDash=dashes),
            points.encode(x=across, y=up, color=colours, shape=shapes),
        ))  # fmt: skip
        return drawing

    return plot(key, title, description, draw)


def _styled(series: Sequence[Series], values: Sequence[Any], channel: Any) -> Any:
    names = [each.name for each in series]
    return channel("name:N", legend=None, scale=alt.Scale(domain=names, range=list(values)))


def _rate_scale(values: Sequence[Mapping[str, Any]]) -> Any:
    highest = max((row["value"] or 0.0 for row in values), default=0.0)
    label = "format(datum.value, datum.value < 1 ? '~g' : '~s') + '/s'"
    return alt.Y(
        "value:Q",
        scale=alt.Scale(domain=[0, highest or 1], nice=4),
        axis=alt.Axis(title=None, tickCount=4, labelExpr=label, domain=False, ticks=False, labelPadding=8),
    )


def _latency_scale(values: Sequence[Mapping[str, Any]]) -> Any:
    ticks = latency_ticks([row["value"] for row in values if row["value"] is not None])
    return alt.Y(
        "value:Q",
        scale=alt.Scale(type="log", domain=[ticks[0], ticks[-1]], nice=False),
        axis=alt.Axis(
            title=None, domain=False, ticks=False, labelPadding=8, **_labels({tick: latency(tick) for tick in ticks})
        ),
    )


def latency_ticks(values: Sequence[float]) -> list[int]:
    """Round latencies, the first not above all values, the last not below, and at most seven or so between."""
    first = max(0, bisect_right(_LADDER, min(values, default=1)) - 1)
    last = min(len(_LADDER) - 1, max(bisect_left(_LADDER, max(values, default=1)), first + 1))
    first = min(first, last - 1)
    step = next(step for step in (1, 3, 6) if last - first <= step * _MANY_TICKS)
    first -= first % step
    last = min(len(_LADDER) - 1, last + (first - last) % step)
    return [*_LADDER[first:last:step], _LADDER[last]]


def line_sample(style: int) -> Markup:
    """A sample of a line, for a legend."""
    dashes = " ".join(str(length) for length in _DASHES[style - 1])
    return Markup(
        '<svg viewBox="0 0 24 14" class="sample" aria-hidden="true"><line x1="1" y1="7" x2="23" y2="7" '
        'stroke="var(--c{})" stroke-width="2" stroke-dasharray="{}" stroke-linecap="round"/></svg>'
    ).format(style, dashes)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of all stacked bars. ``style``, from 1 to `LAYERS`, is a colour and a hatch."""

    name: str
    style: int
    values: Sequence[float]


def stacks(
    key: str, title: str, description: str, span: Span, begins: Sequence[int], width: int, layers: Sequence[Layer]
) -> Markup:
    """Stacked bars over time, layers from the bottom up. ``begins`` and ``width`` of the bins are in microseconds."""
    styles = [layer.style for layer in layers]
    colours = alt.Scale(domain=styles, range=[_fill(style) for style in styles])
    highest = max(sum(layer.values[place] for layer in layers) for place in range(len(begins)))
    up = alt.Y(
        "value:Q", scale=alt.Scale(domain=[0, highest or 1], nice=4),
        axis=alt.Axis(title=None, tickCount=4, format="~s", domain=False, ticks=False, labelPadding=8),
    )  # fmt: skip

    def draw(canvas: Canvas) -> Drawing:
        inside = canvas.width - 76
        bar = min(0.78 * width, 44 * span.length / inside)
        values = []
        for place, begin in enumerate(begins):
            middle, base = begin + width / 2, 0.0
            sides = {"at": max(middle - bar / 2, span.start) / 1000, "to": min(middle + bar / 2, span.end) / 1000}
            for layer in layers:
                top = base + layer.values[place]
                values += [{**sides, "layer": layer.style, "base": base, "value": top}] if top > base else []
                base = top
        across = _time_axis(span, inside)
        colour = alt.Color("layer:N", legend=None, scale=colours)
        drawing = Drawing(200 if canvas.wide else 170, canvas.margins(62, 14))
        drawn = drawing.of(values).mark_rect()
        drawing.layers.append(drawn.encode(x=across, x2="to:T", y=up, y2="base:Q", color=colour))
        return drawing

    return plot(key, title, description, draw)


def _fill(style: int) -> str:
    return f"url(#hatch{style})"


def layer_sample(style: int) -> Markup:
    """A sample of a layer, for a legend."""
    return _swatch(Markup('fill="{}"').format(_fill(style)))


def bar_sample(style: int) -> Markup:
    """A sample of a bar, for a legend."""
    return _swatch(Markup('fill="var(--c{0})" stroke="var(--c{0})" fill-opacity="{1}"').format(style, _OPACITY[style]))


def _swatch(fill: Markup) -> Markup:
    rect = Markup('<rect x="1" y="1" width="12" height="12" {}/>').format(fill)
    return Markup('<svg viewBox="0 0 14 14" class="swatch" aria-hidden="true">{}</svg>').format(rect)


@dataclass(frozen=True, slots=True)
class BarRow:
    """A name and its bars: for each one its value and the text at its end."""

    name: str | None
    bars: Sequence[tuple[float, str]]


def bars(key: str, title: str, description: str, entries: Sequence[BarRow]) -> Markup:
    """Rows of horizontal bars to one scale; on narrow screens names are above their bars."""
    styles = list(range(1, max(len(entry.bars) for entry in entries) + 1))
    values: list[dict[str, Any]] = [
        {"row": row, "slot": slot, "value": value, "label": text}
        for row, entry in enumerate(entries)
        for slot, (value, text) in enumerate(entry.bars, start=1)
    ]
    highest = max(value["value"] for value in values) or 1
    figures = max(columns_of(value["label"]) for value in values) * _LETTER + 8

    def draw(canvas: Canvas) -> Drawing:
        slots = styles if canvas.wide else [0, *styles]
        margins = canvas.margins(310 if canvas.wide else 2, figures, 4, 4)
        drawing = Drawing(len(entries) * (len(slots) * 15 + 10), margins)
        place = {
            "y": alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0.22, paddingOuter=0.05)),
            "yOffset": alt.YOffset("slot:O", scale=alt.Scale(domain=slots, paddingInner=0.22)),
        }
        across = alt.X("value:Q", axis=None, scale=alt.Scale(domain=[0, highest], nice=False))
        colours = alt.Scale(domain=styles, range=[f"var(--c{style})" for style in styles])
        faint = alt.Scale(domain=list(_OPACITY), range=list(_OPACITY.values()))
        drawn = drawing.of(values)
        drawing.layers.extend((
            drawn.mark_bar(strokeWidth=1).encode(
                x=across, **place, fill=alt.Fill("slot:O", legend=None, scale=colours),
                stroke=alt.Stroke("slot:O", legend=None, scale=colours),
                fillOpacity=alt.FillOpacity("slot:O", legend=None, scale=faint)),
            drawn.mark_text(align="left", dx=6, color="var(--quiet)").encode(x=across, **place, text="label:N"),
            _names(drawing, entries, canvas, place, 340),
        ))  # fmt: skip
        return drawing

    return plot(key, title, description, draw)


def _names(drawing: Drawing, entries: Sequence[Any], canvas: Canvas, place: Mapping[str, Any], above: float) -> Any:
    """Names beside the rows; or above them, with so much room."""
    room = drawing.margins["left"] - 12 if canvas.wide else above
    names = [
        {"row": row, "slot": 0, "name": shortened(name_of(entry.name), int(room / _WIDER_LETTER))}
        for row, entry in enumerate(entries)
    ]
    # The fonts by which vl-convert measures may be narrower than those of the browser.
    mark = drawing.of(names).mark_text(align="right" if canvas.wide else "left", limit=0.85 * room, color="var(--ink)")
    if canvas.wide:
        return mark.encode(x=alt.value(-10), y=place["y"], text="name:N")
    return mark.encode(x=alt.value(0), **place, text="name:N")


@dataclass(frozen=True, slots=True)
class Lifeline:
    """From a first to a last moment, with a verdict and what is said of it."""

    name: str | None
    first: int
    last: int
    verdict: str
    remark: str


def lifelines(key: str, title: str, description: str, lives: Sequence[Lifeline], span: Span) -> Markup:
    """Lifelines over a span, which ends at the time of the verdicts; dashed from their last moment on."""
    values = [
        {"row": row, "slot": 1, "at": life.first / 1000, "to": max(life.last, life.first) / 1000,
         "verdict": life.verdict if life.verdict in _VERDICTS else "idle", "remark": life.remark}
        for row, life in enumerate(lives)
    ]  # fmt: skip
    gone = [value for value in values if value["verdict"] != "deleted"]

    def draw(canvas: Canvas) -> Drawing:
        margins = canvas.margins(282, 160, 8) if canvas.wide else canvas.margins(12, 12, 8)
        inside = canvas.width - margins["left"] - margins["right"]
        drawing = Drawing(len(lives) * (26 if canvas.wide else 42), margins)
        across, end = _time_axis(span, inside), _time_axis(span, inside, "to")
        place = {
            "y": alt.Y("row:O", axis=None, scale=alt.Scale(paddingInner=0, paddingOuter=0)),
            "yOffset": alt.YOffset("slot:O", scale=alt.Scale(domain=[1] if canvas.wide else [0, 1])),
        }
        colours = _verdict(alt.Color, _VERDICT_COLOURS)
        strokes = _verdict(alt.Stroke, _VERDICT_COLOURS)
        shapes = _verdict(alt.Shape, (_CROSS, "circle", "circle", _TICK))
        fills = _verdict(alt.Fill, ("none", "var(--paper)", "var(--c3)", "none"))
        lived = drawing.of(values)
        rest = drawing.of(gone).mark_rule(strokeDash=[2, 4], color="var(--axis)", strokeWidth=1.5)
        beside = drawing.of({**value, "slot": 1 if canvas.wide else 0} for value in values)
        remarks = beside.mark_text(color="var(--quiet)", align="left" if canvas.wide else "right")
        ends = lived.mark_point(size=70, strokeWidth=2.5, opacity=1)
        drawing.layers.extend((
            rest.encode(x=end, x2=alt.value(inside), **place),
            lived.mark_rule(strokeWidth=4, strokeCap="round").encode(x=across, x2="to:T", color=colours, **place),
            ends.encode(x=end, shape=shapes, stroke=strokes, fill=fills, **place),
            remarks.encode(x=alt.value(inside + 10), text="remark:N", **place),
            _names(drawing, lives, canvas, place, 200),
        ))  # fmt: skip
        return drawing

    return plot(key, title, description, draw)


def _verdict(channel: Any, values: Sequence[str]) -> Any:
    return channel("verdict:N", legend=None, scale=alt.Scale(domain=list(_VERDICTS), range=list(values)))
