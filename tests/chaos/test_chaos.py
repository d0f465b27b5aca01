"""Some runs of ``make chaos``, which make test can afford."""

from __future__ import annotations

import pytest

from deploy.local.errors import LocalError
from tests.chaos.campaign import Campaign, folder
from tests.chaos.drawing import drawn

pytestmark = pytest.mark.system

_SEEDS = (8, 12, 14)
"""Links that an operator closes, that are slow, stall and are cut; clients that are cut; a gateway that is killed."""


async def test_what_was_promised_holds_whatever_breaks() -> None:
    try:
        async with Campaign.begun() as campaign:
            for seed in _SEEDS:
                report = await campaign.perform(drawn(seed))
                assert not report.findings, f"{report.findings}; to repeat: make chaos SEED={seed}; {folder(seed)}"
    except LocalError as error:
        pytest.skip(f"needs a private node: {error}")
