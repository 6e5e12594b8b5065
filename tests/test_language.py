"""The axis of language on tiny models, all of it."""

import json

import numpy as np
import pytest
from brought import as_said
from safetensors.numpy import load_file, save_file
from tiny_arms import arms_of
from tiny_subjects import CONFIG, letters, sharp_weights, write_subject

from fewbit.calibrate.text import collect, document
from fewbit.errors import IdentityError
from fewbit.evaluate.arms import LocalParty
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.evaluate.language.conversations import conversations, passages
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.drawn import Example

TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>{% endfor %}"
CHATS = conversations()[-6:]


def prose_and_code():
    texts = letters(documents=12, characters=150).documents
    names = [f"{'pydoc' if i % 2 else 'lib'}:{i}" for i in range(len(texts))]
    return collect("t", [document(name, d.text) for name, d in zip(names, texts, strict=True)])


def axis(**settings):
    few = collect("passages", passages().documents[:5])
    chosen = {"conversations": CHATS, "passages": few, "window_tokens": 96, "whole_windows": 4}
    return LanguageAxis(documents=prose_and_code(), threads=1, **{**chosen, **settings})


def measured(source, candidate, work=None, **chosen):
    spec = axis(**chosen)
    return as_said(spec, spec.run(arms_of(source, candidate, work), lambda *_: None))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("language")


@pytest.fixture(scope="module")
def source(folder):
    config = {**CONFIG, "max_position_embeddings": 1024}
    return write_subject(folder / "source", config=config, weights=sharp_weights(), template=TURNS)


@pytest.fixture(scope="module")
def small(folder, source):
    with open_model(source) as model:
        quantize(model, find("rtn-int8-g32"), folder / "small")
    return folder / "small"


@pytest.fixture(scope="module")
def found(source, small):
    return measured(source, small, window_tokens=700)


def test_every_domain_and_kind_of_protocol_token_has_its_slice(found):
    names = {s.name: len(s.items) for s in found.slices}
    assert names == {
        "language/kl": 12,
        "language/kl-reverse": 12,
        "language/perplexity": 12,
        "language/first-choice": 12,
        "language/kl/code": 6,
        "language/perplexity/code": 6,
        "language/kl/prose": 6,
        "language/perplexity/prose": 6,
        "language/kl/chat": 6,
        "language/perplexity/chat": 6,
        "language/kl/languages": 5,
        "language/perplexity/languages": 5,
        "language/kl/end-of-turn": 6,
        "language/kl/json": 6,
        "language/kl/tool-call": 6,
    }
    assert all(item.floor is not None for s in found.slices for item in s.items)
    (finding,) = found.findings
    assert finding.passed
    assert "begins with <s> (1)" in finding.found
    assert found.notes == ()


def test_worst_examples_are_one_a_document_and_told_in_words(found):
    examples = found.details.examples
    assert len(examples) == 12
    assert all(isinstance(example, Example) for example in examples)
    harms = [example.harm for example in examples]
    assert harms == sorted(harms, reverse=True)
    assert len({example.name.rpartition(", token")[0] for example in examples}) == 12
    assert examples[0].source.endswith("%)")
    assert 0 < len(examples[0].asked) <= 64 * 4


def test_two_heads_with_each_others_scales_diverge_beyond_the_floor(tmp_path, source, small):
    """A planted fault: scales of two of the query's heads change places in one layer."""
    bad = tmp_path / "swapped"
    bad.mkdir()
    for path in small.iterdir():
        (bad / path.name).write_bytes(path.read_bytes())
    weights = bad / "model.safetensors"
    header = weights.read_bytes()
    metadata = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])["__metadata__"]
    tensors = load_file(weights)
    (name,) = (n for n in tensors if "layers.0.self_attn.q_proj" in n and n.endswith("scales"))
    size = CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    swapped = tensors[name].copy()
    swapped[:size], swapped[size : 2 * size] = tensors[name][size : 2 * size], tensors[name][:size]
    save_file({**tensors, name: swapped}, weights, metadata)

    def kl(candidate):
        found = measured(source, candidate, conversations=(), passages=collect("none", ()))
        return found.slices[0].items

    good, planted = kl(small), kl(bad)
    assert np.mean([i.candidate for i in planted]) > 1.5 * np.mean([i.candidate for i in good])
    assert sum(i.candidate > i.floor for i in planted) >= 11


def test_a_template_that_begins_twice_is_refused(tmp_path, source):
    config = {**CONFIG, "max_position_embeddings": 1024}
    twice = write_subject(
        tmp_path / "twice", config=config, weights=sharp_weights(), template="<s>" + TURNS
    )
    with pytest.raises(IdentityError, match="begins with <s> twice"):
        measured(twice, twice, window_tokens=700)


def test_what_cannot_be_measured_is_said(tmp_path):
    bare = write_subject(tmp_path / "bare", weights=sharp_weights(), template=None)
    found = measured(bare, bare)
    assert any("no chat template, so no conversation" in note for note in found.notes)
    assert not any("chat" in s.name for s in found.slices)
    picky = write_subject(
        tmp_path / "picky", weights=sharp_weights(), template="{{ raise_exception('never') }}"
    )
    found = measured(picky, picky)
    assert any("No conversation was measured: " in note for note in found.notes)


def test_conversations_that_are_too_long_are_counted(source):
    found = measured(source, source)
    assert found.notes == ("6 conversations have no answer within 96 tokens; left out.",)


def test_a_floor_serves_every_candidate(tmp_path, source, small, monkeypatch):
    """Kept with the source: the second candidate's run does not open that arm."""
    work = tmp_path / "work"
    first = measured(source, small, work, conversations=())
    opened = []
    real = LocalParty.open

    def noted(party, role, room):
        opened.append(role.value)
        return real(party, role, room)

    monkeypatch.setattr(LocalParty, "open", noted)
    other = measured(source, source, work, conversations=())
    assert set(opened) == {"source", "candidate"}
    floors = [[i.floor for i in found.slices[0].items] for found in (first, other)]
    assert floors[0] == floors[1]
    assert all(i.candidate == 0.0 for i in other.slices[0].items)
