"""Asks a lake what the report needs: the questions of queries.sql, about a span of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from gateway.journal.schema import FEATURES
from gateway.pipeline.report.formats import DAY, HOUR, LATENCIES, MINUTE, SECOND, TEMPLATES

if TYPE_CHECKING:
    import pyarrow as pa

Sql = Callable[[str], "pa.Table"]
"""Answers a question to a lake, in the SQL of DataFusion. A table that the lake lacks has no rows."""
Row = Mapping[str, Any]

TEN_SECONDS: Final = 10 * SECOND
"""The resolution of the tables."""

# Each divides the next, so that the counts of narrow bins add up to those of wider ones.
WIDTHS: Final = (
    TEN_SECONDS, 30 * SECOND, MINUTE, 5 * MINUTE, 10 * MINUTE, 30 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY,
)  # fmt: skip
"""Widths of a bin, in microseconds."""

MOST_POINTS: Final = 180
"""Bins of a line, at most, unless bins would have to be wider than a day."""
MOST_BARS: Final = 60
"""The same for bars."""

# A gateway with a wrong clock makes a span of centuries, which has too many days to draw or even count them.
_MOST_BINS: Final = 3000
_WIDER: Final = (DAY, 10 * DAY, 100 * DAY, 1000 * DAY, 10_000 * DAY)


_QUERIES: Final = TEMPLATES.get_template("queries.sql")


@dataclass(frozen=True, slots=True)
class Span:
    """From ``start`` to ``end``, exclusive; microseconds since the epoch."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """In microseconds."""
        return self.end - self.start

    def width(self, most: int) -> int:
        """The smallest width with at most so many bins, a day at most if possible; microseconds."""
        short = (width for width in WIDTHS if self.length <= most * width)
        wide = (width for width in _WIDER if self.length <= _MOST_BINS * width)
        return next(short, next(wide, _WIDER[-1]))

    @property
    def period(self) -> int:
        """The width of the periods that findings compare: an hour, a minute in a few hours, more in decades."""
        if self.length > 10 * 366 * DAY:
            return self.width(_MOST_BINS)
        return HOUR if self.length >= 6 * HOUR else MINUTE

    def bins(self, width: int) -> range:
        """The beginnings of all bins."""
        return range(self.start // width * width, self.end, width)


def known_span(sql: Sql) -> Span | None:
    """The time that a lake covers; None if it is empty."""
    days = _asked(sql, _QUERIES.module, "known_days")[0]
    if days["first"] is not None:
        at = _asked(sql, _QUERIES.module, "known_times", first_day=days["first"], last_day=days["last"])[0]
        return Span(at["first"], at["last"] + TEN_SECONDS)
    boots = _asked(sql, _QUERIES.module, "known_boots")[0]
    if boots["first"] is None or boots["last"] is None:
        return None
    return Span(boots["first"] // TEN_SECONDS * TEN_SECONDS, (boots["last"] // TEN_SECONDS + 1) * TEN_SECONDS)


def newest_line(sql: Sql, known: Span, now: int) -> int:
    """The last moment that the lake knows of, to ten seconds; of times ahead of the ingest's clock, the ingest's."""
    written: int | None = _asked(sql, _QUERIES.module, "newest_of_nodes", now=now)[0]["last"]
    if written is not None:
        return written
    last: int | None = _asked(sql, _QUERIES.module, "known_boots")[0]["last"]
    return known.end if last is None else max(last, known.end - TEN_SECONDS)


class LakeQueries:
    """The questions about a span of a lake.

    ``now`` is the time of the report, ``newest`` that of the newest line in the lake, ``lag`` its age that needs
    attention and ``peak`` the messages in a second that do; None if there is none.
    """

    def __init__(
        self, sql: Sql, span: Span, *, now: int = 0, newest: int | None = None, lag: int | None = None,
        peak: float | None = None,
    ) -> None:  # fmt: skip
        self.span, self.now, self.newest = span, now, newest
        self.width = span.width(MOST_POINTS)
        """The width of the bins of a line, in microseconds."""
        self.wide = max(self.width, span.width(MOST_BARS))
        """The width of bars, in microseconds."""
        self._sql = sql
        macros: Any = _QUERIES.make_module({
            "span": span, "width": self.width, "wide": self.wide, "features": FEATURES, "latency_events": [*LATENCIES],
            "rows": self.rows, "now": now, "newest": newest, "lag": lag, "peak_limit": peak,
        })  # fmt: skip
        self._macros = macros
        for view in macros.views().split(";"):
            sql(view)

    def count(self) -> None:
        """Count all that happened in the span, which most questions of the page need."""
        self._sql(self._macros.counts())

    def rows(self, name: str, **arguments: object) -> list[Row]:
        """The answer to a question."""
        return _asked(self._sql, self._macros, name, **arguments)


def _asked(sql: Sql, macros: object, name: str, **arguments: object) -> list[Row]:
    found: list[Row] = sql(getattr(macros, name)(**arguments)).to_pylist()
    return found
