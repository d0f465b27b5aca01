"""What `stomp-gateway parity` prints."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile, zip_longest
from typing import TextIO

from gateway.parity.library import Departure
from gateway.parity.normaliser import Section
from gateway.parity.text import shortened
from gateway.parity.verdict import Outcome, Verdict

_TWO_COLUMNS = 100  # characters of the terminal from which on two exchanges fit beside each other
_GAP = " | "
_MARK = "> "
_NO_MARK = "  "


class Report:
    """One line per rule, both exchanges where they differ, and the figures at the end.

    Args:
        output: where to print.
        progress: where to show a counter while it lasts; None for nowhere.
        width: of the terminal, in characters.
        departures: rows by their first column.
        total: how many conversations there are.
        verbose: print rules in full, and the exchanges of all that was played.
    """

    def __init__(
        self,
        output: TextIO,
        progress: TextIO | None,
        *,
        width: int,
        departures: Mapping[str, Departure],
        total: int,
        verbose: bool,
    ) -> None:
        self._output = output
        self._progress = progress
        self._width = width
        self._departures = departures
        self._total = total
        self._verbose = verbose
        self._over = 0
        self._not_as_written = 0
        self.outcomes: Counter[Outcome] = Counter()

    def count(self) -> None:
        """A conversation is over: show how far we are."""
        self._over += 1
        self._show_progress()

    def tell(self, verdict: Verdict) -> None:
        """Print a verdict."""
        self.outcomes[verdict.outcome] += 1
        self._not_as_written += verdict.outcome is Outcome.EQUAL and bool(verdict.remarks)
        self._clear_progress()
        print("\n".join(self._lines(verdict)), file=self._output, flush=True)
        self._show_progress()

    def conclude(self, seconds: float, warnings: Sequence[str] = ()) -> None:
        """Print the figures, and under them what makes them worth less."""
        self._clear_progress()
        counts = ", ".join(map(self._counted, Outcome))
        total = self.outcomes.total()
        figures = f"\n{total} rule{'s'[: total != 1]}: {counts} ({seconds:.1f} s)"
        print("\n".join([figures, *(f"warning: {each}" for each in warnings)]), file=self._output, flush=True)

    def _counted(self, outcome: Outcome) -> str:
        count = self.outcomes[outcome]
        words = outcome.value if count == 1 else _PLURALS[outcome]
        remarkable = f" ({self._not_as_written} not as written)" if self._not_as_written else ""
        return f"{count} {words}{remarkable if outcome is Outcome.EQUAL else ''}"

    @property
    def played(self) -> int:
        """How many conversations were played."""
        return self.outcomes.total() - self.outcomes[Outcome.SKIPPED]

    def _lines(self, verdict: Verdict) -> Iterator[str]:
        is_different = verdict.outcome is Outcome.DIFFERENT
        yield f"{verdict.outcome.value:<9}  {verdict.conversation.name:<36}  {self._words(verdict)}"
        if self._verbose or is_different:
            yield from _wrapped(f"rule: {verdict.conversation.rule}", self._width)
        if is_different:
            for remark in verdict.remarks:
                yield textwrap.indent(remark, "    ")
        if verdict.exchanges and (self._verbose or is_different):
            yield from side_by_side(*verdict.exchanges, self._width)
            yield ""

    def _words(self, verdict: Verdict) -> str:
        if verdict.outcome is Outcome.DEPARTURE:
            return "; ".join(map(self._departure, verdict.conversation.departures))
        if verdict.outcome is Outcome.SKIPPED:
            return "; ".join(verdict.remarks)
        title = verdict.conversation.title
        return f"{title} ({verdict.remarks[0]})" if verdict.outcome is Outcome.EQUAL and verdict.remarks else title

    def _departure(self, text: str) -> str:
        row = self._departures.get(text)
        return f"plugin: {text} | gateway: {row.gateway}" if row else text

    def _show_progress(self) -> None:
        if self._progress:
            self._progress.write(f"\r{self._over} of {self._total}")
            self._progress.flush()

    def _clear_progress(self) -> None:
        if self._progress:
            self._progress.write("\r\x1b[K")
            self._progress.flush()


_PLURALS: Mapping[Outcome, str] = {
    Outcome.EQUAL: "equal",
    Outcome.DEPARTURE: "departures",
    Outcome.DIFFERENT: "DIFFERENT",
    Outcome.SKIPPED: "skipped",
}


def side_by_side(plugin: tuple[Section, ...], gateway: tuple[Section, ...], width: int) -> Iterator[str]:
    """Yield both exchanges as lines, the first line that differs marked with `>`, long lines shortened.

    Args:
        plugin: what was said on the plugin.
        gateway: what was said on the gateway.
        width: of the terminal, in characters; from 100 on the exchanges stand beside each other.
    """
    said = list(_spoken(plugin)), list(_spoken(gateway))
    first = next((place for place, (one, other) in enumerate(zip_longest(*said)) if one != other), None)
    left, right = _readable(said, first)
    if width >= _TWO_COLUMNS:
        column = (width - len(_GAP) - 4) // 2 - len(_MARK)
        yield f"    {'the plugin':<{column + len(_MARK)}}{_GAP}the gateway"
        for place, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
            yield from _row(one, other, column, _MARK if place == first else _NO_MARK)
        return
    for name, lines in (("the plugin", left), ("the gateway", right)):
        yield f"    {name}"
        for place, line in enumerate(lines):
            yield f"    {_MARK if place == first else _NO_MARK}{line}"
        if first is not None and first >= len(lines):
            yield f"    {_MARK}(nothing more)"


def _readable(said: tuple[list[str], list[str]], first: int | None) -> Iterator[list[str]]:
    """Yield both sides with their long lines shortened, but so that the difference can still be seen."""
    around = 0
    if first is not None and all(first < len(lines) for lines in said):
        pairs = zip(*(lines[first] for lines in said), strict=False)  # one may begin with all of the other
        around = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    for lines in said:
        yield [shortened(line, around=around if place == first else 0) for place, line in enumerate(lines)]


def _row(left: str, right: str, column: int, mark: str) -> Iterator[str]:
    pieces = zip_longest(_cut(left, column), _cut(right, column), fillvalue="")
    for number, (one, other) in enumerate(pieces):
        sign = mark if number == 0 else _NO_MARK
        yield f"    {sign}{one:<{column}}{_GAP}{sign}{other}".rstrip()


def _cut(line: str, column: int) -> list[str]:
    return [line[start : start + column] for start in range(0, len(line), column)] or [""]


def _spoken(sections: tuple[Section, ...]) -> Iterator[str]:
    for section in sections:
        for entry in section.entries:
            yield from entry.lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(40, width), initial_indent="    ", subsequent_indent="    ")
