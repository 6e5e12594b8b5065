"""Candidates for the gate to judge: good ones, and ones with a fault that real programs had.

Each is a file beside the source, or the source run otherwise, or both. Faults are planted in a Q8_0
file, which alone is as good as its source.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.evaluate.answers import GREEDY, Ask, Prompt
from fewbit.evaluate.arms import Role, Room, local_party
from fewbit.evaluate.machine.kernel_axis import kernel_findings
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tools.sampling import sampling_asks, sampling_findings
from fewbit.formats.spec import QuantTensor
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.answers import Answer
from fewbit.records.kernels import Activations
from fewbit.records.measurement import Finding
from fewbit.sampling import SamplingParams

GOOD_FILE = "rtn-q8_0"
LAYER = 10
"""Where a fault of one layer is planted: a third of the way through SmolLM2-135M."""

_BLOCK, _SCALE = 34, 2
"""Bytes of a Q8_0 block of 32 weights, and of the scale that it begins with."""

_TESTS = Path(__file__).parents[1] / "tests"


TEXT_AXES = ("language", "kernels", "numerics")
"""Axes that find what a file or a kernel can do to a text."""

ALL_ITEMS = (*TEXT_AXES, "tasks", "safety", "long-context", "tools")
"""All axes but those that time and weigh."""


class Kind(Enum):
    """What the gate should say."""

    GOOD = "known good"
    MARGIN = "at the margin"
    BAD = "planted bad"


@dataclass(frozen=True)
class Candidate:
    """A candidate, with how its file comes to be and how it is run."""

    name: str
    kind: Kind
    make: Callable[[Path, Path], Path]
    """Given the source and a folder, returns the candidate's path."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `EvaluationSettings`."""
    source: Callable[[Path, Path], Path] = lambda source, _folder: source
    """Given the source and a folder, returns what it is compared with."""
    findings: Callable[[Path], Sequence[Finding]] | None = None
    """Of a fault that lies in the runtime: what is found of the candidate run by such a one. No
    more of it is measured."""
    axes: tuple[str, ...] = TEXT_AXES
    """That are run."""
    refused: bool = False
    """Whether identity or the scan of the bytes should refuse it, before anything is run."""

    @property
    def reaches_the_text(self) -> bool:
        """Whether it is expected to be run on the text."""
        return not self.refused and self.findings is None


def made(recipe: str) -> Callable[[Path, Path], Path]:
    """Return how a recipe's file is made, once."""
    return _quantized(recipe, f"{recipe}.gguf")


def in_folder(recipe: str) -> Callable[[Path, Path], Path]:
    """Return how a recipe's folder is made, once: of formats that GGUF files do not have."""
    return _quantized(recipe, recipe)


def _quantized(recipe: str, name: str) -> Callable[[Path, Path], Path]:
    def make(source: Path, folder: Path) -> Path:
        out = folder / name
        if not out.exists():
            print(f"quantizing by {recipe}", file=sys.stderr)
            with open_model(source) as opened:
                quantize(opened, find(recipe), out)
        return out

    return make


def itself(source: Path, _folder: Path) -> Path:
    """Return the source as its own candidate."""
    return source


Change = Callable[[str, QuantTensor], QuantTensor]
Metadata = Mapping[str, tuple[Any, Any]]


def altered(
    name: str, change: Change | None = None, metadata: Callable[[GgufFacts], Metadata] | None = None
) -> Callable[[Path, Path], Path]:
    """Return how the good file is written again with a fault in it."""

    def make(source: Path, folder: Path) -> Path:
        out = folder / f"{name}.gguf"
        with GgufCheckpoint(made(GOOD_FILE)(source, folder)) as good:
            facts = good.facts
            assert isinstance(facts, GgufFacts)
            changed = overlay(facts, metadata(facts)) if metadata else facts

            def read(tensor: str) -> QuantTensor:
                found = good.read(tensor)
                return change(tensor, found) if change else found

            write_gguf(out, changed, list(good.tensors.values()), read)
        return out

    return make


def swapped_scales(tensor: str, found: QuantTensor) -> QuantTensor:
    """Swap the scales of the first two heads of one layer's keys: a wrong offset in a converter."""
    if tensor != f"blk.{LAYER}.attn_k.weight":
        return found
    codes = np.array(found.codes).reshape(found.shape[0], -1, _BLOCK)
    head = found.shape[0] // 3  # SmolLM2-135M has three heads of keys
    scales = codes[:, :, :_SCALE].copy()
    codes[:head, :, :_SCALE], codes[head : 2 * head, :, :_SCALE] = (
        scales[head : 2 * head],
        scales[:head],
    )
    return QuantTensor(found.spec, found.shape, codes.reshape(found.shape[0], -1))


def begins_otherwise(_facts: GgufFacts) -> Metadata:
    """Put a token before every text where the source puts none."""
    return {
        "tokenizer.ggml.add_bos_token": (ValueType.BOOL, True),
        "tokenizer.ggml.bos_token_id": (ValueType.UINT32, 0),
    }


def ends_otherwise(_facts: GgufFacts) -> Metadata:
    """End a turn with a token that the model does not write."""
    return {"tokenizer.ggml.eos_token_id": (ValueType.UINT32, 3)}


