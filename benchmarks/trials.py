"""Candidates judged many times; what comes of it is kept, so that a stopped run goes on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import resampling
import synthetic
from planted import Kind
from resampling import Draw, Rates, verdicts

from fewbit.evaluate import gating
from fewbit.records.base import Record
from fewbit.records.gate import Gate
from fewbit.records.kept import Kept, fingerprint
from fewbit.records.outcome import Outcome

Told = Callable[[str, int, int], None]
"""Told what is judged, how many are done, and of how many."""


@dataclass(frozen=True)
class Trial:
    """What is judged on sets drawn anew."""

    name: str
    kind: Kind
    gate: Gate
    draw: Draw
    drawn_from: str
    """What decides the draws beside the code, as the hash of what was measured."""
    by: str = ""
    """The figures, or what found a fault."""


class _Counts(Record, frozen=True, kw_only=True):
    counts: Mapping[Outcome, int]


def judge_all(
    trials: Sequence[Trial], sets: int, kept: Kept, processes: int, told: Told
) -> dict[str, Rates]:
    """Return how often each verdict was given, by the trials' names.

    Args:
        trials: no two of one name.
        sets: judged of each.
        kept: what was judged before, by all that decides it.
        processes: that judge at once.
        told: how many are done.
    """
    keys = {trial.name: _key(trial, sets) for trial in trials}
    known = kept.names()
    missing = [trial for trial in trials if keys[trial.name] not in known]
    with ProcessPoolExecutor(processes) as pool:
        running = {pool.submit(verdicts, t.draw, t.gate, sets): t for t in missing}
        for done, (trial, rates) in enumerate(_ended(running), start=1):
            kept.add(keys[trial.name], _Counts(counts=rates.counts))
            told(f"judged: {trial.name}", done, len(missing))
    found = kept.read(_Counts)
    return {name: Rates(found[key].counts) for name, key in keys.items()}


def _ended(running: Mapping[Future[Rates], Trial]) -> Iterator[tuple[Trial, Rates]]:
    for future in as_completed(running):
        yield running[future], future.result()


def _key(trial: Trial, sets: int) -> str:
    return fingerprint(trial.name, trial.gate, trial.drawn_from, sets, _code())


def _code() -> str:
    """Return the hash of what draws and judges: another judgement is another outcome."""
    files = [Path(resampling.__file__), Path(synthetic.__file__)]
    files += sorted(Path(gating.__path__[0]).glob("*.py"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
