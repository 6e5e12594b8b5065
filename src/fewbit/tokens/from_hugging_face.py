"""A tokenizer from a Hugging Face folder: tokenizer.json, and tokenizer_config.json where it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import AddedToken

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.tokens.guard import guarded
from fewbit.tokens.pieces import ByteLevelPieces, PieceRule, SentencePieces
from fewbit.tokens.tokenizer import Behaviour, SpecialTokens, Tokenizer, named_ends

SOURCE = "tokenizer.json"


def from_hugging_face(
    tokenizer_json: bytes,
    tokenizer_config: Mapping[str, Any] | None = None,
    generation_config: Mapping[str, Any] | None = None,
) -> Tokenizer:
    """Build the tokenizer of a Hugging Face folder.

    What is put around a text is the post-processor of tokenizer.json, as in transformers; where
    that has no template, `add_bos_token` and `add_eos_token` of tokenizer_config.json decide.

    Args:
        tokenizer_json: the file's content.
        tokenizer_config: tokenizer_config.json, parsed.
        generation_config: generation_config.json, parsed; its `eos_token_id` end generation too.

    Raises:
        UnsupportedError: the tokens decode to bytes by a rule that is neither byte-level nor
            SentencePiece's.
        BadFileError: the file is not a tokenizer, or contradicts itself.
    """
    plan = _read_plan(tokenizer_json)
    config = dict(tokenizer_config or {})
    with guarded(BadFileError, f"{SOURCE} is not a usable tokenizer"):
        backend = tokenizers.Tokenizer.from_buffer(tokenizer_json)
        hazards = _switch_off_alterations(backend, plan)
    pieces = _piece_rule(plan.decoder)
    _add_configured_tokens(backend, config, hazards)
    special = _read_special(backend, config, generation_config or {}, hazards)
    prefix, suffix = _read_around(backend, special, config, hazards)
    return Tokenizer(
        backend,
        Behaviour(
            source=SOURCE,
            pieces=pieces,
            pre_tokenizer=_describe(plan.pre_tokenizer),
            special=special,
            prefix=prefix,
            suffix=suffix,
            hazards=tuple(hazards),
        ),
    )


@dataclass(frozen=True)
class _Plan:
    """The parts of tokenizer.json that decide how fewbit treats it, parsed."""

    decoder: Mapping[str, Any] | None
    pre_tokenizer: Mapping[str, Any] | None
    dropout: float | None
    cuts: bool
    pads: bool


def _read_plan(text: bytes) -> _Plan:
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFileError(
            f"{SOURCE} is not JSON ({str(error)[:120]}); download it again."
        ) from error
    model = tree.get("model") if isinstance(tree, dict) else None
    if not isinstance(model, dict):
        raise BadFileError(
            f"{SOURCE} has no model; it is not a tokenizer of the tokenizers library."
        )
    parts = {name: tree.get(name) for name in ("decoder", "pre_tokenizer")}
    for name, part in parts.items():
        if part is not None and not isinstance(part, dict):
            raise BadFileError(f"{SOURCE} has a {name} that is not an object; download it again.")
    return _Plan(
        decoder=parts["decoder"],
        pre_tokenizer=parts["pre_tokenizer"],
        dropout=model.get("dropout"),
        cuts=tree.get("truncation") is not None,
        pads=tree.get("padding") is not None,
    )


def _switch_off_alterations(backend: tokenizers.Tokenizer, plan: _Plan) -> list[str]:
    """Turn off what would drop, add or vary tokens, and say so."""
    hazards = []
    if plan.cuts:
        backend.no_truncation()
        hazards.append(f"{SOURCE} asks for truncation; it is not applied.")
    if plan.pads:
        backend.no_padding()
        hazards.append(f"{SOURCE} asks for padding; it is not applied.")
    if plan.dropout:
        backend.model.dropout = None
        hazards.append(f"{SOURCE} asks for random merges (dropout); they are not applied.")
    return hazards


def _piece_rule(decoder: Mapping[str, Any] | None) -> PieceRule:
    steps = _steps(decoder, "decoders")
    kinds = [step.get("type") for step in steps]
    if kinds == ["ByteLevel"]:
        return ByteLevelPieces()
    if kinds in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return SentencePieces(strips_leading_space="Strip" in kinds)
    if kinds == ["Metaspace"]:
        return SentencePieces(strips_leading_space=steps[0].get("prepend_scheme") != "never")
    raise UnsupportedError(
        f"{SOURCE} decodes tokens by {'+'.join(map(str, kinds))[:120] or 'nothing'}; supported: "
        "ByteLevel, Replace+ByteFallback+Fuse(+Strip), Metaspace."
    )


def _steps(part: Mapping[str, Any] | None, plural: str) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    inner = part.get(plural)
    if part.get("type") == "Sequence" and isinstance(inner, list):
        return [step for step in inner if isinstance(step, dict)]
    return [part]


def _describe(pre_tokenizer: Mapping[str, Any] | None) -> str:
    steps = _steps(pre_tokenizer, "pretokenizers")
    return " + ".join(str(step.get("type")) for step in steps) or "none"


def _add_configured_tokens(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], hazards: list[str]
) -> None:
    """Add what tokenizer_config.json lists and tokenizer.json lacks, as transformers does."""
    listed = config.get("added_tokens_decoder")
    if not isinstance(listed, dict):
        return
    known = {entry.content for entry in backend.get_added_tokens_decoder().values()}
    for key, entry in sorted(listed.items(), key=lambda item: (len(str(item[0])), item[0])):
        content = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(content, str) or not content or content in known:
            continue
        flags = {name: entry.get(name) is True for name in ("special", "lstrip", "rstrip")}
        with guarded(BadFileError, "tokenizer_config.json lists an unusable token"):
            backend.add_tokens([AddedToken(content, normalized=False, **flags)])
        met = backend.token_to_id(content)
        if str(met) != str(key):
            raise BadFileError(
                f"tokenizer_config.json gives {content[:80]!r} the id {str(key)[:20]}, "
                f"{SOURCE} gives it {met}; the two files do not belong together."
            )
        hazards.append(f"{content!r} is in tokenizer_config.json but not in {SOURCE}; it is added.")


def _read_special(
    backend: tokenizers.Tokenizer,
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    hazards: list[str],
) -> SpecialTokens:
    roles = {
        role: _configured(backend, config, role, hazards)
        for role in ("bos_token", "eos_token", "unk_token", "pad_token")
    }
    if roles["eos_token"] is None:
        hazards.append("No EOS token is named; generation stops at other ends or the limit.")
    added = backend.get_added_tokens_decoder().items()
    named = [(token, entry.content) for token, entry in added if entry.special]
    ends = set(named_ends(named))
    ends |= {token for token in (roles["eos_token"],) if token is not None}
    return SpecialTokens(
        bos=roles["bos_token"],
        eos=roles["eos_token"],
        unknown=roles["unk_token"],
        padding=roles["pad_token"],
        end_of_generation=frozenset(ends | _generation_ends(generation_config)),
    )


def _configured(
    backend: tokenizers.Tokenizer, config: Mapping[str, Any], role: str, hazards: list[str]
) -> int | None:
    value = config.get(role)
    text = value.get("content") if isinstance(value, dict) else value
    if text is None:
        return None
    if not isinstance(text, str):
        raise BadFileError(f"tokenizer_config.json has {role} = {str(text)[:80]!r}, not a text.")
    token: int | None = backend.token_to_id(text)
    if token is not None and token not in backend.get_added_tokens_decoder():
        # transformers makes every named token a special one.
        with guarded(BadFileError, f"{role} of tokenizer_config.json cannot be used"):
            backend.add_special_tokens([AddedToken(text, normalized=False, special=True)])
    if token is None:
        hazards.append(f"{role} is {text[:80]!r}, which is not in the vocabulary; it has no id.")
    return token


def _generation_ends(generation_config: Mapping[str, Any]) -> set[int]:
    value = generation_config.get("eos_token_id")
    values = value if isinstance(value, list) else [] if value is None else [value]
    for token in values:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise BadFileError(
                f"generation_config.json has eos_token_id {str(token)[:40]!r}, which is no token "
                "id; download it again."
            )
    return set(values)


def _read_around(
    backend: tokenizers.Tokenizer,
    special: SpecialTokens,
    config: Mapping[str, Any],
    hazards: list[str],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what is put before and behind a text, found by what the post-processor does to one."""
    with guarded(BadFileError, f"{SOURCE} has a post-processor that fails"):
        plain: list[int] = backend.encode("a", add_special_tokens=False).ids
        whole: list[int] = backend.encode("a", add_special_tokens=True).ids
    extra = len(whole) - len(plain)
    starts = [i for i in range(extra + 1) if whole[i : i + len(plain)] == plain]
    if not starts:
        raise UnsupportedError(
            f"{SOURCE} has a post-processor that changes tokens; one that puts tokens around a "
            "text is supported."
        )
    before, behind = tuple(whole[: starts[0]]), tuple(whole[starts[0] + len(plain) :])
    before = _reconcile(before, special.bos, config.get("add_bos_token"), "bos", hazards)
    behind = _reconcile(behind, special.eos, config.get("add_eos_token"), "eos", hazards)
    return before, behind


def _reconcile(
    around: tuple[int, ...], token: int | None, wanted: object, role: str, hazards: list[str]
) -> tuple[int, ...]:
    name = role.upper()
    if wanted is True and not around:
        if token is None:
            hazards.append(
                f"add_{role}_token is true, but there is no {name} token; none is added."
            )
            return ()
        hazards.append(f"add_{role}_token is true, {SOURCE} adds none; {name} is added.")
        return (token,)
    if wanted is False and around:
        hazards.append(f"add_{role}_token is false, {SOURCE} adds {name}; {name} is added.")
    return around
