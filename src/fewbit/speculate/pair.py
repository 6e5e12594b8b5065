"""Whether a draft fits a target: what their tokenizers, templates and contexts have in common.

Nothing here bears on what is generated, which is the target's alone. It says how much a draft can
be worth, and why it may be worth less than hoped for.
"""

from __future__ import annotations

from fewbit.errors import UnsupportedError
from fewbit.records.pair import (
    Consequence,
    PairDifference,
    PairModel,
    PairReport,
    PairVerdict,
    ProbeText,
)
from fewbit.speculate.pair_member import Pair, PairMember, pair_of
from fewbit.speculate.pair_probes import compare_probes, probe_texts, proposable
from fewbit.speculate.pair_prompt import compare_contexts, compare_templates, template_digest
from fewbit.speculate.pair_special import compare_special
from fewbit.speculate.pair_tokens import (
    compare_cutting,
    compare_rows,
    compare_tokens,
    shared_tokens,
)
from fewbit.tokens.facts import tokenizer_facts

LEAST_PROPOSABLE = 0.5
"""Under this share of proposable tokens no block brings more than two on average, however good the
draft: 0.5 + 0.25 + ... accepted ones and the target's own."""


def check_pair(target: PairMember, draft: PairMember) -> PairReport:
    """Return every difference between a target and a draft, and whether the draft can be used."""
    pair = pair_of(target, draft)
    probes = probe_texts(pair)
    checks = (
        compare_tokens(pair),
        compare_rows(pair),
        compare_cutting(pair),
        compare_special(pair),
        compare_templates(pair),
        compare_contexts(pair),
        compare_probes(pair, probes),
    )
    differences = tuple(d for check in checks for d in check.differences)
    verdict = _verdict(pair, probes)
    return PairReport(
        target=_described(target),
        draft=_described(draft),
        shared=shared_tokens(pair),
        checks=checks,
        probes=probes,
        verdict=verdict,
        reasons=_reasons(pair, probes, verdict, differences),
    )


def require_usable(pair: Pair) -> tuple[PairDifference, ...]:
    """Return what a run with this draft should say before it starts: what costs accepted tokens.

    It leaves out what takes a second to compare, which `check_pair` has.

    Raises:
        UnsupportedError: the draft shares too few tokens with the target.
    """
    probes = probe_texts(pair)
    if _verdict(pair, probes) is PairVerdict.NOT_USABLE:
        first = "; ".join(e for d in compare_tokens(pair).differences for e in d.examples[:1])
        raise UnsupportedError(
            f"{pair.draft.name} cannot draft for {pair.target.name}: it can propose "
            f"{proposable(probes):.0%} of the target's tokens in common texts, and no draft pays "
            f"under {LEAST_PROPOSABLE:.0%} ({first}); take a draft with the target's tokenizer, "
            "and see 'fewbit pair'."
        )
    checks = (
        compare_tokens(pair),
        compare_special(pair),
        compare_templates(pair),
        compare_contexts(pair),
        compare_probes(pair, probes),
    )
    found = (d for check in checks for d in check.differences)
    return tuple(d for d in found if d.consequence is not Consequence.NONE)


def _verdict(pair: Pair, probes: tuple[ProbeText, ...]) -> PairVerdict:
    if proposable(probes) < LEAST_PROPOSABLE:
        return PairVerdict.NOT_USABLE
    return PairVerdict.USABLE if pair.tokens.passes_ids else PairVerdict.MAPPED


def _reasons(
    pair: Pair,
    probes: tuple[ProbeText, ...],
    verdict: PairVerdict,
    differences: tuple[PairDifference, ...],
) -> tuple[str, ...]:
    share = f"{proposable(probes):.1%} of the target's tokens in the probe texts"
    if verdict is PairVerdict.NOT_USABLE:
        return (
            f"The draft can propose {share}, and under {LEAST_PROPOSABLE:.0%} no draft pays; "
            "take one with the target's tokenizer.",
        )
    shared = f"{len(pair.tokens.support):,} of {pair.target.tokenizer.vocabulary_size:,}"
    first = (
        "Every token of the target has the same id in the draft."
        if verdict is PairVerdict.USABLE
        else f"The two share {shared} tokens; the draft can propose {share}."
    )
    slower = sum(d.consequence is Consequence.SLOWER for d in differences)
    if not slower:
        return (first,)
    return first, f"{slower} difference{'s' * (slower > 1)} may cost accepted tokens."


def _described(member: PairMember) -> PairModel:
    return PairModel(
        name=member.name,
        path=member.path,
        rows=member.rows,
        context=member.context,
        template=template_digest(member),
        tokenizer=tokenizer_facts(member.tokenizer),
    )
