"""The Debian package without its Python, and the checksums. `make test-deb` installs the whole on a machine."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.release.bundle import remove_names_of_the_folder
from deploy.release.checksums import write_checksums
from deploy.release.deb import SCRIPTS, UNITS, debian_version, lay_out_system_files, pack, packaged_unit
from gateway.config.loader import load

_ROOT = Path(__file__).parents[3]

needs_dpkg = pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="dpkg-deb is not here, which Debian has")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is installed, apart from the Python below /usr/lib/stomp-gateway."""
    place = tmp_path_factory.mktemp("root")
    lay_out_system_files(place)
    return place


@pytest.fixture
def package(root: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "root"
    shutil.copytree(root, copy, symlinks=True)
    return pack(copy, tmp_path, version="1.2.3", python="python3.11")


def _asked(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


@needs_dpkg
def test_dpkg_reads_what_the_package_is_and_needs(package: Path) -> None:
    fields = dict(re.findall(r"^ ?(\S+): (.*)$", _asked("dpkg-deb", "--field", package), re.MULTILINE))

    assert fields["Package"] == "stomp-gateway"
    assert re.fullmatch(r"1\.2\.3-1\+[a-z]+[\d.]*", fields["Version"])
    assert fields["Depends"] == "python3.11, adduser"
    assert fields["Architecture"] == _asked("dpkg", "--print-architecture").strip()
    assert 0 < int(fields["Installed-Size"]) < 1000
    assert package.name == f"stomp-gateway_{fields['Version']}_{fields['Architecture']}.deb"


@needs_dpkg
def test_the_package_has_its_files_and_they_are_roots(package: Path) -> None:
    lines = [line.split(maxsplit=5) for line in _asked("dpkg-deb", "--contents", package).splitlines()]
    files = {name.split(" -> ")[0]: owner for _, owner, *_, name in lines}

    assert {
        "./etc/stomp-gateway/gateway.yaml",
        "./usr/bin/stomp-gateway",
        "./usr/lib/systemd/system/stomp-gateway.service",
        "./usr/lib/systemd/system/stomp-gateway@.service",
        "./usr/share/doc/stomp-gateway/changelog.gz",
        "./usr/share/doc/stomp-gateway/copyright",
        "./usr/share/doc/stomp-gateway/examples/credentials.conf",
        "./usr/share/doc/stomp-gateway/examples/tls.yaml",
    } <= files.keys()
    assert set(files.values()) == {"root/root"}
    assert "./usr/bin/stomp-gateway -> ../lib/stomp-gateway/bin/stomp-gateway" in {line[5] for line in lines}


@needs_dpkg
def test_dpkg_keeps_what_an_administrator_changed(package: Path, root: Path) -> None:
    kept = _asked("dpkg-deb", "--info", package, "conffiles").splitlines()
    in_etc = {f"/{file.relative_to(root)}" for file in (root / "etc").rglob("*") if file.is_file()}

    assert set(kept) == in_etc == {"/etc/stomp-gateway/gateway.yaml"}


@needs_dpkg
def test_the_scripts_are_run_by_a_shell_that_stops_at_a_failure(package: Path, tmp_path: Path) -> None:
    _asked("dpkg-deb", "--control", package, tmp_path / "control")
    for name in SCRIPTS:
        script = tmp_path / "control" / name
        assert script.read_text().startswith("#!/bin/sh\nset -e\n")
        assert script.stat().st_mode & 0o111
        _asked("sh", "-n", script)


@needs_dpkg
def test_a_package_sorts_after_its_pre_releases_and_those_of_an_older_debian() -> None:
    twelve, thirteen = {"ID": "debian", "VERSION_ID": "12"}, {"ID": "debian", "VERSION_ID": "13"}
    versions = [
        *(
            debian_version(version, twelve)
            for version in ("0.2.0.dev1", "0.2.0a1", "0.2.0rc1.dev3", "0.2.0rc1", "0.2.0")
        ),
        debian_version("0.2.0", thirteen),
        debian_version("0.2.0.post1", twelve),
    ]

    assert versions[3:5] == ["0.2.0~rc1-1+deb12", "0.2.0-1+deb12"]
    for older, newer in itertools.pairwise(versions):
        _asked("dpkg", "--compare-versions", older, "lt", newer)
    assert debian_version("0.2.0", {"ID": "ubuntu", "VERSION_ID": "24.04"}) == "0.2.0-1+ubuntu24.04"


@needs_dpkg
def test_two_packages_of_the_same_are_equal(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As pip leaves a library in two folders."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    packages = []
    for name in ("one", "another"):
        copy = tmp_path / name / "root"
        shutil.copytree(root, copy, symlinks=True)
        library = copy / "usr/lib/stomp-gateway/lib/python3.11/site-packages/library-1.dist-info"
        library.mkdir(parents=True)
        (library / "direct_url.json").write_text(str(library))
        record = f"../../../bin/library,sha256={name},1\nlibrary-1.dist-info/direct_url.json,sha256={name},1\n"
        (library / "RECORD").write_text(f"library/code.py,sha256=same,1\n{record}library-1.dist-info/RECORD,,\n")
        remove_names_of_the_folder(copy / "usr/lib/stomp-gateway/lib")
        assert (library / "RECORD").read_text() == "library/code.py,sha256=same,1\nlibrary-1.dist-info/RECORD,,\n"
        packages.append(pack(copy, tmp_path / name, version="1.2.3", python="python3.11").read_bytes())

    assert packages[0] == packages[1]


def test_the_configuration_of_the_package_is_valid_and_asks_for_a_login(root: Path) -> None:
    config = load(root / "etc/stomp-gateway/gateway.yaml", {})

    assert config.warnings == ()
    assert [str(listener.address) for listener in config.listeners] == ["127.0.0.1:61613"]
    assert [host.default_user for host in config.resolved_virtual_hosts()] == [None]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_of_the_package_runs_its_command_as_its_user(root: Path, name: str) -> None:
    unit = (root / "usr/lib/systemd/system" / name).read_text()
    commands = re.findall(r"^Exec\w+=(\S+)", unit, re.MULTILINE)

    assert set(commands) == {"/usr/bin/stomp-gateway", "/bin/sh"}
    assert "\nUser=stomp-gateway\nGroup=stomp-gateway\n" in unit
    assert "DynamicUser" not in unit
    assert "/opt/" not in unit


def test_a_unit_that_the_package_cannot_adapt_is_an_error() -> None:
    unit = (_ROOT / "deploy/systemd/stomp-gateway.service").read_text()

    with pytest.raises(ValueError, match="DynamicUser=yes"):
        packaged_unit(unit.replace("DynamicUser=yes", "DynamicUser=true"))


def test_sha256sum_finds_a_file_that_was_changed(tmp_path: Path) -> None:
    for name in ("a.whl", "b.deb"):
        (tmp_path / name).write_text(name)
    write_checksums(tmp_path)
    write_checksums(tmp_path)  # the checksums of an earlier run are no file of the release
    check = ("sha256sum", "--check", "--strict", "SHA256SUMS")

    done = subprocess.run(check, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "a.whl: OK\nb.deb: OK\n"

    (tmp_path / "b.deb").write_text("another")
    assert subprocess.run(check, cwd=tmp_path, capture_output=True, check=False).returncode == 1
