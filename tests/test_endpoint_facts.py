"""Whether a server runs the source's model, as far as it shows."""

import pytest
from endpoint_cases import routes
from fake_server import serving
from tiny_subjects import TEMPLATE, begin_with_bos, tokenizer, write_subject

from fewbit.errors import IdentityError
from fewbit.evaluate.endpoint.answerer import endpoint_party
from fewbit.evaluate.endpoint.client import Address, Client
from fewbit.evaluate.endpoint.facts import probe_identity
from fewbit.evaluate.subject import open_subject
from fewbit.speculate.pair_probes import PITFALLS, TEXTS


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_subject(write_subject(tmp_path_factory.mktemp("tiny") / "model"))


def tokenizing(source, ending=""):
    """Return what cuts texts as the source does, and conversations with an ending to each."""

    def route(body):
        if "messages" not in body:
            return {"tokens": source.tokenizer.encode(body["content"])}
        text = "".join(message["content"] for message in body["messages"]) + ending
        return {"tokens": source.tokenizer.encode(text, add_special=False)}

    return route


def identity(source, **given):
    with serving(routes(**given)) as (url, _):
        party = endpoint_party(Address(url))
        client = Client(party.address)
        try:
            found = probe_identity(client, party.facts, source)
        finally:
            client.close()
    return {check.name: check.found for check in found.checks}


def test_identity_is_what_the_server_shows_and_says_what_was_not_checked(source):
    found = identity(
        source,
        props=lambda _: {"chat_template": TEMPLATE + "\n", "eos_token": "</s>"},
        tokenize=tokenizing(source),
    )
    assert found["chat template"] == f"{len(TEMPLATE) + 1} characters"
    assert found["tokenization"] == "6 texts give the same tokens, after <s> (1)"
    assert found["special tokens"] == "end </s>"
    assert found["weights"].startswith("not checked")
    hidden = identity(source)
    assert [name for name in hidden if not hidden[name].startswith("not checked")] == ["vocabulary"]


def test_a_template_that_is_not_shown_is_known_by_what_it_writes(source):
    assert identity(source, tokenize=tokenizing(source))["chat template"] == (
        "2 conversations give the same tokens"
    )
    with pytest.raises(IdentityError, match="conversation as other tokens, from token 38 on"):
        identity(source, tokenize=tokenizing(source, "."))
    texts = tokenizing(source)
    for said in ({"tokens": []}, (400, {}, '{"error": "no template"}')):
        silent = lambda body, said=said: said if "messages" in body else texts(body)  # noqa: E731
        assert identity(source, tokenize=silent)["chat template"].startswith("not checked")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"props": lambda _: {"chat_template": "{{ 1 }}"}}, "chat template"),
        ({"props": lambda _: {"eos_token": "<end>"}}, "end-of-text token is '<end>'"),
        ({"tokenize": lambda _: {"tokens": [5, 6]}}, "from token 0 on"),
    ],
)
def test_a_server_that_shows_another_model_is_refused(source, given, named):
    with pytest.raises(IdentityError, match=named):
        identity(source, **given)


def test_pitfalls_that_the_server_cuts_otherwise_are_said(source):
    def unnormalized(body):
        tokens = tokenizing(source)(body)["tokens"]
        return {"tokens": tokens if body.get("content") != TEXTS[PITFALLS] else [*tokens[:9], 0]}

    found = identity(source, tokenize=unnormalized)["tokenization"]
    assert found.startswith("5 texts give the same tokens")
    assert "known pitfalls otherwise, from token 9 on" in found


def test_a_server_may_read_names_of_special_tokens_as_these(tmp_path):
    backend = begin_with_bos(tokenizer())
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    source = open_subject(write_subject(tmp_path / "model", backend=backend))
    text = TEXTS["a conversation"]
    read = source.tokenizer.encode(text, parse_special=True)
    assert read != source.tokenizer.encode(text)  # the control

    def told(body):
        tokens = source.tokenizer.encode(body.get("content", ""), parse_special=True)
        return {"tokens": [] if "messages" in body else tokens}

    found = identity(source, tokenize=told)["tokenization"]
    assert found.startswith("6 texts give the same tokens")


def test_a_missing_or_second_begin_of_text_is_refused(source):
    plain = source.tokenizer.encode("", add_special=True)
    for begins in ([], [*plain, *plain]):
        tokens = lambda body, begins=begins: {  # noqa: E731
            "tokens": [*begins, *source.tokenizer.encode(body["content"], add_special=False)]
        }
        with pytest.raises(IdentityError, match="begins a text otherwise"):
            identity(source, tokenize=tokens)
