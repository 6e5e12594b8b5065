"""What is tried next, from what was found: pure decisions over planted evidence."""

import pytest
import sample_evaluation as sample
from msgspec.structs import replace

from fewbit.compress.failures import HOPELESS, Failure, distance, failure_of, foreseen, worst_first
from fewbit.compress.steps import (
    Kind,
    Step,
    all_steps,
    best_of,
    named_steps,
    raised,
    reason_to_leave_out,
    reason_to_try,
    tuned,
)
from fewbit.recipes import built_in
from fewbit.records.evaluation import Attempt
from fewbit.records.gate import Judgement
from fewbit.records.interval import Interval
from fewbit.records.measurement import AxisResult, Finding
from fewbit.records.outcome import Outcome
from fewbit.records.scan import TensorError

A, R, I = Outcome.ACCEPT, Outcome.REJECT, Outcome.INCONCLUSIVE  # noqa: E741


def judgement(name, value, margin=0.05, outcome=R):
    return Judgement(
        slice=name,
        figure=Interval(value=value),
        margin=margin,
        outcome=outcome,
        reason="",
        items=50,
        clusters=50,
    )


def tensor(slot, error, form="int4-g32"):
    layer = int(slot.split(".")[1]) if slot.startswith("layers") else -1
    return TensorError(
        slot=slot,
        layer=layer,
        source_format="bf16",
        candidate_format=form,
        weights=1,
        relative_error=error,
    )


def attempt(*judgements, size=100, findings=(), tensors=()):
    evaluation = sample.evaluation()
    axes = (AxisResult(axis="kernels", findings=tuple(findings), seconds=0.0),)
    evaluation = replace(
        evaluation,
        judgements=tuple(judgements),
        axes=axes,
        tensors=tuple(tensors),
        candidate=replace(evaluation.candidate, bytes=size),
    )
    return Attempt(recipe="r", promised_bytes=size, evaluation=evaluation, evidence="")


def step(method="rtn", form="int4-g32"):
    return next(s for s in named_steps(form, "fewbit") if s.name == f"{method}-{form}")


def test_steps_go_by_cost_and_tuning_only_where_it_is_installed():
    names = [s.name for s in all_steps("int4-g32", "fewbit", "4.5bpw", tuning=True)]
    assert names == [
        "rtn-int4-g32",
        "gptq-int4-g32",
        "awq-int4-g32",
        "gptq-refined-int4-g32",
        "awq-gptq-refined-int4-g32",
        "raised-4.5bpw",
        "allocated-4.5bpw",
        "tuned-4.5bpw",
    ]
    without = all_steps("int4-g32", "fewbit", "4.5bpw", tuning=False)
    assert [s.name for s in without] == names[:-1]


def test_for_vllm_weights_alone_are_quantized():
    assert all(s.name.endswith("-wo") for s in named_steps("int4-g128", "vllm"))


def test_what_hindered_is_named_with_findings_that_nobody_waived():
    findings = [
        Finding(name="kernels/float", axis="kernels", passed=False, found="."),
        Finding(name="kernels/bytes", axis="kernels", passed=False, found=".", waived="why"),
        Finding(name="kernels/ok", axis="kernels", passed=True, found="."),
    ]
    judged = [
        judgement("language/kl", 0.1),
        judgement("tasks/*", 0.01, outcome=I),
        judgement("language/perplexity", 1.0, outcome=A),
        judgement("speed/decode/1", 9.0, outcome=None),
    ]
    found = failure_of(attempt(*judged, findings=findings).evaluation)
    assert found == Failure(("language/kl", "tasks/*"), ("kernels/float",))
    assert not found.of_formats


def test_divergence_is_foreseen_from_the_methods_that_were_measured():
    # Rounding gave 0.287, which is 2.87 times GPTQ's: GPTQ is to give 0.1.
    tried = [(attempt(judgement("language/kl", 0.287)), 2.87)]
    assert foreseen(tried, 1.0) == pytest.approx(0.1)
    # What GPTQ then gave, 0.08, speaks for less of the others, too.
    tried.append((attempt(judgement("language/kl", 0.08)), 1.0))
    assert foreseen(tried, 0.5) == pytest.approx(0.04)
    assert foreseen([(attempt(), 1.0)], 1.0) is None


def test_a_hopeless_step_is_left_out_unless_it_is_the_last():
    near = step("gptq")
    for kl, hopeless in ((0.05 * HOPELESS * 2.87 * 0.99, False), (0.05 * HOPELESS * 2.9, True)):
        tried = [(step("rtn"), attempt(judgement("language/kl", kl)))]
        assert bool(reason_to_leave_out(near, tried, last=False)) is hopeless
        assert reason_to_leave_out(near, tried, last=True) == ""
    assert "over 1.5 times the margin of 0.05" in reason_to_leave_out(near, tried, last=False)
    allocated = Step("allocated", Kind.ALLOCATED, None, 0.3)
    far = [(step("rtn"), attempt(judgement("language/kl", 9.0)))]
    assert reason_to_leave_out(allocated, far, last=False) == ""  # training is to build on it
    assert reason_to_leave_out(near, [], last=False) == ""


