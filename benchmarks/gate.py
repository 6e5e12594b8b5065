"""How often the gate errs: known-good, at-the-margin and planted-bad candidates, judged many times.

    python benchmarks/gate.py --folder build/benchmarks/gate

Every candidate is measured once, on the text that an evaluation takes, and what was measured is
kept; then sets of as many items as an evaluation has are drawn from it (resampling.py) and each set
is judged by the built-in gate. A fault that is found before any statistic, by the identity check, a
scan or a kernel's record, is found on every set: it counts as rejected, and the table says by what.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from msgspec.structs import replace
from off_grid import move_off_grid
from planted import CANDIDATES, Candidate, Kind
from resampling import SETS, Rates, always, at_margin, judged, verdicts
from synthetic import GOOD, bad, on_margin

from fewbit.errors import IdentityError, NumericalError
from fewbit.evaluate.axes import AxisOptions, axes_named
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.evaluate.gating.file import DEFAULT
from fewbit.progress import Progress
from fewbit.records.base import from_json, to_json
from fewbit.records.evaluation import Evaluation
from fewbit.records.measurement import AxisResult, Finding
from fewbit.records.outcome import Outcome

POPULATION = 40
"""Windows scored of each candidate, as in an evaluation by default: half of them prose, half code.
More would be code alone, and the figure of a set no longer that of the population."""

AXES = ("language", "kernels", "numerics")

PARTS = ("models", "drawn")
"""What is judged: models, and items drawn from distributions whose truth is known."""

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


@dataclass(frozen=True)
class Bench:
    """Where everything lies, and how much is done."""

    folder: Path
    source: Path
    axes: tuple[str, ...]
    windows: int
    threads: int | None = None

    def measured(self, candidate: Candidate) -> Evaluation | str:
        """Return what was measured, kept from an earlier run, or why it was refused."""
        kept = self.folder / f"{candidate.name.replace(' ', '-')}.json"
        if kept.exists():
            return from_json(Evaluation, kept.read_bytes(), name=str(kept))
        source = candidate.source(self.source, self.folder)
        path = candidate.make(self.source, self.folder)
        if candidate.findings is not None:
            return "; ".join(_said(f) for f in candidate.findings(path) if not f.passed)
        settings = EvaluationSettings(
            work=self.folder / "work", threads=self.threads, **candidate.run
        )
        options = AxisOptions(windows=self.windows, threads=self.threads)
        axes = axes_named(self.axes, options)
        try:
            found = evaluate(source, path, axes, settings, _shown(candidate.name))
        except (IdentityError, NumericalError) as error:
            return f"{type(error).__name__.removesuffix('Error').lower()}: {error}"
        kept.write_bytes(to_json(found))
        return found


def _shown(name: str) -> Progress:
    def show(what: str, done: int, of: int) -> None:
        if done == of:
            print(f"  {name}: {what}, {of}", file=sys.stderr)

    return show


def row_of(candidate: Candidate, found: Evaluation | str, sets: int) -> Row:
    """Return how often a candidate is accepted and rejected."""
    if isinstance(found, str):
        outcome = Outcome.REJECT if found else Outcome.ACCEPT
        return Row(candidate.name, candidate.kind, always(outcome, sets), found)
    failed = [_said(f) for axis in found.axes for f in axis.findings if not f.passed]
    if failed:
        return Row(candidate.name, candidate.kind, always(Outcome.REJECT, sets), failed[0])
    rates = judged(found.axes, DEFAULT, {}, sets)
    return Row(candidate.name, candidate.kind, rates, decided_by(found))


def _said(finding: Finding) -> str:
    return f"{finding.name}: {finding.found}"


def decided_by(found: Evaluation) -> str:
    """Return the figures that were held to a margin, over all that was measured."""
    said = []
    for one in found.judgements:
        if one.margin is not None:
            figure = one.excess or one.figure
            said.append(f"{one.slice} {figure.value:.4g} of {one.margin:g}")
    return ", ".join(said)


def margins(good: Evaluation, bad: Evaluation, sets: int) -> list[Row]:
    """Return rows of candidates that lie on the margin of one slice, and well inside others.

    The slice's items are those of a candidate that is bad in it: what lies on a margin in earnest
    varies as bad ones do, not as good ones.
    """
    rows = []
    for slice_ in (one.slice for one in good.judgements if one.margin is not None):
        axes = _with_slice(good.axes, bad.axes, slice_)
        if axes is None:
            continue
        rates = judged(axes, at_margin(axes, DEFAULT, slice_), {}, sets)
        rows.append(Row(f"{slice_} on its margin", Kind.MARGIN, rates))
    return rows


def _with_slice(
    good: Sequence[AxisResult], bad: Sequence[AxisResult], name: str
) -> list[AxisResult] | None:
    taken = {found.name: found for axis in bad for found in axis.slices if found.name == name}
    if not taken:
        return None
    return [
        replace(axis, slices=tuple(taken.get(found.name, found) for found in axis.slices))
        for axis in good
    ]


def drawn(sets: int) -> list[Row]:
    """Return rows of candidates whose true figures are known, on every axis that has statistics."""
    truths = {
        Kind.GOOD: (GOOD,),
        Kind.MARGIN: on_margin(_margin_of),
        Kind.BAD: bad(),
    }
    return [
        Row(truth.name, kind, verdicts(truth.drawn, DEFAULT, sets))
        for kind, several in truths.items()
        for truth in several
    ]


def _margin_of(name: str) -> float | None:
    return next((rule.margin for rule in DEFAULT.slices if fnmatchcase(name, rule.match)), None)


def show(rows: Sequence[Row]) -> bool:
    """Print every row and the rates by kind; return whether all targets are met."""
    met = True
    for kind in Kind:
        own = [row for row in rows if row.kind is kind]
        if not own:
            continue
        print(f"\n{kind.value}")
        for row in own:
            print(f"  {row.name:34s} {_rates(row.rates)}  {row.by}")
        whole = sum((row.rates for row in own[1:]), own[0].rates)
        print(f"  {'all':34s} {_rates(whole)}")
        for outcome, relation, bar in TARGETS[kind]:
            share = whole.share(outcome)
            good = share >= bar if relation == ">=" else share <= bar
            met &= good
            print(f"    {outcome.value} {relation} {bar:.0%}: {'met' if good else 'NOT MET'}")
    return met


def _rates(rates: Rates) -> str:
    return "  ".join(f"{o.value.lower()} {rates.describe(o)}" for o in Outcome)


def embedded() -> Path:
    """Return the embedded model, fetched if need be."""
    command = [sys.executable, "-m", "fewbit", "pull", "smollm2-135m"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(found.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", default=PARTS, help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--source", type=Path, help="an off-grid source made before")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/gate"))
    parser.add_argument("--axes", nargs="+", default=AXES)
    parser.add_argument("--windows", type=int, default=POPULATION)
    parser.add_argument("--sets", type=int, default=SETS)
    parser.add_argument("--threads", type=int, help="of the models; all cores")
    parser.add_argument("--only", nargs="+", help="candidates by name")
    parser.add_argument("--json", type=Path, help="write all rows there")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    rows = measured_rows(options) if "models" in options.parts else []
    rows += drawn(options.sets) if "drawn" in options.parts else []
    met = show(rows)
    if options.json:
        table = [{"name": r.name, "kind": r.kind.value, "by": r.by} | _counts(r) for r in rows]
        options.json.write_text(json.dumps(table, indent=1))
    sys.exit(0 if met else 1)


def measured_rows(options: argparse.Namespace) -> list[Row]:
    """Return the rows of candidates that are models, and of those moved to a margin."""
    source = options.source or options.folder / "source.gguf"
    if not source.exists():
        print(f"moving a source off its grid: {source}", file=sys.stderr)
        move_off_grid(embedded(), source)
    axes = tuple(options.axes)
    bench = Bench(options.folder, source, axes, options.windows, options.threads)
    chosen = [c for c in CANDIDATES if not options.only or c.name in options.only]
    found = {c.name: bench.measured(c) for c in chosen}
    rows = [row_of(c, found[c.name], options.sets) for c in chosen]
    good, bad_one = found.get("Q8_0"), found.get("int4 cache")
    if isinstance(good, Evaluation) and isinstance(bad_one, Evaluation):
        rows += margins(good, bad_one, options.sets)
    return rows


def _counts(row: Row) -> dict[str, int]:
    return {outcome.value: row.rates.counts.get(outcome, 0) for outcome in Outcome}


if __name__ == "__main__":
    main()
