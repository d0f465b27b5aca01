"""The targets by name: functions that take any bytes and raise when a promise is broken; and where each starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

from tests.fuzz.broker_bytes import check_broker, check_properties, check_splitter
from tests.fuzz.connection_start import check_handshake, check_proxy
from tests.fuzz.decoder import check_decoder
from tests.fuzz.mutator import STOMP_TARGETS
from tests.fuzz.operator_files import check_conf, check_configuration_file, check_terms
from tests.fuzz.seeds import seeds
from tests.fuzz.session import check_session

Target = Callable[[bytes], None]

TARGETS: Final[dict[str, Target]] = {
    "decoder": check_decoder,
    "session": check_session,
    "splitter": check_splitter,
    "properties": check_properties,
    "broker": check_broker,
    "configuration": check_configuration_file,
    "proxy": check_proxy,
    "handshake": check_handshake,
    "conf": check_conf,
    "terms": check_terms,
}

_HERE: Final = Path(__file__).parent
_ROOT: Final = _HERE.parents[1]

CORPUS: Final = _HERE / "corpus"
"""A directory for each target, and in it inputs: where a target starts, and what once broke it."""

_GOLDEN: Final = _ROOT / "tests" / "unit" / "migrate" / "golden"
_FILES: Final = {
    "configuration": (_ROOT / "config", "*.yaml"),
    "conf": (_GOLDEN, "*/*.conf"),
    "terms": (_GOLDEN, "*/*.config"),
}
"""Files of the repository that a target starts from too."""


@cache
def starts(target: str) -> tuple[bytes, ...]:
    """Where a target starts, the same inputs in the same order each time: a script also from every transcript."""
    paths = [*sorted((CORPUS / target).glob("*"))]
    if target in _FILES:
        directory, pattern = _FILES[target]
        paths += sorted(directory.glob(pattern))
    inputs = (seeds() if target in STOMP_TARGETS else ()) + tuple(path.read_bytes() for path in paths)
    return tuple(dict.fromkeys(inputs))
