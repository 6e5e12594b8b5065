"""What differs between the tokenizers of a target and a draft, and what that does."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, zip_longest

import numpy as np

from fewbit.records.pair import Consequence, PairCheck, PairDifference, SharedTokens
from fewbit.speculate.pair_member import SHOWN, Pair, PairMember
from fewbit.tokens.pieces import SentencePieces


def shared_tokens(pair: Pair) -> SharedTokens:
    """Count what both vocabularies have."""
    support, ids = pair.tokens.support, pair.tokens.draft_ids
    return SharedTokens(
        count=len(support),
        same_ids=int(np.count_nonzero(support == ids)),
        target_only=len(pair.target.ids) - len(support),
        draft_only=len(pair.draft.ids) - len(support),
    )


def compare_tokens(pair: Pair) -> PairCheck:
    """Compare every token's bytes, id by id."""
    compared = (_moved(pair), _target_only(pair), _draft_only(pair), _cut_head(pair))
    differences = [difference for difference in compared if difference is not None]
    return PairCheck(
        name="tokens",
        agrees=""
        if differences
        else f"{len(pair.tokens.support):,} tokens, each with its id and its bytes",
        differences=tuple(differences),
    )


def compare_rows(pair: Pair) -> PairCheck:
    """Compare the sizes of the embeddings, whose rows beyond the tokens are padding."""
    target, draft = pair.target, pair.draft
    found = [d for d in (_short_of_rows(target), _short_of_rows(draft)) if d]
    if target.rows != draft.rows:
        found.append(
            PairDifference(
                found=f"The target has {target.rows:,} rows for {_size(target):,} ids, the draft "
                f"{draft.rows:,} for {_size(draft):,}.",
                effect="Rows without a token are padding; they are masked on both sides and never "
                "drawn.",
                consequence=Consequence.NONE,
            )
        )
    agrees = f"{target.rows:,} rows for {_size(target):,} ids; the others are masked"
    return PairCheck(
        name="vocabulary padding", agrees="" if found else agrees, differences=tuple(found)
    )


def compare_cutting(pair: Pair) -> PairCheck:
    """Compare what cuts text: words, normalization, merges.

    Merges that follow from SentencePiece's scores are compared between files of one kind only:
    where scores tie, converters differ.
    """
    one, other = pair.target.cutting, pair.draft.cutting
    found = []
    if (one.words, one.normalizer, one.whole_words) != (
        other.words,
        other.normalizer,
        other.whole_words,
    ):
        found.append(_cut_otherwise("Text is cut into words by different rules.", _rules(pair)))
    if one.merges != other.merges and not _converted(pair):
        pairs = enumerate(zip_longest(one.merges, other.merges))
        different = (
            f"merge {rank} is {_merge(ours)} in the target, {_merge(theirs)} in the draft"
            for rank, (ours, theirs) in pairs
            if ours != theirs
        )
        sentence = (
            f"The merges differ ({len(one.merges):,} in the target, {len(other.merges):,} in the "
            f"draft, {len(set(one.merges) & set(other.merges)):,} in both)."
        )
        found.append(_cut_otherwise(sentence, different))
    agrees = f"{len(one.merges):,} merges, words cut by one rule"
    return PairCheck(
        name="merges and words", agrees="" if found else agrees, differences=tuple(found)
    )


def _converted(pair: Pair) -> bool:
    """Return whether the two tokenizers are SentencePiece's, read from files of two kinds."""
    one, other = (m.tokenizer.behaviour for m in (pair.target, pair.draft))
    both = isinstance(one.pieces, SentencePieces) and isinstance(other.pieces, SentencePieces)
    return both and one.source != other.source


def _moved(pair: Pair) -> PairDifference | None:
    support, ids = pair.tokens.support, pair.tokens.draft_ids
    places = np.flatnonzero(support != ids)
    if not places.size:
        return None
    first = [(int(support[p]), int(ids[p])) for p in places[:SHOWN]]
    return PairDifference(
        found=f"Under another id in the draft: {places.size:,} of {len(support):,} shared tokens.",
        effect="Ids are mapped by the tokens' bytes, in both directions, at no loss.",
        consequence=Consequence.MAPPING,
        examples=tuple(f"{pair.target.token(a)} is {pair.draft.token(b)}" for a, b in first),
    )


def _target_only(pair: Pair) -> PairDifference | None:
    if len(pair.tokens.support) == len(pair.target.ids):
        return None
    missing = pair.target.ids.difference(pair.tokens.support.tolist())
    examples = []
    for token in sorted(missing)[:SHOWN]:
        read = pair.tokens.read([token])
        examples.append(f"{pair.target.token(token)} is read as {pair.draft.tokens(read)}")
    return PairDifference(
        found=f"Unknown to the draft: {len(missing):,} of the target's "
        f"{len(pair.target.ids):,} tokens.",
        effect="The draft reads each as tokens of its own that spell it, and never proposes one: "
        "where the target draws it, the block ends.",
        consequence=Consequence.MAPPING,
        examples=tuple(examples),
    )


def _draft_only(pair: Pair) -> PairDifference | None:
    if len(pair.tokens.draft_ids) == len(pair.draft.ids):
        return None
    more = pair.draft.ids.difference(pair.tokens.draft_ids.tolist())
    return PairDifference(
        found=f"Unknown to the target: {len(more):,} of the draft's "
        f"{len(pair.draft.ids):,} tokens.",
        effect="They are masked before the draft draws, so they are never proposed.",
        consequence=Consequence.NONE,
        examples=tuple(pair.draft.token(token) for token in sorted(more)[:SHOWN]),
    )


def _cut_head(pair: Pair) -> PairDifference | None:
    kept = pair.draft.kept
    if kept is None:
        return None
    missing = np.setdiff1d(pair.tokens.support, pair.proposed.support)
    return PairDifference(
        found=f"The draft's head was cut to {len(kept):,} tokens.",
        effect="It proposes these alone; where the target draws another, the block ends.",
        consequence=Consequence.SLOWER,
        examples=tuple(f"without {pair.target.token(int(token))}" for token in missing[:SHOWN]),
    )


def _short_of_rows(member: PairMember) -> PairDifference | None:
    if member.rows >= _size(member):
        return None
    return PairDifference(
        found=f"{member.name} has {_size(member):,} token ids and only {member.rows:,} rows.",
        effect=f"Ids from {member.rows:,} on can be neither read nor drawn.",
        consequence=Consequence.MAPPING,
    )


def _cut_otherwise(found: str, examples: Iterable[str]) -> PairDifference:
    return PairDifference(
        found=found,
        effect="The draft reads the target's tokens as they are, which it would have cut "
        "otherwise: the output is the same, fewer tokens are accepted.",
        consequence=Consequence.SLOWER,
        examples=tuple(islice(examples, SHOWN)),
    )


def _rules(pair: Pair) -> list[str]:
    return [f"{side}: {_rule(m)}" for side, m in (("target", pair.target), ("draft", pair.draft))]


def _rule(member: PairMember) -> str:
    cut = member.cutting
    whole = ", whole words first" if cut.whole_words else ""
    normalizer = "" if cut.normalizer == "null" else f", normalizer {cut.normalizer[:80]}"
    return f"{' and then '.join(cut.words)[:160] or 'no words'}{normalizer}{whole}"


def _merge(merge: tuple[str, str] | None) -> str:
    return "none" if merge is None else repr(" ".join(merge)[:80])


def _size(member: PairMember) -> int:
    return member.tokenizer.vocabulary_size
