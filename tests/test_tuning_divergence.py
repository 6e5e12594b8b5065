"""The divergence and its gradients against their formulas in float64."""

import math

import numpy as np
import pytest
import torch

from fewbit.tune import divergence as module
from fewbit.tune.divergence import Outputs, divergence, row_divergences

pytestmark = pytest.mark.interop


def outputs(seed, cap=None, rows=9):
    random = np.random.default_rng(seed)
    states = torch.from_numpy(random.standard_normal((rows, 16)).astype(np.float32))
    table = torch.from_numpy(random.standard_normal((40, 16)).astype(np.float32))
    return Outputs(states, table, cap)


def by_loops(source, student):
    """Return the divergence of each row, one token at a time, in float64."""
    found = []
    for r in range(len(source.states)):
        logs = []
        for side in (source, student):
            logits = [float(side.states[r].double() @ row.double()) for row in side.table]
            if side.cap is not None:
                logits = [side.cap * math.tanh(x / side.cap) for x in logits]
            total = math.log(math.fsum(math.exp(x - max(logits)) for x in logits)) + max(logits)
            logs.append([x - total for x in logits])
        found.append(math.fsum(math.exp(p) * (p - q) for p, q in zip(*logs, strict=True)))
    return found


@pytest.mark.parametrize("cap", [None, 3.0])
def test_every_row_is_its_formula(cap):
    source, student = outputs(0, cap), outputs(1, cap)
    # Logits of size 10 err by a few 1e-6 in float32; divergences are means of their differences.
    np.testing.assert_allclose(
        row_divergences(source, student), by_loops(source, student), rtol=1e-5
    )


def test_a_model_does_not_diverge_from_itself():
    same = outputs(0)
    assert float(row_divergences(same, same).abs().max()) < 1e-6


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("chunk", [1 << 25, 90])
def test_gradients_are_those_of_the_formula(cap, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    source, student = outputs(0, cap), outputs(1, cap)
    shares = torch.tensor([0.2, 0.0, 0.1, 0.1, 0.1, 0.2, 0.1, 0.1, 0.1])
    exact = [part.double().requires_grad_() for part in (student.states, student.table)]
    theirs, ours = source.states.double() @ source.table.double().T, exact[0] @ exact[1].T
    if cap is not None:
        theirs, ours = cap * torch.tanh(theirs / cap), cap * torch.tanh(ours / cap)
    p, q = torch.log_softmax(theirs, -1), torch.log_softmax(ours, -1)
    value = ((p.exp() * (p - q)).sum(-1) * shares).sum()
    value.backward()
    parts = [part.clone().requires_grad_() for part in (student.states, student.table)]
    found = divergence(source, Outputs(*parts, cap), shares)
    (found * 2).backward()
    assert float(found.detach()) == pytest.approx(float(value.detach()), rel=1e-5)
    for part, leaf in zip(parts, exact, strict=True):
        torch.testing.assert_close(part.grad.double(), 2 * leaf.grad, rtol=1e-4, atol=1e-5)
    assert float(parts[0].grad[1].abs().max()) == 0
