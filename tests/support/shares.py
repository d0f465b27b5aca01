"""How the tests are shared out when several workers run them at once: file by file, Spark's in one share.

A file is never divided, so what its tests share is made once. All that use the one Spark session are one share, since
two sessions would cost more than running beside each other gains.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_PIPELINE: Final = "tests/pipeline"
_WITHOUT_THE_SESSION: Final = (
    "test_check.py", "test_compact.py", "test_ingest_kill.py", "test_java.py", "test_report.py",
    "test_report_browser.py", "test_retention.py",
)  # fmt: skip
# The longest share comes first, and beside it what mostly waits and is in no hurry. What has to see signals, faults and
# heart-beats at their moments is spared its company. Many short files even out the end.
_ORDER: Final = (
    _PIPELINE,
    "tests/unit/deploy",
    "tests/clients",
    "tests/system",
    "tests/system/test_parity.py",
    "tests/fault",
    "tests/pipeline/test_ingest_kill.py",  # starts Spark again and again; quicker with what the session's end has left
    "tests/property",
)


class Shares(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """Hands the shares out in the order in which the workers have collected them."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid)


def share(nodeid: str) -> str:
    """The share that a test belongs to.

    Args:
        nodeid: pytest's name for the test.
    """
    file = nodeid.partition("::")[0]
    spark = file.startswith(f"{_PIPELINE}/") and not file.endswith(_WITHOUT_THE_SESSION)
    return _PIPELINE if spark else file


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests in the order in which their shares are best begun.

    Args:
        items: all tests.
    """
    return sorted(items, key=lambda item: _rank(share(item.nodeid)))


def _rank(name: str) -> int:
    """How early a share is begun. The most exact of the places that it is in counts, which is the last of them."""
    ranks = [rank for rank, place in enumerate(_ORDER) if name == place or name.startswith(f"{place}/")]
    # Of the pipeline, what is a share of its own is short.
    return len(_ORDER) if not ranks or (ranks == [0] and name != _PIPELINE) else ranks[-1]
