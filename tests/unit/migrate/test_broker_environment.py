"""What the command takes for a broker's environment, and what it says of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config.loader import load

CONF = "stomp.listeners.tcp.1 = 127.0.0.1:61700\n"


def migrated(folder: Path, texts: Mapping[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code, and what is said on the terminal, as one line."""
    for name, text in texts.items():
        (folder / name).write_text(text)
    code = main(["migrate", *(str(folder / name) for name in texts), "-o", str(folder / "gateway.yaml")])
    return code, " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"{CONF}default_user = x # as RABBITMQ_DEFAULT_USER=x\n", id="comment behind a value"),
        pytest.param(f"{CONF}log.file = /var/RABBITMQ_LOGS:1\n", id="in a value"),
    ],
)
def test_a_conf_that_mentions_a_variable_keeps_its_settings(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, terminal = migrated(tmp_path, {"rabbitmq.conf": text}, capsys)

    assert code == 0
    assert [str(listener.address) for listener in load(tmp_path / "gateway.yaml").listeners] == ["127.0.0.1:61700"]
    assert "is read as" not in terminal


def test_a_variable_in_a_comment_makes_no_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "heartbeat = 60 # not RABBITMQ_NODE_PORT=5999\n"

    _, terminal = migrated(tmp_path, {"rabbitmq.conf": text}, capsys)

    assert [str(url) for url in load(tmp_path / "gateway.yaml").upstream.urls] == ["amqp://127.0.0.1:5672"]
    assert "is read as" not in terminal


@pytest.mark.parametrize(
    ("name", "text", "form"),
    [
        ("broker.env", CONF, "rabbitmq.conf"),
        ("rabbitmq.conf", "[{rabbitmq_stomp, []}].", "Erlang terms"),
        ("rabbitmq.conf", "RABBITMQ_NODE_PORT=5673\n", "the broker's environment"),
    ],
)
def test_a_form_that_the_name_does_not_say_is_told(
    name: str, text: str, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, terminal = migrated(tmp_path, {name: text}, capsys)

    assert code == 0
    assert f"{name}: It is read as {form}, because of what is in it." in terminal


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("RABBITMQ_CONFIG_FILE=/etc/mq/r RABBITMQ_DEFAULT_PASS=inlinepw", "The broker reads /etc/mq/r, which"),
        ("RABBITMQ_CONFIG_FILE=/etc/mq/r inlinepw", "The broker reads a file, which"),
        ("e: {RABBITMQ_CONFIG_FILE: /etc/mq/r,RABBITMQ_DEFAULT_PASS:inlinepw}", "The broker reads a file, which"),
    ],
)
def test_no_passcode_is_shown_with_a_files_name(
    line: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, terminal = migrated(tmp_path, {"rabbitmq.conf": CONF, "broker.env": f"{line}\n"}, capsys)

    assert said in terminal
    assert "inlinepw" not in terminal + (tmp_path / "gateway.yaml").read_text()


def test_each_variable_of_a_line_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = "export RABBITMQ_NODE_IP_ADDRESS='10.0.0.7' RABBITMQ_NODE_PORT=5673 # RABBITMQ_NODE_PORT=1\n"

    code, _ = migrated(tmp_path, {"broker.env": line}, capsys)

    assert code == 0
    assert [str(url) for url in load(tmp_path / "gateway.yaml").upstream.urls] == ["amqp://10.0.0.7:5673"]


def test_two_values_of_a_variable_are_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    services = [
        f"  {name}:\n    environment:\n      RABBITMQ_NODE_PORT: {port}\n" for name, port in (("a", 1), ("b", 2))
    ]

    code, terminal = migrated(tmp_path, {"compose.yaml": "services:\n" + "".join(services)}, capsys)

    assert code == 1
    assert "compose.yaml:7 RABBITMQ_NODE_PORT: Its value is another one than in line 4" in terminal


@pytest.mark.parametrize("name", ["broker.env", "variables"])
def test_an_environment_without_the_brokers_variables_is_told(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, terminal = migrated(tmp_path, {name: "FOO=1\nSTOMP_PW=abc\n"}, capsys)

    assert code == 0
    assert f"{name}: It has no variable of the broker (RABBITMQ_...)" in terminal
    assert "of other parts" not in terminal


def test_blanks_between_enabled_plugins_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = 'RABBITMQ_ENABLED_PLUGINS="rabbitmq_stomp, rabbitmq_prometheus"\n'

    migrated(tmp_path, {"broker.env": line}, capsys)

    assert "admin: 127.0.0.1:15693" in (tmp_path / "gateway.yaml").read_text()
