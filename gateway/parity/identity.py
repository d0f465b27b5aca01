"""Who the clients of a conversation are."""

from dataclasses import dataclass

from gateway.parity.text import Scope


@dataclass(frozen=True, slots=True)
class Identity:
    """The user and the virtual host that conversations are played with.

    Args:
        login: of the clients.
        passcode: of the clients.
        host: the virtual host, by the name that the broker knows.
        amqp_login: the user who looks behind the server's back.
    """

    login: str = "guest"
    passcode: str = "guest"
    host: str = "/"
    amqp_login: str = "guest"

    def __repr__(self) -> str:
        return f"Identity({self.login!r}, host={self.host!r})"

    @property
    def scope(self) -> Scope:
        """The values of the placeholders, as texts have them: `{login}`, `{passcode}`, `{host}`, `{amqp-login}`."""
        names = ("login", "passcode", "host", "amqp_login")
        return {name.replace("_", "-"): str(getattr(self, name)).encode() for name in names}

    @property
    def header_scope(self) -> Scope:
        """The same for headers: RabbitMQ decodes escapes in every frame, CONNECT among them."""
        return {name: _escaped(value) for name, value in self.scope.items()}


def _escaped(value: bytes) -> bytes:
    return value.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b":", b"\\c")
