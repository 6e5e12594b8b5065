"""Products and attention in bf16 against float64, by the native core and by torch alike."""

import pytest
import torch
from test_reference import attention_op
from test_torch_native import HALF, halves

from fewbit.runtime import torch_native, torch_ops

pytestmark = pytest.mark.interop

SHAPES = [(1, 1, 1), (33, 31, 65), (70, 700, 40), (40, 30, 800), (530, 64, 33)]
"""Rows, depth and columns: less than a tile, edges of tiles, several blocks of each index."""


NATIVE = torch_native.multiplies()
"""Attention uses native products in all orders, where there are any."""


@pytest.fixture(params=["native", "torch"])
def multiplier(request, monkeypatch):
    """Let the native core multiply where this CPU can, or torch."""
    if request.param == "torch":
        monkeypatch.setattr(torch_native, "multiplies", lambda: False)


def columns_together(x):
    """Return an equal matrix whose columns lie in one piece."""
    return x.T.contiguous().T


def assert_products(found, left, right, before=0.0):
    """Check a product: rounded once to bf16, of float32 sums that round at each of their terms."""
    exact = left.double() @ right.double()
    sums = left.shape[1] * 2.0**-24 * (left.double().abs() @ right.double().abs())
    away = (found.double() - exact - before).abs()
    assert bool((away <= (exact + before).abs() * HALF + 2 * sums + 1e-30).all())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("turned", ["", "left", "right", "left right"])
def test_products_in_every_order_of_their_elements(shape, turned):
    rows, depth, columns = shape
    left, right = halves(rows, depth), halves(depth, columns, seed=1)
    left = columns_together(left) if "left" in turned else left
    right = columns_together(right) if "right" in turned else right
    found = torch_native.multiplied(left, right) if NATIVE else left @ right
    assert found.is_contiguous()
    assert_products(found, left, right)


def test_a_product_in_its_place_and_on_top(multiplier):
    left, right = halves(50, 40).T, halves(50, 70, seed=1)
    place = torch.full((41, 70), 7.0, dtype=torch.bfloat16)
    torch_ops.product_over_rows(left.T, right, out=place[:40])
    assert_products(place[:40], left, right)
    assert bool((place[40] == 7).all())
    before = place[:40].double()
    torch_ops.product_over_rows(left.T, right, out=place[:40], add=True)
    assert_products(place[:40], left, right, before)


def test_a_term_left_out_is_beyond_the_tolerance(multiplier):
    left, right = halves(65, 33), halves(65, 31, seed=1)
    assert_products(torch_ops.product_over_rows(left, right), left.T, right)
    with pytest.raises(AssertionError):
        assert_products(torch_ops.product_over_rows(left[:-1], right[:-1]), left.T, right)


@pytest.mark.parametrize("biased", [False, True])
def test_linear_layers_and_their_gradients(multiplier, biased):
    x, weight, bias = halves(2, 20, 48), halves(70, 48, seed=1), halves(70, seed=2)
    leaves = [part.clone().requires_grad_() for part in (x, weight, bias)]
    exact = [part.double().requires_grad_() for part in (x, weight, bias)]
    pull = halves(2, 20, 70, seed=3)
    found = torch_ops.linear(leaves[0], leaves[1], leaves[2] if biased else None)
    found.backward(pull)
    truth = torch.nn.functional.linear(exact[0], exact[1], exact[2] if biased else None)
    truth.backward(pull.double())
    # Sums of at most 70 products of size 10 in float32.
    torch.testing.assert_close(found.double(), truth.detach(), rtol=HALF, atol=1e-4)
    for leaf, slow in zip(leaves[: 2 + biased], exact, strict=False):
        torch.testing.assert_close(leaf.grad.double(), slow.grad, rtol=HALF, atol=1e-4)


def test_what_needs_no_gradient_gets_none(multiplier):
    x, weight = halves(3, 16), halves(8, 16, seed=1).requires_grad_()
    torch_ops.linear(x, weight).sum().backward()
    assert x.grad is None and weight.grad is not None


def exact_attention(q, k, v, op):
    """Return attention in float64, one query after another."""
    q, k, v = (part.unflatten(-1, (-1, op.head_dim)) for part in (q, k, v))
    share = op.heads // op.kv_heads
    rows = []
    for i in range(q.shape[1]):
        first = 0 if op.window is None else max(0, i + 1 - op.window)
        keys = k[:, first : i + 1].repeat_interleave(share, 2)
        values = v[:, first : i + 1].repeat_interleave(share, 2)
        scores = torch.einsum("bhd,bkhd->bhk", q[:, i], keys) * op.scale
        rows.append(torch.einsum("bhk,bkhd->bhd", torch.softmax(scores, -1), values))
    return torch.stack(rows, 1).flatten(-2)


def away(found, exact):
    """Return how far a tensor is from another, over the other's size."""
    return float((found.detach().double() - exact.detach()).norm() / exact.detach().norm())


@pytest.mark.parametrize("heads", [(6, 2), (2, 2)])
@pytest.mark.parametrize(("length", "window"), [(1, None), (37, 5), (150, None)])
def test_attention_and_its_gradients(multiplier, heads, length, window):
    """Scores of size 2 and probabilities round to bf16, by 2^-9 of themselves: 2^-8 of a value.

    Gradients take three such numbers. What is planted below is ten times as far.
    """
    op = attention_op(*heads, 16, window=window)
    parts = [halves(2, length, count * 16, seed=i) for i, count in enumerate((*heads, heads[1]))]
    leaves = [part.clone().requires_grad_() for part in parts]
    exact = [part.double().requires_grad_() for part in parts]
    pull = halves(2, length, heads[0] * 16, seed=5)
    found, truth = torch_ops.attend(*leaves, op), exact_attention(*exact, op)
    found.backward(pull)
    truth.backward(pull.double())
    assert away(found, truth) < HALF
    for leaf, slow in zip(leaves, exact, strict=True):
        if float(slow.grad.norm()) > 0:
            assert away(leaf.grad, slow.grad) < 2 * HALF
        else:
            assert float(leaf.grad.norm()) == 0


def test_a_key_too_many_is_beyond_the_tolerance(multiplier):
    wide, narrow = attention_op(6, 2, 16, window=6), attention_op(6, 2, 16, window=5)
    q, k, v = (halves(2, 37, count * 16, seed=i) for i, count in enumerate((6, 2, 2)))
    truth = exact_attention(q.double(), k.double(), v.double(), narrow)
    assert away(torch_ops.attend(q, k, v, wide), truth) > 10 * HALF
