"""Greedy and seeded output with a draft, compared with plain output token by token.

Every token's log-probability is compared too, bit for bit: it tells whether the model saw the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

from fewbit.certify.cases import PROMPTS, SAMPLED, CertifySettings
from fewbit.certify.forced import Disturbed, Said, Tally, forced, said
from fewbit.certify.parts import Parts
from fewbit.engine.loaded import LoadedModel
from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.progress import Progress
from fewbit.records.certificate import EqualityCase, EqualityCheck, PlainRun
from fewbit.speculate.drafts import Draft, reach_of
from fewbit.speculate.fresh import fresh


def check_equality(
    target: LoadedModel,
    draft: Draft,
    settings: CertifySettings,
    watch: Progress,
    parts: Parts | None = None,
) -> EqualityCheck:
    """Run every request plain and alone, then along the draft in batches of several sizes.

    Raises:
        FewbitError: a request failed.
    """
    parts = parts or Parts()
    asked = _requests(target, settings)
    plain = []
    for i, (name, request) in enumerate(asked.items()):
        watch("plain runs", i, len(asked))
        run = partial(_plain_run, target, request)
        plain.append(parts.once("plain", name, PlainRun, run))
    cases = []
    planned = list(_planned(draft, settings, len(asked)))
    for i, case in enumerate(planned):
        watch("equality", i, len(planned))
        compared = partial(_compared, target, asked, plain, case)
        cases.append(parts.once("equality", case.name, EqualityCase, compared))
    return EqualityCheck(prompts=tuple(PROMPTS), params=tuple(SAMPLED), cases=tuple(cases))


def _plain_run(target: LoadedModel, request: Request) -> PlainRun:
    ((tokens, logprobs),) = said(target.served, [request])
    return PlainRun(tokens=tokens, logprobs=tuple(found.logprob for found in logprobs))


def _compared(
    target: LoadedModel, asked: Mapping[str, Request], plain: Sequence[PlainRun], case: _Case
) -> EqualityCase:
    """Run every request along the draft, and compare."""
    tally, found, requests = Tally(), list[Said](), list(asked.values())
    drafts = case.opened(target.vocabulary)
    for at in range(0, len(requests), case.together):
        batch = requests[at : at + case.together]
        found += said(target.served, batch, forced(drafts, case.longest, case.branches), tally)
    return EqualityCase(
        draft=drafts.name,
        disturbed=case.disturbed,
        longest=case.longest,
        branches=case.branches,
        together=case.together,
        requests=len(requests),
        tokens=sum(len(run.tokens) for run in plain),
        acceptance=tally.acceptance,
        difference=_difference(list(asked), plain, found),
    )


def _requests(target: LoadedModel, settings: CertifySettings) -> dict[str, Request]:
    """Return every prompt with every way of sampling, by name; they end at different steps."""
    found = {}
    for i, ((kind, params), (name, text)) in enumerate(product(SAMPLED.items(), PROMPTS.items())):
        stop = StopCondition(max(1, settings.tokens - i % 3), target.ends)
        request = Request(target.text_prompt(text), params, stop, top_logprobs=0)
        found[f"prompt '{name}', {kind}"] = replace(request, sample=i)
    return found


@dataclass(frozen=True)
class _Case:
    """All requests along a draft: how many tokens at once, how many requests in a batch.

    And how many branches beside the chain.
    """

    draft: Draft
    longest: int
    together: int
    disturbed: bool = False
    branches: int = 0

    @property
    def name(self) -> str:
        """What it is kept by."""
        kind = "disturbed" if self.disturbed else "draft"
        tree = f" and {self.branches} branches" if self.branches else ""
        return f"{kind}, {self.longest} at once{tree}, {self.together} together"

    def opened(self, vocabulary: int) -> Draft:
        """Return the draft, knowing no sequence."""
        draft = fresh(self.draft)
        return Disturbed(draft, vocabulary) if self.disturbed else draft


def _planned(draft: Draft, settings: CertifySettings, requests: int) -> Iterator[_Case]:
    """Yield the cases; the disturbed draft once for each length, both once more as trees.

    Batches that all requests fit in are one.
    """
    sizes = dict.fromkeys(min(together, requests) for together in settings.together)
    for longest, together in product(dict.fromkeys(settings.lengths), sizes):
        yield _Case(draft, longest, together)
    for longest in dict.fromkeys(settings.lengths):
        yield _Case(draft, longest, max(sizes), disturbed=True)
    if settings.branches and reach_of(draft):
        for disturbed in (False, True):
            longest = max(settings.lengths)
            yield _Case(draft, longest, max(sizes), disturbed, settings.branches)


def _difference(names: Sequence[str], plain: Sequence[PlainRun], drafted: Sequence[Said]) -> str:
    """Return the first difference of two runs, in words; empty where they are equal."""
    for name, run, (other, logprobs) in zip(names, plain, drafted, strict=True):
        if len(run.tokens) != len(other):
            return f"{name}: {len(other)} tokens with the draft, {len(run.tokens)} without"
        for i, (token, found) in enumerate(zip(run.tokens, other, strict=True)):
            if token != found:
                return f"{name}: token {i} is {found} with the draft, {token} without"
            if run.logprobs[i] != logprobs[i].logprob:
                return (
                    f"{name}: the log-probability of token {i} is {logprobs[i].logprob!r} with the "
                    f"draft, {run.logprobs[i]!r} without"
                )
    return ""
