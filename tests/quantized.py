"""Quantized matrices for tests: random and adversarial, in every format that the kernels read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.formats import affine, blocks, codebooks, kquants
from fewbit.formats.pack import unpack
from fewbit.formats.registry import BLOCK_FORMATS
from fewbit.formats.spec import BlockSpec, Granularity, QuantSpec, QuantTensor, ScaleType

BLOCKS = {
    "q4_0": blocks.Q4_0,
    "q4_1": blocks.Q4_1,
    "q5_0": blocks.Q5_0,
    "q5_1": blocks.Q5_1,
    "q8_0": blocks.Q8_0,
    "q2_k": kquants.Q2_K,
    "q3_k": kquants.Q3_K,
    "q4_k": kquants.Q4_K,
    "q5_k": kquants.Q5_K,
    "q6_k": kquants.Q6_K,
    "iq4_nl": codebooks.IQ4_NL,
    "iq4_xs": codebooks.IQ4_XS,
    "mxfp4": codebooks.MXFP4,
}
HALVES = ("q2_k", "q3_k", "q6_k")
"""Formats whose scales belong to 16 inputs, so that a run of 32 has two dots."""
FLOATS = {"f32": np.float32, "f16": np.float16, "bf16": np.uint16}
_AFFINE_KINDS = (
    (4, 32, True),
    (4, 32, False),
    (4, 128, True),
    (4, None, False),
    (2, 64, False),
    (2, 32, True),
    (3, 32, True),
    (3, 128, False),
    (5, 64, True),
    (5, 32, False),
    (6, 32, True),
    (6, 64, False),
    (7, 32, True),
    (7, None, False),
    (8, 32, True),
    (8, 32, False),
    (8, None, True),
)
AFFINE = (
    *(
        QuantSpec(bits, Granularity.GROUP if group else Granularity.ROW, group, symmetric)
        for bits, group, symmetric in _AFFINE_KINDS
    ),
    QuantSpec(8, Granularity.TENSOR, None, True),
)
INTEGER_FORMATS = (*BLOCKS, *AFFINE)


def format_id(form: str | QuantSpec) -> str:
    return form if isinstance(form, str) else form.name


def random_tensor(
    form: str | QuantSpec, rows: int, columns: int, rng: np.random.Generator
) -> QuantTensor:
    """Codes over their whole range; scales of either sign, some zero and some subnormal in fp16."""
    if isinstance(form, QuantSpec):
        return _random_affine(form, rows, columns, rng)
    spec = BLOCK_FORMATS[form].spec
    layout = BLOCKS[form]
    count = columns // spec.block_size
    raw = rng.integers(0, 256, (rows, count * spec.block_bytes), dtype=np.uint8)
    fields = raw.view(layout)
    for name in ("d", "m", "dmin"):
        if name in layout.names:
            fields[name] = _random_scales(fields[name].shape, rng)
    if form == "mxfp4":  # far from overflow; 0 and 1 are subnormal scales
        fields["e"] = rng.choice([0, 1, 2, *range(110, 140)], fields["e"].shape)
    return QuantTensor(spec, (rows, columns), raw)


def extreme_tensor(form: str | QuantSpec, rows: int, columns: int, *, high: bool) -> QuantTensor:
    """Every code at one end of its range, every scale 1."""
    rng = np.random.default_rng(0)
    tensor = random_tensor(form, rows, columns, rng)
    codes = np.full_like(tensor.codes, 255 if high else 0)
    if isinstance(form, QuantSpec):
        assert tensor.scales is not None
        zeros = None if tensor.zeros is None else np.zeros_like(tensor.zeros)
        return QuantTensor(tensor.spec, tensor.shape, codes, np.ones_like(tensor.scales), zeros)
    fields = codes.view(BLOCKS[form])
    if form == "q8_0":
        fields["codes"] = 127 if high else -128
    for name in ("d", "m", "dmin"):
        if name in fields.dtype.names:
            fields[name] = 1
    if form == "q6_k":
        fields["scales"] = 127
    if form == "mxfp4":
        fields["e"] = 128
    return QuantTensor(tensor.spec, tensor.shape, codes)


def random_floats(
    name: str, rows: int, columns: int, rng: np.random.Generator
) -> tuple[QuantTensor, NDArray[np.float32]]:
    """A float matrix and its values."""
    values = (rng.standard_normal((rows, columns)) * 0.1).astype(np.float32)
    spec = BLOCK_FORMATS[name].spec
    if name == "bf16":
        words = (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        values = (words.astype(np.uint32) << np.uint32(16)).view(np.float32)
        stored = words
    else:
        stored = values.astype(FLOATS[name])
        values = stored.astype(np.float32)
    return QuantTensor(spec, (rows, columns), stored.view(np.uint8)), values


@dataclass(frozen=True)
class Parts:
    """What the chain multiplies: w = scale (codes) + minimum."""

    codes: NDArray[np.int64]
    """u - z, [rows, columns]."""
    scales: NDArray[np.float32]
    """[rows, columns / 16]."""
    minima: NDArray[np.float32] | None
    """[rows, columns / 32], or columns / 16 for `HALVES`."""


def parts_of(tensor: QuantTensor) -> Parts:
    """Take a tensor apart without the code under test."""
    if isinstance(tensor.spec, QuantSpec):
        return _affine_parts(tensor)
    name, rows = tensor.spec.name, tensor.shape[0]
    fields = np.ascontiguousarray(tensor.codes).view(BLOCKS[name])
    ones = fields.copy()
    if name == "mxfp4":
        ones["e"] = 128
        scales = codebooks.half_of_e8m0(fields["e"])
        return Parts(_decoded(tensor.spec, ones), np.repeat(scales, 2, axis=1), None)
    ones["d"] = 1
    scales = fields["d"].astype(np.float32)
    minima = None
    if "scales" in fields.dtype.names or name == "iq4_xs":
        steps, minimum_steps = _steps(name, fields, ones)
        scales = (scales[..., None] * steps.astype(np.float32)).reshape(rows, -1)
        if minimum_steps is not None:
            ones["dmin"] = 0
            minima = -(fields["dmin"].astype(np.float32)[..., None] * minimum_steps)
            minima = minima.astype(np.float32).reshape(rows, -1)
    if "m" in fields.dtype.names:
        ones["m"] = 0
        minima = fields["m"].astype(np.float32)
    width = 1 if name in HALVES else 2
    return Parts(_decoded(tensor.spec, ones), np.repeat(scales, width, axis=1), minima)


def _decoded(spec: BlockSpec, fields: NDArray[np.void]) -> NDArray[np.int64]:
    decode = BLOCK_FORMATS[spec.name].decode
    assert decode is not None
    return decode(fields.view(np.uint8).reshape(len(fields), -1)).astype(np.int64)


def _steps(
    name: str, fields: NDArray[np.void], ones: NDArray[np.void]
) -> tuple[NDArray[np.generic], NDArray[np.generic] | None]:
    """Return the scales of the second level and those of the minima; set those in `ones` to 1."""
    if name == "iq4_xs":  # 33 - 32
        ones["low"], ones["high"] = 0x11, 0xAAAA
        return codebooks.unpack_iq4_xs_scales(fields["low"], fields["high"]), None
    if name == "q3_k":  # 33 - 32
        ones["scales"][..., :8], ones["scales"][..., 8:] = 0x11, 0xAA
        return kquants.unpack_q3_scales(fields["scales"]), None
    ones["scales"] = 1  # of Q4_K and Q5_K: runs 0-3, and no upper bits for the others
    if name == "q2_k":
        return fields["scales"] & np.uint8(15), fields["scales"] >> np.uint8(4)
    if name == "q6_k":
        return fields["scales"], None
    return kquants.unpack_scales(fields["scales"])


def _affine_parts(tensor: QuantTensor) -> Parts:
    spec = tensor.spec
    assert isinstance(spec, QuantSpec) and tensor.scales is not None
    rows, columns = tensor.shape
    codes = unpack(tensor.codes, spec.bits, columns).astype(np.int64)
    groups = tensor.scales.shape[1]

    def spread(x: NDArray[np.generic], width: int) -> NDArray[np.generic]:
        per_row = np.broadcast_to(x, (rows, groups))
        return np.repeat(per_row, width // groups, axis=1)

    zero = 1 << (spec.bits - 1)
    zeros = zero if tensor.zeros is None else spread(tensor.zeros.astype(np.int64), columns)
    scales = spread(tensor.scales.astype(np.float32), columns // 16)
    return Parts(codes - zeros, scales.astype(np.float32), None)


def _random_affine(
    spec: QuantSpec, rows: int, columns: int, rng: np.random.Generator
) -> QuantTensor:
    shape = spec.scale_shape((rows, columns))
    width = -(-columns * spec.bits // 8)
    zeros = None if spec.symmetric else rng.integers(0, spec.high + 1, shape, dtype=np.uint8)
    return QuantTensor(
        spec,
        (rows, columns),
        rng.integers(0, 256, (rows, width), dtype=np.uint8),
        _random_scales(shape, rng),
        zeros,
    )


def _random_scales(shape: tuple[int, ...], rng: np.random.Generator) -> NDArray[np.float16]:
    scales = (rng.standard_normal(shape) * 0.02).astype(np.float16)
    kind = rng.integers(0, 10, shape)
    scales[kind == 0] = 0
    scales[kind == 1] = np.float16(6e-8)  # the smallest subnormal
    return scales


def float32_scales(spec: QuantSpec) -> QuantSpec:
    """The same format with scales that no kernel reads."""
    return QuantSpec(spec.bits, spec.granularity, spec.group_size, spec.symmetric, ScaleType.F32)


def decoded(tensor: QuantTensor) -> NDArray[np.float32]:
    """Return the matrix as formats/ decodes it."""
    if isinstance(tensor.spec, QuantSpec):
        return affine.decode(tensor)
    decode = BLOCK_FORMATS[tensor.spec.name].decode
    assert decode is not None
    return decode(tensor.codes)
