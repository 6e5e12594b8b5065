"""The ops against their formulas written as loops, and the executor against itself."""

import math

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights

from fewbit.errors import KernelError, NumericalError
from fewbit.formats.registry import F16, F32, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.decoder import build_program
from fewbit.model.families import FAMILIES, huggingface_name
from fewbit.model.huggingface import from_huggingface
from fewbit.program import Activation, Attention, CacheType
from fewbit.runtime import reference
from fewbit.runtime.executor import Binding
from fewbit.runtime.reference import ReferenceExecutor, choose_reference
from fewbit.runtime.reference_attention import attention
from fewbit.runtime.step import Span, StepInput

U = 2.0**-24
"""Half a unit in the last place of float32: the error of one rounding, relative."""


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def attention_op(heads, kv_heads, width, **changes):
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": width, "scale": 0.3}
    place = {"layer": 0, "site": "attention", "out": "a", "q": "q", "k": "k", "v": "v"}
    return Attention(**place, **{**sizes, **changes})


def attention_by_loops(q, k, v, first, op):
    """Attend one query, one head, one key at a time."""
    out = np.zeros(q.shape, np.float64)
    for r in range(len(q)):
        for h in range(op.heads):
            own, share = slice(h * op.head_dim, (h + 1) * op.head_dim), op.heads // op.kv_heads
            kept = slice(h // share * op.head_dim, (h // share + 1) * op.head_dim)
            scores = {}
            for p in range(first + r + 1):
                if op.window is not None and p <= first + r - op.window:
                    continue
                s = op.scale * float(q[r, own].astype(float) @ k[p, kept].astype(float))
                scores[p] = s if op.softcap is None else op.softcap * math.tanh(s / op.softcap)
            total = sum(math.exp(s) for s in scores.values())
            for p, s in scores.items():
                out[r, own] += math.exp(s) / total * v[p, kept].astype(float)
    return out


@pytest.mark.parametrize("changes", [{}, {"window": 3}, {"window": 1}, {"softcap": 0.5}])
def test_attention(changes):
    op = attention_op(6, 2, 8, **changes)
    q, k, v = floats(4, 48), floats(9, 16, seed=1), floats(9, 16, seed=2)
    found = attention(q, k, v, 5, op)
    np.testing.assert_allclose(found, attention_by_loops(q, k, v, 5, op), rtol=4 * U, atol=4 * U)


def test_a_window_of_one_gives_the_own_value():
    op = attention_op(2, 2, 4, window=1)
    k, v = floats(3, 8), floats(3, 8, seed=1)
    np.testing.assert_array_equal(attention(floats(3, 8), k, v, 0, op), v)


def test_rms_norm_of_rows_and_of_heads():
    x, weight = floats(3, 24), floats(8)
    found = reference.rms_norm(x, weight, 8, 1e-3, 1.0)
    for r in range(3):
        for h in range(3):
            run = x[r, 8 * h : 8 * h + 8].astype(float)
            exact = run / math.sqrt(float(run @ run) / 8 + 1e-3) * (1 + weight.astype(float))
            # The sum of weight and offset is rounded, then the result.
            np.testing.assert_allclose(found[r, 8 * h : 8 * h + 8], exact, rtol=3 * U, atol=U)


def test_rope_turns_pairs_by_the_angle():
    positions, frequencies = np.array([0, 1, 700], np.int32), (1.0, 0.25)
    table = reference.rope_table(positions, frequencies, 1.5)
    x = floats(3, 8)
    found = reference.rope(x, table, 4)
    for r, position in enumerate(positions.tolist()):
        for h in range(2):
            for i, frequency in enumerate(frequencies):
                a, b = float(x[r, 4 * h + i]), float(x[r, 4 * h + i + 2])
                turned = complex(a, b) * np.exp(1j * position * frequency) * 1.5
                assert found[r, 4 * h + i] == pytest.approx(turned.real, rel=0, abs=1e-6)
                assert found[r, 4 * h + i + 2] == pytest.approx(turned.imag, rel=0, abs=1e-6)


def test_scores_depend_on_the_distance_alone():
    """The property rotary embedding exists for: both positions moved by 100 changes nothing."""
    q, k = floats(1, 8), floats(1, 8, seed=1)
    table = reference.rope_table(np.array([3, 7, 103, 107], np.int32), (1.0, 0.3, 0.1, 0.03), 1.0)
    turned = [reference.rope(x, table[i : i + 1], 8) for i, x in enumerate((q, k, q, k))]
    near, far = turned[0] @ turned[1].T, turned[2] @ turned[3].T
    np.testing.assert_allclose(near, far, atol=1e-5)


def test_gated_activations():
    gate, up = floats(5, 7) * 4, floats(5, 7, seed=1)
    x = gate.astype(float)
    silu = x / (1 + np.exp(-x)) * up
    found = reference.gated_activation(gate, up, Activation.SILU)
    np.testing.assert_allclose(found, silu, rtol=2 * U)
    gelu = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x))) * up
    found = reference.gated_activation(gate, up, Activation.GELU_TANH)
    np.testing.assert_allclose(found, gelu, rtol=2 * U, atol=1e-12)


