"""Is a lake complete? Every line of every ingested segment in it, once, and nothing else; proven by (boot, seq).

Made with pyarrow only, so that the engine that wrote the lake is not the one that says it is right. Columns are read in
batches and compared by arithmetic; only where that does not close are numbers looked at, and only of that boot.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TextIO

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gateway.errors import PipelineError
from gateway.journal.segments import SegmentName
from gateway.pipeline import numbering
from gateway.pipeline.compact import intent_path
from gateway.pipeline.lake import BATCH_TABLES, Lake
from gateway.pipeline.numbering import Range
from gateway.pipeline.published import Published, is_being_written, parquet_files
from gateway.pipeline.staged import count_lines

_BATCH_ROWS: Final = 1 << 18
_MOST_NAMED: Final = 5
_MOST_OPEN: Final = 3600.0  # seconds since its last line after which an open segment is likely to be a dead gateway's
_ACKS: Final = pa.array(["ack", "nack"])
_COUNTED: Final = {
    "send": ("send",),
    "conf": ("conf", "rejected"),
    "dlv": ("dlv",),
    "ack": ("ack",),
    "nack": ("requeue", "discard"),
}
"""What of a stat line's counters goes into which event of the roll-up."""
_OCTETS: Final = {"send": ("send_bytes",), "dlv": ("dlv_bytes",)}
_COMPARED: Final = (*_COUNTED, "conn", "end", "use", "sub", "unsub", "err", "blk", "drop", "open", "close")


def check(lake: Lake, journal: Path | None, out: TextIO, *, quiet: bool = False) -> bool:
    """Say whether a lake is complete, and what to do where it is not.

    Args:
        lake: which; it is only read, and may be written meanwhile.
        journal: also compare with the segments in this directory.
        out: where to say it.
        quiet: only what is wrong, and the verdict.

    Returns:
        True if nothing is missing, double or unreadable.

    Raises:
        PipelineError: there is no lake, or no journal.
    """
    if not lake.batches.is_dir():
        raise PipelineError(f"there is no lake at {lake.root}. Give the directory that `pipeline ingest` wrote.")
    if journal is not None and not journal.is_dir():
        raise PipelineError(f"there is no journal at {journal}. Give the directory that `pipeline ingest` reads.")
    findings = Findings(out, quiet=quiet)
    if is_being_written(lake):
        findings.note(
            "another process is writing into the lake", "Findings may be of the moment; check again after it."
        )
    now = Published.of(lake)
    _check_manifests(now, findings)
    _check_directories(now, findings)
    seen = _Seen()
    _read_events(now, seen, findings)
    _read_bad_lines(now, seen, findings)
    _check_amounts(now, seen, findings)
    _Numbers(now, seen, findings).check()
    _check_rollup(now, seen, findings)
    if journal is not None:
        _check_journal(now, journal, findings)
    return findings.verdict()


class Findings:
    """Writes what was found.

    Args:
        out: where to.
        quiet: only what is wrong.
    """

    def __init__(self, out: TextIO, *, quiet: bool) -> None:
        self._out = out
        self._quiet = quiet
        self._wrong = 0

    def fine(self, text: str) -> None:
        """Something is as it should be."""
        if not self._quiet:
            print(f"ok       {text}", file=self._out)

    def note(self, text: str, advice: str) -> None:
        """Something is worth knowing, and does not make the lake incomplete."""
        if not self._quiet:
            print(f"note     {text}\n         {advice}", file=self._out)

    def wrong(self, text: str, advice: str) -> None:
        """Something makes the lake incomplete."""
        self._wrong += 1
        print(f"WRONG    {text}\n         {advice}", file=self._out)

    def verdict(self) -> bool:
        """Write the last line."""
        things = "thing is" if self._wrong == 1 else "things are"
        print(f"not complete: {self._wrong} {things} wrong" if self._wrong else "complete", file=self._out)
        return not self._wrong


@dataclass
class _Boot:
    """What was seen of a boot."""

    rows: int = 0
    largest: int = -1
    fingerprint: int = 0
    closed: bool = False
    dropped: int = 0
    retired: list[Range] = field(default_factory=list)
    bad_numbers: list[int] = field(default_factory=list)
    """Numbers that could be read of bad lines."""
    unnumbered: Counter[str] = field(default_factory=Counter)
    """Bad lines whose number cannot be read, by segment."""

    def add(self, rows: int, largest: int, fingerprint: int) -> None:
        self.rows += rows
        self.largest = max(self.largest, largest)
        self.fingerprint = (self.fingerprint + fingerprint) % (1 << 64)

    def closes(self) -> bool:
        """Whether all numbers from 0 to the largest are there once."""
        return self.rows == self.largest + 1 and self.fingerprint == numbering.fingerprint_of_range(0, self.largest)


