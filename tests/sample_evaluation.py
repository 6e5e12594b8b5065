"""An evaluation with plausible figures, for tests of what reads one."""

import math

from fewbit.evaluate.fixed_gate import judge

from fewbit.records.conditions import Conditions
from fewbit.records.evaluation import (
    Attempt,
    CompressReport,
    Evaluation,
    Gate,
    Identity,
    IdentityCheck,
    TensorError,
    Untried,
)
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.records.language import Divergence, DocumentScore, HistogramBin, Perplexity, TextFacts
from fewbit.records.model import FormatShare, ModelFacts
from fewbit.records.outcome import Outcome

ROLES = ("q", "k", "v", "o", "gate", "up", "down")


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
            candidate_format="int4-g64",
            weights=331_776,
            relative_error=scale * (1 + math.sin(layer * 1.7 + 2 * i)) / 2,
        )
        for layer in range(layers)
        for i, role in enumerate(ROLES)
    )


def spread(value, width=0.1):
    return Interval(value=value, low=value * (1 - width), high=value * (1 + width))


def evaluation(
    kl=0.031,
    ratio=1.012,
    *,
    candidate="small",
    size=76_000_000,
    documents=40,
    number_format="int4-g64",
):
    kernels = tuple(
        KernelRecord(
            slot=t.slot,
            format=t.candidate_format,
            kernel="w4.sym.g64/a8.g32/avx512vnni",
            activations="int8-g32",
            bytes=t.weights // 2,
        )
        for t in tensors()
    )
    text = TextFacts(
        name="CPython 3.11.7 topics and library, evaluation half",
        sha256="ab" * 32,
        documents=documents,
        windows=documents,
        window_tokens=512,
        tokens=512 * documents,
        positions=255 * documents,
        bos="one <|im_start|> before each window, as the tokenizer's configuration says",
    )
    divergence = Divergence(
        mean=spread(kl), median=spread(kl / 3), p99=spread(kl * 12), maximum=kl * 90
    )
    edges = [0.0] + [10 ** (power / 2) for power in range(-12, 3)]
    counts = [int(2000 * math.exp(-((i - 8) ** 2) / 8)) for i in range(len(edges))]
    bins = zip(edges, [*edges[1:], None], counts, strict=True)
    perplexity = Perplexity(
        source=spread(12.3), candidate=spread(12.3 * ratio), ratio=spread(ratio, 0.006)
    )
    gate = Gate()
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
        text=text,
        divergence=divergence,
        reverse_divergence=divergence,
        histogram=tuple(HistogramBin(low=a, high=b, count=c) for a, b, c in bins),
        perplexity=perplexity,
        agreement=Interval(value=0.93, low=0.92, high=0.94),
        documents=tuple(
            DocumentScore(
                name=f"lib:module{i}.py",
                sha256="cd" * 32,
                positions=255,
                divergence=255 * kl * (0.5 + i / documents),
                reverse_divergence=255 * kl * (0.5 + i / documents),
                source_loss=640.0,
                candidate_loss=643.0,
                agreements=237,
            )
            for i in range(documents)
        ),
        tensors=tensors(),
        source_kernels=kernels,
        candidate_kernels=kernels,
        conditions=Conditions(
            cpu="AMD EPYC 9R45",
            isa="avx512vnni",
            threads=2,
            system="Linux x86_64",
            python="3.11.7",
            numpy="2.3.4",
            fewbit="0.1.0",
            executor="native",
        ),
        gate=gate,
        verdict=judge(gate, text, divergence.mean, perplexity.ratio, kernels),
        notes=(
            "The source is itself quantized (q4_1, 5.00 bits per weight): the figures say what the "
            "candidate loses against that file, not against the model it was made from.",
        ),
        seconds=17.4,
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
