"""What `stomp-gateway check` says about brokers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from gateway.config.broker_user import User
from gateway.config.virtual_host import VirtualHost
from gateway.server.broker.probe import FIRST_STEP, ProbeReport, targets_of

_UNREACHABLE_ADVICE: Final = (
    "does RabbitMQ run there and listen for AMQP on this address and port? Does a firewall let the gateway through?"
)


def report_lines(reports: Sequence[ProbeReport]) -> Iterator[str]:
    """Format each report as a paragraph of aligned lines, without passcodes."""
    width = max((len(step) for report in reports for step, _ in report.steps), default=0)
    for report in reports:
        plural = "" if len(report.virtual_hosts) == 1 else "s"
        yield ""
        yield f"{report.target.url} for virtual host{plural} {', '.join(report.virtual_hosts)}"
        for step, finding in report.steps:
            yield f"  {step:<{width}}  {finding}"
        if report.steps and report.steps[-1][0] == FIRST_STEP and not report.usable:
            yield f"  {'advice':<{width}}  {_UNREACHABLE_ADVICE}"
    if partly := list(_partly_served(reports)):
        yield ""
        yield from partly


def _partly_served(reports: Sequence[ProbeReport]) -> Iterator[str]:
    """A line for each virtual host with several brokers of which only some can be used."""
    for (name, _), own in _by_user(reports).items():
        usable = sum(report.usable for report in own)
        if 0 < usable < len(own):
            others = ", ".join(str(report.target.url) for report in own if not report.usable)
            yield f"virtual host {name}: {usable} of {len(own)} brokers can be used, but not {others}"


def first_broker_warnings(virtual_hosts: Iterable[VirtualHost], reports: Sequence[ProbeReport]) -> Iterator[str]:
    """A line for each virtual host whose first broker cannot be used, while others can."""
    usable = {report.target for report in reports if report.usable}
    for virtual_host in virtual_hosts:
        targets = list(targets_of(virtual_host))
        first = targets[0].url
        others = {target for target in targets if target.url != first}
        is_first_usable = any(target in usable for target in targets if target.url == first)
        if virtual_host.upstream.order == "as-written" and not is_first_usable and usable & others:
            yield f"warning: virtual host {virtual_host.name}: its links cannot go to its first broker, {first}"


def alarm_warnings(reports: Iterable[ProbeReport]) -> Iterator[str]:
    """A line for each broker that has a memory or disk alarm."""
    alarms = {report.target.url: report.alarm for report in reports if report.alarm}
    for url, alarm in alarms.items():
        yield f"warning: {url} has an alarm, {alarm}: it takes no messages until that is over"


def unserved(reports: Sequence[ProbeReport]) -> list[str]:
    """The virtual hosts without a usable upstream, in the order of the configuration, and then such users."""
    served: dict[str, list[bool]] = {}
    for (name, _), own in _by_user(reports).items():
        served.setdefault(name, []).append(any(report.usable for report in own))
    found = {name: None for name, usable in served.items() if not any(usable)}
    for (name, user), own in _by_user(reports).items():
        if name not in found and user is not None and not any(report.usable for report in own):
            found[f"{name} as {user.login}"] = None
    return list(found)


def untried(reports: Iterable[ProbeReport]) -> Iterator[str]:
    """A line for each virtual host in which no login was tried."""
    for name, user in _by_user(reports):
        if user is None:
            yield f"warning: virtual host {name}: no login was tried, since it has no user here. Give one with --login"


def _by_user(reports: Iterable[ProbeReport]) -> dict[tuple[str, User | None], list[ProbeReport]]:
    found: dict[tuple[str, User | None], list[ProbeReport]] = {}
    for report in reports:
        for name in report.virtual_hosts:
            found.setdefault((name, report.target.user), []).append(report)
    return found
