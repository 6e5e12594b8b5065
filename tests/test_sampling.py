"""The sampling pipeline: the NumPy truth against hand-made cases, the native twin against it."""

import math

import numpy as np
import pytest
from float_state import rounding_up_and_flushing
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit import _native
from fewbit.errors import NumericalError, RequestError
from fewbit.keyed_random import Purpose, philox, uniform
from fewbit.sampling import (
    Block,
    History,
    SamplingParams,
    TokenSampler,
    distribution,
    sample_blocks,
)

GREEDY = SamplingParams(temperature=0)


def history(tokens, prompt):
    return History(np.array(tokens, np.int32), prompt)


def row(*values):
    return np.array(values, np.float32)


def native_distribution(logits, params, past=None, vocabulary=None):
    sampler = TokenSampler(
        params, seed=0, prompt=[] if past is None else past.tokens[: past.prompt]
    )
    if past is not None:
        sampler.remember([int(t) for t in past.tokens[past.prompt :]])
    return sampler.probabilities(logits, vocabulary=vocabulary)


# --- validation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 1e-9),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", "hot"),
        ("temperature", 10**400),  # beyond what a float can be
        ("temperature", True),
        ("top_k", -1),
        ("top_k", 1.5),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", math.nan),
        ("min_p", -0.1),
        ("min_p", 1.5),
        ("repetition_penalty", 0),
        ("repetition_penalty", 1e-50),  # 0 in float32, where 0 times a ban is no number
        ("repetition_penalty", math.inf),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -3),
        ("logit_bias", [1]),
        ("logit_bias", {-1: 0.0}),
        ("logit_bias", {"a": 0.0}),
        ("logit_bias", {3: math.nan}),
        ("logit_bias", {3: math.inf}),
        ("seed", -1),
        ("seed", 1 << 64),
        ("seed", 1.0),
    ],
)
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(RequestError, match=field):
        SamplingParams(**{field: value})


def test_a_biased_token_must_exist():
    with pytest.raises(RequestError, match="token 7, but the vocabulary has 7"):
        SamplingParams(logit_bias={7: 1.0}).require_vocabulary(7)


# --- the truth ----------------------------------------------------------------------------------


def test_the_defaults_are_a_softmax():
    found = distribution(row(0.0, math.log(2), math.log(5)), SamplingParams())
    np.testing.assert_allclose(found, [1 / 8, 2 / 8, 5 / 8], rtol=1e-6)


def test_greedy_breaks_ties_by_the_lower_id():
    np.testing.assert_array_equal(distribution(row(1, 3, 3, 0), GREEDY), [0, 1, 0, 0])


def test_top_k_keeps_exactly_k_among_ties():
    found = distribution(row(1, 2, 2, 2), SamplingParams(top_k=2))
    np.testing.assert_allclose(found, [0, 0.5, 0.5, 0])


def test_top_p_keeps_the_shortest_prefix_that_reaches_it():
    logits = np.log(row(0.1, 0.5, 0.25, 0.15)).astype(np.float32)
    np.testing.assert_allclose(
        distribution(logits, SamplingParams(top_p=0.6)), [0, 2 / 3, 1 / 3, 0], rtol=1e-6
    )
    np.testing.assert_allclose(distribution(logits, SamplingParams(top_p=0.01)), [0, 1, 0, 0])


def test_top_p_looks_at_what_top_k_left():
    logits = np.log(row(0.4, 0.3, 0.2, 0.1)).astype(np.float32)
    found = distribution(logits, SamplingParams(top_k=2, top_p=0.55))
    np.testing.assert_allclose(found, [1, 0, 0, 0])  # 0.4 of 0.7 is 0.571


def test_min_p_is_a_share_of_the_likeliest():
    logits = np.log(row(0.5, 0.3, 0.2)).astype(np.float32)
    np.testing.assert_allclose(
        distribution(logits, SamplingParams(min_p=0.5)), [5 / 8, 3 / 8, 0], rtol=1e-6
    )


def test_truncation_feels_the_temperature():
    logits = np.log(row(0.9, 0.1)).astype(np.float32)
    assert distribution(logits, SamplingParams(top_p=0.85))[1] == 0
    assert distribution(logits, SamplingParams(top_p=0.85, temperature=4))[1] > 0


def test_repetition_looks_at_prompt_and_output_and_the_others_at_output():
    past = history([0, 1, 1], prompt=1)
    logits = row(2.0, 2.0, 2.0)
    weights = np.array([2 / 1.5, 2 / 1.5 - (2 * 0.5 + 0.25), 2.0])
    expected = np.exp(weights) / np.exp(weights).sum()
    params = SamplingParams(repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=0.25)
    np.testing.assert_allclose(distribution(logits, params, past), expected, rtol=1e-6)


def test_repetition_pushes_a_negative_logit_down():
    found = distribution(row(-1, -1), SamplingParams(repetition_penalty=2), history([0], 1))
    np.testing.assert_allclose(found[0] / found[1], math.exp(-1), rtol=1e-6)


