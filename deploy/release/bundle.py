"""The gateway with all its libraries, for the Python of this Debian: what the package has below /usr/lib.

It is a virtual environment, made by hand: its interpreter is a link to Debian's own, and it has neither pip nor scripts
to activate it. It is made in a folder, and no file in it names that folder.
"""

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Final

from deploy.release.programs import ROOT, run
from deploy.release.sbom import add_compiled

PLACE: Final = Path("/usr/lib/stomp-gateway")
"""Where it is on the machine that it is for."""

COMMAND: Final = "stomp-gateway"

_SYSTEM_PYTHON: Final = "/usr/bin/python3"
_KEPT: Final = ("python3", COMMAND)


class Bundle:
    """The environment in a folder.

    Args:
        root: the folder that becomes / on the other machine.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._place = root / PLACE.relative_to("/")
        self.python = run(_SYSTEM_PYTHON, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])").strip()
        """The interpreter's name, which is also that of its Debian package."""

    def install(self, wheel: Path) -> None:
        """Install the gateway and its libraries, compiled for this interpreter.

        Raises:
            LocalError: pip failed.
        """
        python = self._make_environment()
        pip = (sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile")
        # Only wheels: a library that is compiled here would need libraries that the package does not depend on.
        run(*pip, "--only-binary=:all:", "--no-warn-script-location", f"{wheel}[ship]")
        self._remove_traces()
        # Not by the time of the sources, which need not survive a copy.
        compiling = ("-m", "compileall", "-q", "--invalidation-mode=unchecked-hash")
        run(python, *compiling, "-s", self._root, "-p", "/", self._place / "lib")

    def run(self, *arguments: str) -> str:
        """What the command prints, from within the folder."""
        return run(self._place / "bin/python3", self._place / "bin" / COMMAND, *arguments)

    def write_sbom(self, file: Path, version: str) -> None:
        """Write what is in it, with versions and licenses, in CycloneDX's JSON."""
        sbom = (sys.executable, "-m", "cyclonedx_py", "environment", "--output-reproducible", "--validate")
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as project:
            # There the version is to be found in the code, which this program does not do.
            project.write(
                (ROOT / "pyproject.toml").read_text().replace('dynamic = ["version"]', f'version = "{version}"')
            )
            project.flush()
            run(*sbom, "--pyproject", project.name, "--output-file", file, self._place / "bin/python3")
        [libraries] = (self._place / "lib").glob("python3*/site-packages")
        add_compiled(file, libraries, lambda code: run(self._place / "bin/python3", "-c", code))

    def _make_environment(self) -> Path:
        shutil.rmtree(self._place, ignore_errors=True)
        python = self._place / "bin/python3"
        python.parent.mkdir(parents=True)
        python.symlink_to(f"/usr/bin/{self.python}")
        (self._place / "lib" / self.python / "site-packages").mkdir(parents=True)
        (self._place / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
        return python

    def _remove_traces(self) -> None:
        """Remove commands of libraries, and what names the folder in which all this was made."""
        for script in (self._place / "bin").iterdir():
            if script.name not in _KEPT:
                script.unlink()
        command = self._place / "bin" / COMMAND
        _, _, rest = command.read_text().partition("\n")
        command.write_text(f"#!{PLACE}/bin/python3\n{rest}")
        remove_names_of_the_folder(self._place / "lib")


def remove_names_of_the_folder(lib: Path) -> None:
    """Remove from the libraries what names the folder in which they were installed, and the checksums of such files.

    Two runs then make the same files.
    """
    for file in lib.rglob("direct_url.json"):
        file.unlink()
    for record in lib.rglob("*.dist-info/RECORD"):
        lines = record.read_text("utf-8").splitlines(keepends=True)
        kept = (line for line in lines if not line.startswith("../") and ".dist-info/direct_url.json," not in line)
        record.write_text("".join(kept), "utf-8")