@dataclass
class _Sums:
    """Amounts by event."""

    n: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    octets: dict[str, float] = field(default_factory=lambda: defaultdict(float))


@dataclass
class _Seen:
    """What was read of the lake."""

    boots: dict[str, _Boot] = field(default_factory=lambda: defaultdict(_Boot))
    days: dict[str, _Sums] = field(default_factory=lambda: defaultdict(_Sums))
    rows: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BATCH_TABLES, 0))
    bad: Counter[str] = field(default_factory=Counter)
    """Bad lines by segment."""
    files: list[Path] = field(default_factory=list)
    """Of events, those that can be read."""
    unreadable: bool = False


def _check_manifests(now: Published, findings: Findings) -> None:
    for path, reason in now.unreadable.items():
        findings.wrong(
            f"manifest {path.name} cannot be read: {reason}",
            f"Restore {path} from a backup; without it nobody can tell what belongs to the lake.",
        )
    places: dict[str, list[int]] = defaultdict(list)
    for number, manifest in now.manifests.items():
        for source in manifest.segments:
            places[source.path].append(number)
        lines = sum(source.lines for source in manifest.segments)
        if lines != manifest.events + manifest.bad_lines:
            findings.wrong(
                f"batch {number}: its segments have {lines:,} lines, but {manifest.events:,} events and "
                f"{manifest.bad_lines:,} bad lines were written",
                "Lines were lost or made up while it was ingested: ingest these segments into a new lake, and compare.",
            )
    for path_in_journal, numbers in places.items():
        if len(numbers) > 1:
            findings.wrong(
                f"{path_in_journal} was ingested more than once, by batches {', '.join(map(str, numbers))}",
                "Its rows are double: ingest the journal into a new lake.",
            )
    lines = sum(source.lines for manifest in now.manifests.values() for source in manifest.segments)
    findings.fine(f"{len(now.manifests):,} batches of {len(places):,} segments, {lines:,} lines")


def _check_directories(now: Published, findings: Findings) -> None:
    _check_expected(now, findings)
    orphans, left = [], []
    last = max(now.manifests, default=-1)
    for table in BATCH_TABLES:
        for path in (path for place in now.places(table) for path in sorted(place.glob("batch=*"))):
            if now.is_retired(path) or now.superseded(path):
                left.append(path)
            elif not now.ids(path):
                orphans.append(path)
    lake = now.lake
    # The rerun of a killed ingest replaces what it left behind; what is older than the last batch, nobody will.
    fresh = [path for path in orphans if path.name[6:].isdecimal() and int(path.name[6:]) > last]
    strange = [path for path in orphans if path not in fresh and not intent_path(lake).exists()]
    if strange:
        findings.wrong(
            f"{len(strange)} batch directories without a manifest: {_named(strange, lake.root)}",
            "No table counts them, but engines that read all files do. Move them out of the lake.",
        )
    if fresh:
        findings.note(
            f"{len(fresh)} directories of a batch that is not finished: {_named(fresh, lake.root)}",
            "An ingest is running or was killed; run `pipeline ingest` again, and it replaces them.",
        )
    if intent_path(lake).exists():
        findings.note(
            "a compaction was left off, or is running", "Run `pipeline compact`: it finishes or undoes it first."
        )
    if left:
        findings.note(
            f"{len(left)} directories that have been replaced or retired: {_named(left, lake.root)}",
            "A compact or gc was killed; run it again, and they are removed. Do not read them.",
        )
    staged = sorted(lake.staging.iterdir()) if lake.staging.is_dir() else []
    if staged:
        findings.note(
            f"{len(staged)} leftovers in {lake.staging.name}",
            "Of a run that is at work, or was killed; nobody reads them.",
        )


def _check_expected(now: Published, findings: Findings) -> None:
    """Directories that manifests speak of."""
    there = {
        table: {
            (next(part for part in place.parts if part.startswith("d="))[2:], batch)
            for place in now.places(table)
            for path in place.glob("batch=*")
            for batch in now.ids(path)
        }
        for table in BATCH_TABLES
    }
    missing = []
    for number, manifest in now.manifests.items():
        missing += [
            f"events of {day}, batch {number}"
            for day in manifest.days
            if (day, number) not in there["events"] and not _retired(now, day)
        ]
        for table, rows in (("rollup_10s", manifest.rollup_rows), ("bad_lines", manifest.bad_lines)):
            if rows and all(number != batch for _, batch in there[table]):
                missing.append(f"{table}, batch {number}")
    for name, compaction in now.compactions.items():
        for place in compaction.places:
            path = now.lake.root / place / f"batch={name}"
            if not path.is_dir() and not now.superseded(path) and not now.is_retired(path):
                missing.append(f"{place}/batch={name}")
    if missing:
        findings.wrong(
            f"{len(missing)} directories that manifests speak of are not there: {_shortened(missing)}",
            "Somebody removed them: restore them, or ingest the journal into a new lake.",
        )


