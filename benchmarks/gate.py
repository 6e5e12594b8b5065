"""How often the gate errs: known-good, at-the-margin and planted-bad candidates, judged many times.

    python benchmarks/gate.py --folder build/benchmarks/gate

Every candidate is measured once, on the text that an evaluation takes, and what was measured is
kept; then sets of as many items as an evaluation has are drawn from it (resampling.py) and each set
is judged by the built-in gate. Beside them stand items drawn from distributions whose truth is
known (synthetic.py). A fault that is found before any statistic, by the identity check, a scan or a
kernel's record, is found on every set: it counts as rejected, and the table says by what.

A run that was stopped goes on where it was; `models` and `drawn` are parts that run alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from built_in import built_in_slices
from measuring import Bench, run_together, said
from msgspec.structs import replace
from off_grid import move_off_grid
from planted import CANDIDATES, Candidate, Kind
from resampling import SETS, Rates, Resampled, always, at_margin
from synthetic import bad, each_apart, good, on_margin
from trials import Trial, judge_all

from fewbit.cli.progress import watched
from fewbit.evaluate.axes import AxisOptions
from fewbit.evaluate.gating.file import DEFAULT
from fewbit.evaluate.gating.gate import judge
from fewbit.progress import Progress
from fewbit.records.evaluation import Evaluation
from fewbit.records.gate import Judgement
from fewbit.records.kept import fingerprint, open_kept
from fewbit.records.measurement import AxisResult
from fewbit.records.outcome import Outcome
from fewbit.runtime.native import available_cores

POPULATION = 40
"""Windows scored of each candidate, as in an evaluation by default: half of them prose, half code.
More would be code alone, and the figure of a set no longer that of the population."""

PARTS = ("models", "drawn")
"""What is judged: models, and items drawn from distributions whose truth is known."""

GOOD_ONE, BAD_ONE = "Q8_0", "int4 cache"
"""Candidates that those at the margins are made of."""

TARGETS = {
    Kind.GOOD: ((Outcome.ACCEPT, ">=", 0.95), (Outcome.REJECT, "<=", 0.01)),
    Kind.MARGIN: ((Outcome.ACCEPT, "<=", 0.05),),
    Kind.BAD: ((Outcome.REJECT, ">=", 0.95), (Outcome.ACCEPT, "<=", 0.01)),
}


@dataclass(frozen=True)
class Row:
    """A candidate, the verdicts on it, and what found it where no statistic was needed."""

    name: str
    kind: Kind
    rates: Rates
    by: str = ""


def settled(candidate: Candidate, found: Evaluation | str) -> tuple[Outcome, str] | None:
    """Return the verdict on a candidate and what gives it, where no items decide it."""
    if isinstance(found, str):
        return (Outcome.REJECT if found else Outcome.ACCEPT), found
    failed = [said(f) for axis in found.axes for f in axis.findings if not f.passed]
    return (Outcome.REJECT, failed[0]) if failed else None


def decided_by(found: Evaluation) -> str:
    """Return the figures that are held to a margin, over all that was measured."""
    figures = ((one, one.excess or one.figure) for one in held_to_margins(found))
    return ", ".join(f"{one.slice} {figure.value:.4g} of {one.margin:g}" for one, figure in figures)


def held_to_margins(found: Evaluation) -> Iterator[Judgement]:
    """Yield what the built-in gate of today holds to a margin, whatever gate was there then."""
    judgements, _ = judge(found.axes, DEFAULT)
    yield from (one for one in judgements if one.margin is not None)


def measured_trial(candidate: Candidate, found: Evaluation) -> Trial:
    """Return the trial of a candidate on sets drawn from what was measured of it."""
    draw = Resampled.of(found.axes, DEFAULT)
    return Trial(
        candidate.name, candidate.kind, DEFAULT, draw, _hash(found.axes), decided_by(found)
    )


def margin_trials(sound: Evaluation, faulty: Evaluation) -> Iterator[Trial]:
    """Yield candidates that lie on the margin of one slice, and well inside others.

    The slice's items are those of a candidate that is bad in it: what lies on a margin in earnest
    varies as bad ones do, not as good ones.
    """
    for name in (one.slice for one in held_to_margins(sound)):
        axes = _with_slice(sound.axes, faulty.axes, name)
        if axes is not None:
            gate = at_margin(axes, DEFAULT, name)
            draw = Resampled.of(axes, gate)
            yield Trial(f"{name} on its margin", Kind.MARGIN, gate, draw, _hash(axes))


def _with_slice(
    sound: Sequence[AxisResult], faulty: Sequence[AxisResult], name: str
) -> list[AxisResult] | None:
    taken = {found.name: found for axis in faulty for found in axis.slices if found.name == name}
    if not taken:
        return None
    return [
        replace(axis, slices=tuple(taken.get(found.name, found) for found in axis.slices))
        for axis in sound
    ]


def _hash(axes: Sequence[AxisResult]) -> str:
    return fingerprint([axis.slices for axis in axes])


def drawn_trials() -> Iterator[Trial]:
    """Yield candidates whose true figures are known, on every axis that has statistics."""
    slices = built_in_slices()
    sound = good(slices, DEFAULT)
    truths = {
        Kind.GOOD: [sound],
        Kind.MARGIN: on_margin(sound, DEFAULT),
        Kind.BAD: bad(sound, DEFAULT),
    }
    asked, gate = fingerprint(slices), each_apart(DEFAULT)
    for kind, several in truths.items():
        for truth in several:
            yield Trial(f"drawn: {truth.name}", kind, gate, truth, asked)


def measured_rows(options: argparse.Namespace, told: Progress) -> tuple[list[Row], list[Trial]]:
    """Return the rows of models that no items decide on, and the trials of the others."""
    source = options.source or options.folder / "source.gguf"
    if not source.exists():
        print(f"moving a source off its grid: {source}", file=sys.stderr)
        move_off_grid(embedded(), source)
    asked = AxisOptions(windows=options.windows, threads=options.threads)
    axes = tuple(options.axes) if options.axes else None
    bench = Bench(options.folder, source, asked, axes, options.threads)
    chosen = [c for c in CANDIDATES if not options.only or c.name in options.only]
    run_together(bench, chosen, told)
    rows, trials, whole = [], [], {}
    for candidate in chosen:
        found = bench.measured(candidate, told)
        decided = settled(candidate, found)
        if decided is not None:
            rows.append(_always(candidate, *decided, options.sets))
        elif isinstance(found, Evaluation):
            whole[candidate.name] = found
            trials.append(measured_trial(candidate, found))
    if GOOD_ONE in whole and BAD_ONE in whole:
        trials += margin_trials(whole[GOOD_ONE], whole[BAD_ONE])
    return rows, trials


def _always(candidate: Candidate, outcome: Outcome, by: str, sets: int) -> Row:
    return Row(candidate.name, candidate.kind, always(outcome, sets), by)


def show(rows: Sequence[Row]) -> bool:
    """Print every row and the rates by kind; return whether each row meets all targets.

    A sum would hide a row: what is found on every set raises the share of its kind.
    """
    met = True
    for kind in Kind:
        own = [row for row in rows if row.kind is kind]
        if not own:
            continue
        print(f"\n{kind.value}")
        for row in own:
            print(f"  {row.name:38s} {_rates(row.rates)}  {row.by}")
        whole = sum((row.rates for row in own[1:]), own[0].rates)
        print(f"  {'all':38s} {_rates(whole)}")
        for outcome, relation, bar in TARGETS[kind]:
            missed = [row.name for row in own if not _reached(row.rates, outcome, relation, bar)]
            met &= not missed
            said = f"NOT MET by {', '.join(missed)}" if missed else "met by each"
            print(f"    {outcome.value} {relation} {bar:.0%}: {said}")
    return met


def _reached(rates: Rates, outcome: Outcome, relation: str, bar: float) -> bool:
    share = rates.share(outcome)
    return share >= bar if relation == ">=" else share <= bar


def _rates(rates: Rates) -> str:
    return "  ".join(f"{o.value.lower()} {rates.describe(o)}" for o in Outcome)


def embedded() -> Path:
    """Return the embedded model, fetched if need be."""
    command = [sys.executable, "-m", "fewbit", "pull", "smollm2-135m"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(found.stdout.splitlines()[-1])


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--source", type=Path, help="an off-grid source made before")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/gate"))
    parser.add_argument("--axes", nargs="+", help="instead of each candidate's own")
    parser.add_argument("--windows", type=int, default=POPULATION)
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--threads", type=int, help="of the models; all cores")
    parser.add_argument("--processes", type=int, default=available_cores(), help="that judge")
    parser.add_argument("--only", nargs="+", help="models by name")
    parser.add_argument("--json", type=Path, help="write all rows there")
    return parser.parse_args()


def main() -> None:
    options = read_options()
    options.folder.mkdir(parents=True, exist_ok=True)
    with watched() as told:
        rows, trials = measured_rows(options, told) if "models" in options.parts else ([], [])
        trials += drawn_trials() if "drawn" in options.parts else []
        kept = open_kept(options.folder / "rates.jsonl")
        rates = judge_all(trials, options.sets, kept, options.processes, told)
    rows += [Row(t.name, t.kind, rates[t.name], t.by) for t in trials]
    met = show(rows)
    if options.json:
        table = [{"name": r.name, "kind": r.kind.value, "by": r.by} | _counts(r) for r in rows]
        options.json.write_text(json.dumps(table, indent=1))
    sys.exit(0 if met else 1)


def _counts(row: Row) -> dict[str, int]:
    return {outcome.value: row.rates.counts.get(outcome, 0) for outcome in Outcome}


if __name__ == "__main__":
    main()
