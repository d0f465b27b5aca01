"""A tool that tests can do without: one that is there, one from a package, or none and a sentence."""

from collections.abc import Callable
from dataclasses import dataclass

from deploy.local import debian
from deploy.local.errors import LocalError


@dataclass(frozen=True)
class OptionalTool:
    """A program, and the tests that need it.

    Each module that has one provides it when it is run; `make tests` does that first.
    """

    name: str
    """For messages."""
    packages: str | None
    """Debian's packages that have it, as one writes them behind `apt install`; None: it comes from elsewhere."""
    tests: str
    """The tests that need it, for messages."""
    doing: str
    """How it is fetched, for messages."""
    find: Callable[[], str | None]
    """Looks for its path."""
    fetch: Callable[[], None]
    """Fetches it; raises LocalError if that fails."""

    def provide(self, say: Callable[[str], None]) -> str | None:
        """Find one, or fetch it if that is possible here.

        Args:
            say: takes a line about the progress.

        Returns:
            The program's path, or None if there is none, after `say` got the reason.
        """
        found = self.find()
        if found is not None:
            return found
        reason = f"install one (Debian: apt install {self.packages}) to have them"
        if self.packages is None or debian.can_install():
            say(f"{self.tests.capitalize()} need {self.name}: {self.doing}")
            try:
                self.fetch()
                return self.find()
            except LocalError as error:
                reason = str(error)
        say(f"No {self.name}, so {self.tests} are skipped: {reason}")
        return None

    def provide_here(self) -> int:
        """Provide it and print what `provide` says. The exit code is always 0, since the tests can do without."""
        self.provide(lambda line: print(line, flush=True))
        return 0
