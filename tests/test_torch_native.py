"""The native passes of tuning against the same formulas in torch, and alike on all CPUs."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from fewbit import _native
from fewbit.runtime import torch_native

pytestmark = pytest.mark.interop

ISAS = _native.available_isas()
HALF = 2.0**-8
"""Rounding to bf16 errs by at most 2^-9 of a value; twice that leaves room for float32 sums."""


def floats(*shape, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return torch.from_numpy((random.standard_normal(shape) * scale).astype(np.float32))


def halves(*shape, **how):
    return floats(*shape, **how).bfloat16()


@pytest.fixture(params=ISAS)
def isa(request, monkeypatch):
    monkeypatch.setattr(torch_native, "choose_isa", lambda _: request.param)
    return request.param


def grid(kind, rows=5, groups=3, size=32):
    random = np.random.default_rng(1)
    low, high = (-128, 128) if kind is torch.int8 else (0, 256)
    levels = torch.from_numpy(random.integers(low, high, (rows, groups * size))).to(kind)
    zeros = torch.from_numpy(random.integers(0, 16, (rows, groups)).astype(np.float32))
    return levels, floats(rows, groups), floats(rows, groups, seed=2), zeros


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
@pytest.mark.parametrize("shifted", ["", "offsets", "zeros"])
def test_values_have_the_bits_of_the_formula(isa, kind, shifted):
    levels, scales, offsets, zeros = grid(kind)
    expected = levels.float().unflatten(1, (3, 32))
    if shifted == "zeros":
        expected = expected - zeros.unsqueeze(-1)
    expected = expected * scales.unsqueeze(-1)
    if shifted == "offsets":
        expected = expected + offsets.unsqueeze(-1)
    found = torch_native.dequantized(
        levels,
        scales,
        offsets if shifted == "offsets" else None,
        zeros if shifted == "zeros" else None,
    )
    assert torch.equal(found, expected.flatten(1).bfloat16())


@pytest.mark.parametrize("kind", [torch.int8, torch.uint8])
def test_sums_over_groups(isa, kind):
    levels, scales, _, zeros = grid(kind)
    gradient = halves(*levels.shape, seed=3)
    pull = gradient.double().unflatten(1, (3, 32))
    centred = levels.double().unflatten(1, (3, 32)) - zeros.double().unsqueeze(-1)
    products, sums = torch_native.gathered(levels, scales, zeros, gradient, sums=True)
    # 32 float32 additions of products of size 100.
    torch.testing.assert_close(products.double(), (pull * centred).sum(-1), rtol=0, atol=1e-2)
    torch.testing.assert_close(sums.double(), pull.sum(-1), rtol=0, atol=1e-4)
    plain, none = torch_native.gathered(levels, scales, None, gradient, sums=False)
    assert none is None and not torch.equal(plain, products)


def seen(length, window):
    own, other = torch.arange(length)[:, None], torch.arange(length)[None, :]
    return (other <= own) & (other > own - (window or length))


@pytest.mark.parametrize("length", [1, 16, 37])
@pytest.mark.parametrize("window", [None, 5])
def test_softmax_and_its_gradient(isa, length, window):
    scores = halves(2 * length, length, scale=4.0)
    hidden = ~seen(length, window).repeat(2, 1)
    exact = scores.double().requires_grad_()
    p = torch.softmax((exact * 0.3).masked_fill(hidden, -torch.inf), -1)
    pull = halves(*scores.shape, seed=1)
    found = scores.clone()
    torch_native.seen_softmax(found, 0.3, window)
    torch.testing.assert_close(found.double(), p.detach(), rtol=HALF, atol=1e-12)
    assert float(found[hidden].abs().sum()) == 0
    p.backward(pull.double())
    back = pull.clone()
    torch_native.seen_softmax_back(back, found, 0.3, window)
    # g - sum p g cancels: probabilities off by 2^-9 each move it by as much of |g|, at most 4.
    torch.testing.assert_close(back.double(), exact.grad, rtol=2 * HALF, atol=4 * HALF * 0.3)
    assert float(back[hidden].abs().sum()) == 0


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("vocabulary", [16, 321])
def test_divergences_and_their_pull(isa, cap, vocabulary):
    theirs, ours = halves(7, vocabulary, scale=3.0), halves(7, vocabulary, seed=1, scale=3.0)
    shares = floats(7, seed=2).abs()
    exact = ours.double().requires_grad_()
    t, s = theirs.double(), exact
    if cap is not None:
        t, s = cap * torch.tanh(t / cap), cap * torch.tanh(s / cap)
    p, q = torch.log_softmax(t, -1), torch.log_softmax(s, -1)
    rows = (p.exp() * (p - q)).sum(-1)
    (rows * shares.double()).sum().backward()
    found = ours.clone()
    kl = torch_native.pulled(theirs, found, shares, (cap, cap))
    torch.testing.assert_close(kl.double(), rows.detach(), rtol=1e-5, atol=1e-6)
    # q - p cancels where both are alike: the error is one of float32, then of bf16.
    torch.testing.assert_close(found.double(), exact.grad, rtol=HALF, atol=1e-6)


def test_equal_logits_do_not_pull(isa):
    logits = halves(3, 100)
    ours = logits.clone()
    kl = torch_native.pulled(logits, ours, torch.ones(3), (None, None))
    assert float(kl.abs().max()) < 1e-6 and float(ours.abs().max()) == 0


@pytest.mark.parametrize("gelu", [False, True])
def test_gated_activations(isa, gelu):
    gate, up = halves(3, 37, scale=3.0), halves(3, 37, seed=1)
    leaves = gate.double().requires_grad_(), up.double().requires_grad_()
    bent = functional.gelu(leaves[0], approximate="tanh") if gelu else functional.silu(leaves[0])
    exact = bent * leaves[1]
    pull = halves(3, 37, seed=2)
    exact.backward(pull.double())
    found = torch_native.gated(gate, up, gelu=gelu)
    torch.testing.assert_close(found.double(), exact.detach(), rtol=HALF, atol=1e-5)
    back = torch_native.gated_back(pull, gate, up, gelu=gelu)
    for part, leaf in zip(back, leaves, strict=True):
        torch.testing.assert_close(part.double(), leaf.grad, rtol=HALF, atol=1e-5)


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("rows", "width"), [(3, 16), (130, 37)])
def test_norms_and_their_gradients(isa, kind, rows, width):
    x, factor = floats(rows, width).to(kind), floats(width, seed=1)
    leaves = x.double().requires_grad_(), factor.double().requires_grad_()
    exact = leaves[0] / (leaves[0].square().mean(-1, keepdim=True) + 1e-3).sqrt() * leaves[1]
    pull = halves(rows, width, seed=2)
    exact.backward(pull.double())
    found, inverse = torch_native.normed(x, factor, 1e-3)
    torch.testing.assert_close(found.double(), exact.detach(), rtol=HALF, atol=1e-6)
    towards, towards_factor = torch_native.normed_back(pull, x, factor, inverse)
    assert towards.dtype is kind
    # Differences of float32 numbers of size 10; sums of 130 products of size 4.
    torch.testing.assert_close(
        towards.double(), leaves[0].grad, rtol=HALF if kind is torch.bfloat16 else 0, atol=1e-5
    )
    torch.testing.assert_close(towards_factor.double(), leaves[1].grad, rtol=0, atol=1e-4)


def angles(length, half):
    turns = floats(length, half).double()
    return torch.cat([turns.cos(), turns.sin()], -1).float()


@pytest.mark.parametrize("half", [4, 32])
def test_rotations_have_the_bits_of_the_formula(isa, half):
    x, table = halves(2, 5, 3 * 2 * half), angles(5, half)
    cosine, sine = table[:, None, :half], table[:, None, half:]
    a, b = x.float().unflatten(-1, (3, 2, half)).unbind(-2)
    turned = torch.cat([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2)
    found = torch_native.rotated(x, table, back=False)
    assert torch.equal(found, turned.bfloat16())
    # Two roundings to bf16 of coordinates of size 4.
    back = torch_native.rotated(found, table, back=True)
    torch.testing.assert_close(back, x, rtol=HALF, atol=4 * HALF)


def test_all_instruction_sets_give_the_same_bits(monkeypatch):
    found = []
    for name in ISAS:
        monkeypatch.setattr(torch_native, "choose_isa", lambda _, name=name: name)
        theirs, ours = halves(4, 321, scale=3.0), halves(4, 321, seed=1, scale=3.0)
        scores = halves(37, 37)
        torch_native.seen_softmax(scores, 0.3, None)
        kl = torch_native.pulled(theirs, ours, torch.ones(4), (None, 5.0))
        norm = torch_native.normed(theirs, floats(321), 1e-3)
        back = torch_native.normed_back(ours, theirs, floats(321), norm[1])
        gates = torch_native.gated_back(ours, theirs, theirs, gelu=True)
        turned = torch_native.rotated(theirs[:, :320].contiguous(), angles(4, 20), back=True)
        found.append((ours, kl, scores, *norm, *back, *gates, turned))
    for others in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], others, strict=True))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="equal logits"):
        torch_native.pulled(halves(2, 16), halves(2, 32), torch.ones(2), (None, None))
    with pytest.raises(ValueError, match="share a depth"):
        torch_native.multiplied(halves(2, 16), halves(32, 2))
    with pytest.raises(ValueError, match="rows and the right one's columns"):
        torch_native.multiplied(halves(2, 16), halves(16, 2), out=halves(2, 3))
    with pytest.raises(ValueError, match="whole sequences"):
        torch_native.rotated(halves(3, 32), angles(2, 16), back=False)
    with pytest.raises(ValueError, match="a factor for each column"):
        torch_native.normed(halves(3, 32), floats(31), 1e-3)
    with pytest.raises(ValueError, match="of 16 columns"):
        torch_native.dequantized(torch.zeros(2, 24, dtype=torch.int8), floats(2, 1), None, None)
