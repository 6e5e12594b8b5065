"""Exercise 2: what one quantized checkpoint weighs, how fast it is, and how it does on two tasks.

    python examples/walkthrough.py small --against smollm2.gguf

Size of the files, memory, time to the first token, gaps between tokens and two tasks, for a
quantized model beside its exact source, as a Markdown table. Both are measured in one run, turn
about; `docs/walkthrough.md` says what each figure means.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from fewbit.cli.pull import locate
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.evaluate.machine.memory_axis import MemoryAxis
from fewbit.evaluate.machine.speed_axis import SpeedAxis
from fewbit.evaluate.tasks.axis import TasksAxis
from fewbit.evaluate.tasks.built_in import built_in_tasks
from fewbit.records.evaluation import Evaluation
from fewbit.records.figures import size
from fewbit.records.memory_axis import MemoryDetails
from fewbit.records.speed_axis import SpeedDetails, SpeedRate
from fewbit.records.tasks import TasksDetails

TASKS = ("grammar", "numbers")
"""Multiple choice: the choice that is likelier is the answer."""

AXES: tuple[Axis, ...] = (
    MemoryAxis(),
    SpeedAxis(turns=6),
    TasksAxis(tuple(task for task in built_in_tasks() if task.spec.name in TASKS)),
)

Row = tuple[str, str, str, str]
"""What, of the source, of the candidate, and how the two compare."""


def table(found: Evaluation, files: tuple[int, int]) -> str:
    """Return the figures of an evaluation as a Markdown table.

    Args:
        found: with the axes speed, memory and tasks.
        files: bytes on disk of source and candidate.
    """
    details = [axis.details for axis in found.axes]
    rows = [_bytes("files on disk", *files)]
    for record in details:
        match record:
            case MemoryDetails():
                rows += _memory(record)
            case SpeedDetails():
                rows += _speed(record)
            case TasksDetails():
                rows += _tasks(record)
    head = ["| | source | candidate | |", "|---|---|---|---|"]
    return "\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)])


def disk_bytes(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder."""
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _memory(found: MemoryDetails) -> Iterator[Row]:
    one, other = found.arms
    yield _bytes("weights in memory", one.weights_resident, other.weights_resident)
    yield _bytes("keys and values a token", one.kv_bytes_per_token, other.kv_bytes_per_token)
    for peaks in zip(one.peaks, other.peaks, strict=True):
        name = f"peak, {peaks[0].sequences} x {found.length} tokens"
        yield _bytes(name, *(peak.bytes for peak in peaks))


def _speed(found: SpeedDetails) -> Iterator[Row]:
    by_count: dict[int, list[SpeedRate]] = {}
    for rate in found.rates:
        by_count.setdefault(rate.sequences, []).append(rate)
    for count, (one, other) in by_count.items():
        at_once = f"{count} at once"
        yield _time(f"first token, {at_once}", one.first_token, other.first_token)
        yield _time(
            f"first token cached, {at_once}", one.cached_first_token, other.cached_first_token
        )
        yield _time(f"gap, median, {at_once}", one.gap_median, other.gap_median)
        yield _time(f"gap, p99, {at_once}", one.gap_p99, other.gap_p99)
    seconds = [
        sum(getattr(task, f"{arm}_seconds") for task in found.tasks) / len(found.tasks)
        for arm in ("source", "candidate")
    ]
    yield _time("a finished answer, mean", *seconds)


def _tasks(found: TasksDetails) -> Iterator[Row]:
    for task in found.tasks:
        yield (
            f"{task.task}, right of {task.items}",
            f"{task.source_right:.0%}",
            f"{task.candidate_right:.0%}",
            f"{task.harmful} lost, {task.helpful} gained",
        )


def _bytes(name: str, one: float, other: float) -> Row:
    return name, size(round(one)), size(round(other)), _ratio(one, other)


def _time(name: str, one: float, other: float) -> Row:
    return name, f"{1e3 * one:.1f} ms", f"{1e3 * other:.1f} ms", _ratio(one, other)


def _ratio(one: float, other: float) -> str:
    return f"{other / one:.2f} x" if one > 0 else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("candidate", help="a name, a GGUF file or a folder")
    parser.add_argument("--against", required=True, help="the exact source it was made from")
    parser.add_argument("--work", type=Path, help="a folder that keeps what is measured")
    chosen = parser.parse_args(arguments)
    paths = locate(chosen.against), locate(chosen.candidate)
    found = evaluate(*paths, AXES, EvaluationSettings(work=chosen.work, floor=False))
    print(table(found, (disk_bytes(paths[0]), disk_bytes(paths[1]))))
    where = found.conditions
    print(f"\n{where.cpu}, {where.isa}, {where.threads} threads, fewbit {where.fewbit}.")
    print(f"{found.verdict.outcome.value}: {found.verdict.reasons[0]}")


if __name__ == "__main__":
    main()
