"""The gate's table: intervals against margins, and what follows."""

import pytest

from fewbit.evaluate.fixed_gate import judge, judge_figure, judge_kernels
from fewbit.records.evaluation import Gate
from fewbit.records.figures import describe
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.language import TextFacts
from fewbit.records.outcome import Outcome

A, R, I = Outcome.ACCEPT, Outcome.REJECT, Outcome.INCONCLUSIVE  # noqa: E741
GOOD_KL, BAD_KL, UNSURE_KL = (0.02, 0.04), (0.06, 0.09), (0.04, 0.06)
GOOD_PPL, BAD_PPL, UNSURE_PPL = (0.99, 1.02), (1.05, 1.10), (1.02, 1.05)


def interval(bounds, value=None):
    low, high = bounds
    middle = None if low is None else (low + high) / 2
    return Interval(value=value if value is not None else middle, low=low, high=high)


def kernel(format_name="int4-g32", name="w4.sym.g32/a8.g32/avx2"):
    return KernelRecord(
        slot="layers.0.q.weight", format=format_name, kernel=name, activations="int8-g32", bytes=1
    )


def verdict(kl, ppl, documents=40, positions=10_000, kernels=()):
    return judge(
        Gate(),
        TextFacts(
            name="t",
            sha256="",
            documents=documents,
            windows=documents,
            window_tokens=512,
            tokens=512 * documents,
            positions=positions,
            bos="none",
        ),
        interval(kl),
        interval(ppl),
        kernels,
    )


@pytest.mark.parametrize(
    ("kl", "ppl", "outcome"),
    [
        (GOOD_KL, GOOD_PPL, A),
        (GOOD_KL, UNSURE_PPL, I),
        (GOOD_KL, BAD_PPL, R),
        (UNSURE_KL, GOOD_PPL, I),
        (UNSURE_KL, UNSURE_PPL, I),
        (UNSURE_KL, BAD_PPL, R),
        (BAD_KL, GOOD_PPL, R),
        (BAD_KL, UNSURE_PPL, R),
        (BAD_KL, BAD_PPL, R),
        ((0.0, 0.0), (1.0, 1.0), A),
        ((0.04, 0.05), GOOD_PPL, I),
        ((0.05, 0.06), GOOD_PPL, I),
    ],
)
def test_verdicts(kl, ppl, outcome):
    found = verdict(kl, ppl)
    assert found.outcome is outcome
    assert found.axes[0].name == "mean KL(source || candidate)"


@pytest.mark.parametrize("kl", [GOOD_KL, BAD_KL, (0.0, 0.0)])
@pytest.mark.parametrize(("documents", "positions"), [(1, 20), (11, 10_000), (40, 1023)])
def test_little_text_is_inconclusive_whatever_the_figures(kl, documents, positions):
    found = verdict(kl, GOOD_PPL, documents, positions)
    assert found.outcome is I
    assert any("a verdict needs at least 12 documents" in reason for reason in found.reasons)


def test_no_interval_is_inconclusive():
    axis = judge_figure("x", "nats", Interval(value=0.01), 0.05)
    assert axis.outcome is I
    assert "has no interval" in axis.reason


def test_deciding_reasons_come_first():
    assert "perplexity ratio" in verdict(GOOD_KL, BAD_PPL).reasons[0]
    assert "lies over the margin of 1.03" in verdict(GOOD_KL, BAD_PPL).reasons[0]


def test_a_rounded_figure_never_passes():
    """0.946 that rounds to a bar of 95% must not pass it: bounds are compared as they are."""
    axis = judge_figure("x", "", Interval(value=0.04, low=0.03, high=0.0500000001), 0.05)
    assert axis.outcome is I
    assert "0.0500000001" in axis.reason
    assert describe(Interval(value=0.04999999, low=0.01, high=0.06), 0.05).startswith("0.04999999")


def test_a_quiet_dequantization_rejects():
    found = verdict(GOOD_KL, GOOD_PPL, kernels=[kernel(), kernel(name="bf16/f32/avx2")])
    assert found.outcome is R
    assert "1 quantized layers ran on a float kernel" in found.reasons[0]


def test_float_layers_on_float_kernels_are_fine():
    kernels = [kernel("bf16", "bf16/f32/avx2"), kernel("int3-g32", "w4.sym.g32/a8.g32/avx2")]
    assert judge_kernels(kernels).outcome is A


def test_reasons_are_sentences():
    for reason in verdict(UNSURE_KL, BAD_PPL).reasons:
        assert reason[0].isupper()
        assert reason.endswith(".")
