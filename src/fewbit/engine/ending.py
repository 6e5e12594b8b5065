"""How a generation ends, token by token, and the record it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from fewbit.engine.request import Generation, Speculation
from fewbit.errors import FewbitError
from fewbit.records.generation import (
    DraftChange,
    DraftRecord,
    FinishReason,
    GenerationRecord,
    GenerationTimes,
)


@dataclass(frozen=True)
class Ending:
    """Why a generation ends."""

    reason: FinishReason
    detail: str
    fault: FewbitError | None = None
    cut: bool = False
    """The text ends before a stop string, so that nothing held back may follow."""

    @classmethod
    def of(cls, fault: FewbitError) -> Ending:
        """Return the ending that an error makes."""
        return cls(FinishReason.ERROR, str(fault), fault)


def take(
    generation: Generation, tokens: Sequence[int], now: float, context: int
) -> tuple[int, list[str], Ending | None]:
    """Give a generation the tokens drawn for it, up to whatever ends it.

    Returns:
        How many were taken, their text in pieces, and the ending; what follows a stop token or a
        stop string in a block was not generated, as it would not be without a draft.
    """
    texts: list[str] = []
    for taken, token in enumerate(tokens, start=1):
        generation.tokens.append(token)
        generation.meter.token_times.append(now)
        if ending := _take_one(generation, token, texts, context):
            return taken, texts, ending
    return len(tokens), texts, None


def _take_one(generation: Generation, token: int, texts: list[str], context: int) -> Ending | None:
    if token in generation.request.stop.ids:
        return Ending(FinishReason.STOP, f"token {token}")
    try:
        piece = generation.decoder.push(token)
    except FewbitError as error:
        return Ending.of(error)
    text, found = generation.matcher.push(piece)
    texts.append(text)
    if found is not None:
        return Ending(FinishReason.STOP, f"the string {found!r}", cut=True)
    if generation.remaining == 0:
        return Ending(FinishReason.LENGTH, f"max_tokens of {generation.generated}")
    if len(generation.tokens) >= context:
        return Ending(FinishReason.LENGTH, f"the context of {context} tokens is full")
    return None


def generation_record(
    generation: Generation, ending: Ending, speculation: Speculation | None, now: float
) -> GenerationRecord:
    """Return the record of a generation that ends now."""
    return GenerationRecord(
        finish=ending.reason,
        detail=ending.detail,
        prompt_tokens=len(generation.request.prompt),
        cached_tokens=generation.cached,
        generated_tokens=generation.generated,
        greedy=generation.request.params.greedy,
        seed=generation.seed,
        repeats=generation.repeats,
        sample=generation.request.sample,
        plain_steps=generation.meter.plain_steps,
        preemptions=generation.meter.preemptions,
        times=_times(generation, now),
        draft=None if speculation is None else _draft_record(generation, speculation),
        draft_off=generation.draft_off,
    )


def _times(generation: Generation, now: float) -> GenerationTimes:
    meter = generation.meter
    first = meter.token_times[0] - meter.arrived if meter.token_times else None
    return GenerationTimes(
        queue=(now if meter.started is None else meter.started) - meter.arrived,
        first_token=first,
        prompt=meter.prompt,
        draft=meter.draft,
        verify=meter.verify,
        rollback=meter.rollback,
        plain=meter.plain,
        total=now - meter.arrived,
        gaps=tuple(later - earlier for earlier, later in pairwise(meter.token_times)),
    )


def _draft_record(generation: Generation, speculation: Speculation) -> DraftRecord | None:
    if generation.length is None:
        return None
    meter = generation.meter
    return DraftRecord(
        draft=speculation.draft.name,
        longest=speculation.longest,
        positions=meter.position_counts(),
        blocks=meter.blocks,
        acceptance_length=meter.acceptance_length,
        wasted=meter.wasted,
        trials=generation.length.trials,
        forecast=meter.forecast.record(),
        branches=meter.branch_counts(),
        tokens_left_out=meter.tokens_left_out,
        branches_left_out=meter.branches_left_out,
        changes=tuple(
            DraftChange(token=c.token, length=c.length, reason=c.reason)
            for c in generation.length.changes
        ),
    )
