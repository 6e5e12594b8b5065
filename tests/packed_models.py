"""Folders as other tools pack them, made bit by bit from the descriptions of their formats.

Nothing here uses the packers under test: a row of codes is one large Python integer.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tiny_models import CONFIGS, random_weights

AWQ_NIBBLES = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Integers:
    """A matrix of unsigned codes: value = scale * (code - zero), all of the code's group."""

    bits: int
    codes: np.ndarray
    """[outputs, inputs]."""
    scales: np.ndarray
    """float32 that bf16 holds too, [outputs, groups]."""
    zeros: np.ndarray
    """[outputs, groups]."""
    group_of: np.ndarray
    """[inputs]."""

    def values(self) -> np.ndarray:
        zeros = self.zeros[:, self.group_of]
        scales = self.scales[:, self.group_of].astype(np.float32)
        return scales * (self.codes.astype(np.int64) - zeros).astype(np.float32)


def random_integers(
    seed: int, shape: tuple[int, int], bits: int, group: int | None, *, symmetric: bool
) -> Integers:
    """Random codes; scales that bf16 and fp16 both hold, of the size that weights need."""
    rng = np.random.default_rng(seed)
    outputs, inputs = shape
    size = group or inputs
    groups = -(-inputs // size)
    scales = rng.integers(128, 256, (outputs, groups)) * 2.0 ** -(7 + bits + 2)
    zeros = np.full((outputs, groups), 1 << (bits - 1))
    if not symmetric:
        zeros = rng.integers(1, 1 << bits, (outputs, groups))
    return Integers(
        bits,
        rng.integers(0, 1 << bits, shape),
        scales.astype(np.float32),
        zeros,
        np.arange(inputs) // size,
    )


def words(row: np.ndarray, bits: int, *, padded: bool = False) -> list[int]:
    """The 32-bit words of a row of codes: dense, or 32 // bits in each."""
    if padded:
        step = 32 // bits
        return [_number(row[i : i + step], bits) for i in range(0, len(row), step)]
    whole = _number(row, bits)
    return [whole >> shift & 0xFFFFFFFF for shift in range(0, len(row) * bits, 32)]


def pack_rows(codes: np.ndarray, bits: int, *, padded: bool = False) -> np.ndarray:
    rows = [words(row, bits, padded=padded) for row in codes]
    return np.array(rows, np.uint32).view(np.int32)


def compressed(matrix: Integers, *, symmetric: bool, padded: bool = False) -> dict[str, np.ndarray]:
    """What compressed-tensors stores for a module in pack-quantized, without its name."""
    stored = {
        "weight_packed": pack_rows(matrix.codes, matrix.bits, padded=padded),
        "weight_scale": bf16(matrix.scales),
        "weight_shape": np.array(matrix.codes.shape, np.int64),
    }
    if not symmetric:
        stored["weight_zero_point"] = pack_rows(matrix.zeros.T, matrix.bits, padded=padded).T.copy()
    return stored


def gptq(matrix: Integers, version: int = 1, *, index: bool = True) -> dict[str, np.ndarray]:
    """What GPTQ stores for a module."""
    zeros = matrix.zeros.T - (1 if version == 1 else 0)
    stored = {
        "qweight": pack_rows(matrix.codes, matrix.bits).T.copy(),
        "qzeros": pack_rows(zeros & ((1 << matrix.bits) - 1), matrix.bits),
        "scales": matrix.scales.T.astype(np.float16),
    }
    return stored | ({"g_idx": matrix.group_of.astype(np.int32)} if index else {})


def awq(matrix: Integers) -> dict[str, np.ndarray]:
    """What AWQ stores for a module."""

    def ordered(codes: np.ndarray) -> np.ndarray:
        runs = codes.reshape(len(codes), -1, 8)[:, :, AWQ_NIBBLES]
        return pack_rows(runs.reshape(codes.shape), 4)

    return {
        "qweight": ordered(matrix.codes.T),
        "qzeros": ordered(matrix.zeros.T),
        "scales": matrix.scales.T.astype(np.float16),
    }


def bf16(values: np.ndarray) -> Any:
    """Values that bf16 holds, marked for `write_folder`."""
    bits = values.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any()
    return Bf16((bits >> np.uint32(16)).astype(np.uint16))


@dataclass(frozen=True)
class Bf16:
    """The bits of a bf16 tensor, which NumPy has no type for."""

    bits: np.ndarray


@dataclass(frozen=True)
class E4m3:
    """The bytes of an e4m3 tensor."""

    codes: np.ndarray


_NAMES = {
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}


def write_folder(
    folder: Path,
    config: dict[str, Any],
    tensors: dict[str, Any],
    metadata: dict[str, str] | None = None,
) -> Path:
    """Write config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    body = b""
    for name, tensor in tensors.items():
        kind = {Bf16: "BF16", E4m3: "F8_E4M3"}.get(type(tensor)) or _NAMES[str(tensor.dtype)]
        array = getattr(tensor, "bits", getattr(tensor, "codes", tensor))
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    head = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + body)
    return folder


def modules_of(weights: dict[str, np.ndarray]) -> list[str]:
    """The linear layers inside the decoder layers."""
    inside = (n for n in weights if ".layers." in n and n.endswith("_proj.weight"))
    return [name.removesuffix(".weight") for name in inside]


def packed_llama(
    folder: Path,
    pack: Any,
    quantization: dict[str, Any],
    matrices: dict[str, Integers],
    **changes: Any,
) -> Path:
    """Write the tiny Llama with some modules packed.

    Args:
        folder: where.
        pack: gives a module's stored tensors from its integers.
        quantization: the quantization_config.
        matrices: the modules.
        changes: of the configuration.
    """
    config = {**CONFIGS["llama"], **changes}
    tensors: dict[str, Any] = dict(random_weights(config))
    for module, matrix in matrices.items():
        del tensors[f"{module}.weight"]
        tensors |= {f"{module}.{part}": array for part, array in pack(matrix).items()}
    return write_folder(folder, {**config, "quantization_config": quantization}, tensors)


def llama_integers(
    bits: int, group: int | None, *, symmetric: bool, **changes: Any
) -> dict[str, Integers]:
    """Random integers for every linear layer of the tiny Llama."""
    weights = random_weights({**CONFIGS["llama"], **changes})
    return {
        module: random_integers(
            seed, weights[f"{module}.weight"].shape, bits, group, symmetric=symmetric
        )
        for seed, module in enumerate(modules_of(weights))
    }


def _number(codes: np.ndarray, bits: int) -> int:
    return sum(int(code) << i * bits for i, code in enumerate(codes))
