"""What `fewbit bench --draft` measured, on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import median

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.generation import PositionCount, SpeculationRecord, judged_by_rank
from fewbit.records.kernels import kernel_fallbacks
from fewbit.records.speculation import ServedPrompts, SpeculationReport, SpeculationRun
from fewbit.report.costs import cost_table
from fewbit.report.loading import describe_loading


def print_speculation(report: SpeculationReport, console: Console) -> None:
    """Print plain and speculative side by side, the costs behind it, and what was met."""
    title = f"[bold]{escape(report.model.name)}[/] with the draft [bold]{escape(report.draft)}[/]"
    console.print(title, highlight=False)
    for sequences in sorted({run.sequences for run in report.runs}):
        console.print(_runs([run for run in report.runs if run.sequences == sequences]))
    console.print(cost_table(report.costs))
    for line in _conditions(report):
        console.print(escape(line), style="dim", highlight=False)
    for fallback in kernel_fallbacks(report.kernels):
        console.print(f"Note: {escape(fallback)}", style="dim", highlight=False)


def _runs(runs: Sequence[SpeculationRun]) -> Table:
    head = f"{runs[0].sequences} at once"
    table = Table(head, box=None, header_style="dim", pad_edge=False)
    for run in runs:
        table.add_column(escape(run.kind), justify="right", no_wrap=True)
    columns = [dict(_rows(run)) for run in runs]
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _rows(run: SpeculationRun) -> list[tuple[str, str]]:
    plain = [turn.plain for turn in run.turns]
    drafted = [turn.drafted for turn in run.turns]
    records, low_high = run.speculation, run.gains
    blocks = sum(record.blocks for record in records)
    emitted = sum((record.acceptance_length or 0.0) * record.blocks for record in records)
    return [
        ("plain, tokens/s", f"{_rate(plain):.1f}"),
        ("with the draft, tokens/s", f"{_rate(drafted):.1f}"),
        ("  ratio, median of turns", f"{run.gain:.2f} x"),
        ("  least and largest", f"{low_high[0]:.2f} to {low_high[1]:.2f}"),
        ("  expected while drafting", _forecast(records)),
        ("  the same output", _same(run)),
        ("a request to its end, plain", _request(plain)),
        ("  with the draft", _request(drafted)),
        ("gap, median, plain", _milliseconds(median(p.gap_median for p in plain))),
        ("gap, p99, plain", _milliseconds(max(p.gap_p99 for p in plain))),
        ("gap, p99, with the draft", _milliseconds(max(d.gap_p99 for d in drafted))),
        ("accepted of judged tokens", _share(run.acceptance)),
        ("  by position, %", _by_position(records)),
        *_part_rows(records),
        ("  of branches, by rank, %", _by_rank(records)),
        ("  branches left out, no room", str(sum(r.branches_left_out for r in records))),
        ("tokens a verified block", f"{emitted / blocks:.2f}" if blocks else "-"),
        ("  blocks, of them trials", f"{blocks}, {sum(record.trials for record in records)}"),
        ("tokens run for nothing", str(sum(record.wasted for record in records))),
        ("  left out, no room", str(sum(record.tokens_left_out for record in records))),
        ("drafting", _milliseconds(sum(record.draft_seconds for record in records))),
        ("verifying", _milliseconds(sum(record.verify_seconds for record in records))),
        ("rolling back", _milliseconds(sum(record.rollback_seconds for record in records))),
        ("cost beyond plain decoding", _cost(records)),
        ("  allowed", _milliseconds(sum(record.allowed_seconds for record in records))),
    ]


def _part_rows(records: Sequence[SpeculationRecord]) -> Iterator[tuple[str, str]]:
    """Yield a row for each draft that a combined one asks."""
    for parts in zip(*(record.parts for record in records), strict=True):
        accepted = _accepted(count for part in parts for count in part.positions)
        blocks = sum(part.blocks for part in parts)
        yield f"  by {escape(parts[0].draft)}", f"{_share(accepted)}, {blocks} blocks"


def _same(run: SpeculationRun) -> str:
    if not run.repeats:
        return "no seed"
    return "yes" if all(turn.same_output for turn in run.turns) else "no"


def _rate(served: Iterable[ServedPrompts]) -> float:
    return median(found.tokens_per_second for found in served)


def _request(served: Iterable[ServedPrompts]) -> str:
    """Return the seconds of a request from arrival to end, the median of turns."""
    found = [one.request_seconds for one in served if one.request_seconds is not None]
    return f"{median(found):.2f} s" if found else "-"


def _forecast(records: Sequence[SpeculationRecord]) -> str:
    """Return tokens per second of steps with drafts, as expected and as measured."""
    forecasts = [record.forecast for record in records]
    expected_seconds = sum(forecast.expected_seconds for forecast in forecasts)
    seconds = sum(forecast.seconds for forecast in forecasts)
    if not expected_seconds or not seconds:
        return "-"
    expected = sum(forecast.expected_tokens for forecast in forecasts) / expected_seconds
    return f"{expected:.1f}, was {sum(f.tokens for f in forecasts) / seconds:.1f}"


def _cost(records: Sequence[SpeculationRecord]) -> str:
    seconds = sum(record.cost_seconds for record in records)
    return f"{_milliseconds(-seconds)} gained" if seconds < 0 else _milliseconds(seconds)


def _by_position(records: Sequence[SpeculationRecord]) -> str:
    """Return the percentage accepted at each position of a block."""
    shares = (_share(_accepted(counts)).rstrip("%") for counts in _positions(records))
    return " ".join(shares) or "-"


def _by_rank(records: Sequence[SpeculationRecord]) -> str:
    """Return the percentage of judged branches that were accepted, by their rank."""
    counts = judged_by_rank(branch for record in records for branch in record.branches)
    shares = (_share(accepted / judged if judged else None) for accepted, judged in counts)
    return " ".join(share.rstrip("%") for share in shares) or "-"


def _positions(records: Sequence[SpeculationRecord]) -> list[list[PositionCount]]:
    longest = max((len(record.positions) for record in records), default=0)
    return [
        [record.positions[i] for record in records if i < len(record.positions)]
        for i in range(longest)
    ]


def _accepted(counts: Iterable[PositionCount]) -> float | None:
    found = list(counts)
    judged = sum(count.tested for count in found)
    return sum(count.accepted for count in found) / judged if judged else None


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _conditions(report: SpeculationReport) -> list[str]:
    c = report.conditions
    runs = report.runs
    turns = sorted({len(run.turns) for run in runs})
    model = "" if report.draft_model is None else f" ({report.draft_model.model.name})"
    memory = report.draft_memory
    planned = "" if memory is None else f", which was counted to need {memory.described}"
    seed = "" if runs[0].seed is None else f", seed {runs[0].seed}"
    return [
        *describe_loading(report.loading),
        f"Draft {report.draft}{model}, at most {report.longest} tokens at once; "
        f"{report.tokens} tokens a request at most, temperature {runs[0].temperature}{seed}; "
        f"{' or '.join(map(str, turns))} turns, plain and with the draft one after the other.",
        f"Peak memory {size(report.peak_memory_bytes)}, "
        f"{size(report.plain_memory_bytes)} before the draft was opened{planned}.",
        f"{c.cpu}, {c.isa}, activations {c.activations}, {c.threads} threads; {c.system}, "
        f"fewbit {c.fewbit}.",
    ]


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
