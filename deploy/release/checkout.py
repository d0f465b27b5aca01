"""Of which state of the checkout a release is made, and whether its version, changelog, tag and links agree."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from deploy.local.errors import LocalError
from deploy.release.address import FILES, address, is_missing
from deploy.release.programs import run

_VERSIONED: Final = (
    ("deploy/helm/Chart.yaml", r"^(?:version|appVersion): (\S+)$"),
    ("deploy/helm/README.md", r"^ +version: (\S+)$"),
    ("deploy/kubernetes/*/*.yaml", r"^ +image: stomp-gateway[a-z-]*:(\S+)$"),
)
"""Files besides gateway/__init__.py that name the version, and where."""
_FENCE: Final = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


def state_of(root: Path, version: str) -> str:
    """The commit, and what it lacks for a release of this version.

    Raises:
        LocalError: the folder is no checkout, or there is no git; or the commit has the tag of a version, and something
            is wrong with the release. The text lists everything.
    """
    git = ("git", "-C", root)
    tag = f"v{version}"
    tags = [name for name in run(*git, "tag", "--points-at", "HEAD").split() if re.match(r"v\d", name)]
    if tags and (wrong := [*_wrong_tags(tags, tag), *mistakes(root, version), *_unfinished(root, version)]):
        raise LocalError("\n".join(("this is no release yet:", *(f"* {mistake}" for mistake in wrong))))
    lacks = []
    if run(*git, "status", "--porcelain").strip():
        lacks.append("with changes that are not committed")
    if not tags:
        lacks.append(f"without the tag {tag}")
    commit = run(*git, "rev-parse", "--short", "HEAD").strip()
    return ", ".join((f"commit {commit}", *(lacks or [f"tag {tag}"])))


def mistakes(root: Path, version: str) -> list[str]:
    """What is wrong at any commit: the changelog, a file with another version or address, dead links."""
    url = address(root)
    files = [name for name in FILES if (root / name).exists() and url not in (root / name).read_text("utf-8")]
    found = [f"{name} has another address of the repository than pyproject.toml" for name in files]
    if _headings(root)[:1] != [_final(version)]:
        found.append(f"CHANGELOG.md has to begin with ## {_final(version)}, after ## Unreleased if that is there")
    for pattern, line in _VERSIONED:
        for file in sorted(root.glob(pattern)):
            others = set(re.findall(line, file.read_text("utf-8"), re.MULTILINE)) - {version}
            found += [f"{file.relative_to(root)} has the version {other}, not {version}" for other in sorted(others)]
    for page in (root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))):
        found += [f"{page.relative_to(root)} has the dead link {link}" for link in dead_links(page)]
    return found


def dead_links(page: Path) -> Iterator[str]:
    """The links of a page to files, or to headings of pages, that do not exist; no links to other sites."""
    for link in _LINK.findall(prose(page)):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if "://" not in link and not (target.exists() and (not anchor or anchor in _anchors(target))):
            yield link


def _wrong_tags(tags: list[str], tag: str) -> list[str]:
    return [
        f"the commit has the tag {name}, and gateway/__init__.py the version of {tag}" for name in tags if name != tag
    ]


def _unfinished(root: Path, version: str) -> Iterator[str]:
    """What is in order in a checkout, and not in a release."""
    if is_missing(root):
        yield "a release needs the repository's address: python -m deploy.release.address URL"
    text = _changelog(root)
    if version == _final(version) and not re.search(
        rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$", text, re.MULTILINE
    ):
        yield f"CHANGELOG.md needs the day of the release: ## {version} (2026-12-31)"
    if re.search(r"^## Unreleased\n+(?!## )\S", text, re.MULTILINE):
        yield f"CHANGELOG.md has lines below Unreleased: they belong below {version}"


def _headings(root: Path) -> list[str]:
    """The versions in the changelog, the newest first."""
    return [version for version in re.findall(r"^## (\S+)", _changelog(root), re.MULTILINE) if version != "Unreleased"]


def _changelog(root: Path) -> str:
    return (root / "CHANGELOG.md").read_text("utf-8")


def _final(version: str) -> str:
    """The version without what makes it a pre-release: 0.2.0 for 0.2.0rc1."""
    return re.sub(r"(?:\.?(?:a|b|rc|dev)\d+)+$", "", version)


def prose(page: Path) -> str:
    """The text of a page without code blocks."""
    return _FENCE.sub("", page.read_text("utf-8"))


def _anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(prose(page))}
