"""What a release says of itself: the parts in its SBOM, and the state of the checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from deploy.local.errors import LocalError
from deploy.release.address import FILES, address, is_missing, write
from deploy.release.checkout import mistakes, state_of
from deploy.release.programs import ROOT
from deploy.release.sbom import add_compiled
from gateway import __version__


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


_HOME = "home: https://git.example.org/a\n"
_PROJECT = '[project.urls]\nRepository = "https://repository.invalid/a"\n'


class _Checkout:
    """A small checkout of version 1.0 that could be released."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.write("pyproject.toml", _PROJECT.replace("repository.invalid", "git.example.org"))
        self.write(
            "README.md", "# A\n\n[What it does](docs/page.md#what-it-does), [code](https://git.example.org/a#b)\n"
        )
        self.write("docs/page.md", "# Page\n\n## What it does\n")
        self.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## 1.0 (2026-12-01)\n\n* Everything.\n")
        self.write("deploy/helm/Chart.yaml", f"{_HOME}version: 1.0\nappVersion: 1.0\n")
        self.git("init")
        self.git("add", "--all")
        self.git("commit", "--no-gpg-sign", "--message", "one")

    def write(self, name: str, text: str) -> None:
        (self._root / name).parent.mkdir(parents=True, exist_ok=True)
        (self._root / name).write_text(text)

    def git(self, *arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "tag.gpgsign=false")
        subprocess.run(("git", "-C", self._root, *who, *arguments), check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> _Checkout:
    return _Checkout(tmp_path)


def test_a_release_says_of_which_state_of_the_checkout_it_is_made(tmp_path: Path, checkout: _Checkout) -> None:
    assert state_of(tmp_path, "1.0").endswith(", without the tag v1.0")

    checkout.git("tag", "v1.0")
    assert state_of(tmp_path, "1.0").endswith(", tag v1.0")

    checkout.write("file", "")
    assert state_of(tmp_path, "1.0").endswith(", with changes that are not committed")


@pytest.mark.parametrize(
    ("name", "text", "mistake"),
    [
        ("pyproject.toml", _PROJECT, "a release needs the repository's address"),
        ("SECURITY.md", "https://git.example.com/b\n", "SECURITY.md has another address of the repository"),
        (
            "CHANGELOG.md",
            "## Unreleased\n\n* More.\n\n## 1.0 (2026-12-01)\n",
            "CHANGELOG.md has lines below Unreleased",
        ),
        (
            "CHANGELOG.md",
            "## Unreleased\n\n### New\n\n* More.\n\n## 1.0 (2026-12-01)\n",
            "CHANGELOG.md has lines below Unreleased",
        ),
        ("CHANGELOG.md", "## 1.0\n", "CHANGELOG.md needs the day of the release: ## 1.0 "),
        ("CHANGELOG.md", "## 0.9 (2026-11-01)\n\n## 1.0 (2026-12-01)\n", "CHANGELOG.md has to begin with ## 1.0,"),
        (
            "deploy/helm/Chart.yaml",
            "version: 1.0\nappVersion: 0.9\n",
            "deploy/helm/Chart.yaml has the version 0.9, not 1.0",
        ),
        (
            "deploy/kubernetes/a/b.yaml",
            "  image: stomp-gateway:2.0\n",
            "deploy/kubernetes/a/b.yaml has the version 2.0",
        ),
        ("docs/page.md", "# Page\n\n## Other words\n", "README.md has the dead link docs/page.md#what-it-does"),
        ("CHANGELOG.md", "## 1.0 (2026-12-01)\n\n[a](docs/b.md)\n", "CHANGELOG.md has the dead link docs/b.md"),
    ],
)
def test_a_tagged_release_is_refused_for_each_mistake(
    tmp_path: Path, checkout: _Checkout, name: str, text: str, mistake: str
) -> None:
    checkout.write(name, text)
    assert "without the tag" in state_of(tmp_path, "1.0")

    checkout.git("tag", "v1.0")
    with pytest.raises(LocalError) as refusal:
        state_of(tmp_path, "1.0")
    assert f"\n* {mistake}" in str(refusal.value)


def test_the_tag_of_another_version_refuses_the_release(tmp_path: Path, checkout: _Checkout) -> None:
    checkout.git("tag", "lunch")
    checkout.git("tag", "v1.1")
    with pytest.raises(LocalError, match=r"the tag v1\.1, and gateway/__init__\.py the version of v1\.0"):
        state_of(tmp_path, "1.0")


def test_a_pre_release_has_the_heading_of_its_release_without_a_day(tmp_path: Path, checkout: _Checkout) -> None:
    checkout.write("CHANGELOG.md", "## 1.0\n")
    checkout.write("deploy/helm/Chart.yaml", f"{_HOME}version: 1.0rc1\nappVersion: 1.0rc1\n")
    checkout.git("tag", "v1.0rc1")
    assert "with changes" in state_of(tmp_path, "1.0rc1")


def test_version_changelog_and_links_agree() -> None:
    assert not mistakes(ROOT, __version__)


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
