"""What an artefact is made with: recorded in its manifest, and asked for again from there."""

from __future__ import annotations

import importlib.metadata
import platform
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fewbit import __version__
from fewbit.checkpoint.checkpoint import content_digest
from fewbit.checkpoint.own_manifest import manifest_of
from fewbit.errors import UsageError
from fewbit.model.weights import ModelSource
from fewbit.recipes import checked
from fewbit.records.base import from_json
from fewbit.records.calibration import CalibrationFacts
from fewbit.records.manifest import Making, Manifest, TextRequest
from fewbit.records.recipe import Recipe
from fewbit.records.tuning import ROUNDED
from fewbit.runtime.chooser import choose_isa
from fewbit.tune import Precision, Tuned, TuneSettings


@dataclass(frozen=True)
class Request:
    """What was asked for, as far as it cannot be seen in what came of it."""

    text: TextRequest | None = None
    tune_windows: int | None = None
    imatrix: str | None = None
    torch: bool = False
    """Whether something is tuned, so that the version of torch counts."""


NO_REQUEST = Request()


def making(request: Request) -> Making:
    """Return the record of a request, and of what carries it out here."""
    return Making(
        versions=versions(torch=request.torch),
        kernels=choose_isa(),
        text=request.text,
        tune_windows=request.tune_windows,
        imatrix=request.imatrix,
    )


def versions(*, torch: bool) -> dict[str, str]:
    """Return the versions of everything whose arithmetic is in the bits."""
    found = {
        "fewbit": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
    return found | ({"torch": importlib.metadata.version("torch")} if torch else {})


def open_manifest(path: Path) -> Manifest:
    """Read a manifest that can be made again, from an artefact or from its own file.

    Raises:
        UsageError: it is an export's, or has no record of how it was made.
        UsageError, UnsupportedError: its recipe cannot be, as `checked`.
        MissingError, BadFileError, UnsupportedError: as `manifest_of`.
    """
    if path.suffix == ".json":
        try:
            found = from_json(Manifest, path.read_bytes(), name=str(path))
        except OSError as error:
            raise UsageError(
                f"{path} cannot be read ({error.strerror}); give a manifest."
            ) from error
    else:
        found = manifest_of(path)
    checked(found.recipe)
    if found.making is None or found.export is not None:
        what = "is of an export" if found.export else "does not say how it was made"
        raise UsageError(f"The manifest of {path} {what}; quantize the source by a recipe instead.")
    if found.calibration is not None and found.making.text is None:
        raise UsageError(
            f"The manifest of {path} has token windows that a program gave; they cannot be read "
            "again, so make it with that program."
        )
    return found


def require_source(manifest: Manifest, source: ModelSource) -> None:
    """Check that a model is the one that the manifest's artefact was made from, by hash.

    Raises:
        UsageError: it is another.
    """
    found = content_digest(source.checkpoint)
    if found != manifest.source.sha256:
        raise UsageError(
            f"{source.path} is not what the manifest's artefact was made from: its tensors have "
            f"the hash {found[:16]}, and {manifest.source.path} had {manifest.source.sha256[:16]}; "
            "give that model."
        )


def require_same_text(wanted: CalibrationFacts | None, found: CalibrationFacts | None) -> None:
    """Check that texts gave the tokens that they gave before.

    Raises:
        UsageError: they did not; the message names the first text that changed.
    """
    if wanted is None or found is None or wanted.tokens_sha256 == found.tokens_sha256:
        return
    known = {text.name: text.sha256 for text in wanted.texts}
    other = [text.name for text in found.texts if known.get(text.name) != text.sha256]
    raise UsageError(
        f"The calibration text '{(other or ['?'])[0]}' gives other tokens than it gave when the "
        "manifest was written; restore it, or quantize by a recipe."
    )


def doubts(manifest: Manifest) -> tuple[str, ...]:
    """Return, in sentences, what may keep the bits from coming out the same here."""
    assert manifest.making is not None
    then, now = manifest.making, making(Request(torch=manifest.tuned is not None))
    found = [
        f"{name} is {now.versions[name]} here and was {value}"
        for name, value in then.versions.items()
        if now.versions.get(name, value) != value
    ]
    if then.kernels != now.kernels:
        found.append(f"the instruction set is {now.kernels} here and was {then.kernels}")
    if manifest.recipe.propagation:
        found.append("it makes up for errors of earlier layers, whose sums depend on the threads")
    if manifest.tuned is not None:
        found.append("it was tuned, and torch promises equal bits on one machine alone")
    return tuple(f"The bits may differ: {doubt}." for doubt in found)


def asked_tuning(recipe: Recipe) -> TuneSettings | None:
    """Return how a recipe is tuned; None where it is not."""
    if recipe.tune is None:
        return None
    what = Tuned(recipe.tune)
    if recipe.tune_steps is None:
        return TuneSettings(what=what)
    return TuneSettings(what=what, steps=recipe.tune_steps)


def tune_settings(manifest: Manifest) -> TuneSettings | None:
    """Return how the artefact was tuned; None where it was not."""
    record = manifest.tuned
    if record is None:
        return None
    return TuneSettings(
        what=Tuned(record.what),
        steps=record.steps,
        batch=record.batch,
        rate=record.rate,
        code_rate=record.code_rate,
        warmup=record.warmup,
        hidden=record.hidden,
        check=record.check,
        patience=record.patience,
        round_activations=record.activations == ROUNDED,
        seed=record.seed,
        precision=Precision(record.precision),
    )


def differing(manifest: Manifest, again: Manifest) -> tuple[str, ...]:
    """Return the names of tensors whose bits differ, or that only one of the two has."""
    one, other = ({(t.stored, t.slot): t.sha256 for t in m.tensors} for m in (manifest, again))
    names = [key for key in one.keys() | other.keys() if one.get(key) != other.get(key)]
    return tuple(sorted(name or slot for name, slot in names))
