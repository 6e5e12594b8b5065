"""An evaluation with plausible figures, for tests of what reads one."""

import math
import random

import sample_details
import sample_machine
from sample_language import language_axis, spread

from fewbit.records.conditions import Conditions
from fewbit.records.evaluation import (
    ArmFacts,
    Attempt,
    CompressReport,
    Evaluation,
    Identity,
    IdentityCheck,
    TensorError,
    Untried,
)
from fewbit.records.gate import Gate, Judgement, SliceRule, Verdict
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.measurement import AxisResult, Finding, Item, Measure, Slice
from fewbit.records.model import FormatShare, ModelFacts
from fewbit.records.outcome import Outcome
from fewbit.records.tasks import TasksDetails

ROLES = ("q", "k", "v", "o", "gate", "up", "down")
KL_MARGIN, PERPLEXITY_MARGIN = 0.05, 1.03


def facts(name="smollm2-135m", size=98_000_000, number_format="q4_1"):
    shares = (
        FormatShare(format=number_format, tensors=210, weights=134_000_000, bytes=size - 400_000),
        FormatShare(format="f32", tensors=61, weights=35_136, bytes=400_000),
    )
    return ModelFacts(
        name=name,
        path=f"/models/{name}",
        architecture="llama",
        parameters=134_515_008,
        bytes=size,
        bits_per_weight=size * 8 / 134_515_008,
        formats=shares,
        quantized=True,
    )


def tensors(layers=30, scale=0.08):
    return tuple(
        TensorError(
            slot=f"layers.{layer}.{role}.weight",
            layer=layer,
            source_format="q4_1",
            candidate_format="int6-g64" if role == "down" else "int4-g64",
            weights=331_776,
            relative_error=scale * (1 + math.sin(layer * 1.7 + 2 * i)) / 2,
        )
        for layer in range(layers)
        for i, role in enumerate(ROLES)
    )


