"""`python -m deploy.release` fills dist/ with all files of a release; `... deb` with the Debian package alone."""

import argparse
import os
import shutil
import sys
import tempfile
from pathlib import Path

from deploy.local.errors import LocalError
from deploy.release.bundle import Bundle
from deploy.release.checkout import state_of
from deploy.release.checksums import write_checksums
from deploy.release.deb import DebianPackage
from deploy.release.programs import ROOT, run
from gateway import __version__


def main() -> int:
    """Make the files, and name them.

    Returns:
        The exit code: 0, or 1 after a sentence on standard error.
    """
    parser = argparse.ArgumentParser(prog="python -m deploy.release", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("all", "deb"), default="all", help="default: all")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", help="the folder, made anew; default: dist")
    options = parser.parse_args()
    try:
        make(options.into.absolute(), everything=options.what == "all")
    except LocalError as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    for file in sorted(options.into.iterdir()):
        print(f"{file.stat().st_size:>12,} {file}")
    return 0


def make(dist: Path, *, everything: bool) -> None:
    """Make a folder with the files of a release; unless everything, with the Debian package alone.

    Raises:
        LocalError: a program is missing or failed.
    """
    os.umask(0o022)
    if "SOURCE_DATE_EPOCH" not in os.environ:
        os.environ["SOURCE_DATE_EPOCH"] = _time_of_the_commit()
    # Before minutes of work: a tag without the address is refused.
    state = state_of(ROOT, __version__)
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="stomp-gateway-release-") as folder:
        built = dist if everything else Path(folder)
        _build(built)
        [wheel] = built.glob("*.whl")
        package = DebianPackage(Path(folder, "root"), wheel)
        package.build(dist)
        if everything:
            _describe(package.bundle, dist, wheel)
    print(f"release: made of {state}")


def _build(folder: Path) -> None:
    """Make wheel and sdist, which know their commit."""
    file = ROOT / "gateway/commit.txt"
    file.write_text(run("git", "-C", ROOT, "rev-parse", "--short", "HEAD"))
    try:
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT)
    finally:
        file.unlink()


def _describe(bundle: Bundle, dist: Path, wheel: Path) -> None:
    """The versions of all libraries for pip, the SBOM, and what proves that all arrived whole."""
    shutil.copy(ROOT / "constraints.txt", dist)
    name, version, *_ = wheel.name.split("-")
    bundle.write_sbom(dist / f"{name}-{version}.cdx.json", version)
    write_checksums(dist)


def _time_of_the_commit() -> str:
    """Of which all files get their time, so that the same commit makes the same files."""
    return run("git", "-C", ROOT, "log", "-1", "--format=%ct").strip()


if __name__ == "__main__":
    sys.exit(main())
