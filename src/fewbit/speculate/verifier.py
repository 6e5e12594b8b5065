"""Which exact rule judges a proposal: a matter of the request and of what the draft returned."""

from __future__ import annotations

from fewbit.sampling import SamplingParams, Verifier

__all__ = ["Verifier", "verifier_for"]


def verifier_for(params: SamplingParams, *, branches: bool = False) -> Verifier:
    """Return how a request's proposals are to be drawn and judged.

    A seed asks for the same output with any draft or none, and a greedy request has no other
    output; without either, rejection accepts more of what a draft draws: of a chain by whole
    blocks, of one with branches token by token. Whether branches are asked for is settled before
    anything is drawn, and so is the rule, also where the draft then has none.
    """
    if params.greedy or params.seed is not None:
        return Verifier.MATCH
    return Verifier.TOKEN if branches else Verifier.BLOCK
