"""`fewbit card`: a model card for an artefact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.errors import IdentityError, MissingError

if TYPE_CHECKING:
    from fewbit.records.evaluation import Evaluation
    from fewbit.records.manifest import Manifest


def card(
    artefact: Annotated[Path, Parameter(name="ARTEFACT")],
    /,
    *,
    base_model: str | None = None,
    evaluation: Path | None = None,
) -> int:
    """Write a model card: README.md in a folder, or FILE.md beside a GGUF file.

    Args:
        artefact: A folder or GGUF file that fewbit wrote.
        base_model: What the source is called where it is published; by default its path.
        evaluation: What fewbit eval measured of it (--json), to be told in the card.
    """
    from fewbit.atomic import write_bytes
    from fewbit.report.card import model_card

    manifest = _manifest(artefact)
    measured = None if evaluation is None else _measured(evaluation, artefact)
    named = base_model or manifest.source.path
    is_file = artefact.suffix.lower() == ".gguf"
    out = artefact.with_name(artefact.name + ".md") if is_file else artefact / "README.md"
    write_bytes(out, model_card(manifest, artefact, named, measured).encode())
    print(out)
    return 0


def _manifest(artefact: Path) -> Manifest:
    """Return an artefact's manifest, which has the hashes of its very tensors."""
    from fewbit.checkpoint.open import open_checkpoint
    from fewbit.checkpoint.own_manifest import require_own, require_unaltered

    with open_checkpoint(artefact) as checkpoint:
        manifest = require_own(checkpoint)
        require_unaltered(checkpoint, manifest)
    return manifest


def _measured(evaluation: Path, artefact: Path) -> Evaluation:
    """Return what was measured of an artefact, and refuse what was measured of another."""
    from fewbit.records.base import from_json
    from fewbit.records.evaluation import Evaluation

    try:
        content = evaluation.read_bytes()
    except OSError as error:
        raise MissingError(
            f"{evaluation} cannot be read ({error.strerror}); give what fewbit eval --json wrote."
        ) from error
    measured = from_json(Evaluation, content, name=str(evaluation))
    if measured.identity.candidate_sha256 != _digest(artefact):
        raise IdentityError(
            f"{evaluation} measured {measured.candidate.name}, whose tensors are not those of "
            f"{artefact}; give the evaluation of this one."
        )
    return measured


def _digest(artefact: Path) -> str:
    """Return the hash of an artefact's tensors, as an evaluation has its candidate's."""
    from fewbit.checkpoint.checkpoint import content_digest
    from fewbit.checkpoint.open import open_checkpoint

    with open_checkpoint(artefact) as checkpoint:
        return content_digest(checkpoint)