def tasks_axis(name="tasks/arithmetic", title="wrong answers in arithmetic", harmed=4, count=80):
    draw = random.Random(name)
    failed = [draw.random() < 0.3 for _ in range(count)]
    items = tuple(
        Item(
            name=f"sum {i}",
            cluster=f"sum {i}",
            source=float(failed[i]),
            candidate=float(failed[i] or i % (count // max(1, harmed)) == 0),
            floor=float(failed[i]),
        )
        for i in range(count)
    )
    one = Slice(
        name=name,
        axis="tasks",
        measure=Measure.PROPORTION,
        unit="",
        title=title,
        items=items,
        note="Answers are read from the last number.",
    )
    details = TasksDetails(harmful=sample_details.examples())
    return AxisResult(axis="tasks", slices=(one,), details=details, seconds=61.0)


def kernels_axis():
    found = (
        Finding(
            name="kernels/float", axis="kernels", passed=True, found="All 210 matrices ran packed."
        ),
        Finding(
            name="kernels/fallback",
            axis="kernels",
            passed=False,
            found="Two layers are dequantized.",
            waived="They are tiny.",
        ),
    )
    return AxisResult(axis="kernels", findings=found, details=sample_machine.kernels(), seconds=0.1)


def judgement(name, figure, margin, floor=None, **more):
    if figure.high < margin:
        outcome, said = Outcome.ACCEPT, "lies under"
    elif figure.low > margin:
        outcome, said = Outcome.REJECT, "lies over"
    else:
        outcome, said = Outcome.INCONCLUSIVE, "reaches across"
    return Judgement(
        slice=name,
        figure=figure,
        floor=floor,
        margin=margin,
        outcome=outcome,
        reason=f"{name}, {figure.value:.4g}, {said} the margin of {margin:g}.",
        **({"items": 40, "clusters": 40} | more),
    )


def judgements(kl, ratio):
    return (
        judgement("language/kl", spread(kl), KL_MARGIN, floor=spread(0.004)),
        judgement("language/perplexity", spread(ratio, 0.006), PERPLEXITY_MARGIN),
        judgement(
            "tasks/arithmetic",
            Interval(value=0.05, low=0.004, high=0.12),
            0.08,
            items=80,
            clusters=80,
            items_needed=640,
        ),
        Judgement(
            slice="speed/decode/1",
            figure=spread(0.6, 0.02),
            margin=None,
            outcome=None,
            reason="No margin is declared.",
            items=12,
            clusters=12,
        ),
    )


def speed_axis():
    items = tuple(
        Item(name=f"turn {i}", cluster=f"turn {i}", source=0.005, candidate=0.003)
        for i in range(12)
    )
    one = Slice(
        name="speed/decode/1",
        axis="speed",
        measure=Measure.RATIO,
        unit="seconds",
        title="seconds a token, 1 request",
        items=items,
    )
    return AxisResult(axis="speed", slices=(one,), details=sample_machine.speed(), seconds=20.0)


def other_axes():
    return (
        AxisResult(axis="memory", details=sample_machine.memory(), seconds=9.0),
        AxisResult(axis="numerics", details=sample_machine.numerics(), seconds=4.0),
    )


def verdict(found):
    outcomes = [j.outcome for j in found if j.slice.startswith("language/")]
    order = (Outcome.REJECT, Outcome.INCONCLUSIVE, Outcome.ACCEPT)
    outcome = next(o for o in order if o in outcomes)
    return Verdict(outcome=outcome, reasons=tuple(j.reason for j in found))


def conditions():
    return Conditions(
        cpu="AMD EPYC 9R45",
        isa="avx512vnni",
        activations="int8-g32",
        threads=2,
        system="Linux x86_64",
        python="CPython 3.11.7",
        numpy="2.3.4",
        fewbit="0.1.0",
        executor="native",
    )


def kernels():
    return tuple(
        KernelRecord(
            slot=t.slot,
            format=t.candidate_format,
            kernel="w4.sym.g64/a8.g32/avx512vnni",
            activations="int8-g32",
            bytes=t.weights // 2,
        )
        for t in tensors()
    )


def evaluation(
    kl=0.031,
    ratio=1.012,
    *,
    candidate="small",
    size=76_000_000,
    documents=40,
    number_format="int4-g64",
):
    found = judgements(kl, ratio)
    return Evaluation(
        source=facts(),
        candidate=facts(candidate, size, number_format),
        identity=Identity(
            checks=(
                IdentityCheck(name="tokenizer", found="49,152 tokens, fingerprint 1f3a…"),
                IdentityCheck(name="architecture", found="llama, 30 layers"),
            ),
            equal_tensors=61,
        ),
        arms=(
            ArmFacts(role="source", run="as it is, int8-g32 inputs", template="ef" * 32),
            ArmFacts(role="floor", run="bf16 inputs instead of int8-g32"),
            ArmFacts(role="candidate", run="as it is, int8-g32 inputs", template="ef" * 32),
        ),
        axes=(
            language_axis(kl, ratio, documents),
            tasks_axis(),
            speed_axis(),
            kernels_axis(),
            *other_axes(),
        ),
        gate=Gate(
            slices=(
                SliceRule(match="language/kl", margin=KL_MARGIN),
                SliceRule(match="language/perplexity", margin=PERPLEXITY_MARGIN),
                SliceRule(match="tasks/*", margin=0.08, optional=True),
            )
        ),
        judgements=found,
        verdict=verdict(found),
        tensors=tensors(),
        source_kernels=kernels(),
        candidate_kernels=kernels(),
        conditions=conditions(),
        notes=(
            "The source is itself quantized (q4_1, 5.00 bits per weight): the figures say what the "
            "candidate loses against that file, not against the model it was made from.",
        ),
        seconds=117.4,
    )


def compress_report(accepted=True):
    evaluations = {
        "rtn-int3-g32": evaluation(
            0.61, 1.42, candidate="rtn-int3-g32", size=60_000_000, number_format="int3-g32"
        ),
        "rtn-int4-g64": evaluation(0.09, 1.031, candidate="rtn-int4-g64", size=71_000_000),
        "rtn-int4-g32": evaluation(0.031, 1.012, candidate="rtn-int4-g32"),
    }
    if not accepted:
        evaluations.pop("rtn-int4-g32")
    attempts = tuple(
        Attempt(
            recipe=name,
            promised_bytes=e.candidate.bytes,
            evaluation=e,
            evidence=f"attempts/{name}.json",
        )
        for name, e in evaluations.items()
    )
    return CompressReport(
        source=facts(),
        attempts=attempts,
        untried=(
            Untried(
                recipe="rtn-int8-g128",
                promised_bytes=143_000_000,
                reason="It would not make the model smaller.",
            ),
        ),
        accepted="rtn-int4-g32" if accepted else None,
        outcome=Outcome.ACCEPT if accepted else Outcome.REJECT,
        reasons=("rtn-int4-g32 is the smallest recipe that the gate accepts.",),
        seconds=75.0,
    )
