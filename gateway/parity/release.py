"""Releases of RabbitMQ, and the ranges of them that a transcript's steps may hold for."""

import re
from dataclasses import dataclass

_RELEASE = re.compile(r"(?P<major>\d+)(?:\.(?P<minor>\d+))?(?:\.(?P<patch>\d+))?")
_BOUND = re.compile(rf"(?P<sign>>=|<)(?P<release>{_RELEASE.pattern})")


@dataclass(frozen=True, slots=True, order=True)
class Release:
    """A release of RabbitMQ; what a text leaves out is 0, and `4.3.0-rc.1` counts as 4.3.0."""

    major: int
    minor: int = 0
    patch: int = 0

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"

    @classmethod
    def read(cls, text: str) -> "Release | None":
        """Return the release that a text begins with; None where it begins with no number."""
        match = _RELEASE.match(text)
        return cls(*(int(number or 0) for number in match.group("major", "minor", "patch"))) if match else None

    @classmethod
    def told_by(cls, server: str) -> "Release | None":
        """Return the release in a `server` header, `RabbitMQ/4.3.6`; None where it tells none."""
        name, _, version = server.partition("/")
        return cls.read(version) if name == "RabbitMQ" else None


ORACLE = Release(3, 10, 8)
"""The release whose plugin the transcripts are written for, and which the model of a broker is like."""


@dataclass(frozen=True, slots=True)
class Releases:
    """A range of releases.

    Args:
        since: the first that is in it; None for all from the first on.
        before: the first that is no longer in it; None where it has no end.
    """

    since: Release | None
    before: Release | None

    def __contains__(self, release: Release) -> bool:
        return (self.since is None or self.since <= release) and (self.before is None or release < self.before)

    @classmethod
    def read(cls, text: str) -> "Releases":
        """Return the range that a text means: `>=4.3`, `<4.3.5`, or both with a comma between.

        Raises:
            ValueError: it means none, or one that no release is in; the text of the error says so.
        """
        bounds = [_BOUND.fullmatch(part) for part in text.split(",")]
        signs = [bound["sign"] for bound in bounds if bound]
        if None in bounds or len(set(signs)) < len(bounds):
            raise ValueError(f"[{text}] is no range of releases; they look like [>=4.3], [<4.3.5] or [>=3.13,<4.3]")
        known = {bound["sign"]: Release.read(bound["release"]) for bound in bounds if bound}
        since, before = known.get(">="), known.get("<")
        if since and before and before <= since:
            raise ValueError(f"no release is in [{text}]")
        return cls(since, before)
