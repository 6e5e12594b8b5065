"""Arms over tiny models on disk, on the native executor and one thread."""

from dataclasses import replace
from pathlib import Path

from fewbit.evaluate.arms import Arms, LocalParty, Role, local_party
from fewbit.evaluate.subject import open_subject
from fewbit.model.runner import RunSettings
from fewbit.program import CacheType

SETTINGS = RunSettings(threads=1)


def arms_of(source: Path, candidate: Path, work: Path | None = None) -> Arms:
    """Return a source, the same with keys and values in bf16, and a candidate."""
    rounded = replace(SETTINGS, cache_type=CacheType.BF16)
    parties = {
        Role.SOURCE: party(source, SETTINGS),
        Role.FLOOR: party(source, rounded),
        Role.CANDIDATE: party(candidate, SETTINGS),
    }
    return Arms(parties, work)


def party(path: Path, settings: RunSettings) -> LocalParty:
    """Return a model on disk as a party."""
    subject = open_subject(path)
    with subject.model.checkpoint:
        return local_party(subject, settings)
