"""Whether two files are one model in two forms: what must agree before any figure means something.

Checked in this order: architecture, vocabulary, special tokens, how a text begins, tokens of a
probe text and merges, chat template, generation settings, and every tensor that is not quantized.
The first difference refuses the comparison. Slots are compared, not stored names, so that a GGUF
file can stand against a Hugging Face folder.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbit.checkpoint.checkpoint import content_digest
from fewbit.errors import IdentityError, NumericalError
from fewbit.evaluate.provenance import compare_generation, revision_of
from fewbit.formats.registry import F32, FLOATS, decode, decode_rows, encode
from fewbit.formats.spec import NumberFormat, QuantTensor
from fewbit.model.decoder import build_program
from fewbit.model.weights import ModelSource
from fewbit.program import Op, Slot
from fewbit.records.evaluation import DeclaredChange, Identity, IdentityCheck
from fewbit.records.manifest import Change, Manifest
from fewbit.tokens.identity import cut_difference, fingerprint, vocabulary
from fewbit.tokens.tokenizer import Tokenizer

EMBEDDING, HEAD = "embed.weight", "head.weight"

_ROTATION = "rotate-mlp"
"""The transform whose op the Programs of two equal models may differ in."""

_COMPARED_OTHERWISE = ("rope", "local_rope", "tied")
"""Fields with several spellings. A rope is a formula or its divisors: the Program has what it does.
Some GGUF files store a tied table twice: its tensors are compared."""

_PIECE = 1 << 20
"""Elements decoded at once."""


@dataclass(frozen=True)
class Subject:
    """A model as it takes part in a comparison."""

    model: ModelSource
    tokenizer: Tokenizer
    chat_template: str | None
    manifest: Manifest | None = None
    stale: str = ""
    """Where the manifest of other tensors lies with it: that it does, without a full stop."""

    @cached_property
    def digest(self) -> str:
        """The hash of all tensors, as a manifest has it; reads them all the first time."""
        return content_digest(self.model.checkpoint)


def check_identity(source: Subject, candidate: Subject) -> Identity:
    """Return what agrees, or refuse.

    Raises:
        IdentityError: the first difference, in one sentence.
    """
    checks = tuple(
        IdentityCheck(name=name, found=check(source, candidate)) for name, check in _CHECKS.items()
    )
    return _compare_tensors(source, candidate, checks)


def origin_note(source: Subject, candidate: Subject) -> str | None:
    """Return a sentence where the candidate's manifest says that it was made from another file.

    That is no refusal: a GGUF file and the folder it was converted from are one model, and every
    tensor that is not quantized is compared by value.
    """
    made = None if candidate.manifest is None else candidate.manifest.source
    if made is None or made.sha256 == source.digest:
        return None
    return (
        f"The candidate was not quantized from this source but from {made.path} (by its manifest; "
        f"tensors' hash {made.sha256[:16]}), so figures include whatever the two differ in."
    )


def _architecture(source: Subject, candidate: Subject) -> str:
    one, other, rotated = source.model.config, candidate.model.config, ""
    if one.mlp_rotation != other.mlp_rotation and (_rotates(source) or _rotates(candidate)):
        rotated = f", inside the MLP rotated by one of them ({_ROTATION})"
        one, other = (replace(config, mlp_rotation=0) for config in (one, other))
    for field in fields(one):
        pair = getattr(one, field.name), getattr(other, field.name)
        if field.name not in _COMPARED_OTHERWISE and not _alike(*pair):
            raise IdentityError(
                f"The source's {field.name} is {_short(pair[0])} and the candidate's "
                f"{_short(pair[1])}; compare models of one architecture."
            )
    for a, b in zip(build_program(one).ops, build_program(other).ops, strict=True):
        if not _alike(_settings(a), _settings(b)):
            raise IdentityError(
                f"The models compute '{a.site}' differently ({_short(_difference(a, b))}); compare "
                "models of one architecture."
            )
    return f"{one.family}, {one.layers} layers, hidden size {one.hidden}{rotated}"


def _rotates(subject: Subject) -> bool:
    """Return whether a model's manifest declares the rotation inside its MLPs.

    Its op and its changed matrices undo each other, so it is no difference in what is computed.
    """
    return subject.manifest is not None and any(
        change.name == _ROTATION for change in subject.manifest.transforms
    )


def _vocabulary(source: Subject, candidate: Subject) -> str:
    one, other = _tokens(source), _tokens(candidate)
    different = [i for i in sorted(one.keys() | other.keys()) if one.get(i) != other.get(i)]
    if different:
        first = different[0]
        raise IdentityError(
            f"Token {first} is {one.get(first)!r} in the source and {other.get(first)!r} in the "
            f"candidate ({len(different)} tokens differ); perplexity over different vocabularies "
            "cannot be compared."
        )
    return f"{len(one):,} tokens"


def _special_tokens(source: Subject, candidate: Subject) -> str:
    one, other = source.tokenizer.special, candidate.tokenizer.special
    roles = {
        "begin-of-text token": (one.bos, other.bos),
        "end-of-text token": (one.eos, other.eos),
        "set of tokens that end a generation": (
            sorted(one.end_of_generation),
            sorted(other.end_of_generation),
        ),
    }
    for role, (a, b) in roles.items():
        if a != b:
            raise IdentityError(
                f"The {role} is {a} in the source and {b} in the candidate; give the candidate the "
                "source's tokenizer."
            )
    return f"begin {one.bos}, end {sorted(one.end_of_generation)}"


def _beginning(source: Subject, candidate: Subject) -> str:
    one, other = source.tokenizer.behaviour, candidate.tokenizer.behaviour
    for place, a, b in (
        ("before", one.prefix, other.prefix),
        ("after", one.suffix, other.suffix),
    ):
        if a != b:
            raise IdentityError(
                f"The source's tokenizer puts {list(a)} {place} a text and the candidate's "
                f"{list(b)}; a missing or doubled begin-of-text token ruins every figure, so give "
                "both the same configuration."
            )
    return describe_prefix(source.tokenizer)


def _tokenization(source: Subject, candidate: Subject) -> str:
    found = cut_difference(source.tokenizer, candidate.tokenizer)
    if found is not None:
        raise IdentityError(
            f"The tokenizers cut text differently: {found}; the candidate carries another or an "
            "old tokenizer."
        )
    return f"a probe text gives the same tokens; fingerprint {fingerprint(source.tokenizer)[:16]}"


def _chat_template(source: Subject, candidate: Subject) -> str:
    one, other = ((s.chat_template or "").strip() for s in (source, candidate))
    if one != other:
        sizes = " and ".join(f"{len(t)} characters" if t else "none" for t in (one, other))
        raise IdentityError(
            f"Source and candidate have different chat templates ({sizes}); give the candidate the "
            "source's."
        )
    return f"{len(one)} characters" if one else "none"


def _generation(source: Subject, candidate: Subject) -> str:
    return compare_generation(source.model.checkpoint, candidate.model.checkpoint)


_CHECKS: Mapping[str, Callable[[Subject, Subject], str]] = {
    "architecture": _architecture,
    "vocabulary": _vocabulary,
    "special tokens": _special_tokens,
    "beginning of a text": _beginning,
    "tokenization": _tokenization,
    "chat template": _chat_template,
    "generation settings": _generation,
}


def describe_prefix(tokenizer: Tokenizer) -> str:
    """Return how a text begins, in words."""
    prefix = tokenizer.behaviour.prefix
    names = " ".join(tokenizer.token_text(token) for token in prefix)
    return f"{names} ({', '.join(map(str, prefix))})" if prefix else "no special token"


def require_begun_once(tokenizer: Tokenizer, ids: Sequence[int], what: str) -> None:
    """Refuse a text that begins with its begin-of-text token twice.

    Args:
        tokenizer: whose token it is.
        ids: of the text, from its start.
        what: the text is called in the error, as the start of a sentence.

    Raises:
        IdentityError: the token is there twice.
    """
    bos = tokenizer.special.bos
    if bos is not None and tuple(ids[:2]) == (bos, bos):
        raise IdentityError(
            f"{what} begins with {tokenizer.token_text(bos)} twice, which ruins every figure; mend "
            "the chat template or the tokenizer's configuration."
        )


def _compare_tensors(
    source: Subject, candidate: Subject, checks: tuple[IdentityCheck, ...]
) -> Identity:
    one, other = source.model, candidate.model
    _require_same_slots(one, other)
    changes = _declared(candidate)
    equal = rounded = 0
    declared = []
    for slot in shared_slots(one, other):
        place = slot_in(other, slot)
        if other.info(place).format not in FLOATS:
            continue
        if place in changes:
            declared.append(DeclaredChange(slot=slot, change=changes[place]))
        elif _is_rounded(_effective(one, slot_in(one, slot)), _effective(other, place), slot):
            rounded += 1
        else:
            equal += 1
    return Identity(
        checks=checks,
        equal_tensors=equal,
        rounded_tensors=rounded,
        declared=tuple(declared),
        source_sha256=source.digest,
        candidate_sha256=candidate.digest,
        source_revision=revision_of(one.path),
    )


def _require_same_slots(one: ModelSource, other: ModelSource) -> None:
    names = [set(model.slots) - {HEAD} for model in (one, other)]
    for slot in sorted(names[0] ^ names[1]):
        holder = "source" if slot in names[0] else "candidate"
        raise IdentityError(f"Only the {holder} has a tensor for {slot}; they are not one model.")


def shared_slots(one: ModelSource, other: ModelSource) -> tuple[Slot, ...]:
    """Return the slots to compare, in the Program's order; the head where either stores one."""
    return tuple(one.slots if HEAD in one.slots else other.slots)


