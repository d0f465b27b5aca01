"""The repository's address: `python -m deploy.release.address URL` writes it into every file that has it."""

import sys
import tomllib
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from deploy.local.errors import LocalError
from deploy.release.programs import ROOT

FILES: Final = (
    "pyproject.toml",
    "README.md",
    "SECURITY.md",
    "deploy/debian/control",
    "deploy/helm/Chart.yaml",
    "deploy/prometheus/alerts.yml",
    "deploy/prometheus/alerts_test.yml",
)
"""All that have the address in them."""


def address(root: Path = ROOT) -> str:
    """The address, as pyproject.toml has it."""
    urls: dict[str, str] = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    return urls["Repository"]


def is_missing(root: Path = ROOT) -> bool:
    """Whether nobody has set the address yet: no host can have the placeholder's name (RFC 2606)."""
    return (urlsplit(address(root)).hostname or "").endswith(".invalid")


def write(url: str, root: Path = ROOT) -> None:
    """Put another address into all files.

    Raises:
        LocalError: it is no address of a repository.
    """
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or url.endswith("/") or parts.query or parts.fragment:
        raise LocalError(f"{url} is not like https://git.example.org/stomp-gateway")
    old = address(root)
    for name in FILES:
        file = root / name
        file.write_text(file.read_text("utf-8").replace(old, url), "utf-8")


if __name__ == "__main__":
    try:
        write(sys.argv[1] if len(sys.argv) == 2 else "")  # noqa: PLR2004
    except LocalError as error:
        sys.exit(f"address: {error}")
