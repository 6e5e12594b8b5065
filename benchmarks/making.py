"""Files made once: ours by `fewbit quantize`, the peer's by llama.cpp's own quantizer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from candidates import Made
from divergences import Peer
from numpy.typing import NDArray

from fewbit.calibrate.importance import Importance, read_importance
from fewbit.evaluate.machine.resident import resident

LOOK = 0.2
"""Seconds between two looks at the peak of a process. What `wait4` gives afterwards begins with the
peak of this one, which may have measured a larger model before."""


@dataclass(frozen=True)
class Cost:
    """What making a file took on this machine, whatever else ran on it."""

    seconds: float
    gigabytes: float
    """The largest resident memory, 10^9 bytes."""


@dataclass(frozen=True)
class Bench:
    """Where everything lies and what both sides calibrate on."""

    folder: Path
    source: Path
    calibration: tuple[str, ...]
    """Options of `fewbit` that name the text and how much of it."""
    tuning: tuple[str, ...]
    """Options of tuning, for what is tuned."""
    llama_cpp: Peer

    def ours(self, made: Made) -> Path:
        """Return a file of ours, made if it is not there yet."""
        options = ["--recipe", made.recipe, *made.options]
        if made.calibrated:
            options += self.calibration
        if "--tune" in made.options:
            options += self.tuning
        path = self.folder / f"fewbit-{made.stem}{made.suffix}"
        if not path.exists():
            cost = self._fewbit("quantize", *options, "--out", str(path))
            _kept(path).write_text(json.dumps({"options": options, **vars(cost)}))
        return path

    def peer(self, form: str) -> Path:
        """Return the peer's file of a type, made if it is not there yet."""
        path = self.folder / f"llama.cpp-{form}.gguf"
        if not path.exists():
            print(f"llama.cpp quantizes to {form}", file=sys.stderr)
            partial = path.with_suffix(".partial")
            arguments = {"source": str(self.source), "out": str(partial), "form": form}
            importance = str(self._importance())
            self.llama_cpp.ask("quantize", **arguments, importance=importance, threads=2)
            partial.rename(path)
        return path

    def _importance(self) -> Path:
        """Return the importance matrix of the calibration text, taken by `fewbit imatrix`."""
        path = self.folder / "importance.npz"
        if not path.exists():
            taken = path.with_suffix(".gguf")
            if not taken.exists():
                self._fewbit("imatrix", *self.calibration, "--out", str(taken))
            entries = read_importance(taken).entries
            np.savez(path, **{name: _means(entry) for name, entry in entries.items()})
        return path

    def _fewbit(self, command: str, *options: str) -> Cost:
        line = [sys.executable, "-m", "fewbit", command, str(self.source), *options]
        print(" ".join(["fewbit", *line[3:]]), file=sys.stderr)
        began = time.perf_counter()
        process = subprocess.Popen(line)
        peak = 0
        while process.poll() is None:
            peak = resident("VmHWM", process.pid) or peak
            time.sleep(LOOK)
        if process.returncode:
            sys.exit(f"fewbit {command} failed with exit code {process.returncode}")
        return Cost(time.perf_counter() - began, peak / 1e9)


def cost_of(path: Path) -> Mapping[str, object]:
    """Return what making a file of ours took and the options it was made with, where known."""
    kept = _kept(path)
    return json.loads(kept.read_text()) if kept.exists() else {}


def bytes_of(path: Path) -> int:
    """Return the bytes of a model: of a GGUF file, or of a folder's tensors."""
    files = path.glob("*.safetensors") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _kept(path: Path) -> Path:
    return path.with_name(f"{path.name}.made.json")


def _means(entry: Importance) -> NDArray[np.float32]:
    """Return the mean square of each input, those of all experts one after the other."""
    counts = np.maximum(entry.counts, 1)[:, None]
    return (entry.sum_squares / counts).astype(np.float32).reshape(-1)
