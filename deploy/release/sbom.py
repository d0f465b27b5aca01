"""What is compiled into the libraries, for the SBOM: crates of Rust, and libraries in C."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

_IN_C: Final = {
    "uvloop": (
        "libuv",
        "import uvloop.loop as l; v = l.libuv_get_version(); print(f'{v >> 16}.{v >> 8 & 255}.{v & 255}')",
    ),
    "PyYAML": ("libyaml", "import yaml._yaml as y; print(y.get_version_string())"),
    "cryptography": (
        "openssl",
        "from cryptography.hazmat.backends.openssl.backend import backend; print(backend.openssl_version_text())",
    ),
}
"""By the library that has it inside: its name, and code that prints its version. Their wheels need not list it."""

_FACTS: Final = ("type", "name", "version", "licenses", "purl")


def add_compiled(sbom: Path, libraries: Path, answer: Callable[[str], str]) -> None:
    """Add to each library of an SBOM, in CycloneDX's JSON, the parts that it was compiled with.

    Args:
        sbom: the file.
        libraries: the folder where they are installed. A wheel may have SBOMs of its own in *.dist-info/sboms.
        answer: what Python code prints there.
    """
    document = json.loads(sbom.read_text("utf-8"))
    for library in document["components"]:
        parts = _listed(libraries, library)
        if library["name"] in _IN_C:
            name, code = _IN_C[library["name"]]
            # OpenSSL says: OpenSSL VERSION DATE.
            version = answer(code).removeprefix("OpenSSL ").split()[0]
            parts[name, version] = {
                "type": "library",
                "name": name,
                "version": version,
                "purl": f"pkg:generic/{name}@{version}",
            }
        if parts:
            library["components"] = [parts[key] for key in sorted(parts)]
    sbom.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n", "utf-8")


def _listed(libraries: Path, library: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    """What the wheel's own SBOMs list, by name and version."""
    folder = f"{library['name'].replace('-', '_').lower()}-{library['version']}.dist-info"
    files = sorted(libraries.glob(f"{folder}/sboms/*.json"))
    parts = [part for file in files for part in json.loads(file.read_text("utf-8")).get("components", ())]
    return {
        (part["name"], part["version"]): {name: part[name] for name in _FACTS if name in part}
        for part in parts
        if "version" in part
    }
