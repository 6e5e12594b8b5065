"""Quantized matrices in torch: the same values as decoding, and gradients of what is stored."""

import numpy as np
import pytest
import torch

from fewbit.formats.grid import fit, join, nearest
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.tune.latent import as_half, as_power_of_two, latent
from fewbit.tune.matrix import GridMatrix

pytestmark = pytest.mark.interop

AFFINE = ["int4-g32", "int4-g64-asym", "int3-row", "int8-g32-asym-f32"]
BLOCKS = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
FORMATS = [*BLOCKS, "iq4_nl", "iq4_xs", "mxfp4", *AFFINE]


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantized(name, rows=6, columns=512):
    form = parse_format(name)
    weight = floats(rows, columns) * 0.1
    if name == "mxfp4":
        return encode(weight, form)
    grid = fit(weight, form)
    return join(nearest(weight, grid), grid)


def equal(one, other):
    return one.spec == other.spec and all(
        np.array_equal(getattr(one, part), getattr(other, part))
        for part in ("codes", "scales", "zeros")
        if getattr(one, part) is not None
    )


def shaken(name):
    """Return a matrix whose latents have moved off what can be stored."""
    matrix = GridMatrix(quantized(name))
    torch.manual_seed(0)
    for part in matrix.latents.values():
        part.move(torch.randn(part.value.shape), 0.03)
    return matrix


@pytest.mark.parametrize("name", FORMATS)
def test_values_are_those_of_decoding_bit_for_bit(name):
    tensor = quantized(name)
    found = GridMatrix(tensor).values(torch.float32).detach().numpy()
    np.testing.assert_array_equal(found, decode(tensor))


@pytest.mark.parametrize("name", FORMATS)
def test_an_untouched_matrix_is_exported_as_it_came(name):
    tensor = quantized(name)
    exported = GridMatrix(tensor).exported()
    if name == "mxfp4":  # its second zero comes back as the first
        np.testing.assert_array_equal(decode(exported), decode(tensor))
    else:
        assert equal(exported, tensor)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_exported_is_what_was_trained(name):
    matrix = shaken(name)
    exported = decode(matrix.exported())
    np.testing.assert_array_equal(matrix.values(torch.float32).detach().numpy(), exported)
    assert not np.array_equal(exported, decode(quantized(name))) or name == "mxfp4"
    tokens = torch.tensor([[3, 0], [3, 5]])
    np.testing.assert_array_equal(matrix.rows(tokens).detach().numpy(), exported[tokens.numpy()])
    halves = matrix.values(torch.bfloat16).detach()
    assert torch.equal(halves, torch.from_numpy(exported).bfloat16())


def test_an_unrounded_forward_pass_would_be_caught():
    """The negative control: without rounding, what is trained is not what is stored."""
    matrix = shaken("q4_0")
    raw = matrix.levels.float().unflatten(1, (-1, 32)) * matrix.latents["scale"].value.unsqueeze(-1)
    assert not np.array_equal(raw.flatten(1).detach().numpy(), decode(matrix.exported()))


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q4_k", "q6_k", "int4-g64-asym", "iq4_xs"])
def test_gradients_are_those_of_autograd(name):
    """Against the same formula left to autograd, summed in float64: sums of 256 products."""
    matrix = shaken(name)
    pull = torch.from_numpy(floats(*matrix.shape, seed=1))
    (matrix.values(torch.float32) * pull).sum().backward()
    leaves = {n: p.value.detach().double().requires_grad_() for n, p in matrix.latents.items()}
    stored = {
        n: leaves[n] + (p.exported().double() - leaves[n]).detach()
        for n, p in matrix.latents.items()
    }
    layout = matrix.layout
    ratio = layout.block // layout.group
    scales = stored["scale"].repeat_interleave(ratio, 1) * stored.get("steps", 1)
    levels = matrix.levels.double().unflatten(1, (-1, layout.group))
    if layout.offset.value == "zero":
        levels = levels - stored["offset_steps"].unsqueeze(-1)
    values = levels * scales.unsqueeze(-1)
    if layout.offset.value == "value":
        values = values + stored["offset"].unsqueeze(-1)
    if layout.offset.value == "steps":
        offsets = stored["offset"].repeat_interleave(ratio, 1) * stored["offset_steps"]
        values = values - offsets.unsqueeze(-1)
    (values.flatten(1) * pull.double()).sum().backward()
    for part, leaf in leaves.items():
        found = matrix.latents[part].value.grad.double()
        bound = 256 * 2.0**-24 * float(leaf.grad.abs().max()) + 1e-6
        torch.testing.assert_close(found, leaf.grad, rtol=1e-4, atol=bound)


def test_gradients_of_rows_add_up_where_a_row_comes_twice():
    matrix = shaken("q4_0")
    tokens = torch.tensor([2, 4, 2])
    pull = torch.from_numpy(floats(3, 512, seed=1))
    (matrix.rows(tokens) * pull).sum().backward()
    found = matrix.latents["scale"].value.grad.clone()
    matrix.latents["scale"].value.grad = None
    whole = torch.zeros(matrix.shape).index_add_(0, tokens, pull)
    (matrix.values(torch.float32) * whole).sum().backward()
    torch.testing.assert_close(found, matrix.latents["scale"].value.grad, rtol=1e-5, atol=1e-6)


def test_halves_and_powers_of_two():
    values = torch.tensor([1.0002, -70000.0, 3e-8, 0.0])
    assert as_half(values).tolist() == [1.0, -65504.0, float(np.float16(3e-8)), 0.0]
    assert as_power_of_two(torch.tensor([3.1, 0.24, 0.0])).tolist() == [4.0, 0.25, 2.0**-128]


def test_a_value_at_zero_can_leave_it():
    part = latent(torch.tensor([0.0, 4.0]), as_half, 0.5)
    part.move(torch.tensor([1.0, -1.0]), 0.1)
    torch.testing.assert_close(part.value.detach(), torch.tensor([0.05, 3.6]))
