"""Kill jobs over and over, in a process of its own: `kill_cases.py FOLDER KIND:KILLS ...`.

With 0 kills at random times, a job is killed before steps that the file system sees: each of the
last ones, where the artefact takes its place, and some of those before.

Everything is imported once; each run is a fork, which is as good as a fresh process (no thread has
been started yet) and begins at once. A run is killed after a seeded part of the time that a whole
one takes; the next goes on with what it left. What appears at the output is compared with what a
run that nobody disturbs writes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from quantize_cases import tree_hash
from test_walk import calibration
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.checkpoint.gguf_split import written_as
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.model.weights import open_model
from fewbit.quantization import QuantizeSettings, quantize
from fewbit.recipes import built_in
from fewbit.records.manifest import manifest_path
from fewbit.records.recipe import Recipe
from fewbit.tune import Tuned, TuneSettings

KINDS = {
    "folder": ("gptq-int4-g32", "out", None),
    "gguf": ("gptq-q4_0", "out.gguf", None),
    "plain": ("mse-int4-g32", "out", None),
    "tuned": ("gptq-int4-g32", "out", Tuned.SCALES),
}
"""Quantizations: a recipe, an output, and what is tuned."""
EXPORTS = {
    "export": ("hf", "out", None),
    "export-gguf": ("gguf", "out.gguf", None),
    "export-parts": ("gguf", "out.gguf", 200_000),
}
"""Exports: a target, an output, and the bytes of a part."""


def job(source: Path, kind: str, out: Path) -> None:
    """Quantize or export as the kind says."""
    with open_model(source) as opened:
        if kind in EXPORTS:
            to, _, parts = EXPORTS[kind]
            settings = ExportSettings(split_bytes=parts)
            export(plan_export(opened, find_target(to, settings)), out, settings)
        else:
            quantize(opened, *_asked(kind, out))


def _asked(kind: str, out: Path) -> tuple[Recipe, Path, QuantizeSettings]:
    name, _, tuned = KINDS[kind]
    recipe, tuning = built_in(name), None
    lengths = (40,) * (5 if tuned is None else 8)
    if tuned is not None:
        recipe = replace(recipe, tune=tuned.value)
        tuning = TuneSettings(what=tuned, steps=12, batch=2, check=2, patience=9)
    settings = QuantizeSettings(calibration=calibration(lengths), tuning=tuning, threads=1)
    return recipe, out, settings


def start(source: Path, kind: str, out: Path, last_step: int = -1) -> int:
    """Return the id of a process that carries the job out, up to a step, counted from 1."""
    child = os.fork()
    if child == 0:
        try:
            count_steps(last_step, out.with_name("steps"))
            job(source, kind, out)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
    return child


def count_steps(last: int, report: Path) -> None:
    """Kill this process before its step number `last`; without one, write how many there were."""
    steps = 0

    def counted(module, name):
        true = getattr(module, name)

        def step(*arguments, **options):
            nonlocal steps
            steps += 1
            if steps == last:
                os.kill(os.getpid(), signal.SIGKILL)
            if last < 0:
                report.write_text(str(steps))
            return true(*arguments, **options)

        setattr(module, name, step)

    for module, name in ((Path, "replace"), (os, "fsync"), (os, "rmdir"), (os, "unlink")):
        counted(module, name)


def files(out: Path) -> list[Path]:
    """Return the files or the folder of an artefact, numbered parts and the manifest with them."""
    first = written_as(out)
    parts = sorted(first.parent.glob(first.name.replace("-00001-of-", "-?????-of-")))
    return [*parts, manifest_path(first)] if first.suffix == ".gguf" else parts


def artefact(out: Path) -> list[str]:
    """Return the hash of every file of an artefact; none where its last one is not there yet."""
    if not written_as(out).exists():
        return []
    return [digest for path in files(out) for digest in tree_hash(path).values()]


def killed(child: int, seconds: float) -> bool:
    """Kill a process after so long; return whether it had still been running."""
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        assert os.WEXITSTATUS(status) == 0
        return False
    return True


def main(folder: Path, kind: str, kills: int) -> None:
    """Kill so many runs, and compare whatever they leave."""
    config = CONFIGS["llama"]
    if kind == "tuned":
        import torch  # noqa: F401, PLC0415 - once for all forks
    source = write_gguf(folder / "in.gguf", config, random_weights(config))
    out = folder / (KINDS | EXPORTS)[kind][1]
    begun = time.perf_counter()
    _, status = os.waitpid(start(source, kind, folder / f"whole-{out.name}"), 0)
    assert status == 0
    whole = time.perf_counter() - begun
    expected = artefact(folder / f"whole-{out.name}")
    if kills == 0:
        kill_at_steps(source, kind, out, expected)
        return
    random = np.random.default_rng(11)
    done = finished = early = 0
    while done < kills:
        if killed(start(source, kind, out), random.uniform(0, 0.7 * whole)):
            done += 1
        found = artefact(out)
        if not found:
            early += 1
            continue
        compare(kind, found, expected)
        finished += 1
        clear(out)
    _, status = os.waitpid(start(source, kind, out), 0)
    assert status == 0
    compare(kind, artefact(out), expected)
    nothing_is_left(folder)
    print(f"{done} kills, {early} left nothing, {finished} runs ended; one takes {whole:.2f} s")


def kill_at_steps(source: Path, kind: str, out: Path, expected: list[str]) -> None:
    """Kill at one step of the job after the other, and now and then go on to the end."""
    steps = int(out.with_name("steps").read_text())
    last = max(1, steps - 10)
    for step in [*range(1, last, 15), *range(last, steps + 1)]:
        _, status = os.waitpid(start(source, kind, out, step), 0)
        assert os.WIFSIGNALED(status) or step > 1, step
        found = artefact(out)
        if found:  # then it is whole
            compare(kind, found, expected)
            clear(out)
        if step in (46, steps - 1, steps):
            _, status = os.waitpid(start(source, kind, out), 0)
            assert status == 0, step
            compare(kind, artefact(out), expected)
            clear(out)
    nothing_is_left(out.parent)
    print(f"killed before steps up to {steps}")


def nothing_is_left(folder: Path) -> None:
    """Check that no lock and no half-written file is there."""
    left = sorted(p.name for p in folder.iterdir() if p.name.startswith("."))
    assert not left, left


def compare(kind: str, found: list[str], expected: list[str]) -> None:
    """Check that two artefacts are the same bits; a tuned one's manifest has its seconds."""
    same = [one == other for one, other in zip(found, expected, strict=True)]
    assert same.count(False) <= (kind == "tuned"), (found, expected)


def clear(out: Path) -> None:
    """Remove an artefact, so that the next one can be made."""
    for path in files(out):
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


if __name__ == "__main__":
    for case in sys.argv[2:]:
        named, _, times = case.partition(":")
        place = Path(sys.argv[1]) / case.replace(":", "-")
        place.mkdir()
        print(f"{named}:", end=" ", flush=True)
        main(place, named, int(times))
