"""A generation's record in a few lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from fewbit.records.generation import DraftRecord, GenerationRecord, judged_by_rank


def describe_generation(record: GenerationRecord) -> Iterator[str]:
    """Yield lines: prompt, output and speed; then what the draft did and what it was worth."""
    times = record.times
    cached = f" ({record.cached_tokens} cached)" if record.cached_tokens else ""
    yield (
        f"prompt: {record.prompt_tokens} tokens{cached} in {times.prompt:.2f} s"
        f"{_rate(record.prompt_tokens - record.cached_tokens, times.prompt)}"
    )
    yield (
        f"output: {record.generated_tokens} tokens, end to end {times.total:.2f} s, decoding"
        f"{_speed(record.tokens_per_second)}; ended by {record.finish.value} ({record.detail})"
        f"{_repetition(record)}"
    )
    if record.draft is not None:
        yield from _describe_draft(record, record.draft)


def _repetition(record: GenerationRecord) -> str:
    """Return how to have the same text again, where that is not by asking again."""
    if record.greedy:
        return ""
    if record.repeats:
        return f"; seed {record.seed}"
    return "; not to be repeated, as no seed was given and the draft drew tokens of its own"


def _describe_draft(record: GenerationRecord, draft: DraftRecord) -> Iterator[str]:
    times = record.times
    length = "none verified"
    if draft.acceptance_length is not None:
        length = (
            f"{draft.acceptance_length:.2f} tokens a verified block ({draft.blocks} blocks), "
            f"accepted by position {_by_position(draft)}"
        )
    yield f"draft {draft.draft}: {length}"
    if draft.tokens_left_out:
        yield f"drafted tokens left out, as no cache page or row was free: {draft.tokens_left_out}"
    if draft.branches:
        ranks = " ".join(f"{own}/{judged}" for own, judged in judged_by_rank(draft.branches))
        yield f"branches accepted by rank {ranks}"
    if draft.branches_left_out:
        yield f"branches left out, as no cache page or row was free: {draft.branches_left_out}"
    yield (
        f"draft time {times.draft * 1e3:.1f} ms, verify time {times.verify:.2f} s, roll-back time "
        f"{times.rollback * 1e3:.1f} ms, plain steps {record.plain_steps} at"
        f"{_speed(record.plain_tokens_per_second)}{_gain(record)}"
    )
    if draft.blocks:
        yield (
            f"drafted tokens run for nothing: {draft.wasted}; steps with drafts expected at"
            f"{_speed(draft.forecast.expected_rate)}, measured{_speed(draft.forecast.rate)}"
        )
    if draft.changes:
        last = draft.changes[-1]
        state = f"at most {last.length} tokens" if last.length else "paused"
        yield f"draft length changed {len(draft.changes)} times, last {state}: {last.reason}"
    if record.draft_off:
        yield f"drafting ended: {record.draft_off}"


def _by_position(draft: DraftRecord) -> str:
    """Return accepted over judged, for each position of a block."""
    return " ".join(f"{p.accepted}/{p.tested}" for p in draft.positions)


def _gain(record: GenerationRecord) -> str:
    speed, plain = record.tokens_per_second, record.plain_tokens_per_second
    return f"; {speed / plain:.2f} x plain" if speed and plain else ""


def _speed(tokens_per_second: float | None) -> str:
    return " -" if tokens_per_second is None else f" {tokens_per_second:.1f} tokens/s"


def _rate(tokens: int, seconds: float) -> str:
    return f" ({tokens / seconds:.0f} tokens/s)" if seconds > 0 else ""
