from __future__ import annotations

import dataclasses

import gptq_oracle
import numpy as np
import pytest
from solver_cases import layer

from fewbit.errors import UsageError
from fewbit.formats import grid as grids
from fewbit.formats.registry import decode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.methods import refine as module
from fewbit.methods.gptq import gptq, gptq_refined
from fewbit.methods.hessian import DAMPING, SHRINKAGE
from fewbit.methods.refine import refine

FORMATS = ["int2-g32", "int4-g64-asym", "int4-row", "int8-row-asym", "int3-g16"]
FORMATS += ["q4_0", "q4_1", "q8_0", "q2_k", "q3_k", "q4_k", "q6_k", "iq4_nl", "iq4_xs", "mxfp4"]
COLUMNS = 512


def nearest(weight: np.ndarray, name: str) -> QuantTensor:
    grid = grids.fit(weight, parse_format(name))
    return grids.join(grids.nearest(weight, grid), grid)


def losses(weight: np.ndarray, tensor: QuantTensor, gram: np.ndarray) -> np.ndarray:
    error = weight.astype(np.float64) - decode(tensor)
    hessian = gptq_oracle.damped(gram, DAMPING, SHRINKAGE)
    return np.einsum("rc,rc->r", error @ hessian, error)


@pytest.mark.parametrize("name", FORMATS)
def test_no_row_gets_worse_and_the_loss_falls(name: str) -> None:
    weight, statistics = layer(70, COLUMNS)
    start = gptq(weight, statistics, parse_format(name)).tensor
    end = refine(weight, statistics, start)
    before, after = (losses(weight, tensor, statistics.gram) for tensor in (start, end))
    # The check was of the difference in float64: 512^2 roundings of 2^-53 of the loss.
    assert (after <= before * (1 + 1e-10)).all()
    assert after.sum() < 0.995 * before.sum()


@pytest.mark.parametrize("name", ["int4-g32", "q4_k", "int4-row"])
def test_it_is_a_minimum_for_every_single_code(name: str) -> None:
    """After many sweeps no code has a neighbour with less loss, by float64 over all columns."""
    weight, statistics = layer(20, 256, seed=1)
    tensor = gptq(weight, statistics, parse_format(name)).tensor
    for _ in range(8):
        tensor = refine(weight, statistics, tensor)
    codes, grid = grids.split(tensor)
    hessian = gptq_oracle.damped(statistics.gram, DAMPING, SHRINKAGE)
    error = weight.astype(np.float64) - decode(tensor)
    scales = np.repeat(grid.scales, grid.layout.group, axis=1).astype(np.float64)
    gains = []
    for step in (-1.0, 1.0):
        possible = (codes + step >= 0) & (codes + step < len(grid.layout.levels))
        move = step * scales
        loss = move**2 * hessian.diagonal() - 2 * move * (error @ hessian)
        gains.append(np.where(possible, -loss, 0))
    # A sweep that only a handful of codes of 5,120 would still change is at rest.
    assert (np.maximum(*gains) > 1e-9 * np.abs(error @ hessian).max()).sum() < 50


def test_scales_in_closed_form_are_the_minimum() -> None:
    """The step that `_least_loss` gives, against a solution of the whole system in float64."""
    weight, statistics = layer(9, 256, seed=2)
    tensor = nearest(weight, "int4-g32-f32")
    codes, grid = grids.split(tensor)
    hessian = gptq_oracle.damped(statistics.gram, DAMPING, SHRINKAGE)
    error = weight.astype(np.float64) - decode(tensor)
    slope = (error @ hessian).astype(np.float32)
    scales, _ = module._least_loss(grid, codes, slope, hessian.astype(np.float32))
    levels = (codes - 8.0).reshape(9, 8, 32)
    for row in range(9):
        basis = np.zeros((256, 8))
        for group in range(8):
            basis[group * 32 : group * 32 + 32, group] = levels[row, group]
        exact = np.linalg.solve(basis.T @ hessian @ basis, basis.T @ hessian @ weight[row])
        # A ridge of 1e-6 of the trace and float32 sums over 256 columns, on a system whose
        # condition is some hundreds.
        np.testing.assert_allclose(scales[row], exact, rtol=2e-3)


def test_it_improves_what_rounding_to_nearest_gave() -> None:
    weight, statistics = layer(64, COLUMNS, seed=3)
    start = nearest(weight, "q4_0")
    end = refine(weight, statistics, start)
    gram = statistics.gram
    assert losses(weight, end, gram).sum() < 0.75 * losses(weight, start, gram).sum()
    assert (end.codes != start.codes).any(axis=1).all()


@pytest.mark.parametrize("name", ["int4-g32", "q4_k", "int4-row"])
def test_bits_do_not_depend_on_threads(name: str) -> None:
    weight, statistics = layer(150, COLUMNS, seed=4)
    form = parse_format(name)
    one, two, three = (
        gptq_refined(weight, statistics, form, threads=threads).tensor for threads in (1, 2, 3)
    )
    np.testing.assert_array_equal(one.codes, two.codes)
    np.testing.assert_array_equal(one.codes, three.codes)


def test_a_worse_sweep_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check by row holds the promise even where a sweep breaks it."""
    weight, statistics = layer(70, COLUMNS, seed=5)
    start = gptq(weight, statistics, parse_format("int4-g32")).tensor
    curvature = module._Curvature.of(statistics)
    wrong = dataclasses.replace(curvature, factor=-curvature.factor)
    monkeypatch.setattr(module._Curvature, "of", staticmethod(lambda _: wrong))
    end = refine(weight, statistics, start)
    before, after = (losses(weight, tensor, statistics.gram) for tensor in (start, end))
    assert (after <= before * (1 + 1e-10)).all()
    assert (end.codes == start.codes).all(axis=1).mean() > 0.9


def test_remarks_are_those_of_gptq_and_the_gram_is_needed() -> None:
    weight, statistics = layer(8, COLUMNS, seed=6)
    statistics.gram[:32] = 0
    statistics.gram[:, :32] = 0
    solved = gptq_refined(weight, statistics, parse_format("int4-g32"))
    assert "32 of 512 inputs were never activated" in solved.remarks[0]
    with pytest.raises(UsageError, match="gptq-refined needs the Gram matrix"):
        refine(weight, None, solved.tensor)
