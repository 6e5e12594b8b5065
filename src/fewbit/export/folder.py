"""Folders in the layout of Hugging Face: configuration, sidecars, weights, manifest."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from fewbit.atomic import creating_folder, write_bytes
from fewbit.checkpoint.artefact import MANIFEST, README
from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.checkpoint.detect import CONFIG
from fewbit.checkpoint.safetensors_write import Part, write_shards
from fewbit.export.job import Job
from fewbit.model.sidecars import sidecars
from fewbit.model.weights import ModelSource
from fewbit.model.written import written_config
from fewbit.records.base import readable
from fewbit.records.export import AbsentTensor

_METADATA = {"format": "pt"}
"""What transformers asks for in a file's header."""
_OLDER = "torch_dtype"
"""What transformers called `dtype` before 4.56, and other readers still do."""
SHARD_BYTES = 5_000_000_000
"""Bytes of tensors in a file of weights, at most, as transformers had it for long."""


def write_folder(
    job: Job,
    changes: Mapping[str, Any],
    parts: Sequence[Part],
    content: Iterable[tuple[str, NDArray[Any]]],
    metadata: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Write a folder; it appears when everything is in it, the manifest last, or not at all.

    Args:
        job: the export.
        changes: what config.json says beside the model's own configuration.
        parts: every entry of the weights.
        content: the data of every entry, in that order, made from `job.read` one slot at a time.
        metadata: more free text for the file's header.

    Raises:
        OutputError: the folder is not empty or cannot be written.
        UnsupportedError: the model has no exact form as config.json.
        BadFileError: the source's tokenizer cannot be read.
    """
    facts = job.source.checkpoint.facts
    config = {**written_config(job.source), **changes}
    if _OLDER in config and "dtype" in changes:  # the source's own, which would contradict
        config[_OLDER] = changes["dtype"]
    with creating_folder(job.out) as partial:
        write_bytes(partial / CONFIG, json.dumps(config, indent=2).encode() + b"\n")
        for name, file in sidecars(facts).items():
            write_bytes(partial / name, file)
        largest = job.settings.shard_bytes or SHARD_BYTES
        write_shards(partial, parts, content, {**_METADATA, **metadata}, largest)
        if job.card is not None:
            write_bytes(partial / README, readable(job.card(job.manifest)).encode())
        write_bytes(partial / MANIFEST, job.manifest_json())


def left_out(source: ModelSource) -> tuple[AbsentTensor, ...]:
    """Return the tensors that a folder of another format does not have: those without a slot.

    What a configuration says instead, and a tied table's second copy, are among them.
    """
    used = {stored.name for stored in source.slots.values()}
    gguf = isinstance(source.checkpoint.facts, GgufFacts)
    reason = "the Program does not use it" + (", and it has no name here" if gguf else "")
    return tuple(
        AbsentTensor(source=name, reason=reason)
        for name in source.checkpoint.tensors
        if name not in used
    )
