"""Fixtures for the tests of Prometheus' files."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import promtool as provider

_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program's path."""
    found = provider.find(_ROOT / provider.FETCHED)
    if found is None:
        pytest.skip("needs promtool: `python -m deploy.local.promtool` fetches it on Debian, as `make tests` does")
    return found
