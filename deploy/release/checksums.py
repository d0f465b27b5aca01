"""The checksums of a folder, as `sha256sum --check` reads them."""

import hashlib
from pathlib import Path
from typing import Final

FILE: Final = "SHA256SUMS"


def write_checksums(folder: Path) -> None:
    """Write the file with the checksums of all others in the folder."""
    files = sorted(file for file in folder.iterdir() if file.name != FILE)
    lines = [f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files]
    (folder / FILE).write_text("".join(lines))
