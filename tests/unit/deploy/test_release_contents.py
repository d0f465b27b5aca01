"""What a release says of itself: the parts in its SBOM, and the state of the checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.local.errors import LocalError
from deploy.release.address import FILES, address, is_missing, write
from deploy.release.checkout import state_of
from deploy.release.programs import ROOT
from deploy.release.sbom import add_compiled


def test_the_sbom_lists_what_is_compiled_into_a_library(tmp_path: Path) -> None:
    sbom, own = tmp_path / "sbom.json", tmp_path / "a_library-1.0.dist-info/sboms"
    libraries = [{"name": "a-library", "version": "1.0"}, {"name": "cryptography", "version": "50.0"}]
    sbom.write_text(json.dumps({"components": [*libraries, {"name": "plain", "version": "1"}]}))
    own.mkdir(parents=True)
    crate = {"type": "library", "name": "ring", "version": "0.17", "purl": "pkg:cargo/ring@0.17"}
    built_at = {"bom-ref": "built/ring", "hashes": []}
    (own / "crates.json").write_text(json.dumps({"components": [crate | built_at]}))
    (own / "again.json").write_text(json.dumps({"components": [crate]}))
    add_compiled(sbom, tmp_path, lambda _: "OpenSSL 4.0.3 29 Sep 2026\n")

    found = {library["name"]: library.get("components") for library in json.loads(sbom.read_text())["components"]}
    openssl = {"type": "library", "name": "openssl", "version": "4.0.3", "purl": "pkg:generic/openssl@4.0.3"}
    assert found == {"a-library": [crate], "cryptography": [openssl], "plain": None}


def test_a_release_says_of_which_state_of_the_checkout_it_is_made(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "tag.gpgsign=false")
        subprocess.run(("git", "-C", tmp_path, *who, *arguments), check=True, capture_output=True)

    project = '[project.urls]\nRepository = "https://repository.invalid/a"\n'
    (tmp_path / "pyproject.toml").write_text(project.replace("repository.invalid", "git.example.org"))
    git("init")
    git("add", "--all")
    git("commit", "--no-gpg-sign", "--allow-empty", "--message", "one")
    assert state_of(tmp_path, "1.0").endswith(", without the tag v1.0")

    git("tag", "v1.0")
    assert state_of(tmp_path, "1.0").endswith(", tag v1.0")
    assert state_of(tmp_path, "1.1").endswith(", without the tag v1.1")

    (tmp_path / "pyproject.toml").write_text(project)
    with pytest.raises(LocalError, match=r"needs the repository's address"):
        state_of(tmp_path, "1.0")
    assert state_of(tmp_path, "1.1").endswith(", without the tag v1.1")
    git("checkout", "--", ".")
    (tmp_path / "file").touch()
    assert state_of(tmp_path, "1.0").endswith(", with changes that are not committed")


def test_the_address_is_written_into_every_file_that_has_it(tmp_path: Path) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text("utf-8"))
    old = address(tmp_path)
    write("https://git.example.org/our/gateway", tmp_path)
    for name in FILES:
        assert old in (ROOT / name).read_text("utf-8")
        text = (tmp_path / name).read_text("utf-8")
        assert old not in text
        assert "https://git.example.org/our/gateway" in text
    assert not is_missing(tmp_path)
    with pytest.raises(LocalError):
        write("http://example.org/", tmp_path)
