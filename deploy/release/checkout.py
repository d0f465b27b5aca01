"""Of which state of the checkout a release is made."""

from pathlib import Path

from deploy.local.errors import LocalError
from deploy.release.address import is_missing
from deploy.release.programs import run


def state_of(root: Path, version: str) -> str:
    """The commit, and what it lacks for a release of this version.

    Raises:
        LocalError: the folder is no checkout, or there is no git; or it has the version's tag, and no address of the
            repository, so that nobody who gets the release knows whom to ask.
    """
    git = ("git", "-C", root)
    tag = f"v{version}"
    lacks = []
    if run(*git, "status", "--porcelain").strip():
        lacks.append("with changes that are not committed")
    if tag not in run(*git, "tag", "--points-at", "HEAD").split():
        lacks.append(f"without the tag {tag}")
    elif is_missing(root):
        raise LocalError("a release needs the repository's address: python -m deploy.release.address URL")
    commit = run(*git, "rev-parse", "--short", "HEAD").strip()
    return ", ".join((f"commit {commit}", *(lacks or [f"tag {tag}"])))
