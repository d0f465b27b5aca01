"""Manifests: are they all there, do they add up, and is no segment in two of them?"""

from __future__ import annotations

from collections import defaultdict

from gateway.pipeline import numbering
from gateway.pipeline.completeness.findings import Findings
from gateway.pipeline.lake import Lake, listed
from gateway.pipeline.published import Published


def newest_commit(lake: Lake) -> int:
    """The last batch that Spark's checkpoint calls done; -1 where there is none."""
    names = (path.name for path in listed(lake.checkpoint / "commits"))
    return max((int(name) for name in names if name.isdecimal()), default=-1)


def check_manifests(now: Published, committed: int, findings: Findings) -> None:
    """Look at all manifests.

    Args:
        now: what belongs to the lake.
        committed: the last batch that must have one, see `newest_commit`; read before the manifests were.
        findings: where to say it.
    """
    for path, reason in now.unreadable.items():
        findings.wrong(
            f"manifest {path.name} cannot be read: {reason}",
            f"Restore {path} from a backup; without it nobody can tell what belongs to the lake.",
        )
    _check_numbers(now, committed, findings)
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


def _check_numbers(now: Published, committed: int, findings: Findings) -> None:
    """Batches are numbered 0, 1, 2 ...: whatever is left out has lost its manifest."""
    broken = [int(path.stem) for path in now.unreadable if path.stem.isdecimal()]
    known = [*now.manifests, *broken]
    end = max([*known, committed], default=-1) + 1
    missing, _ = numbering.gaps_and_repeats([*((number, number) for number in known), (end, end)])
    if missing:
        findings.wrong(
            f"{numbering.count(missing):,} batches have lost their manifests: {numbering.in_words(missing)}",
            f"Restore {now.lake.batches} from a backup before anything else runs; if there is none, ingest the journal "
            "into a new lake.",
        )
