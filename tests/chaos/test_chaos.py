"""Some runs of ``make chaos``, which make test can afford."""

from __future__ import annotations

import pytest

from deploy.local.errors import LocalError
from tests.chaos.campaign import Campaign, folder
from tests.chaos.drawing import drawn

pytestmark = pytest.mark.system

_SEEDS = (106, 88)
"""First a broker that is killed, links that break again and again, and COMMITs that are cut; quorum queues, topics with
durable and with transient subscriptions. Then a gateway that is killed, clients that are cut and half closed; a stream.
"""

_WITH_WORKERS = 6


async def test_what_was_promised_holds_whatever_breaks() -> None:
    try:
        async with Campaign.begun() as campaign:
            for seed in _SEEDS:
                report = await campaign.perform(drawn(seed))
                assert not report.findings, f"{report.findings}; to repeat: make chaos SEED={seed}; {folder(seed)}"
            # Workers are killed, among other faults.
            report = await campaign.perform(drawn(_WITH_WORKERS, has_workers=True))
            assert not report.findings, (
                f"{report.findings}; to repeat: make chaos SEED={_WITH_WORKERS} ARGS=--workers; {folder(_WITH_WORKERS)}"
            )
    except LocalError as error:
        pytest.skip(f"needs a private node: {error}")
