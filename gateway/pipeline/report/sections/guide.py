"""How to read the report."""

from __future__ import annotations

from typing import Final

from gateway.pipeline.report.markup import joined, tag
from gateway.pipeline.report.sections.section import Section

_TERMS: Final = (
    ("Sent, delivered, acknowledged", "SEND frames that were published, MESSAGE frames written to clients, and "
     "messages that an ACK covered; one cumulative ACK counts for all that it covers. With ack mode auto nothing is "
     "acknowledged, so acknowledged may be far below delivered."),
    ("Octets", "Bodies only, without commands and headers."),
    ("Publish → confirm", "From publishing a message until the broker confirmed it, by the gateway's clock."),
    ("Deliver → acknowledge", "From writing a MESSAGE to the client until its ACK: the network and the client's work."),
    ("p50, p95, p99", "So many per cent of the latencies were no longer than this. Latencies are counted in buckets "
     "that are at most 6.25 % wide, and the upper end of the bucket is given: at most 6.25 % too large. "
     "Percentiles of longer times are made from the counts, not from other percentiles."),
    ("Times", "All in UTC. Destinations, redeliveries and errors by user are counted by whole hours, unacknowledged "
     "deliveries and features by whole days: at both ends these may hold a little more than the time of the report."),
    ("Sampling", "Where the journal records a sample of the messages, each counts with its weight; such figures are "
     "estimates. Sessions, errors and subscriptions are never sampled."),
    ("Redelivered", "The broker said that it had delivered the message before. It says nothing about how often."),
    ("Unacknowledged", "Neither acknowledged nor refused within the days of the report. The broker puts such messages "
     "back into their queue when the subscription ends. What is still being worked on counts too."),
    ("Abandoned, idle", "How long nobody has been connected to a durable subscription, measured against the newest "
     "line of all journals. The gateway does not see the length of its queue."),
    ("Holds", "The gateway stops reading a client that is ahead of the broker, or of itself. That is how it slows a "
     "client down instead of growing."),
    ("Lower bound", "When a gateway was killed, or its disk could not keep up, lines of the journal are missing. Then "
     "there was at least as much as is shown."),
    ("Not measured", "How long a message lay in its queue; the length of queues; what clients that speak AMQP do; what "
     "the network between client and gateway took, other than as a part of deliver → acknowledge."),
)  # fmt: skip


def guide() -> Section:
    """Definitions, precision, and what is not measured."""
    terms = joined(part for term, meaning in _TERMS for part in (tag("dt", term), tag("dd", meaning)))
    return Section("guide", "How to read this", tag("dl", terms, class_="guide"))
