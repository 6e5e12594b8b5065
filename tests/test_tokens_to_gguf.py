"""Tokenizers as GGUF fields, read back: the same tokens, roles and cuts, or a refusal."""

from __future__ import annotations

import json

import pytest
from tiny_tokenizers import (
    METADATA_OF_FOLDERS,
    PROBES,
    byte_level,
    folder_tokenizer,
    hugging_face,
    sentence_piece,
)

from fewbit.errors import MissingError, UnsupportedError
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.identity import cut_difference, fingerprint, merges, vocabulary
from fewbit.tokens.pretokenizers import WORD_RULES
from fewbit.tokens.to_gguf import to_gguf

FIELDS = {
    **{name: byte_level(name) for name in WORD_RULES},
    "llama": sentence_piece(),
    "llama-bare": sentence_piece(add_space_prefix=False),
    "bos only": byte_level("smollm", add_eos_token=True),
    "eot": byte_level("smollm", eot_token_id=5, eom_token_id=6),
}


@pytest.mark.parametrize("name", FIELDS)
def test_what_was_read_is_written(name):
    before = from_gguf(FIELDS[name])
    fields = to_gguf(before, before.vocabulary_size)
    after = from_gguf(fields)
    assert fingerprint(before) == fingerprint(after)
    assert fields["tokenizer.ggml.tokens"] == FIELDS[name]["tokenizer.ggml.tokens"]
    if name != "eot":  # an end of a turn becomes a control token, as it is read
        assert fields["tokenizer.ggml.token_type"] == FIELDS[name]["tokenizer.ggml.token_type"]
    for text in PROBES:
        assert before.encode(text) == after.encode(text)


@pytest.mark.parametrize("kind", METADATA_OF_FOLDERS)
def test_tokenizers_of_folders(kind):
    before = from_hugging_face(*folder_tokenizer(kind))
    after = from_gguf(to_gguf(before, before.vocabulary_size))
    assert vocabulary(before) == vocabulary(after)
    assert cut_difference(before, after) is None
    for text in PROBES:
        for special in (False, True):
            ours = before.encode(text, add_special=special, parse_special=special)
            assert after.encode(text, add_special=special, parse_special=special) == ours
    if kind.startswith("llama") and kind != "llama-bpe":
        assert set(merges(before)) == set(merges(after))


def test_rows_without_a_token_are_padded_and_read_as_none():
    before = from_hugging_face(*folder_tokenizer("smollm"))
    rows = before.vocabulary_size + 9
    fields = to_gguf(before, rows)
    assert len(fields["tokenizer.ggml.tokens"]) == rows
    assert fields["tokenizer.ggml.tokens"][-1] == f"[PAD{rows - 1}]"
    assert from_gguf(fields).vocabulary_size == before.vocabulary_size
    # A token of that name that is used, or in another place, is a token.
    fields["tokenizer.ggml.token_type"][-1] = 1
    assert from_gguf(fields).vocabulary_size == rows


def test_more_ids_than_rows_are_refused():
    tokenizer = from_hugging_face(*folder_tokenizer("smollm"))
    with pytest.raises(UnsupportedError, match=r"ids and the embedding 10 rows"):
        to_gguf(tokenizer, 10)


def test_a_cut_without_a_name_is_refused():
    tree = {"type": "Split", "pattern": {"Regex": "a|b"}, "behavior": "Isolated", "invert": False}
    text, config = hugging_face(
        pre_tokenizer={
            "type": "Sequence",
            "pretokenizers": [
                tree,
                {
                    "type": "ByteLevel",
                    "add_prefix_space": False,
                    "trim_offsets": True,
                    "use_regex": False,
                },
            ],
        }
    )
    with pytest.raises(UnsupportedError, match=r"no name in GGUF files \(a\|b\)"):
        to_gguf(from_hugging_face(text, config), 2000)


def test_merges_that_no_scores_give_are_refused():
    text, config = folder_tokenizer("llama-bare")
    tree = json.loads(text)
    del tree["model"]["merges"][0]
    with pytest.raises(UnsupportedError, match=r"never joins .* llama.cpp would"):
        to_gguf(from_hugging_face(json.dumps(tree).encode(), config), 2000)


def test_other_tokens_around_a_text_are_refused():
    text, config = folder_tokenizer("smollm")
    tree = json.loads(text)
    single = tree["post_processor"]["single"]
    single.insert(1, single[0])
    with pytest.raises(UnsupportedError, match="around a text"):
        to_gguf(from_hugging_face(json.dumps(tree).encode(), config), 2000)


def test_a_planted_fault_is_caught_by_reading_back(monkeypatch):
    tokenizer = from_hugging_face(*folder_tokenizer("smollm"))
    monkeypatch.setattr("fewbit.tokens.to_gguf._word_rule", lambda _: "gpt-2")
    with pytest.raises(UnsupportedError, match=r"no exact form.*cut differently"):
        to_gguf(tokenizer, tokenizer.vocabulary_size)


def test_a_file_without_a_tokenizer_says_so():
    with pytest.raises(MissingError, match="none"):
        from_gguf({"tokenizer.ggml.model": "none"})
