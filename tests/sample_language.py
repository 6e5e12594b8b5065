"""The language axis of an evaluation with plausible figures."""

import math

import sample_details

from fewbit.records.interval import Interval
from fewbit.records.language import (
    Divergence,
    DocumentScore,
    HistogramBin,
    LanguageDetails,
    Part,
    Perplexity,
    TextFacts,
)
from fewbit.records.measurement import AxisResult, Item, Measure, Slice


def spread(value, width=0.1):
    return Interval(value=value, low=value * (1 - width), high=value * (1 + width))


def text_facts(documents=40):
    return TextFacts(
        name="CPython 3.11.7 topics and library, evaluation half",
        sha256="ab" * 32,
        documents=documents,
        windows=documents,
        window_tokens=512,
        tokens=512 * documents,
        positions=255 * documents,
        bos="one <|im_start|> before each window, as the tokenizer's configuration says",
    )


def language_details(kl=0.031, ratio=1.012, documents=40):
    divergence = Divergence(
        mean=spread(kl), median=spread(kl / 3), p99=spread(kl * 12), maximum=kl * 90
    )
    edges = [0.0] + [10 ** (power / 2) for power in range(-12, 3)]
    counts = [int(2000 * math.exp(-((i - 8) ** 2) / 8)) for i in range(len(edges))]
    bins = zip(edges, [*edges[1:], None], counts, strict=True)
    return LanguageDetails(
        text=text_facts(documents),
        divergence=divergence,
        reverse_divergence=divergence,
        histogram=tuple(HistogramBin(low=a, high=b, count=c) for a, b, c in bins),
        perplexity=Perplexity(
            source=spread(12.3), candidate=spread(12.3 * ratio), ratio=spread(ratio, 0.006)
        ),
        agreement=Interval(value=0.93, low=0.92, high=0.94),
        near_ties=0.11,
        tie_lead=0.31,
        tie_rule="the median change of a lead under the floor",
        parts=tuple(
            Part(
                name=name,
                documents=documents,
                positions=255 * documents,
                divergence=spread(kl),
                floor=0.004,
                excess=spread(kl - 0.004),
                perplexity_ratio=spread(ratio, 0.006),
                agreement=Interval(value=0.93, low=0.92, high=0.94),
            )
            for name in ("prose", "code", "conversations", "protocol: end of turn")
        ),
        curves=sample_details.curves(),
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
    )


def language_axis(kl, ratio, documents):
    def items(source, candidate, floor):
        return tuple(
            Item(
                name=f"window {i}",
                cluster=f"lib:module{i}.py",
                weight=255.0,
                source=source,
                candidate=candidate * (0.5 + i / documents),
                floor=floor,
            )
            for i in range(documents)
        )

    divergence = Slice(
        name="language/kl",
        axis="language",
        measure=Measure.MEAN,
        unit="nats",
        title="mean KL(source || candidate)",
        items=items(0.0, kl, 0.004),
    )
    perplexity = Slice(
        name="language/perplexity",
        axis="language",
        measure=Measure.PERPLEXITY,
        unit="",
        title="perplexity over the source's",
        items=items(2.51, 2.51 + math.log(ratio), None),
    )
    return AxisResult(
        axis="language",
        slices=(divergence, perplexity),
        details=language_details(kl, ratio, documents),
        seconds=17.4,
    )
