"""An installed RabbitMQ: the paths of its programs."""

import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_PACKAGED = "usr/lib/rabbitmq/lib/rabbitmq_server-*/sbin"
_EPMD_PLACES = ("usr/lib/erlang/bin/epmd", "usr/local/lib/erlang/bin/epmd")


@dataclass(frozen=True)
class Installation:
    """The programs of one installed RabbitMQ.

    Distributions put a wrapper of their own into PATH, which switches to a system user (and thereby, on Debian, lowers
    the file-descriptor limit to 1,024) and refuses everybody but root. So these are the node's own scripts.
    """

    scripts: Path
    """Directory with rabbitmq-server, rabbitmqctl and rabbitmq-env."""
    epmd: Path
    """Erlang's port mapper."""
    through: tuple[str, ...] = ()
    """A command that runs another where these paths are valid; empty for here."""

    @classmethod
    def find(cls, root: Path = Path("/"), path: str | None = None) -> Self | None:
        """Look for an installed RabbitMQ, the newest first.

        Args:
            root: the file system's root.
            path: directories to search as in PATH, which is the default.

        Returns:
            The installation, or None if there is none that works.
        """
        epmd = _find_epmd(root, path)
        candidates = sorted(root.glob(_PACKAGED), key=_version_of, reverse=True)
        if in_path := shutil.which("rabbitmq-server", path=path):
            candidates.append(Path(in_path).resolve().parent)
        for scripts in candidates:
            if epmd and all((scripts / name).is_file() for name in ("rabbitmq-server", "rabbitmqctl", "rabbitmq-env")):
                return cls(scripts, epmd)
        return None

    @property
    def version(self) -> str:
        """RabbitMQ's version, from the name of its directory; empty if that has none."""
        return ".".join(str(part) for part in _version_of(self.scripts))


def _version_of(scripts: Path) -> tuple[int, ...]:
    match = re.search(r"rabbitmq_server-(\d+(?:\.\d+)*)", str(scripts))
    return tuple(int(part) for part in match[1].split(".")) if match else ()


def _find_epmd(root: Path, path: str | None) -> Path | None:
    if in_path := shutil.which("epmd", path=path):
        return Path(in_path)
    return next((root / place for place in _EPMD_PLACES if (root / place).is_file()), None)
