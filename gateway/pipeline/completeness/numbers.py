"""Numbers of lines: is one missing or double in a boot, and which?"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.journal.segments import SegmentName
from gateway.pipeline import numbering
from gateway.pipeline.completeness.findings import Findings, shortened
from gateway.pipeline.completeness.seen import Boot, Seen, file_of
from gateway.pipeline.numbering import Range
from gateway.pipeline.published import Published

_BATCH_ROWS: Final = 1 << 18


class Numbers:
    """Looks for what is missing or double in each boot.

    Args:
        now: what belongs to the lake.
        seen: what was read of it.
        findings: where to say it.
    """

    def __init__(self, now: Published, seen: Seen, findings: Findings) -> None:
        self._seen = seen
        self._findings = findings
        names = (
            SegmentName.read(file_of(source.path))
            for manifest in now.manifests.values()
            for source in manifest.segments
        )
        self._nodes = {name.boot: name.node for name in names if name is not None}

    def check(self) -> None:
        """Look at all boots."""
        complete, living = 0, []
        for boot, seen in sorted(self._seen.boots.items()):
            complete += seen.closes() or self._in_detail(boot, seen)
            if seen.dropped:
                self._findings.note(
                    f"{self._name(boot)}: {seen.dropped:,} events were dropped, and counted, by its gateway",
                    "Disk or writer could not keep up. They are lost; the journal's level session writes less.",
                )
            if not seen.closed:
                living.append(boot)
        self._findings.fine(f"{complete:,} of {len(self._seen.boots):,} boots have all their numbers, each once")
        if living:
            self._findings.note(
                f"{len(living)} boots did not close: {shortened([self._name(boot) for boot in living])}",
                "They are running, or their last segments are not ingested, or they were killed: then up to 512 "
                "events, or 250 ms of them, may be missing at their ends, and at level session ten seconds of counts.",
            )

    def _name(self, boot: str) -> str:
        return f"boot {boot} ({self._nodes.get(boot, '?')})"

    def _in_detail(self, boot: str, seen: Boot) -> bool:
        """Find the numbers that are missing or double.

        Returns:
            Whether bad lines explain all of them.
        """
        if self._seen.unreadable:
            return False  # of course something is missing
        present = [*numbering.ranges(self._seen.files, boot), *seen.retired, *((n, n) for n in seen.bad_numbers)]
        missing, repeated = numbering.gaps_and_repeats(present)
        if missing and seen.unnumbered:
            missing = self._unexplained(boot, seen, missing)
        if missing:
            self._findings.wrong(
                f"{self._name(boot)}: {numbering.count(missing):,} lines are missing: {numbering.in_words(missing)}",
                "If a journal still has the segments with these lines, `pipeline check --journal` names them, and "
                "`pipeline ingest` takes them up. If none has, they are lost.",
            )
        if repeated:
            self._findings.wrong(
                f"{self._name(boot)}: {numbering.count(repeated):,} lines are there more than once: "
                f"{numbering.in_words(repeated)}",
                "Files were copied within the lake, or a segment was ingested under two names: the column file of "
                "events says which. Ingest the journal into a new lake.",
            )
        return not missing and not repeated

    def _unexplained(self, boot: str, seen: Boot, missing: list[Range]) -> list[Range]:
        """What is missing, less one number of its segment for each bad line without a number."""
        tokens = self._tokens(boot, seen)
        result: list[Range] = []
        for first, last in missing:
            at = first
            while at <= last:
                token = next((token for token in tokens if token[0] <= at <= token[1] and token[2]), None)
                if token is None:
                    # Go on where the next segment with such lines may begin.
                    following = min(
                        (token[0] for token in tokens if at < token[0] <= last and token[2]), default=last + 1
                    )
                    result.append((at, following - 1))
                    at = following
                else:
                    covered = min(token[2], min(last, token[1]) - at + 1)
                    token[2] -= covered
                    at += covered
        return numbering.joined(result)

    def _tokens(self, boot: str, seen: Boot) -> list[list[int]]:
        """Where bad lines without a number may be: from, to, how many; in the order of segments."""
        bounds = self._bounds(boot)
        for name in seen.unnumbered:
            bounds.setdefault(name, None)
        names = sorted(bounds, key=lambda name: found.number if (found := SegmentName.read(name)) else 0)
        tokens = []
        for index, name in enumerate(names):
            before = [found[1] for other in names[:index] if (found := bounds[other])]
            after = [found[0] for other in names[index + 1 :] if (found := bounds[other])]
            if seen.unnumbered[name]:
                tokens.append([max(before, default=-1) + 1, min(after, default=1 << 63) - 1, seen.unnumbered[name]])
        return tokens

    def _bounds(self, boot: str) -> dict[str, Range | None]:
        """The smallest and largest number of each segment of a boot."""
        bounds: dict[str, Range | None] = {}
        for path in self._seen.files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["boot", "seq", "file"]):
                    rows = pa.Table.from_batches([batch.filter(pc.equal(batch["boot"], boot))])
                    for row in rows.group_by("file").aggregate([("seq", "min"), ("seq", "max")]).to_pylist():
                        name, low, high = file_of(row["file"]), row["seq_min"], row["seq_max"]
                        known = bounds.get(name) or (low, high)
                        bounds[name] = (min(known[0], low), max(known[1], high))
        return bounds
