"""Tiny pairs to evaluate: a source, what a recipe makes of it, and that spoiled by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file
from tiny_models import CONFIGS, random_weights
from tiny_subjects import CONFIG, write_subject

from fewbit.checkpoint.artefact import encoded_info, write_artefact
from fewbit.evaluate.arms import Arms, Role, local_party
from fewbit.evaluate.identity import Subject
from fewbit.evaluate.subject import open_subject
from fewbit.formats.registry import BLOCK_FORMATS
from fewbit.formats.spec import QuantTensor
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find

MIXTRAL = {**CONFIGS["mixtral"], "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}


def write_pair(
    folder: Path, recipe: str = "rtn-int8-g32", config: Mapping[str, Any] = CONFIG
) -> tuple[Path, Path]:
    """Write a source and what a recipe makes of it."""
    source = write_subject(
        folder / "source", config=dict(config), weights=random_weights(dict(config))
    )
    with open_model(source) as model:
        quantize(model, find(recipe), folder / "candidate")
    return source, folder / "candidate"


def spoil(artefact: Path, target: Path, change: Callable[[dict[str, np.ndarray]], None]) -> Path:
    """Copy an artefact with some of its stored arrays changed."""
    target.mkdir()
    for path in artefact.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    weights = target / "model.safetensors"
    tensors = {name: array.copy() for name, array in load_file(weights).items()}
    header = weights.read_bytes()
    described = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    change(tensors)
    save_file(tensors, weights, described.get("__metadata__"))
    return target


def unread(artefact: Path, target: Path) -> Path:
    """Copy an artefact with a matrix in q2_0, which no kernel reads: it is run as floats."""
    spec, name = BLOCK_FORMATS["q2_0"].spec, "model.layers.1.self_attn.q_proj.weight"
    codes = np.random.default_rng(0).integers(0, 256, (64, 18), dtype=np.uint8)
    codes[:, 1] = 0x20  # a small fp16 scale, wherever it lies in the block
    with open_model(artefact) as model:
        tensors = model.checkpoint.tensors
        write_artefact(
            target,
            config=json.loads((artefact / "config.json").read_text()),
            sidecars={p.name: p.read_bytes() for p in artefact.glob("tokenizer*")},
            tensors=[
                encoded_info(name, spec, info.shape) if info.name == name else info
                for info in tensors.values()
            ],
            read=lambda stored: (
                QuantTensor(spec, tensors[name].shape, codes)
                if stored == name
                else model.checkpoint.read(stored)
            ),
            manifest=(artefact / "manifest.json").read_bytes,
        )
    return target


def opened(*paths: Path) -> tuple[Subject, ...]:
    """Open models as parties to a comparison."""
    return tuple(open_subject(path) for path in paths)


def arms_of(
    source: Path,
    candidate: Path,
    work: Path | None = None,
    settings: RunSettings = RunSettings(threads=1),  # noqa: B008 - frozen
) -> Arms:
    """Return both as the arms of an evaluation."""
    paths = {Role.SOURCE: source, Role.CANDIDATE: candidate}
    parties = {
        role: local_party(subject, settings)
        for role, subject in zip(paths, opened(*paths.values()), strict=True)
    }
    return Arms(parties, work)


def failed(result) -> dict[str, str]:
    """Return what an axis found wrong, by the names of its findings."""
    return {finding.name: finding.found for finding in result.findings if not finding.passed}


def nothing(_what: str, _done: int, _all: int) -> None:
    """Hear of progress and say nothing."""
