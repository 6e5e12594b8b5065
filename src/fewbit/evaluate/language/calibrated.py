"""Refusing to evaluate a candidate on the text that it was calibrated on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from fewbit.calibrate.entries import Conversation, Entry, Passage, read_entries
from fewbit.calibrate.mix import SAMPLES_TEXT
from fewbit.calibrate.overlap import refuse_overlap
from fewbit.calibrate.text import (
    Documents,
    Half,
    collect,
    default_name,
    default_text,
    document,
)
from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.evaluate.identity import Subject
from fewbit.records.manifest import Manifest

Decode = Callable[[Sequence[int]], str]

_DATASET = "quantize.imatrix.dataset"
"""Where llama.cpp's quantizer writes what its importance matrix was made from."""


def refuse_seen(documents: Documents, candidate: Subject) -> tuple[str, ...]:
    """Compare a text with all that a candidate says it was calibrated on.

    That is what its manifest says, as `refuse_calibrated`, or in a file of llama.cpp's quantizer
    the name of its importance matrix' text.

    Returns:
        Sentences about calibration text that could not be compared.

    Raises:
        UsageError, BadFileError, MissingError: as `refuse_calibrated`.
    """
    notes = refuse_calibrated(documents, candidate.manifest, candidate.tokenizer.decode)
    facts = candidate.model.checkpoint.facts
    name = facts.metadata.get(_DATASET) if isinstance(facts, GgufFacts) else None
    if candidate.manifest is not None or not isinstance(name, str):
        return notes
    known = _calibration_text(name, documents, None)
    if known is None:
        return (*notes, _gone(name))
    refuse_overlap(documents, known)
    return notes


def refuse_calibrated(
    documents: Documents, manifest: Manifest | None, decode: Decode | None = None
) -> tuple[str, ...]:
    """Compare a text with what the candidate's manifest names as its calibration text.

    What the model wrote itself is not compared: nobody else has it. The two halves of the default
    text have nothing in common by construction.

    Args:
        documents: the evaluation text.
        manifest: of the candidate, where it has one.
        decode: turns token ids of calibration files into text; without it they are not compared.

    Returns:
        Sentences about calibration text that could not be compared.

    Raises:
        UsageError: a document is largely contained in calibration text; names the share and an
            example.
        BadFileError, MissingError: a calibration file cannot be read.
    """
    if manifest is None:
        return ()
    notes = () if manifest.importance is None else (_unknown(manifest.importance.name),)
    named = () if manifest.calibration is None else manifest.calibration.texts
    return (*notes, *refuse_named(documents, [text.name for text in named], decode))


def refuse_named(
    documents: Documents, names: Iterable[str], decode: Decode | None = None
) -> tuple[str, ...]:
    """Compare a text with calibration texts by the names that records have of them.

    Arguments, what is returned and raised as of `refuse_calibrated`.
    """
    notes = []
    for name in (name for name in names if name != SAMPLES_TEXT):
        known = _calibration_text(name, documents, decode)
        if known is None:
            notes.append(_gone(name))
        else:
            refuse_overlap(documents, known)
    return tuple(notes)


def _calibration_text(name: str, documents: Documents, decode: Decode | None) -> Documents | None:
    """Return a calibration text by the name it has in records, or None where it is not here."""
    if name == default_name(Half.CALIBRATION):
        apart = documents.name == default_name(Half.EVALUATION)
        return collect(name, ()) if apart else default_text(Half.CALIBRATION)
    path = Path(name)
    if not path.is_file():
        return None
    texts = [_text(entry, decode) for entry in read_entries(path)]
    return collect(name, [document(f"{path.name}#{i + 1}", t) for i, t in enumerate(texts) if t])


def _text(entry: Entry, decode: Decode | None) -> str:
    if isinstance(entry, Passage):
        return entry.text
    if isinstance(entry, Conversation):
        return "\n\n".join(str(message.get("content", "")) for message in entry.messages)
    return decode(entry.ids) if decode else ""


def _gone(name: str) -> str:
    return (
        f"The candidate was calibrated on '{name}', which is not here, so whether the evaluation "
        "text is in it could not be looked for."
    )


def _unknown(name: str) -> str:
    return (
        f"The candidate was made with the importance matrix '{name}', which does not hold its "
        "text, so whether the evaluation text is in that could not be looked for."
    )
