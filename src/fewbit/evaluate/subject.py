"""Opening a model as a party to a comparison."""

from __future__ import annotations

from pathlib import Path

from fewbit.checkpoint.own_manifest import own_manifest
from fewbit.evaluate.identity import Subject
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import open_model


def open_subject(path: Path) -> Subject:
    """Open a model with its tokenizer, chat template and, where it has one, manifest.

    Raises:
        BadFileError, MissingError, UnsupportedError: as `open_model` and `tokenizer_of`.
    """
    model = open_model(path)
    try:
        found = own_manifest(model.checkpoint)
        return Subject(
            model=model,
            tokenizer=tokenizer_of(model),
            chat_template=chat_template_of(model),
            manifest=found.manifest,
            stale=found.stale,
        )
    except BaseException:
        model.checkpoint.close()
        raise
