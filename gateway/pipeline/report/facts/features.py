"""The table features_used: what each client needs of whatever it talks to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gateway.journal.schema import FEATURES
from gateway.pipeline.report.facts.reading import Tables, text, time, whole_number
from gateway.pipeline.report.span import Span

_TABLE: Final = "features_used"
_COLUMNS: Final = ("vhost", "user", "version", "feature", "supported", "sessions", "first_seen", "last_seen")


@dataclass
class Usage:
    """Who uses which features."""

    clients: dict[tuple[str | None, str | None, str | None], Counter[str]] = field(default_factory=dict)
    """Sessions by feature, by virtual host, user and version of STOMP."""
    unknown: set[str] = field(default_factory=set)
    """Features that this version does not know."""

    @property
    def features(self) -> list[str]:
        """All that somebody uses, in the order of the journal's list, unknown ones last."""
        used = {feature for counts in self.clients.values() for feature in counts}
        return [feature for feature in FEATURES if feature in used] + sorted(used - set(FEATURES))

    @property
    def unused(self) -> list[str]:
        """Features that nobody uses."""
        used = set(self.features)
        return [feature for feature in FEATURES if feature not in used]


def read_usage(tables: Tables, span: Span) -> Usage:
    """Features by client."""
    found = Usage()
    for row in tables.rows(_TABLE, _COLUMNS, span):
        feature = text(row, "feature")
        if feature is None or not span.touches(time(row, "first_seen"), time(row, "last_seen")):
            continue
        key = text(row, "vhost"), text(row, "user"), text(row, "version")
        found.clients.setdefault(key, Counter())[feature] += whole_number(row, "sessions")
        if row["supported"] is False:
            found.unknown.add(feature)
    found.clients = dict(sorted(found.clients.items(), key=lambda item: tuple(part or "" for part in item[0])))
    return found
