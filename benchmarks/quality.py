"""Divergence from the source at equal bytes: fewbit's files beside those of llama.cpp's quantizer.

    python benchmarks/quality.py methods solved tuned --data FOLDER

Every file is GGUF, made from one bf16 source off its old grid (off_grid.py), calibrated on the same
text, measured in one engine over the same windows (divergences.py) and then in llama.cpp itself.
The peer's files are its quantizer's with an importance matrix. Without --data both halves of
the text that every CPython carries serve: one to calibrate, one to measure.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from divergences import Figure, ask_peer, in_fewbit, in_llama_cpp, mean, ratio, windows_of
from numpy.typing import NDArray
from off_grid import move_off_grid

from fewbit.calibrate.importance import Importance, read_importance
from fewbit.calibrate.text import Half, default_text

MB = 1_000_000


@dataclass(frozen=True)
class Made:
    """A file of ours: how `fewbit quantize` makes it, and what it is held to."""

    name: str
    options: tuple[str, ...]
    peers: tuple[str, ...] = ()
    """llama.cpp's types to compare with, the best of which counts."""
    bar: float | None = None
    """Largest ratio of divergences."""


Values = NDArray[np.float64]

Q4 = ("Q4_0",)
PARTS: Mapping[str, tuple[Made, ...]] = {
    "methods": (
        Made("rtn q4_0", ("--recipe", "rtn-q4_0")),
        Made("hqq q4_1", ("--recipe", "hqq-q4_1")),
        Made("awq q4_0", ("--recipe", "awq-q4_0")),
        Made("gptq q4_0", ("--recipe", "gptq-q4_0")),
    ),
    "solved": (
        Made("q4_0", ("--recipe", "gptq-refined-q4_0"), Q4, 0.85),
        Made("q5_0", ("--recipe", "gptq-refined-q5_0"), ("Q5_0",), 0.85),
        Made("q4_k", ("--recipe", "gptq-refined-q4_k"), ("Q4_K_S",), 0.85),
    ),
    "tuned": (
        Made("q4_0, scales", ("--recipe", "gptq-refined-q4_0", "--tune", "scales"), Q4, 0.5),
        Made("q4_0, rounding", ("--recipe", "gptq-refined-q4_0", "--tune", "rounding"), Q4, 0.5),
        Made("q4_0, weights", ("--recipe", "gptq-refined-q4_0", "--tune", "weights"), Q4, 0.5),
    ),
    "allocated": tuple(
        Made(
            f"{size} MB",
            ("--recipe", "gptq-refined-q4_0", "--target-size", f"{size}MB", "--tune", "weights"),
            ("Q4_0", "Q4_1", "IQ4_NL", "IQ4_XS", "Q3_K_M", "Q3_K_L", "Q4_K_S", "Q4_K_M", "Q5_0")
            + (("Q5_K_S", "Q5_K_M") if size > 105 else ()),
            0.4,
        )
        for size in (91, 105, 112)
    ),
    "bits": tuple(
        Made(
            f"{bits} bits",
            ("--recipe", "gptq-refined-q4_k", "--target-bpw", str(bits)),
            ("Q2_K", "Q3_K_S", "Q3_K_M", "IQ4_XS", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M"),
            0.8,
        )
        for bits in (3.5, 4.5, 5.5)
    ),
}


@dataclass(frozen=True)
class Bench:
    """Where everything lies."""

    folder: Path
    source: Path
    calibration: tuple[str, ...]
    importance: Path | None
    peer_python: str

    def ours(self, made: Made) -> tuple[Path, float]:
        """Return a file of ours and the seconds it took, made if it is not there yet."""
        stem = made.name.replace(", ", "-").replace(" ", "-")
        path = self.folder / f"fewbit-{stem}.gguf"
        seconds = path.with_suffix(".seconds")
        if not path.exists():
            started = time.perf_counter()
            options = () if "rtn" in made.name else self.calibration
            self._fewbit("quantize", *made.options, *options, "--out", str(path))
            seconds.write_text(str(time.perf_counter() - started))
        return path, float(seconds.read_text()) if seconds.exists() else float("nan")

    def peer(self, form: str) -> Path:
        """Return the peer's file of a type, made if it is not there yet."""
        path = self.folder / f"llama.cpp-{form}.gguf"
        if not path.exists():
            arguments = {"source": str(self.source), "out": str(path), "form": form}
            data = str(self._importance_data())
            ask_peer(self.peer_python, "quantize", **arguments, importance=data, threads=2)
        return path

    def _importance_file(self) -> Path:
        """Return the importance matrix of the calibration text, taken if none was named."""
        path = self.importance or self.folder / "importance.gguf"
        if not path.exists():
            self._fewbit("imatrix", *self.calibration, "--out", str(path))
        return path

    def _fewbit(self, command: str, *options: str) -> None:
        line = [sys.executable, "-m", "fewbit", command, str(self.source), *options]
        subprocess.run(line, check=True)

    def _importance_data(self) -> Path:
        path = self.folder / "importance.npz"
        if not path.exists():
            matrix = read_importance(self._importance_file())
            np.savez(path, **{name: _means(entry) for name, entry in matrix.entries.items()})
        return path


def _means(entry: Importance) -> NDArray[np.float32]:
    """Return the mean square of each input, those of all experts one after the other."""
    counts = np.maximum(entry.counts, 1)[:, None]
    return (entry.sum_squares / counts).astype(np.float32).reshape(-1)


def run(bench: Bench, parts: Sequence[str], text: str, *, confirm: bool) -> list[dict[str, object]]:
    """Make every file of the parts, measure all, and print the table."""
    made = [one for part in parts for one in PARTS[part]]
    ours = {one.name: bench.ours(one) for one in made}
    peers = {form: bench.peer(form) for one in made for form in one.peers}
    windows = windows_of(bench.source, text)
    paths = [*(path for path, _ in ours.values()), *peers.values()]
    print(f"{len(windows)} windows of {windows.shape[1]} tokens")
    found = dict(zip(paths, in_fewbit(bench.source, paths, windows), strict=True))
    rows = [_row(one, ours[one.name], peers, found) for one in made]
    _print(rows, peers, found)
    if confirm:
        again = in_llama_cpp(bench.source, paths, windows, bench.folder, bench.peer_python)
        confirmed = dict(zip(paths, again, strict=True))
        print("\nThe same files in llama.cpp itself:")
        _print([_row(one, ours[one.name], peers, confirmed) for one in made], peers, confirmed)
    return rows


def _row(
    made: Made,
    ours: tuple[Path, float],
    peers: Mapping[str, Path],
    found: Mapping[Path, Values],
) -> dict[str, object]:
    path, seconds = ours
    row: dict[str, object] = {
        "name": made.name,
        "bytes": path.stat().st_size,
        "seconds": seconds,
        "kl": mean(found[path]),
    }
    fitting = [form for form in made.peers if _fits(path, peers[form], made)]
    if fitting:
        best = min(fitting, key=lambda form: float(found[peers[form]].mean()))
        row |= {"peer": best, "ratio": ratio(found[path], found[peers[best]]), "bar": made.bar}
    return row


def _fits(ours: Path, peer: Path, made: Made) -> bool:
    """Say whether a peer's file is at most as large as ours, give or take one in 200."""
    return len(made.peers) == 1 or peer.stat().st_size <= ours.stat().st_size * 1.005


def _print(
    rows: Sequence[Mapping[str, object]],
    peers: Mapping[str, Path],
    found: Mapping[Path, Values],
) -> None:
    for form, path in peers.items():
        size = path.stat().st_size / MB
        print(f"  llama.cpp {form:8s} {size:7.1f} MB  KL {mean(found[path])}")
    for row in rows:
        size = int(str(row["bytes"])) / MB
        line = (
            f"  fewbit {row['name']!s:16s} {size:7.1f} MB  KL {row['kl']}  {row['seconds']:.0f} s"
        )
        if "ratio" in row:
            figure, bar = row["ratio"], row["bar"]
            assert isinstance(figure, Figure) and isinstance(bar, float)
            met = "met" if figure.mean <= bar else "missed"
            line += f"  {figure} x {row['peer']} (bar {bar}: {met})"
        print(line)


def _texts(data: Path | None, folder: Path) -> tuple[tuple[str, ...], str]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all where none is named")
    parser.add_argument("--model", type=Path, help="a quantized GGUF file; the embedded one")
    parser.add_argument("--source", type=Path, help="an off-grid source made before")
    parser.add_argument("--folder", type=Path, default=Path("build/benchmarks/quality"))
    parser.add_argument("--data", type=Path, help="a folder with long_text, code_python, wikitext2")
    parser.add_argument(
        "--imatrix", type=Path, help="the peer's importance matrix; taken if not given"
    )
    parser.add_argument("--peer-python", default=sys.executable)
    parser.add_argument("--confirm", action="store_true", help="measure in llama.cpp as well")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    source = options.source or options.folder / "source.gguf"
    if not source.exists():
        move_off_grid(options.model or embedded(), source)
    calibration, text = _texts(options.data, options.folder)
    bench = Bench(options.folder, source, calibration, options.imatrix, options.peer_python)
    rows = run(bench, options.parts or [*PARTS], text, confirm=options.confirm)
    if options.json:
        options.json.write_text(json.dumps(rows, default=vars, indent=1))


if __name__ == "__main__":
    main()
