"""Every weight format that a kernel reads, found in the product's own tables, and random matrices
in each, so that a format that is new there is tested without being named here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product
from math import lcm

import numpy as np

from fewbit._native import available_isas
from fewbit.formats.registry import BF16, BLOCK_FORMATS, FLOATS, FP8, decode, encode
from fewbit.formats.spec import (
    BlockSpec,
    Granularity,
    NumberFormat,
    QuantSpec,
    QuantTensor,
    ScaleType,
)
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.chooser import FAMILIES, Demand, Family, choose
from fewbit.runtime.pack import RUN, obstacle, packed_form

INPUT_SCALE = 1 / 64
"""Of static activations: inputs of deviation 1 take a half of the codes, and large ones clip."""

SPLIT = "f32.split"
"""Of AMX alone, and of bf16 weights."""

GROUPS = (32, 64, 128)
"""Groups of the affine formats tried; a kernel reads any multiple of 32 by the same code."""


def affine_formats() -> Iterable[QuantSpec]:
    """Every affine format, readable or not."""
    for bits, symmetric, scales in product(range(2, 9), (True, False), ScaleType):
        for granularity in Granularity:
            groups = GROUPS if granularity is Granularity.GROUP else (None,)
            for group in groups:
                yield QuantSpec(bits, granularity, group, symmetric, scales)


def column_step(form: NumberFormat) -> int:
    """The number of columns of a matrix in this format is a multiple of this one."""
    if isinstance(form, QuantSpec):
        return form.group_size or RUN
    return lcm(RUN, form.block_size) if isinstance(form, BlockSpec) and form not in FLOATS else 1


def is_read(form: NumberFormat) -> bool:
    """Whether a kernel reads the format."""
    if isinstance(form, BlockSpec) and BLOCK_FORMATS[form.name].decode is None:
        return False
    columns = max(column_step(form), 2 * RUN)
    return obstacle(random_matrix(form, 16, columns, np.random.default_rng(0))) is None


def random_matrix(
    form: NumberFormat, rows: int, columns: int, rng: np.random.Generator
) -> QuantTensor:
    """Return a matrix whose codes and scales take their whole range, its values 2^-10 to 2."""
    if isinstance(form, QuantSpec):
        return _random_affine(form, rows, columns, rng)
    if isinstance(form, BlockSpec) and form not in FLOATS:
        return _random_blocks(form, rows, columns, rng)
    return encode(rng.standard_normal((rows, columns), np.float32), form)


def _random_affine(
    form: QuantSpec, rows: int, columns: int, rng: np.random.Generator
) -> QuantTensor:
    shape = form.scale_shape((rows, columns))
    codes = rng.integers(0, 256, (rows, -(-columns * form.bits // 8)), dtype=np.uint8)
    scales = rng.choice([-1, 1], shape) * rng.uniform(0.5, 2, shape) / (form.high - form.low)
    zeros = None if form.symmetric else rng.integers(0, form.high + 1, shape, dtype=np.uint8)
    kind = np.float16 if form.scale_type is ScaleType.F16 else np.float32
    return QuantTensor(form, (rows, columns), codes, scales.astype(kind), zeros)


def _random_blocks(
    form: BlockSpec, rows: int, columns: int, rng: np.random.Generator
) -> QuantTensor:
    """Random bytes; blocks whose values are out of range give way to others."""
    count = rows * columns // form.block_size
    kept: list[np.ndarray] = []
    for _ in range(1000):
        raw = rng.integers(0, 256, (64, form.block_bytes), dtype=np.uint8)
        largest = np.abs(decode(QuantTensor(form, (64, form.block_size), raw))).max(axis=1)
        kept.extend(raw[(largest > 2.0**-10) & (largest < 2)])  # false where it is NaN
        if len(kept) >= 16:
            break
    assert kept, f"no random block of {form.name} has values between 2^-10 and 2"
    codes = np.stack(kept)[rng.integers(0, len(kept), count)].reshape(rows, -1)
    return QuantTensor(form, (rows, columns), np.ascontiguousarray(codes))


_KNOWN = (*(f.spec for f in BLOCK_FORMATS.values()), *FP8, *affine_formats())

FORMATS = tuple(form for form in _KNOWN if is_read(form))
"""Every format that a kernel reads."""


@dataclass(frozen=True)
class Kernel:
    """A format and one of the families that read it: what decides a result's bits."""

    form: NumberFormat
    family: Family

    @property
    def isas(self) -> tuple[str, ...]:
        """The instruction sets of this machine whose executors run it, best first."""
        running = {isa for isas in self.family.isas.values() for isa in isas}
        return tuple(isa for isa in available_isas() if isa in running)

    @property
    def step(self) -> int:
        """Columns are a multiple of this."""
        return RUN if self.family.activations == SPLIT else column_step(self.form)

    def record(self, slot: str, tensor: QuantTensor) -> KernelRecord:
        """Return the chooser's record for a matrix that this kernel is to run."""
        isa = "portable" if self.family.activations == "f32" else None  # tiles come before it
        demand = Demand(isa=isa, activations=self.family.rounding, input_scale=INPUT_SCALE)
        return choose(slot, tensor, demand)

    @property
    def chain(self) -> str:
        """The kernel id without its instruction set."""
        columns = max(self.step, RUN)
        tensor = random_matrix(self.form, 16, columns, np.random.default_rng(0))
        return self.record("slot", tensor).kernel.rsplit("/", 1)[0]


def _families(form: NumberFormat) -> Iterable[Family]:
    columns = max(column_step(form), RUN)
    kind = packed_form(random_matrix(form, 16, columns, np.random.default_rng(0))).kind
    return (f for f in FAMILIES if kind in f.reads and (f.activations != SPLIT or form is BF16))


_ALL = (Kernel(form, family) for form in FORMATS for family in _families(form))

KERNELS = tuple(kernel for kernel in _ALL if kernel.isas)
"""Those that this machine can run."""

CHAINS = {kernel.chain: kernel for kernel in KERNELS}
"""Every kernel id without its instruction set, and a kernel of that id."""
