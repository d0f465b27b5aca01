"""The section on features: which client uses what, from the table features_used."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from gateway.journal.schema import FEATURES
from gateway.pipeline.report.elements import MOST_ROWS, ReportSection, name_cell, paragraph
from gateway.pipeline.report.lake_tables import LakeTables, text, time, whole_number
from gateway.pipeline.report.markup import Markup, joined, name_of, named, shortened, tag
from gateway.pipeline.report.span import Span
from gateway.pipeline.report.units import exact, si

_COLUMNS: Final = ("vhost", "user", "version", "feature", "supported", "sessions", "first_seen", "last_seen")


@dataclass
class FeatureUsage:
    """Which clients use which features."""

    clients: dict[tuple[str | None, str | None, str | None], Counter[str]] = field(default_factory=dict)
    """By virtual host, user and version of STOMP: sessions by feature."""
    unknown: set[str] = field(default_factory=set)
    """Features that this version does not know."""

    @property
    def features(self) -> list[str]:
        """All used features, in the order of the journal's list, unknown ones last."""
        used = {feature for counts in self.clients.values() for feature in counts}
        return [feature for feature in FEATURES if feature in used] + sorted(used - set(FEATURES))

    @property
    def unused(self) -> list[str]:
        """Features that nobody uses."""
        used = set(self.features)
        return [feature for feature in FEATURES if feature not in used]


def read_usage(tables: LakeTables, span: Span) -> FeatureUsage:
    """Read which clients used which features in a span."""
    found = FeatureUsage()
    for row in tables.rows("features_used", _COLUMNS, span):
        feature = text(row, "feature")
        if feature is None or not span.touches(time(row, "first_seen"), time(row, "last_seen")):
            continue
        key = text(row, "vhost"), text(row, "user"), text(row, "version")
        found.clients.setdefault(key, Counter())[feature] += whole_number(row, "sessions")
        if row["supported"] is False:
            found.unknown.add(feature)
    found.clients = dict(sorted(found.clients.items(), key=lambda item: tuple(part or "" for part in item[0])))
    return found


def feature_section(usage: FeatureUsage) -> ReportSection:
    """A matrix of clients and features, with the number of sessions."""
    title = "Features used by each client"
    if not usage.clients:
        return ReportSection("features", title, paragraph("No feature was used in this time."))
    unused = ", ".join(usage.unused)
    body = [
        paragraph("Sessions in which a client used a feature: what a migration must support."),
        tag("div", _matrix(usage), class_="scroll", tabindex=0, role="region", aria_label=title),
        paragraph(f"Used by nobody: {unused}.", "note") if unused else None,
        paragraph("“!” marks features that this version does not know.", "note") if usage.unknown else None,
    ]
    left_out = len(usage.clients) - MOST_ROWS
    body.append(paragraph(f"{left_out:,} more rows are left out.", "note") if left_out > 0 else None)
    return ReportSection("features", title, joined(body))


def _matrix(usage: FeatureUsage) -> Markup:
    columns = usage.features
    several = len({vhost for vhost, _, _ in usage.clients}) > 1
    titles = ("User", "Virtual host", "STOMP") if several else ("User", "STOMP")
    heads = [tag("th", title, scope="col") for title in titles]
    heads += [
        tag(
            "th",
            tag("span", "! " if feature in usage.unknown else None, named(feature, 40)),
            scope="col",
            class_="turned",
        )
        for feature in columns
    ]
    rows = [
        tag("tr", tag("th", name_cell(user), scope="row"), tag("td", name_cell(vhost)) if several else None,
            tag("td", name_cell(version)),
            *(_cell(counts, feature) for feature in columns))
        for (vhost, user, version), counts in list(usage.clients.items())[:MOST_ROWS]
    ]  # fmt: skip
    return tag(
        "table",
        tag("caption", "Sessions by client and feature"),
        tag("thead", tag("tr", *heads)),
        tag("tbody", *rows),
        class_="matrix",
    )


def _cell(counts: Counter[str], feature: str) -> Markup:
    if feature not in counts:
        return tag("td", "·", class_="unused")
    return tag(
        "td",
        si(counts[feature]),
        class_="used",
        title=f"{shortened(name_of(feature), 40)}: {exact(counts[feature])} sessions",
    )
