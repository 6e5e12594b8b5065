"""Where a target and a draft would put a conversation differently, or hold less of it."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any

from fewbit.errors import FewbitError
from fewbit.records.pair import Consequence, PairCheck, PairDifference
from fewbit.speculate.pair_member import SHOWN, Pair, PairMember
from fewbit.tokens.chat_template import ChatTemplate

_Messages = Sequence[Mapping[str, str]]

_QUESTION = {"role": "user", "content": "Write a function that adds two numbers."}
_TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
            "required": ["a", "b"],
        },
    },
}
CONVERSATIONS: Mapping[str, tuple[_Messages, Sequence[Mapping[str, Any]] | None]] = {
    "a question": ([_QUESTION], None),
    "a question with a system message": (
        [{"role": "system", "content": "Answer briefly."}, _QUESTION],
        None,
    ),
    "a second question": (
        [
            _QUESTION,
            {"role": "assistant", "content": "def add(a, b):\n    return a + b"},
            {"role": "user", "content": "And one that subtracts?"},
        ],
        None,
    ),
    "a question with tools": ([_QUESTION], [_TOOL]),
}
"""Conversations that both templates are asked to write."""


def compare_templates(pair: Pair) -> PairCheck:
    """Compare the chat templates as text, and what they make of some conversations."""
    ours, theirs = pair.target.template, pair.draft.template
    if ours == theirs:
        agrees = "none" if ours is None else f"{len(ours):,} characters, the same"
        return PairCheck(name="chat template", agrees=agrees)
    if ours is None or theirs is None:
        found = _only_one("draft" if ours is None else "target")
    else:
        found = _different(pair, ours, theirs)
    return PairCheck(name="chat template", agrees="", differences=(found,))


def compare_contexts(pair: Pair) -> PairCheck:
    """Compare how many positions both were made for."""
    target, draft = pair.target.context, pair.draft.context
    if target == draft:
        return PairCheck(name="context", agrees=f"{target:,} positions")
    if draft > target:
        effect = "The target's decides; the draft's is never full before it."
        consequence = Consequence.NONE
    else:
        effect = f"From position {draft:,} on, generation goes on without the draft."
        consequence = Consequence.SLOWER
    found = PairDifference(
        found=f"The target was made for {target:,} positions, the draft for {draft:,}.",
        effect=effect,
        consequence=consequence,
    )
    return PairCheck(name="context", agrees="", differences=(found,))


def template_digest(member: PairMember) -> str | None:
    """Return the SHA-256 of a chat template, hexadecimal; None without one."""
    if member.template is None:
        return None
    return hashlib.sha256(member.template.encode("utf-8", "surrogatepass")).hexdigest()


def _only_one(side: str) -> PairDifference:
    effects = {
        "target": "A draft without one was trained on texts: it reads the target's conversations "
        "as such and ends no turn, so fewer of its tokens are accepted; the output is the same.",
        "draft": "Prompts are continued as they are, which the draft was not trained to do: fewer "
        "of its tokens are accepted; the output is the same.",
    }
    return PairDifference(
        found=f"Only the {side} has a chat template.",
        effect=effects[side],
        consequence=Consequence.SLOWER,
    )


def _different(pair: Pair, ours: str, theirs: str) -> PairDifference:
    one, other = _written(pair.target), _written(pair.draft)
    unlike = [name for name in CONVERSATIONS if one[name] != other[name]]
    lines = [
        line[:1] + " " + line[1:].strip()
        for line in difflib.unified_diff(ours.splitlines(), theirs.splitlines(), n=0, lineterm="")
        if line[:1] in "+-" and line[:3] not in ("+++", "---")
    ]
    changed = [place for name in unlike[-1:] for place in _parting(name, one[name], other[name])]
    return PairDifference(
        found=f"The chat templates differ ({len(ours):,} and {len(theirs):,} characters, "
        f"{len(lines)} lines); {_outcome(unlike)}.",
        effect=_effect(unlike),
        consequence=Consequence.SLOWER if unlike else Consequence.NONE,
        examples=(*changed, *(line[:160] for line in islice(lines, SHOWN))),
    )


def _outcome(unlike: Sequence[str]) -> str:
    if unlike:
        return f"they write otherwise: {', '.join(unlike)}"
    return f"they write alike: {', '.join(CONVERSATIONS)}"


def _effect(unlike: Sequence[str]) -> str:
    if not unlike:
        return "The draft reads the prompts that it was trained on; nothing follows."
    return (
        "The draft reads the target's prompt, which is not quite what it was trained on: in such "
        "conversations fewer of its tokens may be accepted; the output is the same."
    )


def _written(member: PairMember) -> dict[str, str]:
    """Return what a template makes of each conversation; why it fails where it does."""
    template = ChatTemplate(
        member.template or "",
        member.tokenizer.special_texts,
        clock=lambda: datetime(2026, 1, 1),
    )
    return {name: _rendered(template, *asked) for name, asked in CONVERSATIONS.items()}


def _rendered(
    template: ChatTemplate, messages: _Messages, tools: Sequence[Mapping[str, Any]] | None
) -> str:
    try:
        return template.render(messages, tools)
    except FewbitError as error:
        return f"(fails: {error})"


def _parting(name: str, one: str, other: str) -> tuple[str, ...]:
    """Return where two renderings of a conversation part, with some characters around, of each."""
    short = min(len(one), len(other))
    at = next((i for i in range(short) if one[i] != other[i]), short)
    start = max(0, at - 24)
    return tuple(
        f"{name}, {side}, at character {at:,}: {text[start : at + 24]!r}"
        for side, text in (("target", one), ("draft", other))
    )
