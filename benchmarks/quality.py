"""Divergence from the source at equal bytes: fewbit's files beside those of llama.cpp's quantizer.

    python benchmarks/quality.py methods solved tuned --data FOLDER
    python benchmarks/quality.py bits --model QWEN-1.5B.gguf --data FOLDER --windows 16

Every file is made from one bf16 source off its old grid (off_grid.py), calibrated on the same text,
measured in one engine over the same windows (divergences.py) and then in llama.cpp itself. The
peer's files are its quantizer's with an importance matrix. Beside them stands the runtime's own
floor (floor.py); a ratio with a figure under 0.02 nats is held to its bar after the floor is
subtracted from both. Without --data both halves of the text that every CPython carries serve: one
to calibrate, one to measure.

Everything made or measured stays in --folder and is not made again; give each source its own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from candidates import CLAIMS, MULTIPLES, PARTS, Made
from divergences import WINDOWS, Candidate, Peer, in_fewbit, in_llama_cpp, windows_of
from figures import Figure, Values, mean, ratio
from making import Bench, bytes_of, cost_of
from off_grid import RANGE, move_off_grid

from fewbit.calibrate.text import Half, default_text

MB = 1_000_000

SMALL = 0.02
"""Nats under which the floor is subtracted before a ratio is held to its bar."""

SLACK = 1.02
"""How much larger than ours a peer's file may be and still count as of our size."""


@dataclass(frozen=True)
class Measured:
    """Files, their divergences in one engine, and the floor on the same windows."""

    ours: Mapping[str, tuple[Made, Candidate]]
    peers: Mapping[str, Candidate]
    values: Mapping[Candidate, Values]
    floor: Values

    def of(self, name: str) -> Values | None:
        """Return the divergences of a file of ours, where it was measured."""
        return self.values.get(self.ours[name][1]) if name in self.ours else None

    def best_peer(self, name: str) -> str | None:
        """Return the peer's type that one of ours is held to: the best of its size.

        Where even the smallest is larger, it is that one.
        """
        made, candidate = self.ours[name]
        measured = [form for form in made.peers if self.peers[form] in self.values]
        if not measured or candidate not in self.values:
            return None
        room = bytes_of(candidate.path) * SLACK
        fitting = [form for form in measured if made.same_type or self._size(form) <= room]
        if not fitting:
            return min(measured, key=self._size)
        return min(fitting, key=lambda form: float(self.values[self.peers[form]].mean()))

    def _size(self, form: str) -> int:
        return bytes_of(self.peers[form].path)


def compared(ours: Values, theirs: Values, floor: Values, bar: float | None) -> dict[str, object]:
    """Return the ratio of two divergences as they are and less the floor, and what counts."""
    plain, above = ratio(ours, theirs), ratio(ours - floor, theirs - floor)
    counts = above if min(ours.mean(), theirs.mean()) < SMALL else plain
    row: dict[str, object] = {"ratio": plain, "ratio_above_floor": above, "bar": bar}
    return row if bar is None else {**row, "met": counts.mean <= bar, "sure": counts.high <= bar}


def rows_of(measured: Measured) -> list[dict[str, object]]:
    """Return a row for every file, ours with what they are compared to."""
    rows: list[dict[str, object]] = []
    for form, candidate in measured.peers.items():
        if candidate in measured.values:
            rows.append(_row(f"llama.cpp {form}", candidate, measured))
    for name, (made, candidate) in measured.ours.items():
        if candidate not in measured.values:
            continue
        row = _row(f"fewbit {name}", candidate, measured) | cost_of(candidate.path)
        best = measured.best_peer(name)
        if best is not None:
            theirs = measured.values[measured.peers[best]]
            ours = measured.values[candidate]
            row |= {"peer": best} | compared(ours, theirs, measured.floor, made.bar)
        rows.append(row)
    return rows


def claims_of(measured: Measured) -> list[dict[str, object]]:
    """Return what should win against what, paired window by window."""
    rows: list[dict[str, object]] = []
    for claim in CLAIMS:
        better, worse = measured.of(claim.better), measured.of(claim.worse)
        if better is None or worse is None:
            continue
        difference = mean(better - worse)
        row = {"name": f"{claim.better} - {claim.worse}", "difference": difference}
        row |= {"ratio": ratio(better, worse), "met": difference.high < 0}
        rows.append(row)
    for first, second, bar in MULTIPLES:
        ours, theirs = measured.of(first), measured.of(second)
        if ours is not None and theirs is not None:
            found = ratio(ours, theirs)  # the floor is of int8 inputs, which the second has not
            judged = {} if bar is None else {"bar": bar, "met": found.mean <= bar}
            rows.append({"name": f"{first} over {second}", "ratio": found, **judged})
    return rows


def _row(name: str, candidate: Candidate, measured: Measured) -> dict[str, object]:
    values = measured.values[candidate]
    return {
        "name": name,
        "bytes": bytes_of(candidate.path),
        "windows": len(values),
        "kl": mean(values),
        "kl_above_floor": mean(values - measured.floor),
    }


def show(measured: Measured, engine: str) -> list[dict[str, object]]:
    """Print every row in words and return them."""
    rows, claims = rows_of(measured), claims_of(measured)
    count = len(measured.floor)
    print(f"\n{engine}, {count} windows, KL in nats [95%]; floor {mean(measured.floor)}")
    for row in rows:
        print(_line(row))
    for row in claims:
        print(_line(row))
    return rows + claims


