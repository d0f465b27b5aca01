"""What the session's tests share."""

from collections.abc import Iterator

import pytest

from tests.support.playbook import ENDS_WITH_ITS_LINK, Playbook


@pytest.fixture
def fresh() -> Iterator[Playbook]:
    """A session that has heard nothing yet; in the end nothing may be left that the test did not expect."""
    playbook = Playbook()
    yield playbook
    playbook.finish()


@pytest.fixture
def play(fresh: Playbook) -> Playbook:
    """A session that has logged in with STOMP 1.2."""
    fresh.connect()
    return fresh


@pytest.fixture
def mortal() -> Iterator[Playbook]:
    """A session that has logged in with STOMP 1.2, and does not outlive its link."""
    playbook = Playbook(ENDS_WITH_ITS_LINK)
    playbook.connect()
    yield playbook
    playbook.finish()
