"""A STOMP gateway in front of RabbitMQ: STOMP 1.0, 1.1 and 1.2 in, AMQP 0-9-1 out."""

from __future__ import annotations

from functools import cache

__version__ = "0.2.0"


@cache
def commit() -> str:
    """The commit of which this gateway was made, shortened; empty if nobody knows. Asks git in a checkout."""
    # Imported here, since most commands do not ask.
    import contextlib  # noqa: PLC0415
    import subprocess  # noqa: PLC0415
    from pathlib import Path  # noqa: PLC0415

    package = Path(__file__).parent
    with contextlib.suppress(OSError):
        return (package / "commit.txt").read_text("ascii").strip()
    if (package.parent / ".git").exists():
        command = ["git", "-C", str(package.parent), "rev-parse", "--short", "HEAD"]
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout.strip()  # noqa: S603
    return ""


def version_text() -> str:
    """The version, and the commit if it is known."""
    return f"{__version__} ({commit()})" if commit() else __version__