def test_silu_of_a_very_negative_gate_is_zero():
    found = reference.gated_activation(np.float32([[-1e30]]), np.float32([[1.0]]), Activation.SILU)
    assert found[0, 0] == 0


def test_softcap_bounds():
    np.testing.assert_allclose(reference.softcap(np.float32([[1e9, -1e9, 0]]), 5.0), [[5, -5, 0]])


def test_activations_are_rounded_half_to_even_per_32():
    x = np.zeros((1, 64), np.float32)
    x[0, :4] = [127.0, 2.5, 3.5, -2.5]
    x[0, 32] = 1e-3
    q, scales = reference.quantize_activations(x)
    assert q[0, :4].tolist() == [127, 2, 4, -2]
    assert q[0, 32] == 127
    assert scales.tolist() == [[1.0, float(np.float32(1e-3) / np.float32(127))]]


def test_a_run_of_zeros_and_a_subnormal_run_stay_in_range():
    x = np.zeros((2, 32), np.float32)
    x[1] = np.float32(2.0**-149) * 136
    q, scales = reference.quantize_activations(x)
    assert scales[0, 0] == 0
    assert not q[0].any()
    assert q[1].tolist() == [127] * 32


def test_rounded_activations_are_within_half_a_step():
    x = floats(3, 64)
    step = np.repeat(reference.quantize_activations(x)[1], 32, axis=1)
    error = np.abs(reference.rounded_activations(x, "int8-g32") - x)
    # 1/2 step, plus the rounding of the quotient (at most 127, so 127 u of a step).
    assert np.all(error <= step * (0.5 + 127 * U))
    assert error.max() > 0.4 * step.max()


def test_unknown_activations_are_refused():
    with pytest.raises(KernelError, match="fp8"):
        reference.rounded_activations(floats(1, 32), "fp8")


def test_linear_adds_the_bias_to_the_rounded_product():
    x, w, b = floats(2, 32), floats(3, 32, seed=1), floats(3, seed=2)
    exact = (x.astype(float) @ w.T.astype(float)).astype(np.float32) + b
    np.testing.assert_array_equal(reference.linear(x, w, b), exact)


def tensor_of(values, form=F32):
    matrix = np.atleast_2d(values)
    stored = matrix.astype(np.float16 if form is F16 else np.float32)
    return QuantTensor(form, matrix.shape, np.ascontiguousarray(stored).view(np.uint8))


def bound(name, cache_type=CacheType.F32, seed=0, **changes):
    """Return a tiny model's Program with random float32 weights."""
    config = from_huggingface({**CONFIGS[name], **changes})
    program = build_program(config, cache_type)
    weights = random_weights({**CONFIGS[name], **changes}, seed)
    family = FAMILIES[config.family]
    tensors = {s: tensor_of(weights[huggingface_name(family, s)]) for s in program.slots()}
    kernels = {s: choose_reference(s, t) for s, t in tensors.items()}
    return Binding(program, tensors, kernels)


def run(executor, tokens, position=0, pages=None, wanted=None):
    count = len(tokens)
    pages = np.arange(executor.pages, dtype=np.int32) if pages is None else pages
    wanted = np.arange(count, dtype=np.int32) if wanted is None else np.int32(wanted)
    return executor.step(StepInput(np.int32(tokens), (Span(0, count, position, pages),), wanted))


TOKENS = np.random.default_rng(5).integers(0, 320, 150).astype(np.int32)
CHUNKED = 2e-5
"""A sum of float64 products may be ordered otherwise for other shapes; where that flips one float32
rounding (u), 4 layers carry it on: far below this, while a wrong position or mask gives 1e-1."""


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_prompt_in_chunks_gives_the_logits_of_the_whole(name, size):
    binding = bound(name)
    whole = run(ReferenceExecutor(binding, 3), TOKENS)
    executor = ReferenceExecutor(binding, 3)
    parts = [run(executor, TOKENS[i : i + size], i) for i in range(0, len(TOKENS), size)]
    np.testing.assert_allclose(np.concatenate(parts), whole, atol=CHUNKED, rtol=0)


