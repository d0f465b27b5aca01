"""Compares the counts of clients, journal and lake."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from deploy.demo.tally import COMPARED, Tally
from gateway.journal.schema import EVENT_WORDS
from gateway.journal.segments import DAYS, PATTERN

Key = tuple[str, str]
"""A virtual host and a name in `COMPARED`. Errors are under ``""``, since some of them have no virtual host."""

_OF_EVENT: Final = {
    "conn": "sessions",
    "send": "sends",
    "conf": "confirms",
    "dlv": "deliveries",
    "ack": "acks",
    "nack": "nacks",
    "err": "errors",
}
_OF_SUM: Final = {
    "send": "sends",
    "conf": "confirms",
    "rejected": "rejections",
    "dlv": "deliveries",
    "redelivered": "redeliveries",
    "ack": "acks",
    "requeue": "nacks",
    "discard": "nacks",
}


class _Line(msgspec.Struct):
    """The fields of a journal's line that are needed here."""

    e: str
    vh: str = ""
    n: int = 1
    r: bool = False
    x: str = ""
    cnt: dict[str, int] = {}


@dataclass(frozen=True)
class Row:
    """One count of clients, journal and lake."""

    host: str
    what: str
    clients: int
    journal: int
    lake: int

    @property
    def agrees(self) -> bool:
        """Whether all three are the same."""
        return self.clients == self.journal == self.lake

    def __str__(self) -> str:
        mark = "" if self.agrees else "   DIFFERENT"
        return f"  {self.host or 'all':<8} {self.what:<13} {self.clients:>9,} {self.journal:>9,} {self.lake:>9,}{mark}"


HEADING: Final = f"  {'':<8} {'':<13} {'clients':>9} {'journal':>9} {'lake':>9}"


def compare(tallies: Mapping[str, Tally], journal: Path, lake: Path) -> list[Row]:
    """Count the journal and the lake, and compare with the clients' counts by virtual host."""
    clients = _of_clients(tallies)
    lines, rolled = of_journal(journal), _of_lake(lake)
    keys = [(host, what) for host in sorted(tallies) for what in COMPARED if what != "errors"]
    return [Row(*key, clients[key], lines[key], rolled[key]) for key in [*keys, ("", "errors")]]


def _of_clients(tallies: Mapping[str, Tally]) -> Counter[Key]:
    counts: Counter[Key] = Counter()
    for host, tally in tallies.items():
        for what, n in tally.counts.items():
            counts[_key(host, what)] += n
    return counts


def of_journal(journal: Path) -> Counter[Key]:
    """Count the finished segments of a journal: messages one by one, or the sums of `stat` lines."""
    counts: Counter[Key] = Counter()
    decoder = msgspec.json.Decoder(_Line)
    for segment in sorted(journal.glob(f"{DAYS}/{PATTERN}")):
        for line in map(decoder.decode, segment.read_bytes().splitlines()):
            for name, n in line.cnt.items():
                if name in _OF_SUM:
                    counts[_key(line.vh, _OF_SUM[name])] += n
            if line.e in _OF_EVENT:
                _count(counts, line.e, line.vh, line.n, line.x, again=line.r)
    return counts


def _of_lake(lake: Path) -> Counter[Key]:
    from gateway.pipeline.lake import Lake  # noqa: PLC0415 - works only with the extra `pipeline`

    short = {word: name for name, word in EVENT_WORDS.items()}
    counts: Counter[Key] = Counter()
    query = "select vhost, event, code, sum(n) as n from rollup_10s group by vhost, event, code"
    for row in Lake(lake).sql(query).to_pylist():
        event, code = short.get(row["event"], row["event"]), row["code"] or ""
        if event in _OF_EVENT:
            _count(counts, event, row["vhost"] or "", round(row["n"]), code, again=code == "redelivered")
    return counts


def sent_and_archived(lake: Path, destinations: str) -> tuple[int, int]:
    """How many messages the journal has sent to destinations that begin so, and how many the archive has of them."""
    from gateway.pipeline.lake import Lake  # noqa: PLC0415 - works only with the extra `pipeline`

    events = "select count(*) n from events where event = 'send' and "
    kept = "select count(*) n from messages where "
    found = [Lake(lake).sql(f"{query} destination like '{destinations}%'") for query in (events, kept)]
    return found[0]["n"][0].as_py(), found[1]["n"][0].as_py()


def _count(counts: Counter[Key], event: str, host: str, n: int, code: str, *, again: bool) -> None:
    what = "rejections" if event == "conf" and code == "rejected" else _OF_EVENT[event]
    counts[_key(host, what)] += n
    if event == "dlv" and again:
        counts[_key(host, "redeliveries")] += n


def _key(host: str, what: str) -> Key:
    return ("" if what == "errors" else host, what)
