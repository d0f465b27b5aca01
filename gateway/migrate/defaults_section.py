"""Writes the group `defaults`, which applies to all virtual hosts, and the virtual hosts themselves."""

from dataclasses import dataclass
from typing import Final

from gateway.migrate.broker_settings import BrokerSettings, Setting, entries
from gateway.migrate.conf_schema import RABBIT, STOMP
from gateway.migrate.erlang_terms import Atom, Tuple
from gateway.migrate.output import PLUGIN_DEFAULT, VariableText, YamlWriter, text_scalar

_GUEST: Final = "guest"
_MAX_PREFETCH: Final = 65535
_SINCE_3_12: Final = f"{PLUGIN_DEFAULT} since 3.12.2; before there was no limit"


@dataclass
class DefaultsSection:
    """Writes `defaults` and `virtual_hosts`."""

    writer: YamlWriter
    settings: BrokerSettings
    passcode_variable: str
    """The name of a variable for the default user's passcode; empty to write the passcode itself."""
    has_passcode: bool = False
    """Whether a passcode from the files has been written."""

    def write(self, *, with_certificate_users: bool) -> None:
        """Write both; the users for certificates only if a listener needs them."""
        writer, settings = self.writer, self.settings
        writer.add(0, "defaults")
        self._default_user()
        if with_certificate_users:
            self._certificate_users()
        self._loopback_users()
        exchange, requeue = settings.get(STOMP, "default_topic_exchange"), settings.get(STOMP, "default_nack_requeue")
        writer.add(1, "default_topic_exchange", settings.text(exchange, "amq.topic"), exchange)
        writer.add(1, "default_nack_requeue", settings.switch(requeue, default=True), requeue)
        hide, size = settings.get(STOMP, "hide_server_info"), settings.get(STOMP, "max_frame_size")
        writer.add(1, "hide_server_info", settings.switch(hide, default=False), hide)
        writer.add(1, "max_frame_size", settings.number(size, "4MiB", 1), size or _SINCE_3_12)
        self._max_sessions()
        self._prefetch()
        self._virtual_hosts()

    # Users.

    def _default_user(self) -> None:
        setting = self.settings.get(STOMP, "default_user")
        if setting is None:
            self._user(_GUEST, _GUEST, None, None)
            return
        user = self.settings.properties(STOMP, "default_user")
        login, passcode = user.get("login"), user.get("passcode")
        for name, other in user.items():
            if name not in ("login", "passcode"):
                self.settings.report.dropped(other, "RabbitMQ ignores this key.")
        if login is None or passcode is None:
            self._incomplete_user(setting, login, passcode)
        elif _is_encrypted(passcode) or _is_encrypted(login):
            text = "Only the broker can read this value. Decrypt it with `rabbitmqctl decode`, and then replace "
            text += "default_user: null by login and passcode. Until then clients without a login are refused."
            self.settings.report.action(passcode, text)
            self.writer.add(1, "default_user", None, f"{passcode}, which is encrypted")
        else:
            self._complete_user(login, passcode)

    def _incomplete_user(self, setting: Setting, login: Setting | None, passcode: Setting | None) -> None:
        present, absent = (login, "passcode") if login else (passcode, "login")
        comment = str(setting)
        if present is not None:
            comment = f"{present}, without {absent}"
            text = f"It stands without a {absent}, and replaces the default as a whole: so the plugin has no default "
            text += "user that can log in, and neither has the gateway. Clients with a login are not concerned."
            self.settings.report.note(present, text)
        self.writer.add(1, "default_user", None, comment)

    def _complete_user(self, login: Setting, passcode: Setting) -> None:
        name, secret = self.settings.text(login, ""), self.settings.text(passcode, "")
        if not name or not secret:
            self.settings.report.note(login, "Neither can be empty in the gateway, so there is no default user.")
            self.writer.add(1, "default_user", None, login)
        elif self.passcode_variable:
            self._user(name, VariableText(f"${{{self.passcode_variable}}}"), login, "--passcode-variable")
        else:
            self.has_passcode = not isinstance(secret, VariableText)
            self._user(name, secret, login, passcode)

    def _user(
        self, login: str, passcode: str, login_source: Setting | None, passcode_source: Setting | str | None
    ) -> None:
        self.writer.add(1, "default_user")
        self.writer.add(2, "login", login, login_source)
        self.writer.add(2, "passcode", passcode, passcode_source)

    def _certificate_users(self) -> None:
        login = self.settings.get(STOMP, "ssl_cert_login")
        text = "Over AMQP nobody logs in without a passcode, so the gateway has to know one for each certificate name: "
        text += "fill in defaults.certificate_users. Until then clients with a certificate and no login are refused."
        self.settings.report.action(login, text)
        self.writer.add(1, "certificate_users", "", login)
        source = self.settings.get(RABBIT, "ssl_cert_login_from")
        is_whole_name = source is None or source.value == Atom("distinguished_name")
        name = '"CN=app,O=Example"' if is_whole_name else "app"
        example = f"{{{name}: {{login: app, passcode_file: app.passcode}}}}"
        self.writer.add(2, "users", {}, f"who each name is, as in {example}")

    def _loopback_users(self) -> None:
        setting = self.settings.get(RABBIT, "loopback_users")
        users = [_GUEST]
        if setting is not None and isinstance(setting.value, tuple):
            texts = [self.settings.text(entry, "") for entry in entries(setting)]
            users = list(dict.fromkeys(text for text in texts if text))
        self.writer.add(1, "loopback_users", users, setting or "RabbitMQ's default")

    # Limits and virtual hosts.

    def _max_sessions(self) -> None:
        setting = self.settings.get(STOMP, "max_connections")
        limit = self.settings.limit(setting)
        if setting is not None and limit is not None:
            self.writer.add(1, "limits")
            self.writer.add(2, "sessions", limit, setting)
            self.settings.report.note(setting, "The gateway counts by virtual host, the plugin all of them together.")

    def _prefetch(self) -> None:
        setting = self.settings.get(RABBIT, "default_consumer_prefetch")
        if setting is None:
            return
        match setting.value:
            case Tuple((_, int(count))) if 0 <= count <= _MAX_PREFETCH:
                if count:
                    self.writer.add(1, "prefetch")
                    self.writer.add(2, "default", count, setting)
            case _:
                self.settings.report.mistake(setting, f"{{false, N}} belongs here, with N up to {_MAX_PREFETCH}.")

    def _virtual_hosts(self) -> None:
        setting = self.settings.get(STOMP, "default_vhost")
        name = self.settings.text(setting, "/")
        if not name or name == "*":
            self.settings.report.mistake(setting or STOMP, "A virtual host cannot be called so.")
            return
        writer = self.writer
        writer.add(0, "default_vhost", name, setting)
        writer.add(0, "virtual_hosts")
        writer.add(1, text_scalar(name), "", setting)
        writer.add(2, "aliases", [], "DNS names that clients send as host; the plugin refuses those")
        writer.add(1, '"*"', "", "any other host is a virtual host of the broker, as with the plugin")


def _is_encrypted(setting: Setting) -> bool:
    """Whether only the broker can read a value."""
    match setting.value:
        case Tuple((Atom("encrypted"), *_)):
            return True
        case str(text):
            return text.startswith("encrypted:")
        case bytes(data):
            return data.startswith(b"encrypted:")
    return False