@pytest.mark.parametrize("bias", [-100.0, -1000.0, -math.inf])
@pytest.mark.parametrize("temperature", [0, 1, 100])
def test_a_bias_of_minus_100_bans(bias, temperature):
    params = SamplingParams(temperature=temperature, logit_bias={0: bias})
    logits = row(500, 0, 1)
    assert distribution(logits, params)[0] == 0
    assert native_distribution(logits, params)[0] == 0


def test_padding_of_the_vocabulary_is_never_drawn():
    logits = row(0, 1, 50, math.nan)
    assert distribution(logits, SamplingParams(), vocabulary=2)[2:].sum() == 0
    assert native_distribution(logits, SamplingParams(), vocabulary=2)[2:].sum() == 0


@pytest.mark.parametrize("compute", [distribution, native_distribution])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_logit_that_is_not_finite_is_located(compute, bad):
    logits = np.zeros(300, np.float32)
    logits[257] = bad
    with pytest.raises(NumericalError, match="token 257"):
        compute(logits, SamplingParams())


@pytest.mark.parametrize("compute", [distribution, native_distribution])
def test_banning_every_token_is_an_error(compute):
    with pytest.raises(NumericalError, match="every token is banned"):
        compute(row(1, 2), SamplingParams(logit_bias={0: -100, 1: -100}))


# --- the native twin ----------------------------------------------------------------------------


def test_the_generator_is_philox_4x64_10():
    """NumPy's Philox increments its counter before each block of four words."""
    for counter, key in [
        ((1, 2, 3, 4), (5, 6)),
        ((0, 0, 0, 0), (0, 0)),
        ((9, 1 << 63, 7, 0), (1, 4)),
    ]:
        start = list(counter)
        oracle = np.random.Philox(counter=start, key=list(key))
        words = oracle.random_raw(4)
        following = (counter[0] + 1, *counter[1:])
        assert philox(following, key) == tuple(int(w) for w in words)


@given(
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.integers(0, 2**64 - 1),
    st.sampled_from(Purpose),
)
@settings(max_examples=200, deadline=None)
def test_the_native_generator_equals_the_python_one(seed, sample, position, purpose):
    expected = uniform(seed, sample, position, purpose)
    assert _native.keyed_uniform(seed, sample, position, int(purpose)) == expected


def test_the_callers_floating_point_state_changes_no_mass():
    logits = np.random.default_rng(0).normal(0, 3, 4099).astype(np.float32)
    sampler = TokenSampler(SamplingParams(temperature=0.7, top_p=0.9), seed=1)
    expected = sampler.probabilities(logits)
    with rounding_up_and_flushing():
        found = sampler.probabilities(logits)
    assert (found == expected).all()


def test_a_negative_id_is_not_remembered():
    sampler = TokenSampler(SamplingParams(presence_penalty=1), seed=0)
    with pytest.raises(ValueError, match="a token id to remember is negative"):
        sampler.remember([3, -1])


PARAMS = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0, 1e-6, 0.1, 0.7, 1.0, 1.9, 50.0]),
    top_k=st.sampled_from([0, 1, 2, 7, 40, 399, 5000]),
    top_p=st.sampled_from([1.0, 0.999, 0.95, 0.5, 0.01]),
    min_p=st.sampled_from([0.0, 0.01, 0.05, 0.6]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.4]),
    presence_penalty=st.sampled_from([0.0, 0.6]),
    logit_bias=st.sampled_from([{}, {0: -100.0}, {0: 3.5, 1: -math.inf}]),
)


@given(
    params=PARAMS,
    size=st.sampled_from([2, 127, 128, 129, 1000, 4099]),
    spread=st.sampled_from([0.0, 0.5, 3.0, 12.0, 200.0]),
    seed=st.integers(0, 2**32),
    rounded=st.booleans(),
)
@settings(max_examples=400, deadline=None)
def test_the_native_distribution_equals_the_truth(params, size, spread, seed, rounded):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, size).astype(np.float32)
    if rounded:
        logits = np.round(logits)  # many ties
    past = history(rng.integers(0, size, 30), prompt=10)
    try:
        truth = distribution(logits, params, past)
    except NumericalError:
        with pytest.raises(NumericalError):
            native_distribution(logits, params, past)
        return
    found = native_distribution(logits, params, past)
    same_support(truth, found, logits, params, past)


@given(
    params=PARAMS,
    size=st.sampled_from([1, 15, 127, 129, 1000]),
    spread=st.sampled_from([0.0, 3.0, 60.0]),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_every_instruction_set_gives_the_same_bits(params, size, spread, seed):
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, size + 3).astype(np.float32)
    sampler = TokenSampler(params, seed=0, prompt=rng.integers(0, size, 9).tolist())
    results = []
    for isa in _native.available_isas():
        try:
            results.append(sampler.probabilities(logits, vocabulary=size, isa=isa).tobytes())
        except NumericalError as error:
            results.append(str(error))
    assert len(set(results)) == 1


