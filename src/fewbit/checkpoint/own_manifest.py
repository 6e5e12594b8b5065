"""The manifest that lies with a checkpoint, where it is of this very checkpoint.

A file that is written anew keeps the manifest of its predecessor beside it, and a folder may hold
a `manifest.json` of another program: neither says anything of the tensors that are there now.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fewbit.checkpoint.artefact import ArtefactCheckpoint
from fewbit.checkpoint.checkpoint import Checkpoint, GgufFacts, TensorInfo
from fewbit.checkpoint.open import open_checkpoint
from fewbit.errors import BadFileError
from fewbit.formats.registry import FLOATS
from fewbit.formats.spec import digest
from fewbit.records.manifest import Manifest, TensorEntry, manifest_path, read_manifest

_AS_STORED = ("fewbit", "gguf", "hf")
"""Containers whose manifests have the hashes of tensors as they are stored, whatever the format."""
_OURS = b'"fewbit_version"'
"""What every manifest of ours begins with, and no other program's has."""
_FLOATS = frozenset(form.name for form in FLOATS)

Each = Callable[[Callable[[str], list[str]], Iterable[str]], Iterable[list[str]]]
"""Calls a function with one name after the other, as `map` does, or with several at once."""


@dataclass(frozen=True)
class OwnManifest:
    """What lies where a checkpoint's manifest has its place."""

    manifest: Manifest | None = None
    """None where there is none, or none of this checkpoint."""
    stale: str = ""
    """Where one of ours lies there that is of other tensors: that it does, without a full stop."""


def own_manifest(checkpoint: Checkpoint) -> OwnManifest:
    """Return a checkpoint's manifest, by what the headers say of every tensor.

    Hashes are not taken (`altered`). What another program left in a folder counts as none.

    Raises:
        BadFileError: the manifest is damaged or of another version.
    """
    place = manifest_path(checkpoint.path)
    if not place.is_file() or _is_foreign(checkpoint, place):
        return OwnManifest()
    found = read_manifest(checkpoint.path)
    difference = _difference(found, checkpoint.tensors)
    if difference:
        return OwnManifest(stale=f"{place} is not of {checkpoint.path.name}: {difference}")
    return OwnManifest(found)


def manifest_of(artefact: Path) -> Manifest:
    """Return the manifest of an artefact by its headers.

    Raises:
        MissingError: there is no artefact, or none with a manifest.
        BadFileError: either is damaged, or the manifest is not of this artefact.
        UnsupportedError: it is a model of a kind that is not read.
    """
    with open_checkpoint(artefact) as checkpoint:
        return require_own(checkpoint)


def require_own(checkpoint: Checkpoint) -> Manifest:
    """Return a checkpoint's manifest, and refuse one of other tensors.

    Raises:
        MissingError: there is none.
        BadFileError: it is damaged, of another version, or of other tensors by the headers.
    """
    found = own_manifest(checkpoint)
    if found.stale:
        raise BadFileError(f"{found.stale}; remove it.")
    return found.manifest or read_manifest(checkpoint.path)


def altered(checkpoint: Checkpoint, manifest: Manifest, each: Each = map) -> tuple[str, ...]:
    """Return the stored tensors whose bytes are not those that a manifest has the hash of.

    Of containers that keep codes otherwise than they were hashed only the floats are compared.

    Args:
        checkpoint: whose tensors; those that are compared are read.
        manifest: what is said of them.
        each: calls a function for every name.
    """
    hashed = {
        name: [entry.sha256 for entry in entries]
        for name, entries in _by_stored(manifest).items()
        if name in checkpoint.tensors and _is_as_stored(manifest, entries[0])
    }
    digests = each(lambda name: _digests(checkpoint, name, len(hashed[name])), hashed)
    return tuple(name for name, found in zip(hashed, digests, strict=True) if found != hashed[name])


def require_unaltered(checkpoint: Checkpoint, manifest: Manifest, each: Each = map) -> None:
    """Refuse a manifest that has the hashes of other bytes.

    Raises:
        BadFileError: a tensor is `altered`, whose arguments these are.
    """
    changed = altered(checkpoint, manifest, each)
    if changed:
        raise BadFileError(
            f"{len(changed)} tensors of {checkpoint.path}, the first {changed[0]}, are not those "
            f"that {manifest_path(checkpoint.path)} has the hashes of; get the model again, or "
            "remove that manifest where another model took its place."
        )


def is_hashed_as_stored(manifest: Manifest) -> bool:
    """Return whether a manifest's hashes are those of stored bytes, of codes too."""
    return manifest.container in _AS_STORED


def _is_foreign(checkpoint: Checkpoint, place: Path) -> bool:
    """Whether another program wrote what lies in a folder that is no artefact of ours."""
    if isinstance(checkpoint, ArtefactCheckpoint) or isinstance(checkpoint.facts, GgufFacts):
        return False
    with contextlib.suppress(OSError):
        return _OURS not in place.read_bytes()
    return False


def _difference(manifest: Manifest, tensors: Mapping[str, TensorInfo]) -> str:
    """Return in words where a manifest speaks of another tensor than there is; empty where not."""
    for name, entries in _by_stored(manifest).items():
        if name not in tensors:
            return f"{name} is not there"
        said, found = sum(math.prod(e.shape) for e in entries), math.prod(tensors[name].shape)
        if said != found:
            return f"{name} has {found:,} weights, not {said:,}"
        form = tensors[name].format.name
        if _is_as_stored(manifest, entries[0]) and form != entries[0].format:
            return f"{name} is {form}, not {entries[0].format}"
    return ""


def _by_stored(manifest: Manifest) -> dict[str, list[TensorEntry]]:
    """Return the entries by stored tensor: several where experts share one, in its rows' order."""
    found: dict[str, list[TensorEntry]] = {}
    for entry in manifest.tensors:
        if entry.stored:
            found.setdefault(entry.stored, []).append(entry)
    return found


def _is_as_stored(manifest: Manifest, entry: TensorEntry) -> bool:
    return is_hashed_as_stored(manifest) or entry.format in _FLOATS


def _digests(checkpoint: Checkpoint, name: str, parts: int) -> list[str]:
    """Return the hash of a tensor, or of each of its parts: equally many rows."""
    if parts == 1:
        return [checkpoint.digest(name)]
    tensor = checkpoint.read(name)
    rows = tensor.shape[0] // parts
    taken = [digest(tensor.take_rows(slice(i * rows, (i + 1) * rows))) for i in range(parts)]
    checkpoint.release(name)
    return taken
