"""The package as users get it: built, installed into an empty environment, and run there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path, PurePath

import pytest

from gateway import __version__

_ROOT = Path(__file__).parents[2]
_WITHIN = 60
_NAME = f"stomp_gateway-{__version__}"

pytestmark = pytest.mark.slow


def _run(*command: str | Path, cwd: Path = _ROOT, code: int = 0, **more: str) -> str:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    environment |= {"PIP_CONSTRAINT": str(_ROOT / "constraints.txt"), "PIP_DISABLE_PIP_VERSION_CHECK": "1", **more}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("package")


@pytest.fixture(scope="module")
def backend(folder: Path) -> Path:
    """The build backend in a directory of its own, as in an isolated build."""
    place = folder / "backend"
    try:
        _run(sys.executable, "-m", "pip", "install", "--quiet", "--target", place, "hatchling")
    except AssertionError as error:
        pytest.skip(f"needs a package index: {error}")
    return place


def _build(backend: Path, kind: str, source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    build = f"import hatchling.build; print(hatchling.build.build_{kind}({str(target)!r}))"
    return target / _run(sys.executable, "-c", build, cwd=source, PYTHONPATH=str(backend)).split()[-1]


@pytest.fixture(scope="module")
def sdist(backend: Path, folder: Path) -> Path:
    return _build(backend, "sdist", _ROOT, folder / "dist")


@pytest.fixture(scope="module")
def wheel(backend: Path, sdist: Path, folder: Path) -> Path:
    """The wheel, built from the sdist alone."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder)  # noqa: S202 - our own, and Python 3.11.2 knows no filter
    return _build(backend, "wheel", folder / _NAME, folder / "dist")


@dataclass(frozen=True)
class Installed:
    """An environment with only the package and its dependencies."""

    place: Path

    @property
    def command(self) -> Path:
        return self.place / "bin/stomp-gateway"

    def run(self, *arguments: str, code: int = 0) -> str:
        return _run(self.command, *arguments, cwd=self.place, code=code)


@pytest.fixture(scope="module")
def installed(wheel: Path, folder: Path) -> Installed:
    place = folder / "environment"
    venv.create(place, with_pip=False)
    # Without compiling to bytecode: the first start compiles the modules that it loads.
    pip = (sys.executable, "-m", "pip", "--python", place / "bin/python", "install", "--quiet", "--no-compile")
    _run(*pip, wheel)
    return Installed(place)


def _names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def test_the_wheel_has_every_module_and_what_they_read(wheel: Path) -> None:
    names = _names(wheel)
    modules = {str(file.relative_to(_ROOT)) for file in (_ROOT / "gateway").rglob("*.py")}
    transcripts = (_ROOT / "tests/transcripts").rglob("*.stomp")

    assert modules <= names
    assert "gateway/admin/page.html" in names
    assert {
        f"gateway/parity/transcripts/{file.relative_to(_ROOT / 'tests/transcripts')}" for file in transcripts
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "deploy/"))]


def test_the_sdist_has_what_operators_install_by(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.removeprefix(f"{_NAME}/") for name in archive.getnames()}

    assert {"Dockerfile", "constraints.txt", "deploy/compose.yaml", "deploy/systemd/stomp-gateway.service"} <= names
    assert {"config/gateway.yaml", "docs/deploy.md", "LICENSE", "CHANGELOG.md", "Makefile"} <= names
    documents = [_ROOT / "README.md", *(_ROOT / "docs").rglob("*.md")]
    told = {name for page in documents for name in re.findall(r"\bdeploy/[\w./@-]*\w", page.read_text("utf-8"))}
    assert "deploy/haproxy/haproxy.cfg" in told
    assert told <= names | {str(folder) for name in names for folder in PurePath(name).parents}
    assert not [name for name in names if "__pycache__" in name]


