"""Line numbers of boots: which are missing, and which are there more than once?"""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.journal.segments import SegmentName
from gateway.pipeline import line_numbers
from gateway.pipeline.check.check_output import CheckOutput, first_few
from gateway.pipeline.check.lake_scan import LakeScan, ScannedBoot, file_name
from gateway.pipeline.line_numbers import Range
from gateway.pipeline.snapshot import LakeSnapshot

_BATCH_ROWS: Final = 1 << 18


class LineChecker:
    """Looks for missing and repeated lines of each boot."""

    def __init__(self, snapshot: LakeSnapshot, scan: LakeScan, output: CheckOutput) -> None:
        self._scan = scan
        self._output = output
        names = (
            SegmentName.read(file_name(segment.path))
            for manifest in snapshot.manifests.values()
            for segment in manifest.segments
        )
        self._nodes = {name.boot: name.node for name in names if name is not None}

    def check(self) -> None:
        """Check all boots."""
        complete, not_closed = 0, []
        for boot, found in sorted(self._scan.boots.items()):
            complete += found.is_complete() or self._check_numbers(boot, found)
            if found.dropped:
                self._output.note(
                    f"{self._name(boot)}: {found.dropped:,} events were dropped, and counted, by its gateway",
                    "Disk or writer could not keep up. They are lost; the journal's level session writes less.",
                )
            if not found.closed:
                not_closed.append(boot)
        self._output.ok(f"{complete:,} of {len(self._scan.boots):,} boots have all their numbers, each once")
        if not_closed:
            self._output.note(
                f"{len(not_closed)} boots did not close: {first_few([self._name(boot) for boot in not_closed])}",
                "They are running, or their last segments are not ingested, or they were killed: then up to 512 "
                "events, or 250 ms of them, may be missing at their ends, and at level session ten seconds of counts.",
            )

    def _name(self, boot: str) -> str:
        return f"boot {boot} ({self._nodes.get(boot, '?')})"

    def _check_numbers(self, boot: str, found: ScannedBoot) -> bool:
        """Find the missing and repeated numbers; True if bad lines explain all of them."""
        if self._scan.unreadable:
            return False  # lines are missing for sure
        present = [
            *line_numbers.ranges(self._scan.files, boot), *found.retired, *((n, n) for n in found.bad_numbers)
        ]  # fmt: skip
        missing, repeated = line_numbers.gaps_and_repeats(present)
        if missing and found.unnumbered:
            missing = self._unexplained(boot, found, missing)
        if missing:
            self._output.wrong(
                f"{self._name(boot)}: {line_numbers.count(missing):,} lines are missing: "
                f"{line_numbers.in_words(missing)}",
                "If a journal still has the segments with these lines, `pipeline check --journal` names them, and "
                "`pipeline ingest` takes them up. If none has, they are lost.",
            )
        if repeated:
            self._output.wrong(
                f"{self._name(boot)}: {line_numbers.count(repeated):,} lines are there more than once: "
                f"{line_numbers.in_words(repeated)}",
                "Files were copied within the lake, or a segment was ingested under two names: the column file of "
                "events says which. Ingest the journal into a new lake.",
            )
        return not missing and not repeated

    def _unexplained(self, boot: str, found: ScannedBoot, missing: list[Range]) -> list[Range]:
        """The missing numbers, without one for each bad line of the same segment that has no readable number."""
        tokens = self._tokens(boot, found)
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
        return line_numbers.joined(result)

    def _tokens(self, boot: str, found: ScannedBoot) -> list[list[int]]:
        """Where bad lines without a number may be: from, to, how many; in the order of segments."""
        bounds = self._bounds(boot)
        for name in found.unnumbered:
            bounds.setdefault(name, None)
        names = sorted(bounds, key=lambda name: parsed.number if (parsed := SegmentName.read(name)) else 0)
        tokens = []
        for index, name in enumerate(names):
            before = [bound[1] for other in names[:index] if (bound := bounds[other])]
            after = [bound[0] for other in names[index + 1 :] if (bound := bounds[other])]
            if found.unnumbered[name]:
                tokens.append([max(before, default=-1) + 1, min(after, default=1 << 63) - 1, found.unnumbered[name]])
        return tokens

    def _bounds(self, boot: str) -> dict[str, Range | None]:
        """The smallest and largest number of each segment of a boot."""
        bounds: dict[str, Range | None] = {}
        for path in self._scan.files:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(batch_size=_BATCH_ROWS, columns=["boot", "seq", "file"]):
                    rows = pa.Table.from_batches([batch.filter(pc.equal(batch["boot"], boot))])
                    for row in rows.group_by("file").aggregate([("seq", "min"), ("seq", "max")]).to_pylist():
                        name, low, high = file_name(row["file"]), row["seq_min"], row["seq_max"]
                        known = bounds.get(name) or (low, high)
                        bounds[name] = (min(known[0], low), max(known[1], high))
        return bounds
