"""What `stomp-gateway parity` prints."""

import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from itertools import takewhile, zip_longest
from typing import TextIO

from gateway.parity.comparison import Outcome, Verdict
from gateway.parity.recording import EventGroup
from gateway.parity.rendering import shortened
from gateway.parity.transcript import Departure

_MIN_TWO_COLUMNS = 100  # characters; a narrower terminal gets one exchange after the other
_GAP = " | "
_MARK = "> "
_NO_MARK = "  "
_CLEAR_LINE = "\r\x1b[K"
_PLURALS = {Outcome.DEPARTURE: "departures"}


@dataclass
class ParityReport:
    """One line per transcript, both exchanges where they differ, and a summary."""

    output: TextIO
    progress: TextIO | None
    """Where to show a counter; None for nowhere."""
    _: KW_ONLY
    width: int
    """Of the terminal, in characters."""
    departures: Mapping[str, Departure]
    total: int
    verbose: bool
    """Print every rule in full, and every exchange."""
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    _finished: int = 0
    _not_as_written: int = 0

    @property
    def played(self) -> int:
        """The number of transcripts that were played."""
        return self.outcomes.total() - self.outcomes[Outcome.SKIPPED]

    def add_finished(self) -> None:
        """Count a transcript that has been played."""
        self._finished += 1
        self._write_progress()

    def add_verdict(self, verdict: Verdict) -> None:
        """Count and print a verdict."""
        self.outcomes[verdict.outcome] += 1
        self._not_as_written += verdict.outcome is Outcome.EQUAL and bool(verdict.remarks)
        self._write_progress(_CLEAR_LINE)
        print("\n".join(self._lines(verdict)), file=self.output, flush=True)
        self._write_progress()

    def print_summary(self, seconds: float, warnings: Sequence[str] = ()) -> None:
        """Print the number of transcripts by outcome, and the warnings under it."""
        self._write_progress(_CLEAR_LINE)
        if not self.played:
            warnings = (*warnings, "nothing was played")
        counts = ", ".join(map(self._counted, Outcome))
        total = self.outcomes.total()
        summary = f"\n{total} rule{'s'[: total != 1]}: {counts} ({seconds:.1f} s)"
        print("\n".join([summary, *(f"warning: {each}" for each in warnings)]), file=self.output, flush=True)

    def _counted(self, outcome: Outcome) -> str:
        count = self.outcomes[outcome]
        words = outcome.value if count == 1 else _PLURALS.get(outcome, outcome.value)
        has_note = outcome is Outcome.EQUAL and self._not_as_written
        return f"{count} {words} ({self._not_as_written} not as written)" if has_note else f"{count} {words}"

    def _lines(self, verdict: Verdict) -> Iterator[str]:
        in_full = self.verbose or verdict.outcome is Outcome.DIFFERENT
        yield f"{verdict.outcome.value:<9}  {verdict.transcript.name:<36}  {self._description(verdict)}"
        if in_full:
            rule = f"rule: {verdict.transcript.rule}"
            yield textwrap.fill(rule, max(40, self.width), initial_indent="    ", subsequent_indent="    ")
        if verdict.outcome is Outcome.DIFFERENT:
            for remark in verdict.remarks:
                yield textwrap.indent(remark, "    ")
        if verdict.exchanges and in_full:
            yield from side_by_side(*verdict.exchanges, self.width)
            yield ""

    def _description(self, verdict: Verdict) -> str:
        if verdict.outcome is Outcome.DEPARTURE:
            return "; ".join(map(self._departure, verdict.transcript.departures))
        if verdict.outcome is Outcome.SKIPPED:
            return "; ".join(verdict.remarks)
        title = verdict.transcript.title
        return f"{title} ({verdict.remarks[0]})" if verdict.outcome is Outcome.EQUAL and verdict.remarks else title

    def _departure(self, text: str) -> str:
        row = self.departures.get(text)
        return f"plugin: {text} | gateway: {row.gateway}" if row else text

    def _write_progress(self, text: str | None = None) -> None:
        if self.progress:
            self.progress.write(text or f"\r{self._finished} of {self.total}")
            self.progress.flush()


def side_by_side(plugin: Sequence[EventGroup], gateway: Sequence[EventGroup], width: int) -> Iterator[str]:
    """Yield both exchanges as lines, the first difference marked with `>`, long lines shortened.

    The exchanges stand side by side on a terminal of at least 100 characters.
    """
    said = [
        [line for group in groups for event in group.events for line in event.lines] for groups in (plugin, gateway)
    ]
    first = next((index for index, (one, other) in enumerate(zip_longest(*said)) if one != other), None)
    left, right = _shortened(said, first)
    if width >= _MIN_TWO_COLUMNS:
        column = (width - len(_GAP) - 4) // 2 - len(_MARK)
        yield f"    {'the plugin':<{column + len(_MARK)}}{_GAP}the gateway"
        for index, (one, other) in enumerate(zip_longest(left, right, fillvalue="")):
            yield from _row(one, other, column, _MARK if index == first else _NO_MARK)
        return
    for name, lines in (("the plugin", left), ("the gateway", right)):
        yield f"    {name}"
        for index, line in enumerate(lines):
            yield f"    {_MARK if index == first else _NO_MARK}{line}"
        if first is not None and first >= len(lines):
            yield f"    {_MARK}(nothing more)"


def _shortened(said: Sequence[Sequence[str]], first: int | None) -> Iterator[list[str]]:
    """Yield both sides with long lines shortened, but not where the first lines that differ start to differ."""
    around = 0
    if first is not None and all(first < len(lines) for lines in said):
        pairs = zip(*(lines[first] for lines in said), strict=False)  # one line may be the start of the other
        around = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    for lines in said:
        yield [shortened(line, around=around if index == first else 0) for index, line in enumerate(lines)]


def _row(left: str, right: str, column: int, mark: str) -> Iterator[str]:
    pieces = zip_longest(_wrapped(left, column), _wrapped(right, column), fillvalue="")
    for number, (one, other) in enumerate(pieces):
        sign = mark if number == 0 else _NO_MARK
        yield f"    {sign}{one:<{column}}{_GAP}{sign}{other}".rstrip()


def _wrapped(line: str, column: int) -> list[str]:
    return [line[start : start + column] for start in range(0, len(line), column)] or [""]
