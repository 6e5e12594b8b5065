"""Greedy and seeded output with a draft, compared with plain output token by token.

Every token's log-probability is compared too, bit for bit: it tells whether the model saw the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from fewbit.certify.cases import PROMPTS, SAMPLED, CertifySettings
from fewbit.certify.forced import Disturbed, Said, Tally, forced, said
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.progress import Progress
from fewbit.records.certificate import EqualityCase, EqualityCheck
from fewbit.speculate.drafts import Draft


def check_equality(
    target: LoadedModel,
    draft: Draft,
    settings: CertifySettings,
    watch: Progress,
) -> EqualityCheck:
    """Run every request plain and alone, then along the draft in batches of several sizes."""
    asked = _requests(target, settings)
    names, requests = list(asked), list(asked.values())
    plain = []
    for i, request in enumerate(requests):
        watch("plain runs", i, len(requests))
        plain += said(target.served, [request])
    cases = []
    planned = list(_planned(target, draft, settings))
    for i, (drafts, longest, together) in enumerate(planned):
        watch("equality", i, len(planned))
        tally, found = Tally(), list[Said]()
        for at in range(0, len(requests), together):
            batch = requests[at : at + together]
            found += said(target.served, batch, forced(drafts, longest), tally)
        cases.append(
            EqualityCase(
                draft=drafts.name,
                disturbed=isinstance(drafts, Disturbed),
                longest=longest,
                together=min(together, len(requests)),
                requests=len(requests),
                tokens=sum(len(tokens) for tokens, _ in plain),
                acceptance=tally.acceptance,
                difference=_difference(names, plain, found),
            )
        )
    return EqualityCheck(prompts=tuple(PROMPTS), params=tuple(SAMPLED), cases=tuple(cases))


def _requests(target: LoadedModel, settings: CertifySettings) -> dict[str, Request]:
    """Return every prompt with every way of sampling, by name; they end at different steps."""
    found = {}
    for i, ((kind, params), (name, text)) in enumerate(product(SAMPLED.items(), PROMPTS.items())):
        stop = StopCondition(max(1, settings.tokens - i % 3), target.ends)
        request = Request(target.text_prompt(text), params, stop, top_logprobs=0)
        found[f"prompt '{name}', {kind}"] = replace(request, sample=i)
    return found


def _planned(
    target: LoadedModel, draft: Draft, settings: CertifySettings
) -> Iterator[tuple[Draft, int, int]]:
    """Yield drafts, their lengths and batch sizes; the disturbed draft once for each length."""
    for longest, together in product(settings.lengths, settings.together):
        yield draft, longest, together
    disturbed = Disturbed(draft, target.vocabulary)
    for longest in settings.lengths:
        yield disturbed, longest, max(settings.together)


def _difference(names: Sequence[str], plain: Sequence[Said], drafted: Sequence[Said]) -> str:
    """Return the first difference of two runs, in words; empty where they are equal."""
    for name, (tokens, chances), (other, others) in zip(names, plain, drafted, strict=True):
        if len(tokens) != len(other):
            return f"{name}: {len(other)} tokens with the draft, {len(tokens)} without"
        for i, (token, found) in enumerate(zip(tokens, other, strict=True)):
            if token != found:
                return f"{name}: token {i} is {found} with the draft, {token} without"
            if chances[i] != others[i]:
                return (
                    f"{name}: the log-probability of token {i} is {others[i].logprob!r} with the "
                    f"draft, {chances[i].logprob!r} without"
                )
    return ""
