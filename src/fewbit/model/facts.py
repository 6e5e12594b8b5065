"""What a model is, and what to beware of, read without running it."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import FewbitError, KernelError
from fewbit.model.binding import is_vector
from fewbit.model.config import MixtureConfig
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import ModelSource
from fewbit.records.kernels import KernelRecord
from fewbit.records.model import FormatShare, Hazard, Inspection, ModelFacts
from fewbit.tokens.facts import tokenizer_facts
from fewbit.tokens.tokenizer import Tokenizer


def model_facts(source: ModelSource) -> ModelFacts:
    """Describe a model by its stored tensors; a table used twice counts once."""
    groups: defaultdict[str, list[TensorInfo]] = defaultdict(list)
    for info in source.checkpoint.tensors.values():
        groups[info.format.name].append(info)
    shares = tuple(
        FormatShare(
            format=name,
            tensors=len(group),
            weights=sum(math.prod(info.shape) for info in group),
            bytes=sum(info.nbytes for info in group),
        )
        for name, group in sorted(groups.items())
    )
    weights, size = sum(s.weights for s in shares), sum(s.bytes for s in shares)
    path = source.path
    return ModelFacts(
        name=path.stem if path.suffix == ".gguf" else path.resolve().name,
        path=str(path),
        architecture=source.config.family,
        parameters=weights,
        bytes=size,
        bits_per_weight=8 * size / weights,
        formats=shares,
        quantized=bool(quantized_formats(source)),
    )


def _mixture_facts(mixture: MixtureConfig | None) -> dict[str, int]:
    if mixture is None:
        return {}
    return {
        "experts": mixture.experts,
        "experts_used": mixture.used,
        "expert_width": mixture.width,
        "mixture_layers": sum(mixture.layers),
    }


def quantized_formats(source: ModelSource) -> tuple[str, ...]:
    """Return the formats under 16 bits per weight that matrices are stored in, sorted.

    What the file holds counts, also where a transform changes it on the way out.
    """
    names = {source.slots[slot].name for slot in source.slots if not is_vector(slot)}
    infos = [source.checkpoint.tensors[name] for name in names]
    narrow = {i.format.name for i in infos if i.nbytes * 8 < 16 * math.prod(i.shape)}
    return tuple(sorted(narrow))


def inspect_model(
    source: ModelSource, choose: Callable[[], tuple[KernelRecord, ...]]
) -> Inspection:
    """Describe a model and name its hazards.

    `choose` returns the kernels that would run it; its KernelError becomes a hazard.
    """
    config = source.config
    tokenizer, no_tokenizer = _tokenizer(source)
    kernels, no_kernel = _kernels(choose)
    return Inspection(
        facts=model_facts(source),
        layers=config.layers,
        hidden=config.hidden,
        intermediate=config.intermediate,
        heads=config.heads,
        kv_heads=config.kv_heads,
        head_dim=config.head_dim,
        vocabulary=config.vocabulary,
        context=config.context,
        tied=config.tied,
        **_mixture_facts(config.mixture),
        windowed_layers=sum(window is not None for window in config.windows),
        chat_template=chat_template_of(source) is not None,
        tokenizer=None if tokenizer is None else tokenizer_facts(tokenizer),
        kernels=kernels,
        hazards=(*_hazards(source, tokenizer), *no_tokenizer, *no_kernel),
    )


def _tokenizer(source: ModelSource) -> tuple[Tokenizer | None, tuple[Hazard, ...]]:
    try:
        return tokenizer_of(source), ()
    except FewbitError as error:
        return None, (Hazard(name="no_tokenizer", meaning=str(error)),)


def _kernels(
    choose: Callable[[], tuple[KernelRecord, ...]],
) -> tuple[tuple[KernelRecord, ...], tuple[Hazard, ...]]:
    try:
        return choose(), ()
    except KernelError as error:
        return (), (Hazard(name="no_kernel", meaning=str(error)),)


def _hazards(source: ModelSource, tokenizer: Tokenizer | None) -> Iterator[Hazard]:
    formats = quantized_formats(source)
    if formats:
        yield Hazard(
            name="already_quantized",
            meaning=f"Matrices are already stored in {', '.join(formats)}: figures against this "
            "source measure what is lost on top of that loss, not the loss from the original "
            "weights, and quantizing to the same grid again loses nothing.",
        )
    if source.unused:
        shown = ", ".join(source.unused[:3]) + (", ..." if len(source.unused) > 3 else "")
        yield Hazard(
            name="unused_tensors",
            meaning=f"{len(source.unused)} stored tensors take no part in the model: {shown}.",
        )
    for note in source.checkpoint.notes:
        yield Hazard(name="left_out", meaning=note)
    if chat_template_of(source) is None:
        yield Hazard(
            name="no_chat_template",
            meaning="There is no chat template, so the model can complete text but not hold a "
            "conversation in its own format.",
        )
    if tokenizer is not None:
        yield from _tokenizer_hazards(source, tokenizer)


def _tokenizer_hazards(source: ModelSource, tokenizer: Tokenizer) -> Iterator[Hazard]:
    for sentence in tokenizer.behaviour.hazards:
        yield Hazard(name="tokenizer", meaning=sentence)
    if not tokenizer.special.end_of_generation:
        yield Hazard(
            name="no_end",
            meaning="No token ends a text, so generation runs to its limit.",
        )
    rows, ids = source.config.vocabulary, tokenizer.vocabulary_size
    if rows > ids:
        yield Hazard(
            name="vocabulary_padding",
            meaning=f"The embedding has {rows - ids:,} rows beyond the tokenizer's {ids:,} ids; "
            "their logits are masked.",
        )
    if rows < ids:
        yield Hazard(
            name="vocabulary_short",
            meaning=f"The tokenizer has ids up to {ids - 1:,} but the embedding only {rows:,} "
            "rows; a text with such a token is refused.",
        )
