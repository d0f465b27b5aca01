"""What a probe found, in words and lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gateway.server.broker.probe import Report


def report_lines(reports: Sequence[Report]) -> Iterator[str]:
    """Each report as a paragraph of aligned lines. No line holds a passcode."""
    width = max((len(step) for report in reports for step, _ in report.steps), default=0)
    for report in reports:
        plural = "" if len(report.names) == 1 else "s"
        yield ""
        yield f"{report.target.url} for virtual host{plural} {', '.join(report.names)}"
        for step, finding in report.steps:
            yield f"  {step:<{width}}  {finding}"


def unserved(reports: Sequence[Report]) -> list[str]:
    """Names of the virtual hosts that no tried upstream can serve, in the order of the configuration."""
    served = {name for report in reports if report.usable for name in report.names}
    everyone = dict.fromkeys(name for report in reports for name in report.names)
    return [name for name in everyone if name not in served]
