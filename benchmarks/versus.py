"""fewbit against llama.cpp on the same GGUF file: prompt, decoding, and the cost of small blocks.

Each measurement is a process of its own; the two alternate, so that both see the same machine.
Ratios above 1 mean that fewbit is faster; the spread is over rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import machine
from rich.console import Console
from rich.table import Table

WORKERS = Path(__file__).parent / "workers"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", help="a GGUF file; SmolLM2-135M in Q4_0 by default")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--decode", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama_cpp")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.model or _default_model(Path(folder))
        rounds = [_round(model, arguments) for _ in range(arguments.rounds)]
        bandwidth = machine.read_bandwidth(arguments.threads)
        _print(rounds, model, bandwidth, arguments)


def _default_model(folder: Path) -> str:
    """Write SmolLM2-135M in Q4_0 and return its path."""
    path = folder / "smollm2-135m-Q4_0.gguf"
    command = ["quantize", "smollm2-135m", "--recipe", "rtn-q4_0", "--out", str(path)]
    subprocess.run([sys.executable, "-m", "fewbit", *command], check=True, capture_output=True)
    return str(path)


def _round(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure both once, one after the other."""
    return {
        "fewbit": _measure(sys.executable, "fewbit_native.py", model, arguments),
        "llama.cpp": _measure(arguments.peer_python, "llama_cpp_peer.py", model, arguments),
    }


def _measure(python: str, worker: str, model: str, arguments: argparse.Namespace) -> Any:
    options = [f"--{name}={getattr(arguments, name)}" for name in ("threads", "prompt", "decode")]
    command = [python, str(WORKERS / worker), model, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{worker} failed with {done.returncode}: {done.stderr[-500:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _print(
    rounds: list[dict[str, Any]], model: str, bandwidth: float, arguments: argparse.Namespace
) -> None:
    console = Console()
    console.print(
        f"{machine.cpu_name()}, {arguments.threads} threads, {Path(model).name}, "
        f"{len(rounds)} rounds, {bandwidth / 1e9:.1f} GB/s read"
    )
    table = Table("work", "fewbit", "llama.cpp", "ratio", "spread")
    for name, key in (
        (f"prompt of {arguments.prompt}, tok/s", "prompt"),
        ("decode, tok/s", "decode"),
    ):
        _add_row(table, name, *([r[who][key] for r in rounds] for who in ("fewbit", "llama.cpp")))
    console.print(table)
    _print_blocks(console, rounds)
    _print_limit(console, rounds, bandwidth)


def _add_row(table: Table, name: str, ours: list[float], theirs: list[float]) -> None:
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    median = statistics.median
    table.add_row(
        name,
        f"{median(ours):.0f}",
        f"{median(theirs):.0f}",
        f"{median(ratios):.2f}",
        f"{min(ratios):.2f} to {max(ratios):.2f}",
    )


def _print_blocks(console: Console, rounds: list[dict[str, Any]]) -> None:
    table = Table("scoring a block, in units of one token", "fewbit", "llama.cpp")
    for size in rounds[0]["fewbit"]["blocks"]:
        costs = [
            statistics.median(r[who]["blocks"][size] / r[who]["blocks"]["1"] for r in rounds)
            for who in ("fewbit", "llama.cpp")
        ]
        table.add_row(f"{size} tokens", *(f"{cost:.2f}" for cost in costs))
    console.print(table)


def _print_limit(console: Console, rounds: list[dict[str, Any]], bandwidth: float) -> None:
    """Decoding's bytes per second over what this machine can read."""
    fractions = [r["fewbit"]["decode"] * r["fewbit"]["bytes_per_token"] / bandwidth for r in rounds]
    megabytes = rounds[0]["fewbit"]["bytes_per_token"] / 1e6
    console.print(
        f"decode reads {megabytes:.1f} MB of weights a token: "
        f"{100 * statistics.median(fractions):.0f}% of the bandwidth measured here"
    )


if __name__ == "__main__":
    main()
