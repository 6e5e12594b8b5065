"""Turns of both arms after each other, each kept as it ends with when it was and beside what.

A turn compares both arms within its own seconds, so that one which an earlier run measured is worth
as much as a new one. What another machine kept is not taken: `host` is part of what names it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from fewbit.evaluate.answers import Answerer, Ask
from fewbit.evaluate.arms import PAIR, Arm, Role
from fewbit.evaluate.machine.stand import Measured, Stand
from fewbit.progress import Progress
from fewbit.records.answers import Answer
from fewbit.records.kept import Kept
from fewbit.records.speed_axis import AnsweredTogether, Moment, Served, SpeedPeriod, SpeedTurn

AT_ONCE = 4
"""Questions that are answered at once."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is served in each turn."""

    prompt: int
    tokens: int
    turns: int
    concurrency: tuple[int, ...]


def now() -> str:
    """Return the time, UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def serve_turns(
    pair: Mapping[Role, Arm], shape: Shape, kept: Kept, began: str, progress: Progress
) -> list[SpeedTurn]:
    """Return all turns; those that are not kept are measured.

    Args:
        pair: both arms, with room for the most requests.
        shape: what is served.
        kept: where turns are kept, by number.
        began: when this run began.
        progress: told of turns.
    """
    names = [f"turn {i + 1}" for i in range(shape.turns)]
    missing = [turn for turn, name in enumerate(names) if name not in kept.names()]
    stands = _stands(pair, shape) if missing else {}
    for turn in missing:
        progress("turns", turn, shape.turns)
        served = [
            served_of(role, sequences, stands[role].measure(sequences))
            for sequences in shape.concurrency
            for role in order(turn)
        ]
        kept.add(names[turn], SpeedTurn(served=tuple(served), moment=moment(began)))
    found = kept.read(SpeedTurn)
    return [found[name] for name in names]


def answer_together(
    pair: Mapping[Role, Answerer], asks: Sequence[Ask], kept: Kept, began: str, progress: Progress
) -> list[AnsweredTogether]:
    """Return the answers of both arms, `AT_ONCE` at once; those that are not kept are asked for."""
    batches = {f"questions from {i + 1}": asks[i : i + AT_ONCE] for i in _starts(asks)}
    for turn, (name, few) in enumerate(batches.items()):
        if name in kept.names():
            continue
        progress("answers", turn * AT_ONCE, len(asks))
        said: dict[Role, dict[str, Answer]] = {role: {} for role in PAIR}
        for role in order(turn):
            pair[role].answer(few, _keeper(said[role]))
        source, candidate = (tuple(said[role][ask.name] for ask in few) for role in PAIR)
        together = AnsweredTogether(source=source, candidate=candidate, moment=moment(began))
        kept.add(name, together)
    found = kept.read(AnsweredTogether)
    return [found[name] for name in batches]


def periods(
    turns: Sequence[SpeedTurn], answered: Sequence[AnsweredTogether]
) -> tuple[SpeedPeriod, ...]:
    """Return what each run measured, the earliest first."""
    moments = [*(turn.moment for turn in turns), *(few.moment for few in answered)]
    return tuple(
        _period(
            [moment for moment in moments if moment.began == began],
            sum(turn.moment.began == began for turn in turns),
            sum(len(few.source) for few in answered if few.moment.began == began),
        )
        for began in sorted({moment.began for moment in moments})
    )


def served_of(role: Role, sequences: int, measured: Measured) -> Served:
    """Return what is kept of a measurement."""
    return Served(
        arm=role.value,
        sequences=sequences,
        first_tokens=tuple(measured.cold.first_tokens),
        cached_first_tokens=tuple(measured.cached.first_tokens),
        gaps=tuple(measured.cold.gaps),
        steps=tuple(step.seconds for step in measured.decoding),
    )


def order(turn: int) -> tuple[Role, ...]:
    """Return who is first in a turn, and who then."""
    return PAIR if turn % 2 == 0 else PAIR[::-1]


def moment(began: str) -> Moment:
    """Return that something was measured now, by a run that began then."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # a system that does not tell
        load = None
    return Moment(began=began, ended=now(), load=load)


def _stands(pair: Mapping[Role, Arm], shape: Shape) -> dict[Role, Stand]:
    most = max(shape.concurrency)
    stands = {
        role: Stand(arm.loaded, prompt=shape.prompt, tokens=shape.tokens, sequences=most)
        for role, arm in pair.items()
    }
    for stand in stands.values():
        stand.warm_up()
    return stands


def _period(moments: Sequence[Moment], turns: int, answers: int) -> SpeedPeriod:
    loads = [moment.load for moment in moments if moment.load is not None]
    return SpeedPeriod(
        began=moments[0].began,
        ended=max(moment.ended for moment in moments),
        turns=turns,
        answers=answers,
        load_least=min(loads, default=None),
        load_most=max(loads, default=None),
    )


def _starts(asks: Sequence[Ask]) -> Iterator[int]:
    yield from range(0, len(asks), AT_ONCE)


def _keeper(into: dict[str, Answer]) -> Callable[[Answer], None]:
    def keep(answer: Answer) -> None:
        into[answer.name] = answer

    return keep
