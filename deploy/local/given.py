"""A broker that runs already, named by AMQP_URL."""

from deploy.local.address import Address
from deploy.local.errors import LocalError
from deploy.local.probe import answers_amqp, listens


class GivenBroker:
    """The broker that AMQP_URL names. It is neither started nor stopped here."""

    stomp_port: int | None = None
    management_port: int | None = None
    os_pid: int | None = None
    running = True

    def __init__(self, url: str) -> None:
        """Read the address.

        Args:
            url: an AMQP URL.

        Raises:
            LocalError: it is not an AMQP URL.
        """
        self._address = Address.parse(url)
        self.host = self._address.host
        self.amqp_port = self._address.port
        self.amqp_url = self._address.url
        self.description = "the RabbitMQ that AMQP_URL names"

    def start(self) -> None:
        """Check that it answers.

        Raises:
            LocalError: it does not answer.
        """
        # With amqps only the TCP connection is tried: the gateway's configuration says which certificates to trust.
        ask = answers_amqp if self._address.scheme == "amqp" else listens
        if not ask(self.host, self.amqp_port, timeout=10.0):
            raise LocalError(
                f"No AMQP broker answers at {self._address.upstream}, which AMQP_URL names: start it, correct the "
                "address, or unset AMQP_URL to have a private RabbitMQ started."
            )

    def stop(self) -> None:
        """Leave it alone."""

    def kill(self) -> None:
        """Refuse to end a broker that others may use."""
        raise LocalError("The broker that AMQP_URL names is not ours to kill: unset AMQP_URL for a private one.")

    def ctl(self, *arguments: str, timeout: float = 60.0) -> str:
        """Refuse: rabbitmqctl needs the cookie of the node."""
        raise LocalError("rabbitmqctl cannot reach the broker that AMQP_URL names: unset AMQP_URL for a private one.")
