"""Turns of plain and drafted generation on the same prompts, and the rows of a table they make."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from processes import Worker, WorkerError
from table import Row, spread

ACCEPTED = 0.9
"""Acceptance per drafted token that the bars of a model draft are stated at."""

PEER_DRAFTS = ("draft=2", "draft=3", "draft=4", "draft=6")
"""Lengths that llama.cpp drafts at."""

PEER_BAR = 2.4
"""Times its better run."""


def turns_of(
    ours: Worker,
    draft: str,
    groups: Sequence[Sequence[list[int]]],
    tokens: int,
    temperature: float = 0.0,
) -> list[dict[str, Any]]:
    """Generate plainly and with the draft, prompt after prompt; greedy outputs must be the same."""
    found = []
    for number, prompts in enumerate(groups):
        asked = {"tokens": tokens, "temperature": temperature, "drafted_first": number % 2 == 1}
        turn = ours.ask("turn", draft, prompts=list(prompts), **asked)
        if turn and temperature == 0 and not turn["same"]:
            raise WorkerError(f"the draft {draft} changed a greedy output")
        if turn:
            found.append(turn)
            rates = f"{turn['plain']:.1f} tok/s plain, {turn['drafted']:.1f} drafted"
            print(f"  {Path(draft).stem}, turn {number + 1}: {rates}", file=sys.stderr, flush=True)
    return found


def peer_turn(peer: Worker, prompt: list[int], tokens: int, best: str) -> dict[str, float]:
    """Return the peer's tokens per second, plain and at its best length."""
    return {
        setting: peer.ask("generate", setting, prompt=prompt, tokens=tokens)["rate"]
        for setting in dict.fromkeys(("plain", best))
    }


def best_peer(peer: Worker, prompt: list[int], tokens: int) -> str:
    """Try each length of the peer's drafts once, and return the fastest."""
    peer.ask("generate", "plain", prompt=prompt, tokens=4)
    rates = {
        setting: peer.ask("generate", setting, prompt=prompt, tokens=tokens // 2)["rate"]
        for setting in PEER_DRAFTS
    }
    return max(rates, key=lambda setting: rates[setting])


def rows_of_turns(work: str, found: Sequence[dict[str, Any]], least: float | None) -> Iterator[Row]:
    """Yield a row of all turns, and one of those at the stated acceptance where they are fewer."""
    if not found:
        yield Row(work, figure="failed: every answer was over after its first token")
        return
    stated = [turn for turn in found if turn["proposed"] and acceptance([turn]) >= ACCEPTED]
    model = least is not None and 1 < least < 2
    yield row_of_turns(work, found, None if model and stated else least)
    if model and stated:
        yield row_of_turns(f"  of them at {ACCEPTED:.0%} accepted or more", stated, least)


def row_of_turns(work: str, turns: Sequence[dict[str, Any]], least: float | None) -> Row:
    """Return the row of some turns: the ratio of each, drafted over plain."""
    ratios = [turn["drafted"] / turn["plain"] for turn in turns]
    proposed = sum(turn["proposed"] for turn in turns)
    accepted = f", {acceptance(turns):.0%} of {proposed} drafted accepted" if proposed else ""
    return Row(
        f"{work} ({len(turns)} turns{accepted})",
        f"{median(turn['drafted'] for turn in turns):.1f} tok/s",
        f"{median(turn['plain'] for turn in turns):.1f} tok/s (plain)",
        f"{median(ratios):.2f} x",
        spread(ratios),
        "" if least is None else f">= {least} x",
        None if least is None else median(ratios) >= least,
        {"turns": list(turns)},
    )


def row_of_ends(turns: Sequence[dict[str, Any]]) -> Row:
    """Return the row of how much sooner requests ended, waiting for a place included."""
    sooner = [turn["sooner"] for turn in turns if turn["sooner"]]
    shown = {"figure": f"{median(sooner):.2f} x", "spread": spread(sooner)} if sooner else {}
    return Row("  a request's end, sooner by", **shown)


def acceptance(turns: Sequence[dict[str, Any]]) -> float:
    """Return accepted over drafted tokens."""
    return sum(t["accepted"] for t in turns) / max(sum(t["proposed"] for t in turns), 1)


def row_against_peer(
    work: str, turns: Sequence[dict[str, Any]], peers: Sequence[dict[str, float]], best: str
) -> Row:
    """Return the row of turns beside the peer's better run in each."""
    pairs = [(t["drafted"], max(p.values())) for t, p in zip(turns, peers, strict=True)]
    ratios = [ours / theirs for ours, theirs in pairs]
    plain = median(p["plain"] for p in peers)
    drafted = median(p[best] for p in peers)
    return Row(
        work,
        f"{median(ours for ours, _ in pairs):.1f} tok/s",
        f"{plain:.1f} plain, {drafted:.1f} {best}",
        f"{median(ratios):.2f} x",
        spread(ratios),
        f">= {PEER_BAR} x",
        median(ratios) >= PEER_BAR,
        {"peers": list(peers)},
    )
