"""Finding an installed RabbitMQ."""

from pathlib import Path

from deploy.local.installation import Installation


def _programs(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    for name in names:
        (directory / name).touch(mode=0o755)
    return directory


def _packaged(root: Path, version: str) -> Path:
    scripts = root / f"usr/lib/rabbitmq/lib/rabbitmq_server-{version}/sbin"
    return _programs(scripts, "rabbitmq-server", "rabbitmqctl", "rabbitmq-env")


def test_the_newest_package_is_taken(tmp_path: Path) -> None:
    _packaged(tmp_path, "3.9.10")
    newest = _packaged(tmp_path, "3.10.8")
    binaries = _programs(tmp_path / "bin", "epmd")

    found = Installation.find(tmp_path, str(binaries))

    assert found == Installation(newest, binaries / "epmd")
    assert found.version == "3.10.8"


def test_a_generic_installation_is_found_through_path(tmp_path: Path) -> None:
    scripts = _programs(
        tmp_path / "opt/rabbitmq_server-4.1.0/sbin", "rabbitmq-server", "rabbitmqctl", "rabbitmq-env", "epmd"
    )

    assert Installation.find(tmp_path, str(scripts)) == Installation(scripts, scripts / "epmd")


def test_a_wrapper_in_path_is_no_installation(tmp_path: Path) -> None:
    binaries = _programs(tmp_path / "usr/sbin", "rabbitmq-server", "rabbitmqctl", "epmd")

    assert Installation.find(tmp_path, str(binaries)) is None


def test_without_erlang_a_package_is_of_no_use(tmp_path: Path) -> None:
    _packaged(tmp_path, "3.10.8")

    assert Installation.find(tmp_path, str(tmp_path)) is None


def test_erlang_outside_path_is_found_where_it_is_usually_installed(tmp_path: Path) -> None:
    scripts = _packaged(tmp_path, "3.10.8")
    erlang = _programs(tmp_path / "usr/lib/erlang/bin", "epmd")

    assert Installation.find(tmp_path, str(tmp_path)) == Installation(scripts, erlang / "epmd")