def _line(row: Mapping[str, object]) -> str:
    parts = [f"  {row['name']!s:34s}"]
    if "bytes" in row:
        above = row["kl_above_floor"]
        assert isinstance(above, Figure)
        parts.append(f"{int(str(row['bytes'])) / MB:8.1f} MB  {row['kl']}  {above.mean:.4f} above")
    if "difference" in row:
        parts.append(f"difference {row['difference']}")
    if "ratio" in row:
        parts.append(f"{row['ratio']} x {row.get('peer', '')}".rstrip())
    if "ratio_above_floor" in row:
        parts.append(f"above the floor {row['ratio_above_floor']} x")
    if row.get("bar") is not None:
        parts.append(f"bar {row['bar']}")
    if "met" in row:
        parts.append("met" if row["met"] else "MISSED")
    if "seconds" in row:
        parts.append(f"made in {row['seconds']:.0f} s, {row['gigabytes']:.1f} GB")
    return "  ".join(parts)


def run(
    bench: Bench, parts: Sequence[str], text: str, options: argparse.Namespace
) -> dict[str, object]:
    """Make every file of the parts, measure all and print the tables; return them."""
    from floor import floor  # noqa: PLC0415 - torch, which only measuring needs

    made = _chosen(parts, options.only)
    ours = {one.name: (one, Candidate(bench.ours(one), one.activations)) for one in made}
    peers = {form: Candidate(bench.peer(form)) for one in made for form in one.peers}
    windows = windows_of(bench.source, text, options.windows)
    candidates = [*(candidate for _, candidate in ours.values()), *peers.values()]
    found = in_fewbit(bench.source, candidates, windows, bench.folder)
    measured = Measured(ours, peers, found, floor(bench.source, windows, bench.folder))
    tables = {"fewbit": show(measured, "In fewbit's engine")}
    if options.confirm:
        some = dict(list(windows.items())[: options.confirm])
        best = {measured.best_peer(name) for name in ours}
        again = [c for _, c in ours.values() if c.path.suffix == ".gguf"]
        again += [peers[form] for form in sorted(best - {None})]
        confirmed = in_llama_cpp(bench.source, again, some, bench.folder, bench.llama_cpp)
        engine = "The same files in llama.cpp itself"
        inside = Measured(ours, peers, confirmed, measured.floor[: len(some)])
        tables["llama.cpp"] = show(inside, engine)
    return {"source": str(bench.source), "windows": list(windows), **tables}


def _chosen(parts: Sequence[str], only: Sequence[str] | None) -> list[Made]:
    """Return the files of the parts, or those of them that are named."""
    made = [one for part in parts for one in PARTS[part]]
    names = {one.name for one in made}
    unknown = [name for name in only or () if name not in names]
    if unknown:
        sys.exit(f"--only names {unknown[0]!r}; there are {', '.join(sorted(names))}.")
    return [one for one in made if only is None or one.name in only]


def _texts(data: Path | None) -> tuple[tuple[str, ...], str]:
    """Return the options that name the calibration text, and the text to measure on."""
    if data is None:
        text = "\n\n".join(d.text for d in default_text(Half.EVALUATION).documents)
        return (), text
    book = data / "long_text" / "pride_prejudice_mod.txt"
    code = data / "code_python" / "cpython311_stdlib.jsonl"
    options = ("--calibration", str(book), "--calibration", str(code))
    return options, (data / "wikitext2" / "wiki.valid.masked.txt").read_text()


def embedded() -> Path:
    """Return the path of the embedded model, fetched if it is not there yet."""
    command = [sys.executable, "-m", "fewbit", "pull", "smollm2-135m"]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    return Path(found.stdout.splitlines()[-1])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="+", choices=[*PARTS])
    parser.add_argument("--only", nargs="+", help="of the parts' files, by name")
    parser.add_argument("--model", type=Path, help="a quantized GGUF file; the embedded one")
    parser.add_argument("--source", type=Path, help="an off-grid source made before")
    parser.add_argument(
        "--spread", type=float, default=RANGE, help="of the source's rescale; 0 for noise only"
    )
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/quality"))
    parser.add_argument("--data", type=Path, help="a folder with long_text, code_python, wikitext2")
    parser.add_argument("--windows", type=int, default=WINDOWS, help="to measure on")
    parser.add_argument(
        "--confirm", type=int, default=0, help="windows to measure on in llama.cpp as well"
    )
    parser.add_argument("--calibration-windows", default="128", help="of 512 tokens")
    parser.add_argument("--tune-steps", help="of what is tuned; the command's default")
    parser.add_argument("--peer-python", default=sys.executable, help="one that has llama_cpp")
    parser.add_argument("--json", type=Path, help="write all rows there")
    return parser.parse_args()


def main() -> None:
    options = _arguments()
    options.folder.mkdir(parents=True, exist_ok=True)
    source = options.source or options.folder / "source.gguf"
    if not source.exists():
        print(f"moving a source off its grid: {source}", file=sys.stderr)
        move_off_grid(options.model or embedded(), source, spread=options.spread)
    calibration, text = _texts(options.data)
    bench = Bench(
        options.folder,
        source,
        (*calibration, "--calibration-windows", options.calibration_windows),
        ("--tune-steps", options.tune_steps) if options.tune_steps else (),
        Peer(options.peer_python),
    )
    tables = run(bench, options.parts, text, options)
    if options.json:
        options.json.write_text(json.dumps(tables, default=vars, indent=1))


if __name__ == "__main__":
    main()
