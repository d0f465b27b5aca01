"""Programs that look at the files in deploy/. A test that needs one is skipped where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from deploy.local import kube_programs
from deploy.local import promtool as provider
from tests.support.helm_chart import Chart

_ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def promtool() -> str:
    """The program's path."""
    found = provider.find(_ROOT / provider.FETCHED)
    if found is None:
        pytest.skip("needs promtool: `python -m deploy.local.promtool` fetches it on Debian, as `make tests` does")
    return found


@pytest.fixture(scope="session")
def kubectl() -> str:
    """The program's path."""
    return _kube_program("kubectl")


@pytest.fixture(scope="session")
def chart() -> Chart:
    """The chart in deploy/helm."""
    return Chart(_kube_program("helm"))


def _kube_program(name: str) -> str:
    found = kube_programs.find(name, _ROOT / kube_programs.FETCHED)
    if found is None:
        pytest.skip(f"needs {name}: `python -m deploy.local.kube_programs` fetches it, as `make tests` does")
    return found