def test_the_image_is_built_of_the_same(backend: Path, wheel: Path, folder: Path) -> None:
    """From only the files that the Dockerfile copies: if one is missing, the image cannot be built."""
    context, dockerfile = folder / "context", (_ROOT / "Dockerfile").read_text()
    for line in re.findall(r"^COPY (?!--from)(.+)$", dockerfile, re.MULTILINE):
        *sources, target = line.split()
        for source in sources:
            place = context / target / (source if target == "./" else "")
            if (_ROOT / source).is_dir():
                shutil.copytree(_ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(_ROOT / source, place)

    assert _names(_build(backend, "wheel", context, folder / "image")) == _names(wheel)


def test_the_metadata_name_the_extras(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        metadata = HeaderParser().parsestr(archive.read(f"{_NAME}.dist-info/METADATA").decode())

    assert metadata["Version"] == __version__
    assert {"pipeline", "dev"} <= set(metadata.get_all("Provides-Extra", []))
    needed = [line for line in metadata.get_all("Requires-Dist", []) if "extra ==" not in line]
    assert not [line for line in needed if re.match("pyspark|pyarrow|pytest|ruff", line)]


def test_the_command_works_where_there_is_nothing_else(installed: Installed) -> None:
    (installed.place / "gateway.yaml").write_text("")

    assert installed.run("--version") == f"stomp-gateway {__version__}\n"
    assert "no mistakes" in installed.run("check", "--offline", "--config", "gateway.yaml")
    assert "--config FILE" in installed.run("serve", "--help")
    assert "connect/" in installed.run("parity", "--list")
    assert "complete" in installed.run("completion", "bash")
    assert installed.run("example") == (_ROOT / "config/gateway.yaml").read_text()


def test_the_pipeline_says_which_extra_it_needs(installed: Installed) -> None:
    said = installed.run("pipeline", "check", "--lake", "nowhere", code=2)

    assert "stomp-gateway[pipeline]" in said
    assert "Traceback" not in said


def test_pip_needs_only_the_libraries_of_an_extra_from_an_index(installed: Installed) -> None:
    pip = (
        sys.executable,
        "-m",
        "pip",
        "--isolated",
        "--python",
        installed.place / "bin/python",
        "install",
        "--no-index",
    )
    said = _run(*pip, "stomp-gateway[ship]", code=1)

    assert "Requirement already satisfied: stomp-gateway[ship]" in said
    assert re.findall(r"No matching distribution found for (\w+)", said) == ["obstore"]


@pytest.fixture
def serving(installed: Installed) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The installed gateway and the URL of its admin listener. It needs no broker."""
    config = installed.place / "serve.yaml"
    config.write_text(
        "listeners: [{tcp: '127.0.0.1:0'}, {websocket: '127.0.0.1:0'}]\nadmin: 127.0.0.1:0\nlogging: {format: json}\n"
        "upstream: {urls: ['amqp://127.0.0.1:1']}\n"
    )
    with subprocess.Popen(
        [installed.command, "serve", "--config", config], stderr=subprocess.PIPE, text=True, cwd=installed.place
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("{") and "url" in (event := json.loads(line)):
                yield process, event["url"]
                break
        process.kill()


def _fetched(url: str) -> str:
    with urllib.request.urlopen(url, timeout=_WITHIN) as answer:  # noqa: S310 - http, from the gateway's own log
        text: str = answer.read().decode()
    return text


def test_the_gateway_runs_where_there_is_nothing_else(serving: tuple[subprocess.Popen[str], str]) -> None:
    process, url = serving
    assert process.stderr is not None
    python = sys.version.split()[0]

    assert _fetched(f"{url}healthz").strip() == "ok"
    assert f'stomp_gateway_info{{python="{python}",version="{__version__}"}} 1.0' in _fetched(f"{url}metrics")
    assert "<html" in _fetched(url)

    process.send_signal(signal.SIGTERM)
    rest = process.stderr.read()
    assert process.wait(_WITHIN) == 0, rest
    assert "Traceback" not in rest
