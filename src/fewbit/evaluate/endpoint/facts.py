"""What a server says of the model it serves, and how far that is the source.

Nothing of the weights can be seen from outside; each check says what was found, or why it was not
made. A check that was made and fails refuses the comparison, as of files.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from fewbit.errors import IdentityError, RequestError, TemplateError
from fewbit.evaluate.endpoint.client import Client
from fewbit.evaluate.identity import Subject, describe_prefix
from fewbit.records.endpoint import EndpointFacts
from fewbit.records.evaluation import Identity, IdentityCheck
from fewbit.speculate.pair_probes import PITFALLS, TEXTS
from fewbit.speculate.pair_prompt import CONVERSATIONS
from fewbit.tokens.chat_template import ChatTemplate

_NOT_CHECKED = "not checked: "

_CONVERSATIONS = tuple(CONVERSATIONS[name][0] for name in ("a question", "a second question"))
"""Without a system message, which some templates refuse, and without tools."""


def endpoint_facts(client: Client) -> EndpointFacts:
    """Return what a server says of itself.

    Raises:
        RequestError: it cannot be reached, lists no models, or not the one that is wanted.
    """
    shown, wanted = client.address.shown, client.address.model
    models = _listed(client)
    names = [str(model.get("id")) for model in models]
    if wanted is not None and wanted not in names:
        raise RequestError(f"{shown} has no model '{wanted}'; it has {', '.join(names)}.")
    model = models[0 if wanted is None else names.index(wanted)]
    meta, props = _object(model.get("meta")), _object(client.get("/props"))
    template = props.get("chat_template")
    context = meta.get("n_ctx", model.get("max_model_len"))
    return EndpointFacts(
        url=shown,
        model=str(model.get("id")),
        server=" ".join(str(props.get("build_info") or model.get("owned_by") or "unknown").split()),
        vocabulary=_whole(meta.get("n_vocab")),
        context=_whole(context),
        bytes=_whole(meta.get("size")),
        template="" if not isinstance(template, str) else _digest(template),
    )


def probe_identity(client: Client, facts: EndpointFacts, source: Subject) -> Identity:
    """Compare what a server shows with the source.

    Raises:
        IdentityError: something that it shows is not the source's.
        RequestError: it cannot be reached.
    """
    checks = {
        "vocabulary": _vocabulary(facts, source),
        "special tokens": _special_tokens(client, source),
        "tokenization": _tokenization(client, facts, source),
        "chat template": _template(client, facts, source),
        "weights": f"{_NOT_CHECKED}a server does not show them",
    }
    return Identity(
        checks=tuple(IdentityCheck(name=name, found=found) for name, found in checks.items()),
        equal_tensors=0,
    )


def _listed(client: Client) -> Sequence[Mapping[str, Any]]:
    found = _object(client.get("/v1/models")).get("data")
    models = [model for model in found if isinstance(model, dict)] if found else []
    if not models:
        raise RequestError(
            f"{client.address.shown}/v1/models lists no model; is it an OpenAI-compatible server?"
        )
    return models


def _vocabulary(facts: EndpointFacts, source: Subject) -> str:
    if facts.vocabulary is None:
        return f"{_NOT_CHECKED}the server does not say how large it is"
    ours = source.tokenizer.vocabulary_size, source.model.config.vocabulary
    if not min(ours) <= facts.vocabulary <= max(ours):
        raise IdentityError(
            f"The server's vocabulary has {facts.vocabulary:,} tokens and the source's "
            f"{ours[0]:,}; they are not one model."
        )
    return f"{facts.vocabulary:,} tokens"


def _special_tokens(client: Client, source: Subject) -> str:
    props = _object(client.get("/props"))
    if not isinstance(props.get("eos_token"), str):
        return f"{_NOT_CHECKED}the server does not name them"
    special, text = source.tokenizer.special, source.tokenizer.token_text
    ends = {text(token) for token in special.end_of_generation}
    if props["eos_token"] not in ends:
        raise IdentityError(
            f"The server's end-of-text token is {props['eos_token']!r}, and the source ends at "
            f"{', '.join(sorted(ends))}; give the server the source's tokenizer."
        )
    return f"end {props['eos_token']}"


def _tokenization(client: Client, facts: EndpointFacts, source: Subject) -> str:
    """Compare the tokens of ordinary texts, what is put before them, and those of pitfalls.

    Runtimes differ in texts that are made to be difficult (llama.cpp, for one, does not normalize
    Unicode): that is said and no refusal. Names of special tokens in a text may be read as these:
    vLLM does so, and cannot be asked not to.
    """
    pitfalls = ""
    for name, text in TEXTS.items():
        tokens, ours = _tokens(client, facts, text), source.tokenizer.encode(text)
        if tokens is None:
            return f"{_NOT_CHECKED}the server does not tokenize for others"
        if tokens in (ours, source.tokenizer.encode(text, parse_special=True)):
            continue
        where = _parting(tokens, ours)
        if name != PITFALLS:
            raise IdentityError(
                f"The server cuts a text ({name}) into other tokens, {where}; it serves another or "
                "an old tokenizer, or begins a text otherwise."
            )
        pitfalls = f"; it cuts a text of known pitfalls otherwise, {where}"
    begins = describe_prefix(source.tokenizer)
    alike = len(TEXTS) - bool(pitfalls)
    return f"{alike} texts give the same tokens, after {begins}{pitfalls}"


def _parting(tokens: Sequence[int], ours: Sequence[int]) -> str:
    pairs = enumerate(zip(tokens, ours, strict=False))
    at = next((i for i, pair in pairs if len(set(pair)) > 1), min(len(tokens), len(ours)))
    return f"from token {at} on: {tokens[at : at + 3]}, the source {ours[at : at + 3]}"


def _tokens(client: Client, facts: EndpointFacts, text: str) -> list[int] | None:
    """Return a text's tokens as the server begins and cuts it; both servers' spellings at once."""
    asked = {"content": text, "add_special": True, "parse_special": False}
    return _told(client, facts, {**asked, "prompt": text, "add_special_tokens": True})


def _told(client: Client, facts: EndpointFacts, asked: Mapping[str, Any]) -> list[int] | None:
    found = _object(client.post("/tokenize", {"model": facts.model, **asked})).get("tokens")
    if not isinstance(found, list) or not all(isinstance(token, int) for token in found):
        return None
    return found


def _template(client: Client, facts: EndpointFacts, source: Subject) -> str:
    found = _object(client.get("/props")).get("chat_template")
    if not isinstance(found, str):
        return _conversations(client, facts, source)
    ours = source.chat_template or ""
    if found.strip() != ours.strip():
        raise IdentityError(
            f"The server's chat template has {len(found):,} characters and is not the source's of "
            f"{len(ours):,}; start the server with the source's."
        )
    return f"{len(found)} characters"


def _conversations(client: Client, facts: EndpointFacts, source: Subject) -> str:
    """Compare the tokens of conversations as both write them: all that vLLM shows of a template."""
    if source.chat_template is None:
        return f"{_NOT_CHECKED}the source has none"
    template = ChatTemplate(source.chat_template, source.tokenizer.special_texts)
    for messages in _CONVERSATIONS:
        try:
            tokens = _told(client, facts, {"messages": messages, "add_generation_prompt": True})
            text = template.render(messages)
        except (RequestError, TemplateError) as error:
            return f"{_NOT_CHECKED}a conversation was not written ({error})"
        if not tokens:
            return f"{_NOT_CHECKED}the server does not show it"
        ours = source.tokenizer.encode(text, add_special=False, parse_special=True)
        if tokens != ours:
            raise IdentityError(
                f"The server writes a conversation as other tokens, {_parting(tokens, ours)}; "
                "start it with the source's chat template."
            )
    return f"{len(_CONVERSATIONS)} conversations give the same tokens"


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
