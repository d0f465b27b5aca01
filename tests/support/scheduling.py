"""How tests are distributed among several workers: file by file, and files that share something expensive together.

The tests of one file run in one worker, so that their fixtures are set up once. All files that use the one Spark
session run in one worker too: two sessions cost more than running them in parallel gains. So do the files that use the
laboratory, or one of the brokers that tests may kill: the start of a broker takes several seconds of a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

_PIPELINE: Final = "tests/pipeline"
_WITHOUT_THE_SESSION: Final = (
    "test_batches.py", "test_check.py", "test_cluster.py", "test_compare.py", "test_lake.py", "test_maintenance.py",
    "test_query_output.py", "test_report.py", "test_report_browser.py", "test_spark_submit.py",
    "test_stored_segments.py",
)  # fmt: skip
_WITH_THE_SAME_BROKER: Final = {
    "tests/system/laboratory": (
        "broker_events", "broker_wording", "connection_names", "demo", "migrate", "permissions", "policy", "secrets",
        "virtual_hosts", "websocket_handshake",
    ),
    "tests/fault/mortal": ("link_lost", "ride_through"),
    "tests/fault/nodes": ("cluster", "queue_away"),
}  # fmt: skip
_BROKER_OF: Final = {
    f"{name.rpartition('/')[0]}/test_{file}.py": name for name, files in _WITH_THE_SAME_BROKER.items() for file in files
}
# The longest scope starts first, together with tests that mostly wait and tolerate a busy machine. Tests that depend on
# the timing of signals, faults and heart-beats start after it. Many short files fill the workers at the end.
_ORDER: Final = (
    _PIPELINE,
    "tests/unit/deploy",
    "tests/clients",
    "tests/system",
    "tests/system/test_parity.py",
    "tests/fault",
    "tests/pipeline/test_spark_submit.py",
    "tests/property",
)


class FileScheduling(LoadScopeScheduling):  # type: ignore[misc]  # it ships no types
    """Starts the scopes in the order in which the workers have collected them."""

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


def scope(nodeid: str) -> str:
    """The scope of a test, all of which one worker runs: its file, or all files that share a session or a broker.

    Args:
        nodeid: pytest's name for the test.
    """
    file = nodeid.partition("::")[0]
    if file in _BROKER_OF:
        return _BROKER_OF[file]
    uses_session = file.startswith(f"{_PIPELINE}/") and not file.endswith(_WITHOUT_THE_SESSION)
    return _PIPELINE if uses_session else file


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The tests, in the order in which their scopes should start."""
    return sorted(items, key=lambda item: _rank(scope(item.nodeid)))


def _rank(name: str) -> int:
    """The position of a scope. Of the entries of ``_ORDER`` that contain it the last one counts, the most specific."""
    ranks = [rank for rank, place in enumerate(_ORDER) if name == place or name.startswith(f"{place}/")]
    # The files in tests/pipeline that do without the session are short.
    return len(_ORDER) if not ranks or (ranks == [0] and name != _PIPELINE) else ranks[-1]
