"""Configurations as operators have them: what becomes of each, and what is said of what does not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.cli import main
from gateway.config.loader import load
from gateway.errors import ExitCode
from tests.support.broker_files import BROKERS
from tests.support.certificates import Authority


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("identity")
    Authority.make(directory, "ca").identify(directory, "broker")
    return directory


@pytest.mark.parametrize("name", list(BROKERS))
def test_a_brokers_files_become_a_gateways(
    name: str, identity: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case, made = BROKERS[name], tmp_path / "gateway.yaml"
    for file in identity.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())

    code = main(["migrate", *case.write(tmp_path), "-o", str(made)])

    terminal, text = " ".join(capsys.readouterr().err.split()), made.read_text()
    assert code == case.code, terminal
    comments = " ".join(text.replace("\n#", "\n").split())
    for sentence in case.said:
        assert sentence in terminal
        assert sentence in comments
    for sentence in case.unsaid:
        assert sentence not in terminal
    lines = [re.sub(r" +# .*", "", line).strip() for line in text.splitlines()]
    assert [line for line in case.lines if line not in lines] == []
    config = load(made)
    assert [str(listener.address) for listener in config.listeners] == list(case.listeners)
    assert [str(url) for url in config.upstream.urls] == [case.upstream]


def test_files_that_rabbitmq_reads_unasked_are_not_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "conf.d").mkdir()
    texts = {
        "rabbitmq.conf": "include conf.d/1*\n",
        "conf.d/10.conf": "a = 1\n",
        "conf.d/20.conf": "stomp.listeners.tcp = none\n",
    }
    for name, text in (texts | {"advanced.config": "[]."}).items():
        (tmp_path / name).write_text(text)
    given = [str(tmp_path / name) for name in ("rabbitmq.conf", "conf.d/20.conf", "advanced.config")]
    assert main(["migrate", given[0]]) == ExitCode.FAILURE
    said = " ".join(capsys.readouterr().err.split())
    for name in ("conf.d/20.conf", "advanced.config"):
        assert f"{name}: RabbitMQ reads this file beside rabbitmq.conf, and it is not among these files." in said
    assert "conf.d/10.conf" not in said
    assert main(["migrate", *given]) == ExitCode.OK


@pytest.mark.parametrize("loop", ["include rabbitmq.conf\n", "include more/*.conf\n"])
def test_files_that_include_each_other_are_a_mistake(
    loop: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "back.conf").write_text("include ../rabbitmq.conf\n")
    (tmp_path / "rabbitmq.conf").write_text(loop)
    assert main(["migrate", str(tmp_path / "rabbitmq.conf")]) == ExitCode.CONFIGURATION
    assert "rabbitmq.conf includes itself; RabbitMQ would read it for ever." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("include more\n", "rabbitmq.conf:1 include: more is no file, and RabbitMQ does not start with that."),
        ("a.b = $(<no file)\n", "rabbitmq.conf:1 a.b: FOLDER/no file cannot be read: No such file or directory."),
        ('include "conf.d/*.conf"\n', "rabbitmq.conf:1: This is not of the form key = value."),
        ("include deep/a*\n", "include: More than 200 files are included."),
    ],
)
def test_what_rabbitmq_cannot_include_is_a_mistake(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "more").mkdir()
    (tmp_path / "deep").mkdir()
    for number in range(16):
        (tmp_path / "deep" / f"a{number}.conf").write_text("include b*\n")
        (tmp_path / "deep" / f"b{number}.conf").write_text("")
    (tmp_path / "rabbitmq.conf").write_text(text)
    assert main(["migrate", str(tmp_path / "rabbitmq.conf")]) == ExitCode.CONFIGURATION
    assert said.replace("FOLDER", str(tmp_path)) in capsys.readouterr().err


def test_keys_in_the_wrong_place_stop_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conf = (
        "stomp.ssl_options.certfile = x\nimplicit_connect = true\nweb_stomp.login_timeout = 1\nnum_acceptors.tcp = 5\n"
    )
    (tmp_path / "rabbitmq.conf").write_text(conf)
    assert main(["migrate", str(tmp_path / "rabbitmq.conf")]) == ExitCode.CONFIGURATION
    places = re.findall(r"conf:([0-9]) .*it belongs into the key ([a-z_.]+)\. Move it", capsys.readouterr().err)
    assert places == [("1", "ssl_options.certfile"), ("2", "stomp.implicit_connect"), ("3", "stomp.login_timeout")]
