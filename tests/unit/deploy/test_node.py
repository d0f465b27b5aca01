"""A private node, with the RabbitMQ of this machine."""

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.local.broker import PRIVATE, Broker, running
from deploy.local.datadir import OWNER_VARIABLE, DataDirectory
from deploy.local.debian import can_install
from deploy.local.errors import LocalError
from deploy.local.installation import Installation
from deploy.local.node import PrivateNode
from deploy.local.probe import answers_amqp, listens

pytestmark = pytest.mark.system


def _processes(data: Path) -> list[psutil.Process]:
    """All processes of the node that keeps its data there."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(OWNER_VARIABLE) == str(data):
                found.append(process)
        except psutil.Error:  # another user's process
            continue
    return found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node")


@pytest.fixture(scope="module")
def broker(data: Path) -> Iterator[Broker]:
    if Installation.find() is None and not can_install():
        pytest.skip("RabbitMQ is not installed here")
    with running(order=PRIVATE, plugins=["rabbitmq_stomp"], data_dir=data) as broker:
        yield broker


def test_it_answers_on_the_ports_it_names(broker: Broker) -> None:
    assert broker.running
    assert answers_amqp(broker.host, broker.amqp_port)
    assert broker.stomp_port
    assert listens(broker.host, broker.stomp_port)
    assert broker.management_port is None


def test_everything_listens_on_loopback_only(broker: Broker, data: Path) -> None:
    addresses = {
        connection.laddr.ip
        for process in _processes(data)
        for connection in process.net_connections()
        if connection.status == psutil.CONN_LISTEN
    }

    assert "127.0.0.1" in addresses
    assert addresses <= {"127.0.0.1", "::1"}


def test_the_broker_may_open_as_many_files_as_the_hard_limit_allows(broker: Broker) -> None:
    soft, hard = psutil.Process(broker.os_pid).rlimit(psutil.RLIMIT_NOFILE)

    assert soft == hard


def test_rabbitmqctl_reaches_exactly_this_node(broker: Broker) -> None:
    ports = broker.ctl("eval", "[Port || {listener, _, amqp, _, _, Port, _} <- rabbit_networking:active_listeners()].")

    assert ports.strip() == f"[{broker.amqp_port}]"


def test_a_failed_rabbitmqctl_is_an_error_with_its_command(broker: Broker) -> None:
    with pytest.raises(LocalError, match="delete_queue no-such-queue"):
        broker.ctl("delete_queue", "no-such-queue")


def test_a_second_node_in_the_same_directory_is_refused(broker: Broker, data: Path) -> None:
    assert broker.running
    with pytest.raises(LocalError, match="Another process runs a RabbitMQ node"):
        DataDirectory(data)


def test_killed_and_started_again_it_has_its_data_and_its_ports(broker: Broker) -> None:
    broker.ctl("add_vhost", "kept")
    before = broker.amqp_port
    broker.kill()
    assert not broker.running
    assert not listens(broker.host, broker.amqp_port)

    broker.start()

    assert broker.amqp_port == before
    assert answers_amqp(broker.host, before)
    assert "kept" in broker.ctl("list_vhosts").split()


def test_a_node_that_does_not_start_is_an_error_with_its_log_and_leaves_nothing(tmp_path: Path, broker: Broker) -> None:
    assert broker.running  # so there is an installation
    installation = Installation.find()
    assert installation
    node = PrivateNode(installation, DataDirectory(tmp_path), config=["no_such_setting = true"])
    with pytest.raises(LocalError) as failure, node:
        pass

    assert "RabbitMQ did not start; its log" in str(failure.value)
    assert f"{tmp_path}/rabbitmq.log says:" in str(failure.value)
    assert "no_such_setting" in str(failure.value)
    assert _processes(tmp_path) == []
    DataDirectory(tmp_path).release()
