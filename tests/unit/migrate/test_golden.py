"""Configurations of brokers as they are found, and what is made of each.

``golden/NAME`` holds RabbitMQ's files, ``options`` of the command where there are any, and ``gateway.yaml``, which is
what it writes, with VERSION and CERTIFICATES for what differs from run to run. After a change on purpose, write them
anew with ``MIGRATE_GOLDEN=write``, and read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway import __version__
from gateway.cli import main
from gateway.config.loader import load
from gateway.errors import ExitCode
from tests.support.certificates import Authority

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.name for path in GOLDEN.iterdir())
TO_DO = {"tls", "encrypted"}
"""Where something has to be done before the gateway can serve, so that the command ends with 1."""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    Authority.make(directory, "ca").identify(directory, "broker")
    return directory


@pytest.mark.parametrize("case", CASES)
def test_what_is_made_of_real_files(
    case: str,
    certificates: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CERTIFICATES", str(certificates))
    monkeypatch.setenv("STOMP_PASSCODE", "from the environment")
    folder, made = GOLDEN / case, tmp_path / "gateway.yaml"
    files = [str(file) for file in sorted(folder.iterdir()) if file.suffix in (".conf", ".config")]
    options = (folder / "options").read_text().split("\n")[:-1] if (folder / "options").exists() else []
    if (folder / "enabled_plugins").exists():
        options.append(f"--enabled-plugins={folder / 'enabled_plugins'}")

    code = main(["migrate", *files, "-o", str(made), *options])

    assert code == (ExitCode.FAILURE if case in TO_DO else ExitCode.OK), capsys.readouterr().err
    text = made.read_text().replace(__version__, "VERSION").replace(str(certificates), "CERTIFICATES")
    if os.environ.get("MIGRATE_GOLDEN") == "write":
        (folder / "gateway.yaml").write_text(text)
    assert text == (folder / "gateway.yaml").read_text()
    load(made)  # as `check` does
    assert main(["check", "--offline", "--config", str(made)]) == ExitCode.OK


@pytest.mark.parametrize("case", CASES)
def test_every_line_says_where_it_came_from(case: str) -> None:
    lines = (GOLDEN / case / "gateway.yaml").read_text().splitlines()
    groups = {"listeners:", "upstream:", "defaults:", "default_user:", "tls:", "virtual_hosts:", "limits:", "prefetch:"}
    bare = [line for line in lines if line and "  # " not in line and not line.lstrip().startswith("# ")]
    assert {line.strip() for line in bare} <= groups
