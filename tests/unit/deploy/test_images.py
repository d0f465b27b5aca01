"""Dockerfile and compose.yaml, as far as they can be judged without an engine."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.config import default_journal_directory, load

_ROOT = Path(__file__).parents[3]


@pytest.fixture
def compose() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((_ROOT / "deploy/compose.yaml").read_text())
    return document


@pytest.fixture
def dockerfile() -> str:
    return (_ROOT / "Dockerfile").read_text()


def test_the_gateway_in_compose_has_a_valid_configuration(compose: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "gateway.yaml"
    file.write_text(compose["configs"]["gateway"]["content"])
    config = load(file)

    assert [str(listener.tcp) for listener in config.listeners] == ["0.0.0.0:61613"]
    assert config.virtual_host("localhost") is not None
    drain = float(config.drain_timeout)
    assert drain < float(compose["services"]["gateway"]["stop_grace_period"].removesuffix("s"))


def test_compose_puts_the_configuration_where_the_image_reads_it(compose: dict[str, Any], dockerfile: str) -> None:
    [mounted] = compose["services"]["gateway"]["configs"]

    assert f'CMD ["serve", "--config", "{mounted["target"]}"]' in dockerfile


def test_compose_keeps_the_journal_where_the_image_has_it(compose: dict[str, Any], dockerfile: str) -> None:
    [volume] = compose["services"]["gateway"]["volumes"]
    name, place = volume.split(":")

    assert f"ENV STATE_DIRECTORY={place}\n" in dockerfile
    assert default_journal_directory({"STATE_DIRECTORY": place}).parent == Path(place)
    assert name in compose["volumes"]


def test_compose_shows_its_ports_to_this_machine_only(compose: dict[str, Any]) -> None:
    ports = [port for service in compose["services"].values() for port in service["ports"]]

    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_everything_that_the_image_copies_is_there_and_sent_to_the_engine(dockerfile: str) -> None:
    copied = [
        name for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE) for name in line.split()[:-1]
    ]
    sent = {
        line.removeprefix("!") for line in (_ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")
    }

    assert set(copied) == sent
    assert all((_ROOT / name).exists() for name in copied)


def test_the_image_has_the_python_that_the_project_asks_for(dockerfile: str) -> None:
    project = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
    images = set(re.findall(r"^FROM python:([\d.]+)-", dockerfile, re.MULTILINE))

    assert {f">={image}" for image in images} == {project["requires-python"]}
