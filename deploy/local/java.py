"""A Java for Spark: the one that the pipeline would find, or Debian's package.

`python -m deploy.local.java` does so; `make` calls it before it installs Spark.
"""

import os
import sys
from collections.abc import Callable, Mapping

from deploy.local import debian
from deploy.local.errors import LocalError
from gateway.errors import PipelineError
from gateway.pipeline.java import Java, find_java

PACKAGES = ("openjdk-17-jre-headless", "openjdk-21-jre-headless")
"""Debian's packages to choose from; each release has one of them at least."""


def provide(say: Callable[[str], None], environ: Mapping[str, str] = os.environ) -> Java:
    """Find a Java that Spark starts on, or install Debian's if we are root.

    Args:
        say: takes a line about the progress.
        environ: where JAVA_HOME and PATH are looked up.

    Raises:
        LocalError: there is none, and none can be installed.
    """
    try:
        return find_java(environ)
    except PipelineError as error:
        if not debian.can_install():
            raise _none(error) from error
    say(f"Spark needs a Java: installing Debian's {PACKAGES[0]} or a later one with apt-get (45 MB to fetch)")
    debian.install_first(PACKAGES)
    try:
        return find_java(environ)
    except PipelineError as error:
        raise _none(error) from error


def _none(error: PipelineError) -> LocalError:
    text = str(error)
    return LocalError(text[:1].upper() + text[1:])


def main() -> int:
    """Provide a Java; the exit code is 1 when there is none."""
    try:
        provide(lambda line: print(line, flush=True))
    except LocalError as error:
        print(f"setup: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