def _retired(now: Published, day: str) -> bool:
    return day in now.retired


def _named(paths: list[Path], root: Path) -> str:
    return _shortened([path.relative_to(root).as_posix() for path in paths])


def _shortened(texts: list[str]) -> str:
    rest = f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    return ", ".join(texts[:_MOST_NAMED]) + rest


def _read_events(now: Published, seen: _Seen, findings: Findings) -> None:
    for place in now.places("events"):
        day = place.parent.name[2:]
        columns = ["boot", "seq", "event", "weight", "n", "body_bytes"]
        columns += ["counters"] if place.name == "level=session" else []
        for path in _files(now, place):
            batches = _batches(path, columns, seen, findings)
            for batch in batches:
                _tally(batch, seen)
                _sum(batch, seen.days[day])
                seen.rows["events"] += len(batch)
            seen.files.append(path)
    for day, retired in now.retired.items():
        _add_retired(now, day, seen)
        seen.rows["events"] += retired.rows


def _files(now: Published, place: Path) -> Iterator[Path]:
    for directory in now.in_place(place):
        yield from parquet_files(directory)


def _batches(path: Path, columns: list[str], seen: _Seen, findings: Findings) -> Iterator[pa.RecordBatch]:
    try:
        with pq.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_BATCH_ROWS, columns=columns)
    except (pa.ArrowException, OSError) as error:
        seen.unreadable = True
        reason = (str(error).splitlines() or ["?"])[0]
        findings.wrong(
            f"{path} cannot be read: {reason}", "Restore it from a backup, or ingest the journal into a new lake."
        )


def _tally(batch: pa.RecordBatch, seen: _Seen) -> None:
    """Count the numbers of each boot."""
    table = pa.table({"boot": batch["boot"], "seq": batch["seq"], "mixed": numbering.mixed(batch["seq"])})
    wanted = [("seq", "count"), ("seq", "max"), ("mixed", "sum")]
    for row in table.group_by("boot").aggregate(wanted).to_pylist():
        seen.boots[row["boot"]].add(row["seq_count"], row["seq_max"], row["mixed_sum"])
    ends = batch.filter(pc.is_in(batch["event"], pa.array(["close", "drop"]))).select(["boot", "event", "n"])
    for row in ends.to_pylist():
        boot = seen.boots[row["boot"]]
        boot.closed |= row["event"] == "close"
        boot.dropped += (row["n"] or 0) if row["event"] == "drop" else 0


def _sum(batch: pa.RecordBatch, sums: _Sums) -> None:
    """Add up what the roll-up ought to say."""
    weight = pc.fill_null(batch["weight"], 1.0)
    times = pc.if_else(pc.is_in(batch["event"], _ACKS), pc.fill_null(batch["n"], 1), 1)
    times = pc.if_else(pc.equal(batch["event"], "drop"), pc.fill_null(batch["n"], 0), times)
    octets = pc.multiply(weight, pc.cast(pc.fill_null(batch["body_bytes"], 0), pa.float64()))
    amounts = pa.table(
        {"event": batch["event"], "n": pc.multiply(weight, pc.cast(times, pa.float64())), "bytes": octets}
    )
    for row in amounts.group_by("event").aggregate([("n", "sum"), ("bytes", "sum")]).to_pylist():
        sums.n[row["event"]] += row["n_sum"]
        sums.octets[row["event"]] += row["bytes_sum"]
    if "counters" in batch.schema.names:
        _sum_counters(batch, sums)


def _sum_counters(batch: pa.RecordBatch, sums: _Sums) -> None:
    counters = batch.filter(pc.equal(batch["event"], "stat"))["counters"]
    table = pa.table({"name": counters.keys, "count": counters.items})
    totals = {row["name"]: row["count_sum"] for row in table.group_by("name").aggregate([("count", "sum")]).to_pylist()}
    for where, names in ((sums.n, _COUNTED), (sums.octets, _OCTETS)):
        for event, parts in names.items():
            where[event] += sum(totals.get(part) or 0 for part in parts)


