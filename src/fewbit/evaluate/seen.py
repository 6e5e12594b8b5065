"""Refusing prompts that the candidate was calibrated on."""

from __future__ import annotations

from collections.abc import Mapping

from fewbit.calibrate.text import collect, document
from fewbit.evaluate.arms import Arms, LocalParty, Role
from fewbit.evaluate.language.calibrated import refuse_seen
from fewbit.evaluate.subject import open_subject


def refuse_seen_prompts(what: str, prompts: Mapping[str, str], arms: Arms) -> tuple[str, ...]:
    """Compare prompts with all that the candidate says it was calibrated on.

    Args:
        what: the prompts are called.
        prompts: by name.
        arms: one that runs elsewhere does not say what it was calibrated on.

    Returns:
        Sentences about calibration text that could not be compared.

    Raises:
        UsageError: a prompt is largely contained in calibration text; names it.
        BadFileError, MissingError: a calibration file cannot be read.
    """
    party = arms.parties[Role.CANDIDATE]
    if not isinstance(party, LocalParty):
        return ()
    candidate = open_subject(party.path)
    with candidate.model.checkpoint:
        asked = collect(what, (document(name, text) for name, text in prompts.items()))
        return refuse_seen(asked, candidate)
