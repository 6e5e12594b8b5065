"""What two vocabularies share, and how one reads the other's tokens."""

import numpy as np
import pytest
from tiny_subjects import tokenizer as letters
from tiny_tokenizers import (
    CONTROL,
    LINES,
    PROBES,
    SPECIAL,
    byte_level,
    hugging_face,
    sentence_piece,
)

from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.mapping import map_tokens

BYTES, PIECES = from_gguf(byte_level()), from_gguf(sentence_piece())
FEW = from_hugging_face(letters().to_str().encode(), {"bos_token": "<s>", "eos_token": "</s>"})
PAIRS = {
    "bytes read pieces": (PIECES, BYTES),
    "pieces read bytes": (BYTES, PIECES),
    "few read many": (BYTES, FEW),
    "many read few": (FEW, BYTES),
}


def swapped(text_a, text_b, **changes):
    """byte_level with two tokens in each other's place."""
    metadata = byte_level(**changes)
    tokens = list(metadata["tokenizer.ggml.tokens"])
    a, b = tokens.index(text_a), tokens.index(text_b)
    tokens[a], tokens[b] = tokens[b], tokens[a]
    return from_gguf(metadata | {"tokenizer.ggml.tokens": tokens}), a, b


def test_a_tokenizer_passes_its_own_ids():
    found = map_tokens(BYTES, from_gguf(byte_level()))
    assert found.passes_ids
    assert found.support.tolist() == found.draft_ids.tolist() == list(range(BYTES.vocabulary_size))
    assert found.read([5, 9, 5]) == [5, 9, 5]


def test_a_folder_and_a_file_with_one_vocabulary_need_no_mapping():
    found = map_tokens(from_hugging_face(*hugging_face()), BYTES)
    assert found.passes_ids
    assert len(found.support) == BYTES.vocabulary_size


@pytest.mark.parametrize("pair", PAIRS)
def test_shared_tokens_have_equal_bytes_and_one_partner_each(pair):
    target, draft = PAIRS[pair]
    found = map_tokens(target, draft)
    assert len(found.support) > 50
    assert (np.diff(found.support) > 0).all()
    assert len(set(found.draft_ids.tolist())) == len(found.draft_ids)
    roles = {(target.special.bos, draft.special.bos), (target.special.eos, draft.special.eos)}
    for ours, theirs in zip(found.support.tolist(), found.draft_ids.tolist(), strict=True):
        same = target.token_bytes(ours) == draft.token_bytes(theirs)
        assert same or (ours, theirs) in roles


@pytest.mark.parametrize("pair", PAIRS)
def test_what_is_not_shared_is_in_no_pair_of_equal_bytes(pair):
    """The slow truth: every token that is left out has no free partner."""
    target, draft = PAIRS[pair]
    found = map_tokens(target, draft)
    taken = set(found.draft_ids.tolist())
    free = {
        (token in draft.special_ids, draft.token_bytes(token))
        for token in range(draft.vocabulary_size)
        if token not in taken
    }
    for token in set(range(target.vocabulary_size)) - set(found.support.tolist()):
        assert (token in target.special_ids, target.token_bytes(token)) not in free


@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("text", PROBES)
def test_reading_keeps_the_bytes_and_grows_by_appending(pair, text):
    target, draft = PAIRS[pair]
    found = map_tokens(target, draft)
    ids = target.encode(text, add_special=False)
    read = found.read(ids)
    plain = b"".join(target.token_bytes(token) for token in ids)
    assert b"".join(draft.token_bytes(token) for token in read) == plain
    for end in range(len(ids)):
        assert read[: len(found.read(ids[:end]))] == found.read(ids[:end])


def test_swapped_tokens_are_found_by_their_bytes():
    draft, a, b = swapped("!", "?")
    found = map_tokens(BYTES, draft)
    assert not found.passes_ids
    assert len(found.support) == BYTES.vocabulary_size
    assert found.read([a, b, a]) == [b, a, b]


def test_a_special_token_is_not_text_that_spells_it():
    plain = byte_level(
        token_type=[1] * (len(byte_level()["tokenizer.ggml.tokens"])),
        bos_token_id=None,
        eos_token_id=None,
        add_bos_token=False,
    )
    found = map_tokens(BYTES, from_gguf(plain))
    special = BYTES.backend.token_to_id(SPECIAL[0])
    assert special not in found.support
    assert found.passes_ids  # read as the token of those bytes, but never proposed


def test_an_added_token_is_found_though_only_one_side_calls_it_special():
    types = list(byte_level()["tokenizer.ggml.token_type"])
    types[-1] = CONTROL
    tool = BYTES.backend.token_to_id("<tool>")
    assert tool in map_tokens(BYTES, from_gguf(byte_level(token_type=types))).support
    assert tool in map_tokens(from_gguf(byte_level(token_type=types)), BYTES).support


def test_the_draft_begins_as_it_was_trained_where_the_target_begins_with_nothing():
    silent = from_gguf(byte_level(add_bos_token=False))
    assert map_tokens(silent, PIECES).beginning == PIECES.behaviour.prefix
    assert map_tokens(BYTES, PIECES).beginning == ()
    assert map_tokens(silent, BYTES).beginning == ()


def test_ends_of_other_names_stand_for_each_other():
    found = map_tokens(BYTES, PIECES)
    pairs = dict(zip(found.support.tolist(), found.draft_ids.tolist(), strict=True))
    assert pairs[BYTES.special.eos] == PIECES.special.eos
    assert found.read([BYTES.special.bos]) == [PIECES.special.bos]


def test_ends_that_the_other_side_knows_by_name_do_not():
    """Base and instruct models have both names; each token stays what it says."""
    draft = from_gguf(byte_level(eos_token_id=BYTES.special.bos))
    found = map_tokens(BYTES, draft)
    assert found.passes_ids


@pytest.mark.parametrize("side", ["target_rows", "draft_rows"])
def test_ids_beyond_the_rows_of_an_embedding_are_neither_read_nor_proposed(side):
    rows = 300
    found = map_tokens(BYTES, from_gguf(byte_level()), **{side: rows})
    assert found.support.max() < rows
    assert found.passes_ids == (side == "target_rows")
    if side == "draft_rows":
        assert max(found.read([BYTES.vocabulary_size - 4])) < rows


def test_a_byte_that_the_draft_has_no_token_for_is_unknown_to_it():
    metadata = sentence_piece()
    texts = list(metadata["tokenizer.ggml.tokens"])
    texts[texts.index("<0x00>")] = "nothing"
    draft = from_gguf(metadata | {"tokenizer.ggml.tokens": texts})
    assert map_tokens(BYTES, draft).read(BYTES.encode("\x00", add_special=False)) == [0]


def test_a_restricted_map_reads_as_before_and_proposes_less():
    whole = map_tokens(BYTES, PIECES)
    kept = whole.draft_ids[::3]
    found = whole.restricted(kept)
    assert sorted(found.draft_ids) == sorted(kept)
    assert set(found.support) <= set(whole.support)
    ids = BYTES.encode(LINES[0])
    assert found.read(ids) == whole.read(ids)
    assert whole.restricted([]).support.shape == (0,)
