"""How much faster a model generates with a draft, on prompts of several kinds.

The same requests run without a draft and with one, by turns in one process, so that both see the
same machine; which goes first alternates. Every turn has an engine of its own, and a draft that has
read nothing, so that no turn finds prompts computed by another.

Several at once are served as a service would: requests wait, and one takes the place of another
that has ended. Speed is that of the time in which every place is taken. To the end of one batch it
would be that of its slowest sequence, beside which the places of those that drafts sped up stand
empty; what a request itself gains is in the seconds until its end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice, pairwise

import numpy as np

from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.evaluate.prompts import Prompts
from fewbit.records.generation import SpeculationRecord
from fewbit.records.speculation import ServedPrompts, SpeculationRun, Turn
from fewbit.sampling import SamplingParams
from fewbit.speculate.fresh import fresh

Notify = Callable[[str], None]
"""Told what is measured next."""

_WARM_UP_TOKENS = 4
_ROUNDS = 2
"""Requests for each place, where there are several places."""


@dataclass(frozen=True, kw_only=True)
class SpeculationSettings:
    """What is measured.

    Raises:
        UsageError: a count below 1, or fewer than two tokens, which have no gap between them.
    """

    prompts: Prompts
    tokens: int = 128
    concurrency: tuple[int, ...] = (1,)
    turns: int = 4
    """Of each kind and concurrency."""
    temperature: float = 0.0
    seed: int | None = 0
    """Of requests that draw; None for fresh numbers, so that drafts are judged by rejection."""

    def __post_init__(self) -> None:
        if not self.concurrency or min(self.turns, *self.concurrency) < 1:
            raise UsageError("turns and concurrency must be at least 1.")
        if self.tokens < 2:
            raise UsageError(f"tokens is {self.tokens}; a gap needs at least 2.")


@dataclass(frozen=True)
class _Serving:
    served: ServedPrompts
    tokens: list[list[int]]
    speculation: SpeculationRecord | None


def measure_speculation(
    loaded: LoadedModel,
    speculation: Speculation,
    settings: SpeculationSettings,
    notify: Notify = lambda _: None,
) -> Iterator[SpeculationRun]:
    """Yield a run for each kind of prompt and concurrency.

    Raises:
        RequestError: a prompt does not fit the context.
        MissingError, TemplateError: as `LoadedModel.chat_prompt`.
        UsageError: answers have one token only.
    """
    prompts = {kind: _ids(loaded, texts) for kind, texts in settings.prompts.items()}
    first = next(iter(prompts.values()))[:1]
    for draft in (None, speculation):
        _serve(loaded, draft, _requests(loaded, first, settings, _WARM_UP_TOKENS), 1)
    for sequences in settings.concurrency:
        for kind, ids in prompts.items():
            notify(f"{kind}, {sequences} at once")
            groups = _groups(ids, sequences, settings)
            found = _turns(loaded, speculation, settings, sequences, groups)
            yield _run(settings, kind, sequences, list(found))


def _turns(
    loaded: LoadedModel,
    speculation: Speculation,
    settings: SpeculationSettings,
    sequences: int,
    groups: Iterable[Sequence[tuple[int, ...]]],
) -> Iterator[tuple[Turn, SpeculationRecord]]:
    for number, group in enumerate(groups):
        requests = _requests(loaded, group, settings, settings.tokens)
        found = measure_turn(
            loaded, speculation, requests, at_once=sequences, drafted_first=number % 2 == 1
        )
        if found is not None:
            yield found


def _run(
    settings: SpeculationSettings,
    kind: str,
    sequences: int,
    found: Sequence[tuple[Turn, SpeculationRecord]],
) -> SpeculationRun:
    if not found:
        raise UsageError(
            f"every answer to the prompts of kind {kind!r} is over after its first token, so that "
            "there is nothing to measure; give others."
        )
    turns, records = zip(*found, strict=True)
    return SpeculationRun(
        kind=kind,
        sequences=sequences,
        temperature=settings.temperature,
        seed=settings.seed,
        turns=turns,
        speculation=records,
    )


def measure_turn(
    loaded: LoadedModel,
    speculation: Speculation,
    requests: Sequence[Request],
    *,
    at_once: int,
    drafted_first: bool = False,
) -> tuple[Turn, SpeculationRecord] | None:
    """Serve requests, so many at once, without a draft and with one.

    None where an answer of one token is all there is, which has no speed.
    """
    order = (speculation, None) if drafted_first else (None, speculation)
    found = {draft is not None: _serve(loaded, draft, requests, at_once) for draft in order}
    plain, drafted = found[False], found[True]
    if not plain.served.tokens or not drafted.served.tokens or drafted.speculation is None:
        return None
    same = plain.tokens == drafted.tokens
    turn = Turn(plain=plain.served, drafted=drafted.served, same_output=same)
    return turn, drafted.speculation


def _serve(
    loaded: LoadedModel, speculation: Speculation | None, requests: Sequence[Request], at_once: int
) -> _Serving:
    """Serve requests that all arrive at once and wait for a place."""
    if speculation is not None:
        speculation = replace(speculation, draft=fresh(speculation.draft))
    engine = Engine(loaded.served, speculation, limits=Limits(sequences=at_once))
    begun = time.perf_counter()
    numbers = [engine.add(request) for request in requests]
    tokens: dict[int, list[int]] = {number: [] for number in numbers}
    times: dict[int, list[float]] = {number: [] for number in numbers}
    left, full = len(numbers), math.inf
    while engine.busy:
        outputs = engine.step()
        now = time.perf_counter()
        for output in outputs:
            if output.fault is not None:
                raise output.fault
            tokens[output.request] += output.tokens
            times[output.request] += [now] * len(output.tokens)
            left -= output.record is not None
        if left < at_once:
            full = min(full, now)
    return _Serving(served_of(times, begun, full), list(tokens.values()), engine.record.speculation)


def served_of(times: Mapping[int, Sequence[float]], begun: float, full: float) -> ServedPrompts:
    """Return what the moments of tokens say.

    Args:
        times: of every request.
        begun: when all arrived.
        full: until when every place was taken.
    """
    answers = [found for found in times.values() if found]
    gaps = [b - a for found in answers for a, b in pairwise(found)]
    ends = [found[-1] - begun for found in answers]
    moments = [moment for moment in chain.from_iterable(answers) if moment <= full]
    return ServedPrompts(
        tokens=len(moments) - sum(found[0] <= full for found in answers),
        seconds=max(moments, default=0.0) - min(moments, default=0.0),
        gap_median=float(np.median(gaps)) if gaps else 0.0,
        gap_p99=float(np.quantile(gaps, 0.99)) if gaps else 0.0,
        request_seconds=float(np.mean(ends)) if ends else 0.0,
    )


def _groups(
    prompts: Sequence[tuple[int, ...]], sequences: int, settings: SpeculationSettings
) -> Iterator[list[tuple[int, ...]]]:
    """Yield the prompts of each turn, one after the other and from the first again."""
    endless, count = cycle(prompts), sequences * (_ROUNDS if sequences > 1 else 1)
    for _ in range(settings.turns):
        yield list(islice(endless, count))


def _requests(
    loaded: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    settings: SpeculationSettings,
    tokens: int,
) -> list[Request]:
    params = SamplingParams(temperature=settings.temperature, seed=settings.seed)
    stop = StopCondition(tokens, loaded.ends, ())  # what comes behind an end often repeats itself
    return [Request(prompt, params, stop, sample=i) for i, prompt in enumerate(prompts)]


def _ids(loaded: LoadedModel, texts: Sequence[str]) -> list[tuple[int, ...]]:
    """Return prompts as the model's template has them, or as they are where it has none."""
    if loaded.template is None:
        return [loaded.text_prompt(text) for text in texts]
    return [loaded.chat_prompt([{"role": "user", "content": text}]) for text in texts]
