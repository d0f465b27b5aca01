"""What two servers' answers to one conversation mean."""

from dataclasses import dataclass
from enum import Enum
from itertools import zip_longest

from gateway.parity.normaliser import Section, normalised
from gateway.parity.player import Performance
from gateway.parity.script import SIDES, Conversation


class Outcome(Enum):
    """How a rule fared."""

    EQUAL = "equal"
    DEPARTURE = "departure"
    DIFFERENT = "DIFFERENT"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Verdict:
    """How the rule of one conversation fared.

    Args:
        conversation: the rule's.
        outcome: in one word.
        remarks: what else there is to say, a paragraph each.
        exchanges: the plugin's and the gateway's, normalised; None where nothing was played.
    """

    conversation: Conversation
    outcome: Outcome
    remarks: tuple[str, ...] = ()
    exchanges: tuple[tuple[Section, ...], tuple[Section, ...]] | None = None


def judge(conversation: Conversation, plugin: Performance, gateway: Performance) -> Verdict:
    """Compare two performances of a conversation.

    Equal are servers that said the same, to the letter, and not only what the file tolerates of both. Where the two
    depart from each other they must differ as it is written: each does what is written for it, and in the steps
    for both they say the same.

    Args:
        conversation: as it goes with the release of their broker; it names departures that show in other releases, too.
        plugin: what came of playing it against the plugin.
        gateway: what came of playing it against the gateway.
    """
    mismatches = [performance.mismatch for performance in (plugin, gateway)]
    exchanges = normalised(plugin.recording), normalised(gateway.recording)
    outcome, remarks = Outcome.DIFFERENT, _complaints(plugin, gateway)
    if conversation.departs:
        if not any(mismatches) and not (remarks := _disagreements(conversation, plugin, gateway)):
            outcome = Outcome.DEPARTURE
    elif same(*exchanges):
        if not any(mismatches):
            outcome = Outcome.EQUAL
        elif all(mismatch and mismatch.is_answer for mismatch in mismatches):
            outcome = Outcome.EQUAL
            lines = sorted({mismatch.line for mismatch in mismatches if mismatch})
            remarks = (f"neither goes as written in line {lines[0]}; up to there both said the same",)
    elif not any(mismatches):
        remarks = ("both go as written, but what they said is not the same",)
    return Verdict(conversation, outcome, remarks, exchanges)


def same(left: tuple[Section, ...], right: tuple[Section, ...]) -> bool:
    """Tell whether two normalised recordings say the same."""
    return all(one and other and one.equals(other) for one, other in zip_longest(left, right))


def _disagreements(conversation: Conversation, plugin: Performance, gateway: Performance) -> tuple[str, ...]:
    """Say where the two differ in steps that hold for both, in a conversation that both went through as written."""
    common = conversation.common_lines
    left, right = (normalised(each.recording, common) for each in (plugin, gateway))
    lines = [passage.line for passage in plugin.recording.passages if passage.line in common]
    for (one, other), line in zip_longest(zip_longest(left, right), lines):
        if not (one and other and one.equals(other)):
            return (f"both go as written, but what they said in line {line} is not the same",)
    return ()


def _complaints(plugin: Performance, gateway: Performance) -> tuple[str, ...]:
    played = zip(SIDES, (plugin, gateway), strict=True)
    return tuple(
        f"the {side} goes otherwise than written in line {mismatch.line}:\n{mismatch.problem}"
        for side, performance in played
        if (mismatch := performance.mismatch)
    )