def slot_in(model: ModelSource, slot: Slot) -> Slot:
    """Return where a model has what another has in `slot`: a tied head lies in the embedding."""
    return EMBEDDING if slot == HEAD and HEAD not in model.slots else slot


def _declared(candidate: Subject) -> dict[Slot, str]:
    """Return the change that the candidate's manifest declares of each slot."""
    if candidate.manifest is None:
        return {}
    changes = (*candidate.manifest.transforms, *candidate.manifest.tuning)
    return changed_slots(candidate, changes)


def changed_slots(candidate: Subject, changes: Iterable[Change]) -> dict[Slot, str]:
    """Return the slots whose tensors some changes name, each with the change's name."""
    slots = {stored.name: slot for slot, stored in candidate.model.slots.items()}
    return {slots[name]: c.name for c in changes for name in c.tensors if name in slots}


def _effective(model: ModelSource, slot: Slot) -> QuantTensor:
    """Return a slot's tensor; a norm's weight with the offset that the Program adds to it.

    Only the sum counts: GGUF files hold it rounded to float32, other files the weight alone.
    """
    tensor, offset = model.read(slot), model.config.norm_offset
    if not offset or not slot.split(".")[-2].endswith("_norm"):
        return tensor
    return encode(decode(tensor) + np.float32(offset), F32)