def test_where_speed_hindered_no_other_way_of_finding_codes_is_tried():
    slow = attempt(
        judgement("language/kl", 0.01, outcome=A), judgement("speed/decode/1", 1.3, 1.05)
    )
    tried = [(step("rtn"), slow)]
    assert "changes neither bytes nor kernels" in reason_to_leave_out(
        step("gptq"), tried, last=False
    )
    allocated = Step("allocated", Kind.ALLOCATED, None, 0.3)
    assert reason_to_leave_out(allocated, tried, last=False) == ""


def test_the_nearest_rejects_least_and_then_exceeds_least():
    far, near = judgement("language/kl", 0.2), judgement("language/kl", 0.06, outcome=I)
    attempts = [attempt(far), attempt(near), attempt(near, judgement("tasks/*", 0.2, outcome=R))]
    tried = [(step("rtn"), a) for a in attempts]
    assert best_of(tried)[1] is attempts[1]
    one, other = (attempt(near, size=n).evaluation for n in (10, 20))
    assert distance(one) < distance(other)


TENSORS = (
    tensor("layers.0.down.weight", 0.3),
    tensor("layers.1.up.weight", 0.1),
    tensor("layers.0.q.weight", 0.2),
    tensor("embed.weight", 0.9, "int6-g32"),
)


def test_matrices_of_layers_are_ordered_by_their_error():
    assert [t.slot for t in worst_first(TENSORS)] == [
        "layers.0.down.weight",
        "layers.0.q.weight",
        "layers.1.up.weight",
    ]


@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_as_many_of_the_worst_are_raised_as_fit(room):
    tried = [(step("rtn"), attempt(judgement("language/kl", 0.06), tensors=TENSORS))]
    wanted = Step("raised-4.6bpw", Kind.RAISED, None, 0.6)
    base = len(built_in("rtn-int4-g32").rules)
    found = raised(
        wanted, tried, step("rtn"), "fewbit", lambda recipe: len(recipe.rules) - base <= room
    )
    if not room:
        assert found == "The budget has no room for a larger format of any matrix."
        return
    rules = found.recipe.rules[:room]
    worst = [t.slot for t in worst_first(TENSORS)][:room]
    assert [(rule.match, rule.format) for rule in rules] == [(slot, "int5-g64") for slot in worst]
    assert found.recipe.rules[room:] == built_in("rtn-int4-g32").rules
    assert f"for {room} matrices" in found.why and "layers.0.down.weight (0.300)" in found.why


def test_the_nearest_is_what_is_tuned():
    tried = [
        (step("rtn"), attempt(judgement("language/kl", 0.2))),
        (step("gptq"), attempt(judgement("language/kl", 0.07))),
    ]
    found = tuned(Step("tuned-4.5bpw", Kind.TUNED, None, 0.3), tried, step("gptq"))
    assert (found.recipe.tune, found.recipe.method) == ("weights", "gptq")
    assert found.recipe.name == "tuned-4.5bpw" and "gptq-int4-g32 was the nearest" in found.why


def test_a_step_is_not_built_on_rounding_where_better_codes_were_left_out_as_hopeless():
    """A margin far away left all solvers out, and rounding, alone and nearest, was trained."""
    base = step("awq-gptq-refined")
    tried = [(step("rtn"), attempt(judgement("language/kl", 0.4), tensors=TENSORS))]
    found = tuned(Step("tuned-4.5bpw", Kind.TUNED, None, 0.3), tried, base)
    assert found.recipe.method == base.recipe.method
    assert found.why == "awq-gptq-refined-int4-g32 finds codes best, and is trained."
    upper = Step("raised-4.5bpw", Kind.RAISED, None, 0.6)
    raised_ = raised(upper, tried, base, "fewbit", lambda recipe: True)
    assert raised_.recipe.method == base.recipe.method
    # What was measured counts: where the best way was tried and lost, the nearest is it.
    tried.append((base, attempt(judgement("language/kl", 0.5))))
    assert tuned(found, tried, base).recipe.method == step("rtn").recipe.method


def test_a_step_is_built_on_the_nearest_where_the_best_codes_cannot_be_had():
    tried = [(step("gptq"), attempt(judgement("language/kl", 0.4), tensors=TENSORS))]
    found = tuned(Step("tuned-4.5bpw", Kind.TUNED, None, 0.3), tried, None)
    assert found.why == "gptq-int4-g32 was the nearest, and is trained."
    upper = Step("raised-4.5bpw", Kind.RAISED, None, 0.6)
    assert raised(upper, tried, None, "fewbit", lambda recipe: True).recipe.method == "gptq"


def test_a_step_says_what_speaks_for_it():
    assert reason_to_try(step("rtn"), []) == ""
    names = ("language/kl", "language/perplexity", "tasks/*", "tools/*")
    tried = [(step("rtn"), attempt(*(judgement(name, 0.1) for name in names)))]
    assert reason_to_try(step("gptq"), tried) == (
        "language/kl, language/perplexity, tasks/* and 1 more hindered rtn-int4-g32; by what was "
        "measured a mean KL of about 0.035 nats can be expected."
    )
    only = [(step("rtn"), attempt(judgement("speed/task", 2.0)))]
    assert reason_to_try(step("gptq"), only) == "speed/task hindered rtn-int4-g32."
