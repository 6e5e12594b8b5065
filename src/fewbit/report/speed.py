"""What `fewbit bench` measured, on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.kernels import kernel_fallbacks
from fewbit.records.speed import MachineSpeed, SpeedReport, SpeedRun
from fewbit.report.loading import describe_loading


def print_speed(report: SpeedReport, console: Console) -> None:
    """Print the model, a column for each number of requests, the machine, and what was met."""
    console.print(f"[bold]{escape(report.model.name)}[/]", highlight=False)
    console.print(_runs(report))
    for line in (*_model_lines(report), *_machine_lines(report.machine), _conditions(report)):
        console.print(escape(line), style="dim", highlight=False)
    for fallback in kernel_fallbacks(report.kernels):
        console.print(f"Note: {escape(fallback)}", style="dim", highlight=False)


def _runs(report: SpeedReport) -> Table:
    table = Table("requests at once", box=None, header_style="dim", pad_edge=False)
    columns = [dict(_rows(report, run)) for run in report.runs]
    for run in report.runs:
        table.add_column(str(run.sequences), justify="right", no_wrap=True)
    for name in columns[0]:
        table.add_row(name, *(column[name] for column in columns))
    return table


def _rows(report: SpeedReport, run: SpeedRun) -> list[tuple[str, str]]:
    work = run.work
    step = work.weight_bytes + work.cache_bytes
    return [
        (f"prompt of {report.prompt}, tokens/s", f"{run.prompt_tokens_per_second:.0f}"),
        ("  first token, median", _milliseconds(run.first_token_median)),
        ("  first token, last", _milliseconds(run.first_token_last)),
        ("  first token, prompts cached", _milliseconds(run.cached_first_token_median)),
        ("  tokens found in the cache", f"{run.cached_tokens / run.sequences:.0f}"),
        ("  GOP a prompt", f"{run.prompt_operations / run.sequences / 1e9:.1f}"),
        ("  of the integer peak", f"{report.prompt_fraction(run):.0%}"),
        ("decode, tokens/s", f"{run.decode_tokens_per_second:.1f}"),
        ("  gap, median", _milliseconds(run.gap_median)),
        ("  gap, p99", _milliseconds(run.gap_p99)),
        ("  gap, longest beside prompts", _milliseconds(run.longest_gap)),
        ("  of a step outside the model", f"{1e6 * run.outside_median:.0f} us"),
        ("  read a token", size(round(step / run.sequences))),
        ("  of it keys and values", size(round(work.cache_bytes / run.sequences))),
        ("  of the memory's bandwidth", f"{report.memory_fraction(run):.0%}"),
        ("  GOP a token", f"{work.operations / run.sequences / 1e9:.2f}"),
        ("  of the vector units' peak", f"{report.decode_fraction(run):.0%}"),
    ]


def _model_lines(report: SpeedReport) -> list[str]:
    rotated = ", keys rotated" if report.rotated_keys else ""
    kernels = ", ".join(sorted({kernel.kernel for kernel in report.kernels}))
    return [
        *describe_loading(report.loading),
        f"Loaded in {report.load_seconds:.2f} s, peak memory {size(report.peak_memory_bytes)}; "
        f"{report.tokens} tokens a request at temperature {report.temperature}; "
        f"keys and values in {report.cache_type}{rotated}; kernels {kernels}.",
    ]


def _machine_lines(machine: MachineSpeed) -> list[str]:
    units = ", ".join(f"{u.isa} {u.operations_per_second / 1e12:.2f} TOP/s" for u in machine.units)
    return [
        f"This machine in the same run: {machine.memory / 1e9:.1f} GB/s read from a buffer of "
        f"{size(machine.buffer_bytes)} ({size(machine.huge_bytes)} of it on huge pages), "
        f"{machine.weights / 1e9:.1f} GB/s from one of the weights' size; int8 {units}."
    ]


def _conditions(report: SpeedReport) -> str:
    c = report.conditions
    return (
        f"{c.cpu}, {c.isa}, activations {c.activations}, {c.threads} threads; {c.system}, "
        f"fewbit {c.fewbit}."
    )


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
