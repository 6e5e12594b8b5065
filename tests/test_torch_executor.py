"""The torch executor against the reference executor on the same weights, and its gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from test_reference import U, attention_by_loops, attention_op, bound, floats, run
from tiny_models import CONFIGS

from fewbit.errors import UnsupportedError
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.program import CacheType, Op
from fewbit.runtime.executor import Binding
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.torch_executor import DecodedWeights, TorchExecutor

pytestmark = pytest.mark.interop

TOKENS = np.random.default_rng(5).integers(0, 320, 150).astype(np.int32)
FLOAT32 = 5e-5
"""Per element of a buffer, float32 sums of up to 96 products err by at most 96 u of the sum of
magnitudes (u = 2^-24), about 1e-5 at magnitudes of 2, typically a tenth of that; norms keep layers
from amplifying it, and the residual stream adds four of them. A wrong mask, angle or epsilon moves
logits by more than 1e-3 (see the planted faults)."""


def logits(binding, tokens=TOKENS, **settings):
    executor = TorchExecutor(
        binding.program,
        DecodedWeights(binding.tensors, settings.get("arithmetic", torch.float32)),
        **settings,
    )
    states = executor.states(torch.from_numpy(np.atleast_2d(tokens).astype(np.int64)))
    return executor.logits(states).numpy()


def reference(binding, tokens=TOKENS):
    return run(ReferenceExecutor(binding, 3), tokens)


@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_equals_the_reference(name):
    binding = bound(name, CacheType.F32)
    np.testing.assert_allclose(logits(binding)[0], reference(binding), rtol=0, atol=FLOAT32)


@pytest.mark.parametrize(
    "planted", [{"rope_theta": 9000.0}, {"rms_norm_eps": 1e-3}, {"sliding_window": 17}]
)
def test_planted_faults_are_beyond_the_tolerance(planted):
    right = reference(bound("mistral", CacheType.F32))
    wrong = logits(bound("mistral", CacheType.F32, **planted))[0]
    assert np.abs(right - wrong).max() > 20 * FLOAT32


@pytest.mark.parametrize(
    "changes", [{}, {"window": 3}, {"softcap": 0.5}, {"softcap": 2.0, "window": 5}]
)
def test_attention_with_windows_and_caps(changes):
    op = attention_op(6, 2, 8, **changes)
    q, k, v = floats(9, 48), floats(9, 16, seed=1), floats(9, 16, seed=2)
    tensors = (("q", q), ("k", k), ("v", v))
    buffers = {name: torch.from_numpy(x)[None] for name, x in tensors}
    binding = bound("llama")
    executor = TorchExecutor(binding.program, DecodedWeights(binding.tensors, torch.float32))
    found = executor.run(op, buffers, torch.zeros(1, 9))[0].numpy()
    np.testing.assert_allclose(found, attention_by_loops(q, k, v, 0, op), rtol=0, atol=32 * U)


@pytest.mark.parametrize("name", ["gemma3", "qwen2"])
def test_bf16_is_within_its_own_rounding(name):
    """A product of bf16 values errs by 2^-8 relative; four layers add up some of it, not more."""
    binding = bound(name, CacheType.F32)
    exact, found = reference(binding), logits(binding, arithmetic=torch.bfloat16)[0]
    error = np.sqrt(np.mean((exact - found) ** 2) / np.mean(exact**2))
    assert 2.0**-12 < error < 8 * 2.0**-8


def quantized(name, form="q8_0"):
    """Return a binding whose matrices, all of a width divisible by 32, are quantized."""
    binding = bound(name, CacheType.F32)
    spec = parse_format(form)
    tensors = {
        slot: encode(np.ascontiguousarray(tensor.codes).view(np.float32), spec)
        if tensor.shape[0] > 1
        else tensor
        for slot, tensor in binding.tensors.items()
    }
    kernels = {slot: choose_reference(slot, tensor) for slot, tensor in tensors.items()}
    return Binding(binding.program, tensors, kernels)


def test_rounded_activations_are_those_of_the_kernels():
    """One flipped code moves what follows by half a step, so most logits agree and none by much."""
    binding = quantized("llama")
    rounded = frozenset(s for s, k in binding.kernels.items() if k.activations == "int8-g32")
    exact = reference(binding)
    states = logits(binding, rounded=rounded - {"head.weight"})[0]
    plain = logits(binding)[0]
    assert np.abs(states - exact).mean() < 0.5 * np.abs(plain - exact).mean()


def test_the_padding_of_a_batch_changes_nothing_before_it():
    binding = bound("gemma3", CacheType.F32)
    padded = np.zeros((2, 60), np.int64)
    padded[0], padded[1, :20] = TOKENS[:60], TOKENS[60:80]
    both = logits(binding, padded)
    alone = logits(binding, TOKENS[60:80])
    np.testing.assert_allclose(both[1, :20], alone[0], rtol=0, atol=FLOAT32)


class Leaves:
    """Every slot as a float32 leaf that collects its gradient."""

    def __init__(self, binding):
        self.of = {
            slot: torch.from_numpy(decode(tensor).copy()).requires_grad_()
            for slot, tensor in binding.tensors.items()
        }

    def matrix(self, slot):
        return self.of[slot]

    def rows(self, slot, tokens):
        return self.of[slot][tokens]

    def vector(self, slot):
        return self.of[slot][0]


def gradients(binding, *, recompute):
    weights = Leaves(binding)
    executor = TorchExecutor(binding.program, weights, recompute=recompute)
    states = executor.states(torch.from_numpy(TOKENS[None, :24].astype(np.int64)))
    pull = torch.from_numpy(floats(*states.shape, seed=3))
    (states * pull).sum().backward()
    return weights, pull


@pytest.mark.parametrize("name", ["gemma3", "qwen3", "llama-biased"])
def test_gradients_are_differences(name):
    """Along a random direction, the slope of sum(states * pull) is the product with the gradient.

    Float32 sums of some 1e3 err by about 1e-4, over a distance of 2e-3 by 5% of a slope of 1;
    slopes here are of the order of 100, and the third derivative leaves 1e-6 of them.
    """
    binding = bound(name, CacheType.F32)
    weights, pull = gradients(binding, recompute=False)
    tokens = torch.from_numpy(TOKENS[None, :24].astype(np.int64))
    for slot in (
        "embed.weight",
        "layers.1.attn_norm.weight",
        "layers.0.k.weight",
        "layers.2.up.weight",
    ):
        leaf = weights.of[slot]
        direction = torch.from_numpy(floats(*leaf.shape, seed=7))
        direction *= 1e-3 / direction.std() * leaf.detach().std()
        sums = []
        for sign in (1, -1):
            with torch.no_grad():
                leaf += sign * direction
                states = TorchExecutor(binding.program, weights).states(tokens)
                sums.append(float((states.double() * pull).sum()))
                leaf -= sign * direction
        slope = float((leaf.grad.double() * direction).sum())
        assert (sums[0] - sums[1]) / 2 == pytest.approx(slope, rel=2e-2, abs=2e-4)


def test_computing_layers_again_gives_the_same_gradients():
    binding = bound("gemma3", CacheType.F32)
    kept, again = (gradients(binding, recompute=r)[0] for r in (False, True))
    for slot, leaf in kept.of.items():
        if leaf.grad is not None:
            torch.testing.assert_close(again.of[slot].grad, leaf.grad, rtol=0, atol=0)
    assert kept.of["layers.0.q.weight"].grad is not None


def test_an_unknown_op_is_refused():
    binding = bound("llama")

    class Strange(Op):
        pass

    program = binding.program
    strange = Strange(layer=0, site="strange", out="strange")
    program = replace(program, ops=(program.ops[0], strange, *program.ops[1:]))
    executor = TorchExecutor(program, DecodedWeights(binding.tensors, torch.float32))
    with pytest.raises(UnsupportedError, match="no op Strange"):
        executor.states(torch.zeros(1, 4, dtype=torch.int64))