def _add_retired(now: Published, day: str, seen: _Seen) -> None:
    """Count deleted events as present."""
    for boot, found in now.retired[day].boots.items():
        seen.boots[boot].retired += found
        for first, last in found:
            seen.boots[boot].add(last - first + 1, last, numbering.fingerprint_of_range(first, last))
    try:
        table = pq.read_table(now.lake.day_file("boots", day), columns=["boot", "closed", "dropped"], partitioning=None)
    except (pa.ArrowException, OSError):  # it only says how the boot ended
        return
    for row in table.to_pylist():
        seen.boots[row["boot"]].closed |= bool(row["closed"])
        seen.boots[row["boot"]].dropped += row["dropped"] or 0


def _read_bad_lines(now: Published, seen: _Seen, findings: Findings) -> None:
    for path in (path for place in now.places("bad_lines") for path in _files(now, place)):
        for batch in _batches(path, ["file", "line"], seen, findings):
            seen.rows["bad_lines"] += len(batch)
            for row in batch.to_pylist():
                _add_bad_line(row["file"], row["line"], seen)
    counted: Counter[str] = Counter()
    for manifest in now.manifests.values():
        for source in manifest.segments:
            counted[_file_of(source.path)] += source.bad
    wrong = [name for name in {*counted, *seen.bad} if counted[name] != seen.bad[name]]
    if wrong and not seen.unreadable:
        findings.wrong(
            f"{len(wrong)} segments have other bad lines than their manifests say: {_shortened(sorted(wrong))}",
            "Files of bad_lines were changed: restore them, or ingest the journal into a new lake.",
        )
    if seen.rows["bad_lines"]:
        findings.note(
            f"{seen.rows['bad_lines']:,} bad lines in {len(seen.bad):,} segments",
            "The table bad_lines has them, with reasons. They come from disks, power cuts or other hands.",
        )


def _file_of(path: str) -> str:
    return path.rsplit("/", 1)[-1]


def _add_bad_line(file: str, line: str | None, seen: _Seen) -> None:
    seen.bad[_file_of(file)] += 1
    name = SegmentName.read(_file_of(file))
    if name is None:
        return
    boot = seen.boots[name.boot]
    number = _number_in(line)
    if number is None:
        boot.unnumbered[str(name)] += 1
    else:
        boot.bad_numbers.append(number)
        boot.add(1, number, numbering.fingerprint_of([number]))


def _number_in(line: str | None) -> int | None:
    """The number of a bad line, where it can be read."""
    try:
        found = msgspec.json.decode(line or "")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    number = found.get("q") if isinstance(found, dict) else None
    return number if type(number) is int and 0 <= number < 1 << 62 else None


def _check_amounts(now: Published, seen: _Seen, findings: Findings) -> None:
    """Rows at hand against those that were written."""
    if seen.unreadable:
        return
    for table, written in (
        ("events", sum(manifest.events for manifest in now.manifests.values())),
        ("bad_lines", sum(manifest.bad_lines for manifest in now.manifests.values())),
    ):
        if seen.rows[table] == written:
            findings.fine(f"{table}: {written:,} rows, as written")
            continue
        findings.wrong(
            f"{table}: {seen.rows[table]:,} rows, but {written:,} were written{_where(now, table)}",
            "Files were removed, changed or copied in: restore them, or ingest the journal into a new lake.",
        )


def _where(now: Published, table: str) -> str:
    """The batches whose rows are not those of their manifests, as far as that can be told."""
    found: Counter[int] = Counter()
    blurred = set()
    for place in now.places(table):
        for path in place.glob("batch=*"):
            ids = now.ids(path)
            if len(ids) == 1 and now.belongs(path):
                found[ids[0]] += sum(pq.read_metadata(file).num_rows for file in parquet_files(path))
            else:
                blurred.update(ids)
    wrong = [
        f"batch {number}: {found[number]:,} of {rows:,}"
        for number, manifest in now.manifests.items()
        if number not in blurred
        and not any(_retired(now, day) for day in manifest.days)
        and found[number] != (rows := manifest.events if table == "events" else manifest.bad_lines)
    ]
    return f" ({_shortened(wrong)})" if wrong else ""


