"""From settings to the text of a configuration, and to all that there is to say about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gateway import __version__
from gateway.config import SocketAddress
from gateway.migrate.defaults import Defaults
from gateway.migrate.keys import STOMP, WEB
from gateway.migrate.listening import Listeners
from gateway.migrate.losses import remark_losses
from gateway.migrate.remarks import Remark, Remarks, Weight
from gateway.migrate.settings import Settings
from gateway.migrate.sheet import Sheet, wrapped
from gateway.migrate.upstream import write_upstream
from gateway.migrate.values import Reading
from gateway.migrate.where import Spot

_FALLBACK: Final = SocketAddress("127.0.0.1", 61613)


@dataclass(frozen=True)
class Wishes:
    """What the user asks for beside the files."""

    upstream: Sequence[str] = ()
    port_offset: int = 0
    passcode_variable: str = ""


@dataclass(frozen=True)
class Translation:
    """A configuration."""

    sheet: Sheet
    secret: bool
    """Whether it holds a passcode from the files."""

    def text(self, sources: Sequence[str], remarks: Remarks) -> str:
        """The whole file.

        Args:
            sources: names of the files that it was made of.
            remarks: stand at its end.
        """
        head, foot = Sheet(), Sheet()
        head.remark(f"Made by stomp-gateway migrate ({__version__}) of {', '.join(sources) or 'nothing but defaults'}.")
        head.remark("Behind each line: where it came from. What could not be carried over is at the end.")
        head.remark()
        for weight in Weight:
            _write_remarks(foot, weight, list(remarks.of(weight)))
        return head.text() + self.sheet.text() + foot.text()


def _write_remarks(sheet: Sheet, weight: Weight, remarks: Sequence[Remark]) -> None:
    if not remarks:
        return
    sheet.remark()
    sheet.remark(f"{weight.value}:")
    for remark in remarks:
        first, *rest = wrapped(f"* {remark}")
        sheet.remark(first)
        for line in rest:
            sheet.remark(line)


def translate(settings: Settings, plugins: frozenset[str] | None, wishes: Wishes, remarks: Remarks) -> Translation:
    """Make a configuration that behaves as the plugins do.

    Args:
        settings: of all files.
        plugins: those that are enabled; None where nobody knows.
        wishes: of the user.
        remarks: grow.

    Raises:
        MigrateError: something in the settings is wrong.
        UsageError: a wish cannot be granted.
    """
    with_web = _web_runs(settings, plugins, remarks)
    sheet, reading = Sheet(), Reading(settings, remarks)
    listeners = Listeners(reading, wishes.port_offset, sheet)
    sheet.add(0, "listeners")
    listeners.stomp()
    if with_web:
        listeners.web()
    if not listeners.taken:
        text = "No listener is left, and the gateway cannot be without one: it has one for this machine only."
        remarks.lost("listeners", text)
        listeners.add([Spot(_FALLBACK, "the gateway's default")], "tcp", "listeners", lambda _spot: None)
    write_upstream(sheet, reading, wishes.upstream)
    defaults = Defaults(sheet, reading, wishes.passcode_variable)
    defaults.write(certificate_login=listeners.certificate_login)
    remark_losses(reading, with_web=with_web)
    remarks.note("virtual_hosts", '"*" passes every host on, as the plugin does. Leave it out while `parity` runs.')
    if settings.foreign:
        count = "1 setting" if settings.foreign == 1 else f"{settings.foreign} settings"
        remarks.note("", f"Left where it belongs: {count} of other parts of RabbitMQ.")
    remarks.raise_mistakes()
    return Translation(sheet, defaults.secret)


def _web_runs(settings: Settings, plugins: frozenset[str] | None, remarks: Remarks) -> bool:
    has_web = bool(settings.apps.get(WEB))
    if plugins is None:
        text = f"Without --enabled-plugins, {STOMP} is taken to be enabled, and {WEB} "
        remarks.note("", text + ("too, because it is configured." if has_web else "not, because it is not configured."))
        return has_web
    if not plugins & {STOMP, WEB}:
        remarks.mistake("enabled plugins", f"Neither {STOMP} nor {WEB} is among them: there is nothing to migrate.")
    if WEB in plugins and STOMP not in plugins:
        remarks.note("", f"{WEB} brings {STOMP} along, which listens too.")
    if has_web and WEB not in plugins:
        remarks.note("", f"{WEB} is configured and not enabled: its settings are left out.")
    return WEB in plugins
