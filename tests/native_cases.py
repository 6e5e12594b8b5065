"""Small random decoders bound for the executors, and steps over their sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from fewbit.formats.registry import encode, parse_format
from fewbit.model.binding import is_vector
from fewbit.model.config import MixtureConfig, ModelConfig
from fewbit.model.decoder import build_program, slot_shapes
from fewbit.model.rope import RopeConfig
from fewbit.program import CacheType
from fewbit.records.kernels import Activations
from fewbit.runtime.executor import Binding, Executor
from fewbit.runtime.reference import choose_reference
from fewbit.runtime.step import PAGE, Span, StepInput

MIXED = ("int4-g32", "int8-g32", "f32", "q4_0", "int4-g32-asym", "bf16")
"""Formats of a model's matrices in turn."""

INPUT_SCALE = 1 / 40
"""Of static activations: normed inputs, of deviation 1, clip once in a thousand."""

SMALL = ModelConfig(
    family="llama",
    hidden=96,
    layers=2,
    heads=6,
    kv_heads=2,
    head_dim=32,
    intermediate=160,
    vocabulary=203,
    context=1024,
    eps=1e-5,
    rope=RopeConfig(theta=10000.0),
    windows=(None, None),
    attention_scale=32**-0.5,
    tied=True,
)
"""Three query heads a key head; a vocabulary that is no multiple of 16."""

GEMMA_LIKE = replace(
    SMALL,
    heads=4,
    kv_heads=1,
    head_dim=48,
    windows=(70, None),
    attention_scale=0.3,
    attention_softcap=20.0,
    logits_softcap=5.0,
    qk_norm=True,
    sandwich_norms=True,
    norm_offset=1.0,
    embed_scale=9.75,
    qkv_bias=True,
    output_bias=True,
    mlp_bias=True,
)
"""Every switch of the decoder at once."""


MIXTURE = replace(
    SMALL,
    family="qwen3_moe",
    layers=3,
    windows=(None,) * 3,
    mixture=MixtureConfig(
        experts=7, used=3, width=64, layers=(True, False, True), normalized=False
    ),
)
"""Mixtures of experts around a dense layer."""


def bind_random(
    config: ModelConfig,
    formats: Sequence[str],
    cache: CacheType = CacheType.F16,
    seed: int = 0,
    *,
    rotate_keys: bool = False,
    activations: Activations = Activations.INT8,
) -> Binding:
    """Bind random weights; matrices take the formats in turn."""
    random = np.random.default_rng(seed)
    tensors, kernels = {}, {}
    matrices = 0
    for slot, shape in slot_shapes(config).items():
        values = random.standard_normal(shape) * (0.1 if is_vector(slot) else shape[1] ** -0.5)
        if slot.endswith("_norm.weight") and config.norm_offset == 0.0:
            values += 1.0
        exact = is_vector(slot) or slot.endswith("router.weight")
        form = parse_format("f32" if exact else formats[matrices % len(formats)])
        tensors[slot] = encode(values.astype(np.float32), form)
        if not is_vector(slot):
            kernels[slot] = choose_reference(slot, tensors[slot], activations, INPUT_SCALE)
            matrices += 1
    return Binding(build_program(config, cache, rotate_keys=rotate_keys), tensors, kernels)


@dataclass
class Track:
    """A sequence on its way: its tokens, its pages, and how many positions have run."""

    tokens: np.ndarray
    pages: np.ndarray
    done: int = 0


def track(length: int, pages: Sequence[int], seed: int, vocabulary: int = 203) -> Track:
    """Return a random sequence that may use `pages`."""
    tokens = np.random.default_rng(seed).integers(0, vocabulary, length).astype(np.int32)
    return Track(tokens, np.asarray(pages, np.int32))


def run_step(executor: Executor, pieces: Sequence[tuple[Track, int]]) -> list[np.ndarray]:
    """Run the next `count` rows of every sequence in one step; return all rows' logits, copied."""
    spans, start = [], 0
    for item, count in pieces:
        spans.append(Span(start, count, item.done, item.pages))
        start += count
    tokens = np.concatenate([item.tokens[item.done : item.done + n] for item, n in pieces])
    logits = executor.step(StepInput(tokens, tuple(spans), np.arange(start, dtype=np.int32)))
    out = []
    for span, (item, count) in zip(spans, pieces, strict=True):
        item.done += count
        out.append(logits[span.start : span.start + count].copy())
    return out


def run_alone(executor: Executor, item: Track, chunk: int) -> np.ndarray:
    """Run a whole sequence in chunks of rows; return the logits of every position."""
    parts = []
    while item.done < len(item.tokens):
        count = min(chunk, len(item.tokens) - item.done)
        parts += run_step(executor, [(item, count)])
    return np.concatenate(parts)


def pages_for(length: int) -> int:
    """Return the pages that a sequence of this length takes."""
    return -(-length // PAGE)
