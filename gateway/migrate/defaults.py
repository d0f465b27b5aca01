"""What holds for all virtual hosts: the default user, and how destinations and frames are dealt with."""

from __future__ import annotations

import re
from typing import Final

from gateway.migrate.keys import RABBIT, STOMP
from gateway.migrate.settings import Given, Template
from gateway.migrate.sheet import Sheet, Variable, key_text
from gateway.migrate.terms import Atom, Tuple
from gateway.migrate.values import DEFAULT, Reading, because, is_encrypted

_GUEST: Final = "guest"
_REFERENCE: Final = re.compile(r"\$\(([^()]*)\)")
_MOST_PREFETCH: Final = 65535
_SINCE_3_12: Final = f"{DEFAULT} since 3.12.2; before there was no limit"


class Defaults:
    """Writes the groups `defaults` and `virtual_hosts`.

    Args:
        sheet: grows.
        reading: the settings.
        variable: the environment variable that the passcode is to be read from; empty to write it as it is.
    """

    def __init__(self, sheet: Sheet, reading: Reading, variable: str) -> None:
        self._sheet = sheet
        self._reading = reading
        self._variable = variable
        self.secret = False
        """Whether the sheet holds a passcode from the files."""

    def write(self, *, certificate_login: bool) -> None:
        """Both groups.

        Args:
            certificate_login: whether clients can log in by certificate somewhere.
        """
        sheet, reading = self._sheet, self._reading
        sheet.add(0, "defaults")
        self._default_user()
        if certificate_login:
            self._certificate_users()
        self._loopback_users()
        exchange, requeue = reading.get(STOMP, "default_topic_exchange"), reading.get(STOMP, "default_nack_requeue")
        sheet.add(1, "default_topic_exchange", reading.text(exchange, "amq.topic"), because(exchange))
        sheet.add(1, "default_nack_requeue", reading.switch(requeue, default=True), because(requeue))
        hide, size = reading.get(STOMP, "hide_server_info"), reading.get(STOMP, "max_frame_size")
        sheet.add(1, "hide_server_info", reading.switch(hide, default=False), because(hide))
        most = reading.number(size, "4MiB", 1)
        sheet.add(1, "max_frame_size", most, because(size) if size else _SINCE_3_12)
        self._sessions()
        self._prefetch()
        self._virtual_hosts()

    # Users.

    def _default_user(self) -> None:
        given = self._reading.get(STOMP, "default_user")
        if given is None:
            self._user(_GUEST, _GUEST, DEFAULT, DEFAULT)
            return
        parts = self._reading.settings.parts(STOMP, "default_user")
        login, passcode = parts.get("login"), parts.get("passcode")
        for name, part in parts.items():
            if name not in ("login", "passcode"):
                self._reading.remarks.lost(part, "RabbitMQ ignores this key.")
        if login is None or passcode is None:
            self._no_user(given, login, passcode)
        elif is_encrypted(passcode) or is_encrypted(login):
            text = "Only the broker can read this value. Decrypt it with `rabbitmqctl decode`, and then replace "
            text += "default_user: null by login and passcode. Until then clients without a login are refused."
            self._reading.remarks.needed(passcode, text)
            self._sheet.add(1, "default_user", None, f"{passcode.origin}, which is encrypted")
        else:
            self._given_user(login, passcode)

    def _no_user(self, given: Given, login: Given | None, passcode: Given | None) -> None:
        present, absent = (login, "passcode") if login else (passcode, "login")
        comment = str(given.origin)
        if present is not None:
            comment = f"{present.origin}, without {absent}"
            text = f"It stands without a {absent}, and replaces the default as a whole: so the plugin has no default "
            text += "user that can log in, and neither has the gateway. Clients with a login are not concerned."
            self._reading.remarks.note(present, text)
        self._sheet.add(1, "default_user", None, comment)

    def _given_user(self, login: Given, passcode: Given) -> None:
        name, secret = self._text(login), self._text(passcode)
        if not name or not secret:
            self._reading.remarks.note(login, "Neither can be empty in the gateway, so there is no default user.")
            self._sheet.add(1, "default_user", None, str(login.origin))
            return
        comment = str(passcode.origin)
        if self._variable:
            secret, comment = Variable(f"${{{self._variable}}}"), "--passcode-variable"
        self.secret |= isinstance(secret, str)
        self._user(name, secret, str(login.origin), comment)

    def _text(self, given: Given) -> str | Variable:
        text = self._reading.text(given, "")
        if isinstance(text, Template):
            return Variable(
                _REFERENCE.sub(lambda match: f"${{{match[1].strip()}}}", text.replace("$", "$$").replace("$$(", "$("))
            )
        return text

    def _user(self, login: str | Variable, passcode: str | Variable, of_login: str, of_passcode: str) -> None:
        self._sheet.add(1, "default_user")
        self._sheet.add(2, "login", login, of_login)
        self._sheet.add(2, "passcode", passcode, of_passcode)

    def _certificate_users(self) -> None:
        login = self._reading.get(STOMP, "ssl_cert_login")
        text = "Over AMQP nobody logs in without a passcode, so the gateway has to know one for each certificate name: "
        text += "fill in defaults.certificate_users. Until then clients with a certificate and no login are refused."
        self._reading.remarks.needed(login, text)
        self._sheet.add(1, "certificate_users", "", because(login))
        source = self._reading.get(RABBIT, "ssl_cert_login_from")
        is_whole = source is None or source.value == Atom("distinguished_name")
        name = '"CN=app,O=Example"' if is_whole else "app"
        example = f"{{{name}: {{login: app, passcode_file: app.passcode}}}}"
        self._sheet.add(2, "users", {}, f"who each name is, as in {example}")

    def _loopback_users(self) -> None:
        given = self._reading.get(RABBIT, "loopback_users")
        users = [_GUEST]
        if given is not None and isinstance(given.value, tuple):
            texts = [self._reading.text(entry, "") for entry in given.value]
            users = list(dict.fromkeys(text for text in texts if text))
        self._sheet.add(1, "loopback_users", users, "RabbitMQ's default" if given is None else str(given.origin))

    # Bounds.

    def _sessions(self) -> None:
        given = self._reading.get(STOMP, "max_connections")
        most = self._reading.limit(given)
        if given is None or most is None:
            return
        self._sheet.add(1, "limits")
        self._sheet.add(2, "sessions", most, str(given.origin))
        self._reading.remarks.note(given, "The gateway counts by virtual host, the plugin all of them together.")

    def _prefetch(self) -> None:
        given = self._reading.get(RABBIT, "default_consumer_prefetch")
        if given is None:
            return
        term = given.value
        count = term.items[-1] if isinstance(term, Tuple) and len(term.items) == 2 else None  # noqa: PLR2004
        if not isinstance(count, int) or not 0 <= count <= _MOST_PREFETCH:
            self._reading.remarks.mistake(given, f"{{false, N}} belongs here, with N up to {_MOST_PREFETCH}.")
        elif count:
            self._sheet.add(1, "prefetch")
            self._sheet.add(2, "default", count, str(given.origin))

    # Virtual hosts.

    def _virtual_hosts(self) -> None:
        given = self._reading.get(STOMP, "default_vhost")
        name = self._reading.text(given, "/")
        if not name or name == "*":
            self._reading.remarks.mistake(given or STOMP, "A virtual host cannot be called so.")
            return
        sheet = self._sheet
        sheet.add(0, "default_vhost", name, because(given))
        sheet.add(0, "virtual_hosts")
        sheet.add(1, key_text(name), "", because(given))
        sheet.add(2, "aliases", [], "DNS names that clients send as host; the plugin refuses those")
        sheet.add(1, '"*"', "", "any other host is a virtual host of the broker, as with the plugin")
