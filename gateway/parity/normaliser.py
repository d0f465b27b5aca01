"""Recordings of two servers made comparable: what must differ gets a name, everything else stays as it was said."""

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace

from gateway.parity.recording import Entry, Order, Recording

# Where a server tells the session. A client that logged in without CONNECT learns it from its messages.
_SESSION = {
    "CONNECTED": re.compile(r"session:(session-[A-Za-z0-9_-]{22})"),
    "MESSAGE": re.compile(r"message-id:.*@@(session-[A-Za-z0-9_-]{22})@@[0-9]+"),
}
_CONNECTED = "CONNECTED"
_ERROR = "ERROR"

# Names that a server makes up. A message id ends with `@@session@@tag`; the tag is the server's own count.
_MADE_UP = re.compile(
    r"(?P<generated>amq\.gen-[A-Za-z0-9_-]{22})"
    r"|(?P<durable>stomp-subscription-[A-Za-z0-9_-]{22})"
    r"|(?P<tag>(?<=session\}@@)[0-9]+)"
)
# Octets that are not UTF-8 are quoted as a list of numbers, folded where the line is full.
_OCTETS = re.compile(r"\[[0-9]+(?:,\s*[0-9]+)*\]")
_MESSAGE_ID = re.compile(r"[QT]_[^\n]*$")


@dataclass(frozen=True, slots=True)
class Section:
    """A passage in its comparable form; `entries` are sorted unless their order counts."""

    order: Order
    entries: tuple[Entry, ...]

    def equals(self, other: "Section") -> bool:
        """Tell whether the same was said. Of what may be repeated, one side may have heard less than the other."""
        if self.order is Order.REPEATED and other.order is Order.REPEATED:
            return set(self.entries) <= set(other.entries) or set(other.entries) <= set(self.entries)
        return self == other


def normalised(recording: Recording, lines: Collection[int] | None = None) -> tuple[Section, ...]:
    """Return a recording in a form that is the same for two servers that behave the same.

    The names of the run, sessions, message ids and generated queues become placeholders; each is counted in the order
    of its first appearance, so that two that were different stay so. Headers are sorted by name. The value of
    CONNECTED's server header, and a line feed at the end of an ERROR's body, which some releases of the plugin have, do
    not count. Neither does where an ERROR's quotation of octets is folded.

    Args:
        recording: what was said.
        lines: return only what was said in the steps of these lines; None for all.
    """
    naming = _Naming(recording)
    passages = [each for each in recording.passages if lines is None or each.line in lines]
    return tuple(naming.section(passage.order, passage.entries) for passage in passages)


class _Naming:
    def __init__(self, recording: Recording) -> None:
        self._fixed = {recording.run: "{run}"}
        self._made_up: dict[tuple[str, str], str] = {}
        self._counts: dict[str, int] = {}
        for entry in recording.entries:
            if entry.opening in _SESSION:
                self._learn_session(entry)

    def _learn_session(self, entry: Entry) -> None:
        shape = _SESSION[entry.opening]
        found = next((match for line in entry.headers if (match := shape.fullmatch(line))), None)
        if found and found[1] not in self._fixed:
            client = "C" + entry.speaker[1:-1]
            earlier = sum(name.startswith(f"{{{client}.") for name in self._fixed.values())
            ordinal = f"{earlier + 1}. " if earlier else ""
            self._fixed[found[1]] = f"{{{client}.{ordinal}session}}"

    def section(self, order: Order, entries: Iterable[Entry]) -> Section:
        known = [self._with_known_names(entry) for entry in entries]
        if order is Order.EXACT:
            return Section(order, tuple(map(self._counted, known)))
        known.sort(key=lambda entry: _masked(entry).lines)
        if order is Order.FREE:
            return Section(order, tuple(map(self._counted, known)))
        return Section(order, tuple(dict.fromkeys(map(_masked, known))))

    def _with_known_names(self, entry: Entry) -> Entry:
        headers, body = entry.headers, entry.body
        if entry.opening == _CONNECTED:
            headers = tuple(map(_without_server, headers))
        if entry.speaker.endswith("<"):  # what clients say is compared as they said it
            headers = tuple(sorted(headers, key=lambda line: line.partition(":")[0]))
        if entry.opening == _ERROR:
            body = _OCTETS.sub(lambda quoted: re.sub(r"\s", "", quoted[0]), body.removesuffix("\n"))
        named = replace(entry, headers=headers, body=body)
        for value, name in self._fixed.items():
            octets = ",".join(map(str, value.encode()))
            named = _replaced(named, re.compile(re.escape(value)), name)
            named = _replaced(named, re.compile(octets), f"{name[:-1]} in octets}}")
        return named

    def _counted(self, entry: Entry) -> Entry:
        parts = (entry.opening, *entry.headers, entry.body)
        opening, *headers, body = (_MADE_UP.sub(self._name, part) for part in parts)
        return Entry(entry.speaker, opening, tuple(headers), body)

    def _name(self, match: re.Match[str]) -> str:
        kind = _kind(match)
        # A tag means something only after its subscription and session: one server counts for each subscription anew,
        # the other does not.
        before = _MESSAGE_ID.search(match.string[: match.start()]) if kind == "tag" else None
        counter = before[0] if before else kind
        key = (counter, match[0])
        if key not in self._made_up:
            self._counts[counter] = self._counts.get(counter, 0) + 1
            self._made_up[key] = f"{{{kind} {self._counts[counter]}}}"
        return self._made_up[key]


def _without_server(line: str) -> str:
    return "server:{server}" if line.startswith("server:") else line


def _replaced(entry: Entry, pattern: re.Pattern[str], name: str) -> Entry:
    parts = (entry.opening, *entry.headers, entry.body)
    opening, *headers, body = (pattern.sub(lambda _: name, part) for part in parts)
    return Entry(entry.speaker, opening, tuple(headers), body)


def _masked(entry: Entry) -> Entry:
    parts = (entry.opening, *entry.headers, entry.body)
    opening, *headers, body = (_MADE_UP.sub(lambda match: f"{{{_kind(match)}}}", part) for part in parts)
    return Entry(entry.speaker, opening, tuple(headers), body)


def _kind(match: re.Match[str]) -> str:
    return str(match.lastgroup)
