"""The targets by name: functions that take any bytes and raise when a promise is broken."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from tests.fuzz.decoder import check_decoder
from tests.fuzz.session import check_session

Target = Callable[[bytes], None]

TARGETS: Final[dict[str, Target]] = {"decoder": check_decoder, "session": check_session}