class _Numbers:
    """Looks for what is missing or double in each boot.

    Args:
        now: what belongs to the lake.
        seen: what was read of it.
        findings: where to say it.
    """

    def __init__(self, now: Published, seen: _Seen, findings: Findings) -> None:
        self._seen = seen
        self._findings = findings
        names = (
            SegmentName.read(_file_of(source.path))
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
                f"{len(living)} boots did not close: {_shortened([self._name(boot) for boot in living])}",
                "They are running, or their last segments are not ingested, or they were killed: then up to 512 "
                "events, or 250 ms of them, may be missing at their ends.",
            )

    def _name(self, boot: str) -> str:
        return f"boot {boot} ({self._nodes.get(boot, '?')})"

    def _in_detail(self, boot: str, seen: _Boot) -> bool:
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

    def _unexplained(self, boot: str, seen: _Boot, missing: list[Range]) -> list[Range]:
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

    def _tokens(self, boot: str, seen: _Boot) -> list[list[int]]:
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
                        name, low, high = _file_of(row["file"]), row["seq_min"], row["seq_max"]
                        known = bounds.get(name) or (low, high)
                        bounds[name] = (min(known[0], low), max(known[1], high))
        return bounds


def _check_rollup(now: Published, seen: _Seen, findings: Findings) -> None:
    """The roll-up's sums against those of the events."""
    days: dict[str, _Sums] = defaultdict(_Sums)
    for place in now.places("rollup_10s"):
        sums = days[place.name[2:]]
        for path in _files(now, place):
            for batch in _batches(path, ["event", "n", "bytes"], seen, findings):
                totals = pa.Table.from_batches([batch]).group_by("event").aggregate([("n", "sum"), ("bytes", "sum")])
                for row in totals.to_pylist():
                    sums.n[row["event"]] += row["n_sum"] or 0.0
                    sums.octets[row["event"]] += row["bytes_sum"] or 0.0
    if seen.unreadable:
        return
    wrong = [
        text
        for day in sorted({*days, *seen.days})
        if not _retired(now, day)
        for text in _differences(day, seen.days[day], days[day])
    ]
    if wrong:
        findings.wrong(
            f"the roll-up and the events differ: {_shortened(wrong)}",
            "Files of one of them were removed or changed: restore them, or ingest the journal into a new lake.",
        )
    else:
        findings.fine(f"the roll-up of {len(days):,} days has the same totals as the events")


def _differences(day: str, events: _Sums, rollup: _Sums) -> Iterable[str]:
    for event in _COMPARED:
        for what, expected, found in (
            ("", events.n[event], rollup.n[event]),
            (
                "octets of ",
                events.octets[event] if event in _OCTETS else 0.0,
                rollup.octets[event] if event in _OCTETS else 0.0,
            ),
        ):
            if abs(expected - found) > 1e-9 * max(abs(expected), 1.0):
                yield f"{day} {what}{event}: {found:,.0f} instead of {expected:,.0f}"


def _check_journal(now: Published, journal: Path, findings: Findings) -> None:
    known = {source.path: source for manifest in now.manifests.values() for source in manifest.segments}
    waiting: list[Path] = []
    changed: list[str] = []
    same = 0
    for path in _segments(journal, finished=True, version=1):
        where = path.relative_to(journal).as_posix()
        if (source := known.get(where)) is None:
            waiting.append(path)
        elif (lines := count_lines(path)) != source.lines:
            changed.append(f"{where}: {lines:,} lines, {source.lines:,} when ingested")
        else:
            same += 1
    if changed:
        findings.wrong(
            f"{len(changed)} ingested segments have changed since: {_shortened(changed)}",
            "A finished segment must never be written again. Find out who did; the lake has what was there first.",
        )
    findings.fine(f"{same:,} segments of the journal have as many lines as were ingested")
    if waiting:
        findings.note(
            f"{len(waiting)} segments are not ingested yet: {_named(waiting, journal)}", "Run `pipeline ingest`"
        )
    _check_other_segments(journal, findings)


def _check_other_segments(journal: Path, findings: Findings) -> None:
    """Segments that no ingest of this release takes up."""
    if later := _segments(journal, finished=True, version=None):
        findings.note(
            f"{len(later)} segments are of a later schema version: {_named(later, journal)}",
            "This release cannot read them; their lines are not in the lake. Ingest with the release that wrote them.",
        )
    if left := [path for path in _segments(journal, finished=False, version=1) if _is_left(path)]:
        findings.note(
            f"{len(left)} open segments have not been written for an hour: {_named(left, journal)}",
            "Left by gateways that were killed, or that are idle. A gateway that starts on that node finishes them.",
        )


def _segments(journal: Path, *, finished: bool, version: int | None) -> list[Path]:
    """A journal's segments; those of all other versions where None is given."""
    found = []
    for path in sorted(journal.glob("d=*/*")):
        name = SegmentName.read(path.name)
        if name is None or path.name != (str(name) if finished else name.while_open):
            continue
        if name.version == version or (version is None and name.version != 1):
            found.append(path)
    return found


def _is_left(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > _MOST_OPEN
    except OSError:  # finished meanwhile
        return False
