"""Whether two texts overlap: what was calibrated on cannot evaluate."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.calibrate.shingles import SHARED_LIMIT, SHINGLE_WORDS, Known, shingles, words
from fewbit.calibrate.text import Document, Documents
from fewbit.errors import UsageError


@dataclass(frozen=True)
class Overlap:
    """What an evaluation document has in common with calibration text."""

    name: str
    share: float
    """Of its runs of `SHINGLE_WORDS` words."""
    example: str
    """The first run that both have."""


def overlap(evaluation: Documents, calibration: Documents) -> tuple[Overlap, ...]:
    """Return the evaluation documents that share text with calibration, the worst first.

    A document's share is the larger of two, whatever case and spacing: of its shingles those that
    occur anywhere in the calibration text, and those in common with one document, of the shorter
    of the two, so that neither a text cut into many pieces nor a long one around a short one
    escapes. Only documents above `SHARED_LIMIT` are listed.
    """
    known = Known()
    for other in calibration.documents:
        known.add(shingles(other.text))
    found = [_overlap(known, document) for document in evaluation.documents]
    shared = [one for one in found if one.share > SHARED_LIMIT]
    return tuple(sorted(shared, key=lambda one: -one.share))


def refuse_overlap(evaluation: Documents, calibration: Documents) -> None:
    """Refuse to evaluate on what was calibrated on.

    Raises:
        UsageError: a document of `evaluation` is largely contained in `calibration`; names the
            share and an example.
    """
    found = overlap(evaluation, calibration)
    if found:
        worst = found[0]
        raise UsageError(
            f"{len(found)} of {len(evaluation.documents)} evaluation documents are in the "
            f"calibration text (document '{worst.name}' to {worst.share:.0%}, as in "
            f'"{worst.example}" of {calibration.name}); evaluate on another text.'
        )


def _overlap(known: Known, document: Document) -> Overlap:
    found = shingles(document.text)
    common = known.common(found)
    share = max(len(common) / len(found), known.share(found))
    start = min((found[shingle] for shingle in common), default=0)
    return Overlap(document.name, share, _run(document, start) if common else "")


def _run(document: Document, start: int) -> str:
    return " ".join(words(document.text)[start : start + SHINGLE_WORDS])
