"""Which client uses which features: what a migration must support."""

from __future__ import annotations

from collections import Counter

from gateway.pipeline.report.facts.facts import Facts
from gateway.pipeline.report.markup import Markup, joined, named, tag
from gateway.pipeline.report.sections.section import Section, paragraph
from gateway.pipeline.report.table import MOST_ROWS, name
from gateway.pipeline.report.text import name_of, shortened
from gateway.pipeline.report.units import exact, si


def features(facts: Facts) -> Section:
    """A matrix of clients and features, with the number of sessions."""
    title = "Features used by each client"
    usage = facts.usage
    if not usage.clients:
        return Section("features", title, paragraph("No feature was used in this time."))
    unused = ", ".join(usage.unused)
    body = [
        paragraph("Sessions in which a client used a feature: what a migration must support."),
        tag("div", _matrix(facts), class_="scroll", tabindex=0, role="region", aria_label=title),
        paragraph(f"Used by nobody: {unused}.", "note") if unused else None,
        paragraph("“!” marks features that this version does not know.", "note") if usage.unknown else None,
    ]
    left_out = len(usage.clients) - MOST_ROWS
    body.append(paragraph(f"{left_out:,} more rows are left out.", "note") if left_out > 0 else None)
    return Section("features", title, joined(body))


def _matrix(facts: Facts) -> Markup:
    usage, columns = facts.usage, facts.usage.features
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
        tag("tr", tag("th", name(user), scope="row"), tag("td", name(vhost)) if several else None,
            tag("td", name(version)),
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