def test_a_batch_of_sequences_on_scattered_pages_gives_each_its_own_logits():
    binding = bound("qwen3")
    lengths, pages = [70, 1, 130], [[5, 2], [0], [1, 6, 3]]
    alone = [run(ReferenceExecutor(binding, 3), TOKENS[:n]) for n in lengths]
    executor = ReferenceExecutor(binding, 7)
    starts = [0, 70, 71]
    spans = tuple(
        Span(s, n, 0, np.int32(p)) for s, n, p in zip(starts, lengths, pages, strict=True)
    )
    tokens = np.concatenate([TOKENS[:n] for n in lengths])
    found = executor.step(StepInput(tokens, spans, np.arange(201, dtype=np.int32)))
    np.testing.assert_allclose(found, np.concatenate(alone), atol=CHUNKED, rtol=0)


def test_only_wanted_rows_come_back_in_the_order_asked():
    executor = ReferenceExecutor(bound("llama"), 3)
    whole = run(executor, TOKENS)
    np.testing.assert_allclose(run(executor, TOKENS, wanted=[9, 2]), whole[[9, 2]], atol=CHUNKED)
    assert run(executor, TOKENS, wanted=[]).shape == (0, 320)


def test_rewriting_positions_forgets_what_stood_there():
    """Verification overwrites provisional keys."""
    binding = bound("llama")
    executor = ReferenceExecutor(binding, 3)
    run(executor, TOKENS[:40])
    run(executor, TOKENS[100:110], 40)
    again = run(executor, TOKENS[40:60], 40)
    whole = run(ReferenceExecutor(binding, 3), TOKENS[:60])
    np.testing.assert_allclose(again, whole[40:], atol=CHUNKED, rtol=0)


def test_half_precision_stores_round_keys_and_values():
    exact = run(ReferenceExecutor(bound("llama", CacheType.F32), 3), TOKENS)
    rounded = run(ReferenceExecutor(bound("llama", CacheType.F16), 3), TOKENS)
    assert 1e-5 < np.abs(exact - rounded).max() < 2e-2


@pytest.mark.parametrize(
    "planted",
    [
        {"rope_theta": 9000.0},
        {"rms_norm_eps": 1e-3},
        {"sliding_window": 17},
    ],
)
def test_planted_faults_move_the_logits_beyond_the_tolerance(planted):
    right = run(ReferenceExecutor(bound("mistral"), 3), TOKENS)
    wrong = run(ReferenceExecutor(bound("mistral", **planted), 3), TOKENS)
    assert np.abs(right - wrong).max() > 50 * CHUNKED


def test_trace_returns_every_buffer():
    binding = bound("gemma3")
    step = StepInput(TOKENS[:5], (Span(0, 5, 0, np.int32([0])),), np.int32([4]))
    buffers = ReferenceExecutor(binding, 1).trace(step)
    assert set(buffers) == set(binding.program.widths)
    for name, width in binding.program.widths.items():
        assert buffers[name].shape[1] == width
        assert buffers[name].dtype == np.float32


def test_a_weight_out_of_range_is_located():
    binding = bound("llama")
    tensors = dict(binding.tensors)
    broken = np.array(random_weights(CONFIGS["llama"])["model.layers.1.mlp.up_proj.weight"])
    broken[3, 5] = np.inf
    tensors["layers.1.up.weight"] = tensor_of(broken)
    executor = ReferenceExecutor(Binding(binding.program, tensors, binding.kernels), 3)
    with np.errstate(invalid="ignore"), pytest.raises(NumericalError) as caught:
        run(executor, TOKENS[:3])
    assert "'layers.1.up'" in str(caught.value)
    assert "element 3" in str(caught.value)


def test_kernels_round_inputs_of_integer_weights_only():
    def empty(form, columns):
        return QuantTensor(parse_format(form), (4, columns), np.zeros((4, 0), np.uint8))

    assert choose_reference("x.weight", empty("f16", 33)).activations == "f32"
    assert choose_reference("x.weight", empty("q4_0", 64)).activations == "int8-g32"
    with pytest.raises(KernelError, match="33 inputs in int4-row"):
        choose_reference("x.weight", empty("int4-row", 33))


def test_weights_are_released_once_decoded():
    binding, released = bound("llama"), []
    binding = Binding(binding.program, binding.tensors, binding.kernels, released.append)
    executor = ReferenceExecutor(binding, 3)
    run(executor, TOKENS[:4])
    run(executor, TOKENS[:4])
    assert sorted(released) == sorted(s for s in binding.program.slots() if s != "embed.weight")