def _is_rounded(source: QuantTensor, candidate: QuantTensor, slot: Slot) -> bool:
    """Return False where values are equal, True where they are the source's in a narrower float.

    Raises:
        IdentityError: neither.
    """
    rounded = False
    rows, columns = source.shape
    step = max(1, _PIECE // columns)
    for start in range(0, rows, step):
        part = slice(start, min(start + step, rows))
        one, other = decode_rows(source, part), decode_rows(candidate, part)
        if _same_bits(one, other):
            continue
        if not _same_bits(_narrowed(one, candidate.spec), other):
            raise IdentityError(
                f"{slot} is not quantized in the candidate, but {int((one != other).sum())} of its "
                "values differ from the source's and its manifest declares no change of it; this "
                "is not the same model."
            )
        rounded = True
    return rounded


def _narrowed(values: NDArray[np.float32], form: NumberFormat) -> NDArray[np.float32]:
    """Return values rounded to a float format; as they are where the format cannot hold them."""
    try:
        return decode(encode(values, form))
    except NumericalError:
        return values


def _same_bits(one: NDArray[np.float32], other: NDArray[np.float32]) -> bool:
    return bool(np.array_equal(one.view(np.uint32), other.view(np.uint32)))


def _tokens(subject: Subject) -> dict[int, str]:
    """Return every token by id, without the `[PAD...]` names that fill up a GGUF vocabulary."""
    tokens = vocabulary(subject.tokenizer)
    return {token: text for token, text in tokens.items() if not text.startswith("[PAD")}


def _alike(one: Any, other: Any) -> bool:
    """Return whether two settings agree; GGUF files keep floats, and divisors, in float32."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    return bool(one == other)


def _settings(op: Op) -> dict[str, Any]:
    """Return an op's fields; a tied head reads the table of the embedding."""
    return {n: EMBEDDING if value == HEAD else value for n, value in asdict(op).items()}


def _difference(one: Op, other: Op) -> str:
    """Return the first field in which two ops differ, with both values."""
    theirs = _settings(other)
    for name, value in _settings(one).items():
        if not _alike(value, theirs.get(name)):
            return f"{name} {value} and {theirs.get(name)}"
    return f"{type(one).__name__} and {type(other).__name__}"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
