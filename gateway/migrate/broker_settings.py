"""RabbitMQ's settings as the broker holds them: by Erlang application and key, each with its place in a file.

The broker itself translates rabbitmq.conf to this form. A key in a later file replaces the whole key of an earlier
one, with all its properties, as in the broker.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self, TypeAlias, TypeVar

from gateway.migrate.erlang_terms import Atom, Term
from gateway.migrate.output import MigrationReport
from gateway.texts import printable

_MAX_SHOWN: Final = 80
_DefaultT = TypeVar("_DefaultT")


@dataclass(frozen=True)
class Origin:
    """The place of a setting in the files."""

    file: str
    line: int
    key: str
    """As the file calls it."""

    def __str__(self) -> str:
        return f"{shown(self.file)}:{self.line} {shown(self.key)}"


@dataclass(frozen=True)
class Setting:
    """A value from the files. `str()` gives its origin, because the value may be a secret."""

    value: "Value"
    origin: Origin

    def __str__(self) -> str:
        return str(self.origin)


Value: TypeAlias = "Term | tuple[Setting, ...] | Mapping[str, Setting]"
"""A plain term, the entries of a list (of listeners, for example), or the properties of a property list."""


@dataclass
class BrokerSettings:
    """The settings of the files. A value of the wrong type is reported as a mistake, and the default is returned."""

    report: MigrationReport
    apps: dict[str, dict[str, Setting]] = field(default_factory=dict)
    """`rabbitmq_stomp`, `rabbitmq_web_stomp`, and the settings of `rabbit` that both use."""
    foreign: int = 0
    """The number of settings of other parts of RabbitMQ."""
    files: list[Path] = field(default_factory=list)
    """The files that the given ones include or take a value from."""

    def get(self, app: str, key: str) -> Setting | None:
        """A setting, if the files have it."""
        return self.apps.get(app, {}).get(key)

    def put(self, app: str, key: str, setting: Setting) -> None:
        """Set a setting, or replace it."""
        self.apps.setdefault(app, {})[key] = setting

    def properties(self, app: str, key: str) -> Mapping[str, Setting]:
        """The properties of a property list by name; empty if the files do not have it."""
        setting = self.get(app, key)
        return setting.value if setting is not None and isinstance(setting.value, Mapping) else {}

    def override_with(self, later: Self) -> None:
        """Add the settings of a later file, which replace earlier ones, and say so.

        TLS options without a certificate are joined to the earlier ones: the broker would not start with them alone,
        and a listener would be lost.
        """
        for app, settings in later.apps.items():
            earlier = self.apps.setdefault(app, {})
            for key, setting in settings.items():
                earlier[key] = self._overridden(earlier[key], setting) if key in earlier else setting
        self.foreign += later.foreign
        self.files += later.files

    def _overridden(self, earlier: Setting, later: Setting) -> Setting:
        old, new = earlier.value, later.value
        if (
            isinstance(old, Mapping)
            and isinstance(new, Mapping)
            and "certfile" in old
            and not {"certfile", "cert"} & {*new}
        ):
            missing = [str(setting) for name, setting in old.items() if name not in new]
            text = "In the broker it replaces all options of rabbitmq.conf, and without a certificate no TLS listener "
            text += f"starts. The gateway takes these as well: {', '.join(missing)}. See whether that was meant."
            self.report.action(later, text)
            return Setting({**old, **new}, later.origin)
        places = _places(earlier)
        more = f" and {len(places) - 1} more" if len(places) > 1 else ""
        self.report.note(later, f"It replaces {places[0]}{more}, as in the broker.")
        return later

    def number(self, setting: Setting | None, default: _DefaultT, least: int = 0) -> int | _DefaultT:
        """A whole number of at least `least`."""
        if setting is None:
            return default
        if isinstance(setting.value, int) and setting.value >= least:
            return setting.value
        self.report.mistake(setting, f"A whole number of at least {least} belongs here.")
        return default

    def limit(self, setting: Setting | None) -> int | None:
        """A number of at least 1; None for no limit."""
        if setting is not None and setting.value == Atom("infinity"):
            return None
        return self.number(setting, None, 1)

    def switch(self, setting: Setting | None, default: bool) -> bool:
        """True or false."""
        if setting is None:
            return default
        if setting.value not in (Atom("true"), Atom("false")):
            self.report.mistake(setting, "This is either true or false.")
        return setting.value == Atom("true")

    def word(self, setting: Setting | None, choices: Collection[str], default: str) -> str:
        """The name of an atom that is one of the choices."""
        if setting is None:
            return default
        if isinstance(setting.value, Atom) and setting.value.name in choices:
            return setting.value.name
        self.report.mistake(setting, f"This is one of {', '.join(choices)}.")
        return default

    def text(self, setting: Setting | None, default: _DefaultT) -> str | _DefaultT:
        """The text of a string, or of a binary in UTF-8."""
        if setting is None:
            return default
        if isinstance(setting.value, str):
            return setting.value
        mistake = 'A text in " belongs here.'
        if isinstance(setting.value, bytes):
            try:
                return setting.value.decode()
            except UnicodeDecodeError:
                mistake = 'These bytes are not UTF-8. In the Erlang form write <<"..."/utf8>>.'
        self.report.mistake(setting, mistake)
        return default


def _places(setting: Setting) -> list[str]:
    """Where a setting comes from: the places of its entries or properties, if it has any."""
    value = setting.value
    parts = [*value.values()] if isinstance(value, Mapping) else value if isinstance(value, tuple) else ()
    return list(dict.fromkeys(place for part in parts for place in _places(part))) or [str(setting)]


def entries(setting: Setting | None) -> tuple[Setting, ...]:
    """The entries of a list; empty if the setting is absent."""
    return setting.value if setting is not None and isinstance(setting.value, tuple) else ()


def shown(name: str) -> str:
    """At most 80 characters of a name from a file, as `printable` shows them."""
    return printable(name[:_MAX_SHOWN]) + ("..." if len(name) > _MAX_SHOWN else "")