def another_template(facts: GgufFacts) -> Metadata:
    """Lose the line break behind a role, as a template copied by hand does."""
    key = "tokenizer.chat_template"
    text = str(facts.metadata[key])
    return {key: (ValueType.STRING, text.replace("\\n", " ").replace("\n", " "))}


def mixture(folder: Path) -> Path:
    """Return a tiny random mixture of experts, sure of something, as trained ones are."""
    return _mixture(folder / "mixture", lambda _name, values: values)


def mixture_without_an_expert(folder: Path) -> Path:
    """Return the mixture in int8, made of weights in which one expert of one layer is zero."""
    out = folder / "mixture-int8"

    def zeroed(name: str, values: np.ndarray) -> np.ndarray:
        return values * np.float32(0 if ".layers.1." in name and ".experts.2." in name else 1)

    if not out.exists():
        with open_model(_mixture(folder / "mixture-zeroed", zeroed)) as opened:
            quantize(opened, find("rtn-int8-g32"), out)
    return out


def _mixture(folder: Path, change: Callable[[str, np.ndarray], np.ndarray]) -> Path:
    sys.path.insert(0, str(_TESTS))
    from tiny_models import CONFIGS, random_weights  # noqa: PLC0415
    from tiny_subjects import write_subject  # noqa: PLC0415

    config = {**CONFIGS["mixtral"], "bos_token_id": 1, "eos_token_id": 2}
    weights = {name: change(name, values) for name, values in random_weights(config).items()}
    weights["lm_head.weight"] = weights["lm_head.weight"] * np.float32(4)
    return write_subject(folder, config=config, weights=weights)


def dequantized_layer(path: Path) -> Sequence[Finding]:
    """Return what is found where one layer's matrix was quietly turned into bf16."""
    slot = f"layers.{LAYER}.down.weight"
    with open_model(path) as model:
        kernels = planned_kernels(model, RunSettings())
    ran = [replace(k, kernel="bf16/f32/avx2") if k.slot == slot else k for k in kernels]
    return kernel_findings(ran, {k.slot: k.bytes for k in kernels}, None)


def greedy_always(path: Path) -> Sequence[Finding]:
    """Return what is found of a runtime that decodes greedily whatever it is asked."""
    return _sampled(path, lambda _ask: GREEDY)


def greedy_never(path: Path) -> Sequence[Finding]:
    """Return what is found of a runtime that samples even where greedy is asked."""
    return _sampled(path, lambda ask: SamplingParams(seed=len(ask.name) + ord(ask.name[-1])))


def _sampled(path: Path, instead: Callable[[Ask], SamplingParams]) -> Sequence[Finding]:
    asks = [dataclasses.replace(ask, sampling=instead(ask)) for ask in sampling_asks(_question)]
    answers: dict[str, Answer] = {}
    subject = open_subject(path)
    party = local_party(subject, RunSettings())
    subject.model.checkpoint.close()
    with party.open(Role.CANDIDATE, Room(context=256, sequences=8)) as arm:
        arm.answerer.answer(asks, lambda answer: answers.update({answer.name: answer}))
    return sampling_findings({Role.CANDIDATE: answers})


def _question(text: str) -> Prompt:
    return ({"role": "user", "content": text},)


_BF16_INPUTS = {"activations": Activations.BF16}
_BF16_CACHE = {"kv": CacheType.BF16, "floor": False}
"""It is what the floor of a bf16 source is, so that it is held to the source itself."""

CANDIDATES = (
    Candidate("Q8_0", Kind.GOOD, made("rtn-q8_0"), axes=ALL_ITEMS),
    Candidate("Q6_K", Kind.GOOD, made("rtn-q6_k")),
    Candidate("int8", Kind.GOOD, in_folder("rtn-int8-g64")),
    Candidate("Q8_0 on bf16 inputs", Kind.GOOD, made("rtn-q8_0"), _BF16_INPUTS),
    Candidate("the source on a bf16 cache", Kind.GOOD, itself, _BF16_CACHE),
    Candidate("the source on an int8 cache", Kind.GOOD, itself, {"kv": CacheType.INT8}),
    Candidate("int4 cache", Kind.BAD, made("rtn-q8_0"), {"kv": CacheType.INT4}),
    Candidate("a head's scales swapped", Kind.BAD, altered("scales", swapped_scales), refused=True),
    Candidate(
        "wrong begin of text",
        Kind.BAD,
        altered("begin", metadata=begins_otherwise),
        refused=True,
    ),
    Candidate(
        "template altered", Kind.BAD, altered("template", metadata=another_template), refused=True
    ),
    Candidate("end token altered", Kind.BAD, altered("end", metadata=ends_otherwise), refused=True),
    Candidate(
        "an expert zeroed",
        Kind.BAD,
        lambda _source, folder: mixture_without_an_expert(folder),
        source=lambda _source, folder: mixture(folder),
        refused=True,
    ),
    Candidate("a layer dequantized", Kind.BAD, made("rtn-q8_0"), findings=dequantized_layer),
    Candidate("temperature ignored", Kind.BAD, made("rtn-q8_0"), findings=greedy_always),
    Candidate("greedy ignored", Kind.BAD, made("rtn-q8_0"), findings=greedy_never),
)