def same_support(truth, found, logits, params, past):
    """Native masses carry the error of exp (2 ulp, 2^-22) and of floats (8 + 4 additions, 2^-20).

    A ratio of two such sums is off by 2^-18 at most, so a token at the edge of top-p may fall to
    either side; the masses then still agree within what that token weighs, and it must lie at the
    edge: the truth at a slightly moved top_p must keep the same set.
    """
    if not np.array_equal(truth > 0, found > 0):
        moved = [
            distribution(logits, replaced(params, factor), past)
            for factor in (1 - 2.0**-18, 1 + 2.0**-18)
        ]
        truth = next((m for m in moved if np.array_equal(m > 0, found > 0)), truth)
    large = (truth > 1e-30) | (found > 1e-30)
    np.testing.assert_allclose(found[large], truth[large], rtol=2.0**-18)


def replaced(params, factor):
    top_p = params.top_p if params.top_p == 1 else min(1.0, params.top_p * factor)
    return SamplingParams(
        **{
            **{name: getattr(params, name) for name in params.__dataclass_fields__},
            "top_p": top_p,
            "min_p": min(1.0, params.min_p * factor),
        }
    )


def inverse_cdf(probabilities, u):
    return int(np.searchsorted(np.cumsum(probabilities), u, side="right"))


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.7, top_p=0.9),
        SamplingParams(top_k=20, min_p=0.02),
    ],
)
def test_a_token_is_the_inverse_cdf_of_its_keyed_number(params):
    rng = np.random.default_rng(3)
    logits = rng.normal(0, 3, (50, 1500)).astype(np.float32)
    sampler = TokenSampler(params, seed=11, sample=2)
    blocks = [Block(sampler, r, 1000 + r) for r in range(50)]
    drawn = sample_blocks(logits, blocks, vocabulary=1490)
    for r, result in enumerate(drawn):
        u = uniform(11, 2, 1000 + r, Purpose.TOKEN)
        truth = distribution(logits[r], params, vocabulary=1490)
        assert result.tokens == [inverse_cdf(truth, u)]


def test_draws_follow_the_distribution():
    """Total variation of 20,000 draws over 8 tokens is near sqrt(8 / (2 pi n)) = 0.008."""
    logits = np.repeat(row(0, 1, 2, -1, 0.5, 1.5, 2.5, -3)[None], 20_000, axis=0)
    sampler = TokenSampler(SamplingParams(temperature=1.2), seed=5)
    drawn = sample_blocks(logits, [Block(sampler, r, r) for r in range(20_000)])
    counts = np.bincount([d.tokens[0] for d in drawn], minlength=8) / 20_000
    truth = distribution(logits[0], SamplingParams(temperature=1.2))
    assert np.abs(counts - truth).sum() / 2 < 0.016


def test_a_block_stops_after_the_first_token_that_is_not_the_drafts():
    logits = np.eye(5, dtype=np.float32) * 9
    sampler = TokenSampler(GREEDY, seed=0)
    assert sample_blocks(logits, [Block(sampler, 0, 0, [0, 1, 2])])[0].tokens == [0, 1, 2, 3]
    assert sample_blocks(logits, [Block(sampler, 0, 0, [0, 3, 2])])[0].tokens == [0, 1]
    assert sample_blocks(logits, [Block(sampler, 1, 0, [])])[0].tokens == [1]


def test_penalties_see_the_drafts_accepted_tokens():
    """vLLM #18902: a frequency penalty ignored along a draft would draw token 0 for ever."""
    logits = np.tile(row(1.0, 0.9, 0.0), (4, 1))
    params = SamplingParams(temperature=0, frequency_penalty=0.5)
    along = sample_blocks(logits, [Block(TokenSampler(params, seed=0), 0, 0, [0, 1, 0])])
    sampler = TokenSampler(params, seed=0)
    alone = [sample_blocks(logits, [Block(sampler, r, r)])[0].tokens[0] for r in range(4)]
    assert along[0].tokens == alone == [0, 1, 0, 1]


def test_logprobs_are_the_models_own():
    logits = np.random.default_rng(0).normal(0, 3, (2, 700)).astype(np.float32)
    sampler = TokenSampler(SamplingParams(temperature=0, logit_bias={4: 100.0}), seed=0)
    drawn = sample_blocks(logits, [Block(sampler, 0, 0, [4], top_logprobs=3)])[0]
    assert drawn.tokens == [4, 4]
    for r, logprob in enumerate(drawn.logprobs):
        wide = logits[r].astype(np.float64)
        truth = wide - np.log(np.exp(wide).sum())
        assert logprob.logprob == pytest.approx(truth[4], abs=1e-5)
        best = np.argsort(-wide, kind="stable")[:3]
        assert [i for i, _ in logprob.top] == list(best)
        np.testing.assert_allclose([v for _, v in logprob.top], truth[best], atol=1e-5)


def test_a_fault_ends_its_own_block_only():
    logits = np.zeros((3, 10), np.float32)
    logits[1, 6] = math.nan
    samplers = [TokenSampler(GREEDY, seed=0) for _ in range(2)]
    bad, good = sample_blocks(logits, [Block(samplers[0], 0, 0, [0]), Block(samplers[1], 2, 0)])
    assert bad.tokens == [0]
    assert "token 6" in str(bad.fault)
    assert good.tokens == [0]
    assert good.fault is None
