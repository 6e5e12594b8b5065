"""Law 1 over every linear kernel: a row's outputs have the same bits in any company, for any cut of
rows and outputs, on every instruction set. The kernels come from the product's own tables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import pytest
from bits import same_bits
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kernel_cases import (
    CHAINS,
    FORMATS,
    INPUT_SCALE,
    KERNELS,
    SPLIT,
    Kernel,
    random_matrix,
)

from fewbit import _native
from fewbit.formats.spec import NumberFormat
from fewbit.runtime import chooser
from fewbit.runtime.pack import pack

ISAS = _native.available_isas()
ARENA = _native.PackedArena()
Multiply = Callable[..., np.ndarray]

MULTIPLY: dict[str, Multiply] = {
    "a8.g32": _native.multiply,
    "a8.token": partial(_native.multiply, activations="int8-token"),
    "a8.static": partial(_native.multiply, activations="int8-static", input_scale=INPUT_SCALE),
    "abf16": _native.multiply_weight_only,
    "f32": _native.multiply,
    SPLIT: lambda weights, x, bias, _isa, **cut: _native.multiply_split(weights, x, bias, **cut),
}
"""What multiplies, by the activations' part of a kernel id."""

SEARCH = settings(
    max_examples=2000,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
PLANTED = settings(SEARCH, max_examples=200, phases=(Phase.generate,), report_multiple_bugs=False)
"""For bugs planted below: 200 examples must see them; the smallest one is of no interest."""


def random_rows(rows: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of different sizes, so that a scale taken from a neighbour changes codes."""
    sizes = 4.0 ** rng.integers(-3, 4, (rows, 1))
    return (rng.standard_normal((rows, columns)) * sizes).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """A product, and one way to cut it."""

    kernel: Kernel
    seed: int
    shape: tuple[int, int]
    """Outputs and columns."""
    first: int
    rows: int
    """The rows run together: `rows` from `first` on, of `first` + `rows`."""
    isa: str
    tiles_at_once: int = 0
    rows_at_once: int = 0
    bias: bool = True


@st.composite
def cases(draw: st.DrawFn, kernels: tuple[Kernel, ...] = KERNELS) -> Case:
    """1 to 16 rows most of the time, else a prompt's; columns about a chunk of 512 and beyond."""
    kernel = draw(st.sampled_from(kernels))
    step = kernel.step
    steps = draw(st.integers(1, max(1, 160 // step)) | st.sampled_from((512 // step, 1088 // step)))
    return Case(
        kernel,
        seed=draw(st.integers(0, 7)),
        shape=(draw(st.integers(1, 50)), max(steps, 1) * step),
        first=draw(st.integers(0, 17)),
        rows=draw(st.integers(1, 16) | st.integers(17, 40)),
        isa=draw(st.sampled_from(kernel.isas)),
        tiles_at_once=draw(st.integers(0, 3)),
        rows_at_once=draw(st.integers(0, 20)),
        bias=draw(st.booleans()),
    )


@cache
def packed(form: NumberFormat, shape: tuple[int, int], seed: int) -> _native.PackedMatrix:
    return pack(random_matrix(form, *shape, np.random.default_rng(seed)), arena=ARENA)


def require_invariance(case: Case, multiply: Multiply) -> None:
    """Each row in the case's company and cut is that row alone, on the best instruction set."""
    weights = packed(case.kernel.form, case.shape, case.seed)
    rng = np.random.default_rng(case.seed + 1)
    x = random_rows(case.first + case.rows, case.shape[1], rng)[case.first :]
    bias = None
    if case.bias:  # as large as the products, so that its place in the chain leaves a trace
        size = np.abs(multiply(weights, x[:1], None, ISAS[0])).max()
        bias = (rng.standard_normal(case.shape[0]) * size).astype(np.float32)
    together = multiply(
        weights,
        x,
        bias,
        case.isa,
        tiles_at_once=case.tiles_at_once,
        rows_at_once=case.rows_at_once,
    )
    alone = np.concatenate([multiply(weights, row[None], bias, ISAS[0]) for row in x])
    assert np.isfinite(alone).all()
    assert same_bits(together, alone)


# --- the law ------------------------------------------------------------------------------------


@pytest.mark.parametrize("chain", CHAINS)
def test_every_kernel_and_number_of_rows(chain: str):
    """1 to 16 rows and blocked sizes on every instruction set, against the rows one by one on the
    last of them, portable where it has the kernel."""
    kernel = CHAINS[chain]
    multiply, step = MULTIPLY[kernel.family.activations], kernel.step
    columns = -(-576 // step) * step  # more than one chunk of 512
    weights = packed(kernel.form, (37, columns), seed=1)
    x = random_rows(33, columns, np.random.default_rng(2))
    alone = np.concatenate([multiply(weights, row[None], None, kernel.isas[-1]) for row in x])
    for isa in kernel.isas:
        for rows in (*range(1, 18), 33):
            assert same_bits(multiply(weights, x[-rows:], None, isa), alone[-rows:])


@SEARCH
@given(cases())
def test_any_shape_company_and_cut(case: Case):
    require_invariance(case, MULTIPLY[case.kernel.family.activations])


@settings(SEARCH, max_examples=500)
@given(
    isa=st.sampled_from(ISAS),
    seed=st.integers(0, 2**32),
    shape=st.tuples(st.integers(1, 40), st.integers(1, 9)),
    activations=st.sampled_from(["int8-g32", "int8-token", "int8-static"]),
)
def test_rounded_activations_are_those_of_the_row_alone(
    isa: str, seed: int, shape: tuple[int, int], activations: str
):
    rows, runs = shape
    x = random_rows(rows, 32 * runs, np.random.default_rng(seed))
    row = seed % rows
    together = _native.quantize_activations(x, isa, activations, INPUT_SCALE)
    alone = _native.quantize_activations(x[row : row + 1], ISAS[0], activations, INPUT_SCALE)
    for ours, truth in zip(together, alone, strict=True):
        assert ours[row].tobytes() == truth[0].tobytes()


# --- nothing left out ---------------------------------------------------------------------------


def test_every_kernel_of_the_chooser_is_covered():
    """What is swept has every family of kernels and every format that one reads, on each of this
    machine's instruction sets."""
    families = {family.activations for family in chooser.FAMILIES}
    assert families == set(MULTIPLY)
    if "amx" not in ISAS:
        families -= {SPLIT}
    assert {kernel.family.activations for kernel in CHAINS.values()} == families
    assert {kernel.form for kernel in KERNELS} == set(FORMATS)
    assert {chain.split("/")[0].split(".")[0] for chain in CHAINS} >= {"w4", "w8", "f32", "bf16"}
    ends = [isas for family in chooser.FAMILIES for isas in family.isas.values()]
    assert {isa for isas in ends for isa in isas} == set(chooser.ISAS) >= set(ISAS)
    assert ISAS[-1] == "portable"


def test_a_format_that_becomes_readable_is_found(monkeypatch: pytest.MonkeyPatch):
    """Negative control: with one format hidden from the tables, the lists above differ."""
    import kernel_cases  # noqa: PLC0415

    hidden = FORMATS[-1]
    real = kernel_cases.obstacle
    monkeypatch.setattr(
        kernel_cases, "obstacle", lambda t: "hidden" if t.spec == hidden else real(t)
    )
    assert not kernel_cases.is_read(hidden)
    assert kernel_cases.is_read(FORMATS[0])


# --- planted bugs: the search must see each of them ----------------------------------------------


def with_one_scale_for_the_batch(weights, x, bias, isa, **cut):
    """Activations rounded by a scale of the whole batch."""
    scale = np.abs(x).max() / np.float32(127)
    return _native.multiply(weights, np.rint(x / scale) * scale, bias, isa, **cut)


def with_the_inputs_shared_out(weights, x, bias, isa, **cut):
    """More than four rows: two threads take half of the inputs each, and their sums are added."""
    if len(x) <= 4:
        return _native.multiply(weights, x, bias, isa, **cut)
    left, right = x.copy(), x.copy()
    half = x.shape[1] // 2 // 32 * 32
    left[:, half:] = 0
    right[:, :half] = 0
    parts = [_native.multiply(weights, part, None, isa, **cut) for part in (left, right)]
    return parts[0] + parts[1] + (0 if bias is None else bias)


def with_a_bias_that_starts_the_chain(weights, x, bias, isa, **cut):
    """On all but the best kernel, half of the bias is added first."""
    out = _native.multiply(weights, x, bias, isa, **cut)
    if bias is None or isa == ISAS[0]:
        return out
    return (out - bias / 2) + bias / 2


def with_a_lost_cut(weights, x, bias, isa, **cut):
    """A cut within a block of 16 rows gives the row behind it the one before it."""
    out = _native.multiply(weights, x, bias, isa, **cut)
    row = cut.get("rows_at_once", 0)
    if row % 16 and len(x) > row:
        out[row] = out[row - 1]
    return out


@pytest.mark.parametrize(
    "planted",
    [
        with_one_scale_for_the_batch,
        with_the_inputs_shared_out,
        with_a_bias_that_starts_the_chain,
        with_a_lost_cut,
    ],
)
@pytest.mark.parametrize("kind", ["integers", "floats"])
def test_the_search_sees_a_planted_bug(planted: Multiply, kind: str):
    activations = {"floats": "f32", "integers": "a8.g32"}[kind]
    kernels = tuple(k for k in KERNELS if k.family.activations == activations)

    @PLANTED
    @given(cases(kernels))
    def search(case: Case) -> None:
        require_invariance(case, planted)

    with pytest.raises(AssertionError):
        search()
