"""A source moved off its quantization grid, so that quantizing it again loses something.

The small models that can be had are quantized already, and rounding them to their own grid again
would lose nothing and prove nothing. Two steps make a new source of one of them, both seeded:

* a rescale that changes no output: every input channel of q/k/v and of gate/up times a factor in
  e^[-0.25, 0.25], the weight of the norm before them divided by it; likewise v's rows against o's
  columns and up's rows against down's columns;
* uniform noise of half a step of its old grid, to either side, on every weight, tables included.

All matrices are then rounded to bf16, and that file is the source from there on.
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.formats.grid import split
from fewbit.formats.registry import BF16, F32, FLOATS, decode, encode, encoded_bytes
from fewbit.formats.spec import QuantTensor
from fewbit.model.gguf_metadata import file_type
from fewbit.model.weights import source_of

RANGE = 0.25
"""A channel's factor is e^u, u uniform in [-RANGE, RANGE]; 0 leaves the noise alone."""

Factors = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Rescale:
    """Factors by the name of a tensor in the file: of its rows, and of its columns."""

    rows: Factors
    columns: Factors


def move_off_grid(source: Path, out: Path, seed: int = 0, spread: float = RANGE) -> None:
    """Write a bf16 GGUF file of a quantized one, off the grid of its weights."""
    with GgufCheckpoint(source) as checkpoint:
        rescale = draw_rescale(checkpoint, seed, spread)
        infos = {name: _bf16(info) for name, info in checkpoint.tensors.items()}

        def read(name: str) -> QuantTensor:
            values = noisy(checkpoint.read(name), name, seed)
            values *= rescale.rows.get(name, np.float32(1)).reshape(-1, 1)  # type: ignore[union-attr]
            values *= rescale.columns.get(name, np.float32(1))
            return encode(values, infos[name].format)

        facts = checkpoint.facts
        assert isinstance(facts, GgufFacts)
        kind = {"general.file_type": (ValueType.UINT32, file_type({BF16.name: 1}))}
        write_gguf(out, overlay(facts, kind), list(infos.values()), read)


def draw_rescale(checkpoint: GgufCheckpoint, seed: int, spread: float = RANGE) -> Rescale:
    """Return the factors of every layer, whose product around each of its sites is 1."""

    def drawn(name: str, count: int) -> NDArray[np.float32]:
        uniform = _generator(f"rescale of {name}", seed).uniform(-spread, spread, count)
        return np.exp(uniform).astype(np.float32)

    config = source_of(checkpoint).config
    rows: dict[str, NDArray[np.float32]] = {}
    columns: dict[str, NDArray[np.float32]] = {}
    for layer in range(config.layers):
        name = f"blk.{layer}.{{}}".format
        for norm, readers in (
            ("attn_norm", ("attn_q", "attn_k", "attn_v")),
            ("ffn_norm", ("ffn_gate", "ffn_up")),
        ):
            factors = drawn(name(norm), config.hidden)
            columns[name(norm + ".weight")] = 1 / factors
            columns |= {name(reader + ".weight"): factors for reader in readers}
        heads = drawn(name("attn_v"), config.key_width)
        rows[name("attn_v.weight")] = heads
        columns[name("attn_v.bias")] = heads
        columns[name("attn_output.weight")] = 1 / _of_query_heads(heads, config.head_dim, config)
        middle = drawn(name("ffn_up"), config.intermediate)
        rows[name("ffn_up.weight")] = middle
        columns[name("ffn_down.weight")] = 1 / middle
    return Rescale(rows, columns)


def noisy(tensor: QuantTensor, name: str, seed: int) -> NDArray[np.float32]:
    """Return the values of a matrix with half a step of noise to either side; a vector as it is."""
    values = decode(tensor).copy()
    if tensor.spec in FLOATS:
        return values
    _, grid = split(tensor)
    steps = np.repeat(np.abs(grid.scales), values.shape[1] // grid.scales.shape[1], axis=1)
    noise = _generator(f"noise of {name}", seed).random(values.shape, np.float32)
    return values + (noise - np.float32(0.5)) * steps


def _of_query_heads(factors: NDArray[np.float32], head_dim: int, config: object) -> NDArray:
    """Return the factors of the key heads' channels for each query head that reads them."""
    group = config.heads // config.kv_heads  # type: ignore[attr-defined]
    return np.repeat(factors.reshape(-1, 1, head_dim), group, axis=1).reshape(-1)


def _generator(purpose: str, seed: int) -> np.random.Generator:
    digest = hashlib.sha256(f"{seed} {purpose}".encode()).digest()
    return np.random.Generator(np.random.Philox(int.from_bytes(digest[:16], "little")))


def _bf16(info: TensorInfo) -> TensorInfo:
    form = BF16 if len(info.shape) > 1 else F32
    return TensorInfo(info.name, form, info.shape, encoded_bytes(form, info.matrix_shape))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("source", type=Path, help="a quantized GGUF file")
    parser.add_argument("out", type=Path, help="the bf16 GGUF file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=RANGE, help="of the rescale; 0 for none")
    options = parser.parse_args()
    move_off_grid(options.source, options.out, options.seed, options.spread)


if __name__ == "__main__":
    main()
