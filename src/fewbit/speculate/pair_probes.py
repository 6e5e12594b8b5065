"""Texts that target and draft both encode, to see where they cut otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from fewbit.records.pair import Consequence, PairCheck, PairDifference, ProbeText
from fewbit.speculate.pair_member import SHOWN, Pair
from fewbit.tokens.identity import PROBE

PITFALLS = "pitfalls"
"""The probe that is no text: what known tokenizers cut differently."""

TEXTS: Mapping[str, str] = {
    "prose": (
        "Speculative decoding guesses several tokens with a small model and lets the large one "
        "judge all of them in a single pass. Where the guess was right, time is saved; where it "
        'wasn\'t, nothing is lost but the guess. "Why," you may ask, "doesn\'t everybody do it?" '
        "Because it pays only if scoring five tokens costs little more than scoring one, and "
        "that depends on the machine: in 2023 it was GPUs' bandwidth, now it's caches too.\n"
    ),
    "code": (
        "def mean(values: list[float]) -> float:\n"
        '    """Return the arithmetic mean."""\n'
        "    if not values:\n"
        '        raise ValueError("no values")\n'
        "    total = 0.0\n"
        "    for i, value in enumerate(values):\n"
        "        total += value  # not compensated\n"
        "    return total / len(values)\n\n\n"
        "class Node:\n    def __init__(self, left=None, right=None):\n"
        "        self.left, self.right = left, right\n"
    ),
    "data": (
        '{"id": 4711, "name": "Zürich", "size": [12.5, -3e-4], "ok": true, "tags": []}\n'
        "| a | b |\n|---|---|\n| 1,024 | 99.5% |\n2026-11-30T07:59:00Z  0x7fff  10.0.0.1\n"
    ),
    "languages": (
        "Der schnelle braune Fuchs läuft über die Straße. Où est la bibliothèque ? ¿Qué hora es? "
        "Привет, мир! 今天天气很好。今日は良い天気です。안녕하세요. مرحبا بالعالم. नमस्ते दुनिया\n"
    ),
    "a conversation": (
        "<|im_start|>system\nYou are helpful.<|im_end|>\n<|im_start|>user\nHello!<|im_end|>\n"
        "<|im_start|>assistant\n"
    ),
    PITFALLS: PROBE,
}


def probe_texts(pair: Pair) -> tuple[ProbeText, ...]:
    """Encode every probe text by both."""
    return tuple(_probe(pair, name) for name in TEXTS)


def compare_probes(pair: Pair, probes: tuple[ProbeText, ...]) -> PairCheck:
    """Say which probe texts the draft would have cut otherwise."""
    unlike = [probe.name for probe in probes if not probe.cut_alike]
    if not unlike:
        return PairCheck(name="probe texts", agrees=f"{len(probes)} texts give the same tokens")
    found = PairDifference(
        found=f"Both encode the probe texts, and differ in: {', '.join(unlike)}.",
        effect="The draft reads the target's tokens, which are not those it would have made: the "
        "output is the same, fewer tokens are accepted.",
        consequence=Consequence.SLOWER,
        examples=tuple(_first_cut(pair, name) for name in unlike[:SHOWN]),
    )
    return PairCheck(name="probe texts", agrees="", differences=(found,))


def proposable(probes: tuple[ProbeText, ...]) -> float:
    """Return the share of the target's tokens in real texts that the draft can propose."""
    texts = [probe for probe in probes if probe.name != PITFALLS]
    tokens = sum(probe.target_tokens for probe in texts)
    return sum(probe.proposable * probe.target_tokens for probe in texts) / tokens


def _probe(pair: Pair, name: str) -> ProbeText:
    text = TEXTS[name]
    ours, theirs = _encode(pair, text)
    known = np.isin(ours, pair.proposed.support)
    return ProbeText(
        name=name,
        characters=len(text),
        target_tokens=len(ours),
        draft_tokens=len(theirs),
        cut_alike=pair.tokens.read(ours) == theirs,
        proposable=float(known.mean()),
    )


def _first_cut(pair: Pair, name: str) -> str:
    """Return where a text is first cut otherwise."""
    ours, theirs = _encode(pair, TEXTS[name])
    read = pair.tokens.read(ours)
    short = min(len(read), len(theirs))
    at = next((i for i in range(short) if read[i] != theirs[i]), short)
    draft = pair.draft.tokenizer
    before = draft.decode(theirs[max(0, at - 3) : at])
    parts = [[draft.decode([t]) for t in ids[at : at + 3]] for ids in (read, theirs)]
    return f"{name}, behind {before!r}: {parts[0]} of the target's, {parts[1]} by itself"


def _encode(pair: Pair, text: str) -> tuple[list[int], list[int]]:
    ours, theirs = (
        member.tokenizer.encode(text, add_special=False, parse_special=True)
        for member in (pair.target, pair.draft)
    )
    return ours, theirs
