"""The Debian package: the bundle, what a system expects beside it, and the scripts of its installation."""

import gzip
import platform
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from deploy.release.bundle import COMMAND, PLACE, Bundle
from deploy.release.programs import ROOT, run

SCRIPTS: Final = ("postinst", "prerm", "postrm")

UNITS: Final = ("stomp-gateway.service", "stomp-gateway@.service")

# The package has a command in PATH, and a user who owns the journal whether systemd runs or not.
_IN_THE_PACKAGE: Final = {
    "=/opt/stomp-gateway/bin/": "=/usr/bin/",
    "# systemd makes a user for as long as the service runs.": "# The package made the user.",
    "DynamicUser=yes": "User=stomp-gateway\nGroup=stomp-gateway",
}

_FILES: Final = ROOT / "deploy"


class DebianPackage:
    """The package of one wheel.

    Args:
        root: an empty folder, which becomes / where the package is installed.
        wheel: the gateway.
    """

    def __init__(self, root: Path, wheel: Path) -> None:
        self._root = root
        self._wheel = wheel
        self.bundle = Bundle(root)

    def build(self, directory: Path) -> Path:
        """Make the package's file.

        Raises:
            LocalError: a program is missing or failed.
        """
        self.bundle.install(self._wheel)
        self._lay_out()
        return pack(self._root, directory, version=self._wheel.name.split("-")[1], python=self.bundle.python)

    def _lay_out(self) -> None:
        """Put everything but the bundle into its place."""
        share = self._root / "usr/share"
        lay_out_system_files(self._root)
        _compressed(share / "man/man1/stomp-gateway.1.gz", self.bundle.run("manual"))
        _written(share / "bash-completion/completions/stomp-gateway", self.bundle.run("completion", "bash"))
        _written(share / "zsh/vendor-completions/_stomp-gateway", self.bundle.run("completion", "zsh"))


def lay_out_system_files(root: Path) -> None:
    """Put command, units, configuration and documents into their places."""
    command = root / "usr/bin" / COMMAND
    command.parent.mkdir(parents=True)
    command.symlink_to(f"..{str(PLACE).removeprefix('/usr')}/bin/{COMMAND}")
    for unit in UNITS:
        _written(root / "usr/lib/systemd/system" / unit, packaged_unit((_FILES / "systemd" / unit).read_text()))
    _written(root / "etc/stomp-gateway/gateway.yaml", (_FILES / "systemd/gateway.yaml").read_text())
    documents = root / "usr/share/doc/stomp-gateway"
    _written(documents / "copyright", (_FILES / "debian/copyright").read_text())
    _compressed(documents / "changelog.gz", (ROOT / "CHANGELOG.md").read_text("utf-8"))
    secrets = (_FILES / "systemd/credentials.conf", _FILES / "systemd/secrets.yaml")
    for example in (*sorted((ROOT / "config").glob("*.yaml")), *secrets):
        _written(documents / "examples" / example.name, example.read_text("utf-8"))


def packaged_unit(unit: str) -> str:
    """The text of a unit as the package has it."""
    for text, replacement in _IN_THE_PACKAGE.items():
        if text not in unit:
            raise ValueError(f"The unit has no {text!r}, which the package replaces.")
        unit = unit.replace(text, replacement)
    return unit


def debian_version(version: str, system: Mapping[str, str]) -> str:
    """The version of the package: a pre-release is before the release, and a newer Debian's package is newer.

    Args:
        version: the gateway's, as the wheel's name has it.
        system: what /etc/os-release says of the system on which the package is made.
    """
    upstream = re.sub(
        r"(?<=\d)(a|b|rc)(?=\d)|\.dev(?=\d)", lambda found: f"~{found[1]}" if found[1] else "~~dev", version
    )
    name = "deb" if system["ID"] == "debian" else system["ID"]
    return f"{upstream}-1+{name}{system.get('VERSION_ID', '')}"


def pack(root: Path, directory: Path, *, version: str, python: str) -> Path:
    """Make a package's file of a folder, of a version of the gateway.

    Raises:
        LocalError: dpkg-deb is missing or failed.
    """
    architecture = run("dpkg", "--print-architecture").strip()
    version = debian_version(version, platform.freedesktop_os_release())
    control = root / "DEBIAN"
    control.mkdir()
    facts = {
        "@VERSION@": version,
        "@ARCHITECTURE@": architecture,
        "@INSTALLED_SIZE@": str(sum(-(-size // 1024) for size in _sizes(root))),
        "@PYTHON@": python,
    }
    text = (_FILES / "debian/control").read_text()
    for name, value in facts.items():
        text = text.replace(name, value)
    _written(control / "control", text)
    shutil.copy(_FILES / "debian/conffiles", control)
    for script in SCRIPTS:
        _written(control / script, (_FILES / "debian" / script).read_text()).chmod(0o755)
    file = directory / f"stomp-gateway_{version}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", root, file)
    return file


def _sizes(root: Path) -> Iterator[int]:
    return (file.lstat().st_size for file in root.rglob("*") if not file.is_dir())


def _written(file: Path, text: str) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, "utf-8")
    return file


def _compressed(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(gzip.compress(text.encode(), mtime=0))
