"""Which broker is taken, and what is said when there is none."""

import pytest

from deploy.local.broker import FOR_RUNNING, FOR_TESTS, running
from deploy.local.errors import LocalError
from deploy.local.ports import free_ports


def test_without_any_source_one_sentence_says_what_to_do() -> None:
    sentence = (
        r"No RabbitMQ to be had: install it \(Debian: `apt install rabbitmq-server`\), or start a Docker engine, "
        r"or name a broker with AMQP_URL=amqp://user:password@host:5672/virtual-host\."
    )
    with pytest.raises(LocalError, match=sentence), running(order=["given"], environ={}):
        pass


def test_amqp_url_comes_first_when_running_and_last_in_tests() -> None:
    assert FOR_RUNNING[0] == "given"
    assert FOR_TESTS[-1] == "given"


def test_a_broker_that_does_not_answer_is_named_without_its_passcode() -> None:
    [port] = free_ports(1)
    url = f"amqp://alice:secret@127.0.0.1:{port}"
    with (
        pytest.raises(
            LocalError, match=f"No AMQP broker answers at amqp://127.0.0.1:{port}, which AMQP_URL names"
        ) as failure,
        running(order=FOR_RUNNING, environ={"AMQP_URL": url}),
    ):
        pass

    assert "secret" not in str(failure.value)
