"""Where the special tokens of a target and a draft differ: how a text begins, and when it ends."""

from __future__ import annotations

from fewbit.records.pair import Consequence, PairCheck, PairDifference
from fewbit.speculate.pair_member import SHOWN, Pair


def compare_special(pair: Pair) -> PairCheck:
    """Compare the tokens with a role."""
    compared = (_beginning(pair), _end(pair), _ends(pair), _named(pair))
    found = tuple(difference for difference in compared if difference is not None)
    target = pair.target
    special = target.tokenizer.special
    agrees = (
        f"a text begins with {target.tokens(target.tokenizer.behaviour.prefix)}, ends with "
        f"{target.tokens(sorted(special.end_of_generation))}"
    )
    return PairCheck(name="special tokens", agrees="" if found else agrees, differences=found)


def _beginning(pair: Pair) -> PairDifference | None:
    ours = pair.target.tokenizer.behaviour.prefix
    theirs = pair.draft.tokenizer.behaviour.prefix
    if tuple(pair.tokens.read(ours)) == theirs or pair.tokens.beginning == theirs:
        return None
    return PairDifference(
        found=f"A text of the target begins with {pair.target.tokens(ours)}, one of the draft with "
        f"{pair.draft.tokens(theirs)}.",
        effect="The draft reads the beginning that the target has. A draft that was trained to "
        "begin otherwise proposes worse; the output is the same.",
        consequence=Consequence.SLOWER,
    )


def _end(pair: Pair) -> PairDifference | None:
    ours, theirs = pair.target.tokenizer.special.eos, pair.draft.tokenizer.special.eos
    if ours == theirs is None or (ours is not None and pair.reads(ours) == theirs):
        return None
    return PairDifference(
        found=f"The target's end token is {pair.target.token(ours)}, the draft's "
        f"{pair.draft.token(theirs)}.",
        effect="Generation stops where the target draws an end of its own. The draft's other end "
        "is rejected there, and the target's, drawn in the same step, ends the answer: a drafted "
        "token is lost, nothing else. A loop that looked for the draft's end would not stop then.",
        consequence=Consequence.SLOWER,
    )


def _ends(pair: Pair) -> PairDifference | None:
    ours = pair.target.tokenizer.special.end_of_generation
    theirs = pair.draft.tokenizer.special.end_of_generation
    read = {pair.reads(token): token for token in ours}
    more = sorted(theirs - read.keys())
    fewer = sorted(token for own, token in read.items() if own not in theirs)
    if not more and not fewer:
        return None
    sentences = []
    if fewer:
        sentences.append(f"the target stops at {pair.target.tokens(fewer)}")
    if more:
        sentences.append(f"the draft would stop at {pair.draft.tokens(more)}")
    return PairDifference(
        found=f"Only {' and only '.join(sentences)}.",
        effect="The target's ends count; an end of the draft's alone is a token like any other.",
        consequence=Consequence.SLOWER,
    )


def _named(pair: Pair) -> PairDifference | None:
    """Return special tokens whose names only one side has, or has for text."""
    target, draft = pair.target.tokenizer, pair.draft.tokenizer
    ours = {target.token_text(token) for token in target.special_ids}
    theirs = {draft.token_text(token) for token in draft.special_ids}
    if ours == theirs:
        return None
    only = [
        f"{text} only in the {side}"
        for side, texts in (("target", ours - theirs), ("draft", theirs - ours))
        for text in sorted(texts)[:SHOWN]
    ]
    return PairDifference(
        found=f"{len(ours ^ theirs):,} special tokens are special in one of them only.",
        effect="Where a prompt holds such a token, as chat templates make them, the draft reads "
        "what it does not know or takes for text, and proposes worse.",
        consequence=Consequence.SLOWER,
        examples=tuple(only[: 2 * SHOWN]),
    )
