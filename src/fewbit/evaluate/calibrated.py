"""Refusing to evaluate a candidate on the text that it was calibrated on."""

from __future__ import annotations

from pathlib import Path

from fewbit.calibrate.entries import Conversation, Entry, Passage, read_entries
from fewbit.calibrate.text import Documents, collect, document, refuse_overlap
from fewbit.records.manifest import Manifest


def refuse_calibrated(documents: Documents, manifest: Manifest | None) -> None:
    """Compare a text with the files that the candidate's manifest names as its calibration text.

    Text that is no longer where it was, and token ids, cannot be compared; the default texts for
    calibration and evaluation have nothing in common by construction.

    Raises:
        UsageError: a document is largely contained in a calibration file.
        BadFileError, MissingError: such a file cannot be read.
    """
    calibration = None if manifest is None else manifest.calibration
    for part in () if calibration is None else calibration.texts:
        path = Path(part.name)
        if path.is_file():
            texts = [_text(entry) for entry in read_entries(path)]
            found = [document(f"{path.name}#{i + 1}", t) for i, t in enumerate(texts) if t]
            refuse_overlap(documents, collect(path.name, found))


def _text(entry: Entry) -> str:
    if isinstance(entry, Passage):
        return entry.text
    if isinstance(entry, Conversation):
        return "\n\n".join(str(message.get("content", "")) for message in entry.messages)
    return ""
