"""Tokenizers against llama.cpp, SentencePiece and transformers."""

import ctypes
import io
import itertools
import json
import unicodedata

import pytest
from tiny_tokenizers import LINES, PROBES, byte_level, hugging_face, sentence_piece

from fewbit.tokens.export import to_hugging_face
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.pretokenizers import WORD_RULES

pytestmark = pytest.mark.interop

COMPOSING = frozenset(name for name, rule in WORD_RULES.items() if rule.composes)

METADATA = {
    **{name: byte_level(name) for name in WORD_RULES},
    "llama": sentence_piece(),
    "llama-bare": sentence_piece(add_space_prefix=False),
}


def write_vocabulary(path, metadata):
    """Write a GGUF file that holds a tokenizer and nothing else."""
    from gguf import GGUFWriter  # noqa: PLC0415

    writer = GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            writer.add_array(key, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()


# llama.cpp has tekken's expression in a simpler form, which differs on marks and letter cases.
PEER_KNOWS = [name for name in METADATA if name != "tekken"]


@pytest.fixture(scope="module", params=PEER_KNOWS)
def pair(request, tmp_path_factory):
    """One tokenizer as ours and as llama.cpp's."""
    from llama_cpp import Llama  # noqa: PLC0415

    path = tmp_path_factory.mktemp("vocabulary") / "tiny.gguf"
    write_vocabulary(path, METADATA[request.param])
    peer = Llama(str(path), vocab_only=True, verbose=False)
    yield request.param, from_gguf(METADATA[request.param]), peer
    peer.close()


def test_ids_are_those_of_llama_cpp(pair):
    name, ours, peer = pair
    for text, special, parse in itertools.product(PROBES, (False, True), (False, True)):
        # llama.cpp leaves out the normalization that the family's own tokenizer does.
        given = unicodedata.normalize("NFC", text) if name in COMPOSING else text
        theirs = peer.tokenize(given.encode(), add_bos=special, special=parse)
        found = ours.encode(text, add_special=special, parse_special=parse)
        assert found == theirs, (text, special, parse)


def test_bytes_of_tokens_are_those_of_llama_cpp(pair):
    import llama_cpp  # noqa: PLC0415

    _, ours, peer = pair
    vocabulary = llama_cpp.llama_model_get_vocab(peer.model)
    buffer = ctypes.create_string_buffer(1024)
    for token in range(ours.vocabulary_size):
        size = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, 1024, 0, True)
        assert ours.token_bytes(token) == buffer.raw[:size]


def test_roles_are_those_of_llama_cpp(pair):
    _, ours, peer = pair
    assert ours.special.bos == peer.token_bos()
    assert ours.special.eos == peer.token_eos()


@pytest.mark.parametrize("name", list(METADATA))
def test_an_exported_tokenizer_works_in_transformers(name, tmp_path):
    from transformers import AutoTokenizer  # noqa: PLC0415

    ours = from_gguf(METADATA[name])
    files = to_hugging_face(ours)
    (tmp_path / "tokenizer.json").write_bytes(files.tokenizer_json)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(files.tokenizer_config))
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert_equal_to_transformers(ours, theirs)


def test_a_folder_is_read_as_transformers_reads_it(tmp_path):
    from transformers import AutoTokenizer  # noqa: PLC0415

    text, config = hugging_face()
    size = from_hugging_face(text, config).vocabulary_size
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": {str(size): {"content": "<extra>", "special": True}},
    }
    (tmp_path / "tokenizer.json").write_bytes(text)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = from_hugging_face(text, config)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert_equal_to_transformers(ours, theirs)
    assert theirs.encode("<extra>") == ours.encode("<extra>", parse_special=True)


def assert_equal_to_transformers(ours, theirs):
    for text, special in itertools.product(PROBES, (False, True)):
        ids = theirs.encode(text, add_special_tokens=special)
        assert ours.encode(text, add_special=special, parse_special=True) == ids, text
        for skip in (False, True):
            decoded = theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )
            assert ours.decode(ids, skip_special=skip) == decoded
    assert theirs.bos_token_id == ours.special.bos
    assert theirs.eos_token_id == ours.special.eos


@pytest.mark.parametrize("prefix", [False, True])
def test_ids_are_those_of_sentence_piece(prefix):
    import sentencepiece  # noqa: PLC0415

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line.replace("\n", " ") for line in LINES * 8]),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix=prefix,
        minloglevel=2,
    )
    theirs = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    ours = from_gguf(of_processor(theirs, add_space_prefix=prefix))
    for text in PROBES:
        assert ours.encode(text, add_special=False) == theirs.encode(text), text


def of_processor(processor, **changes):
    """GGUF metadata with the pieces, scores and types of a SentencePiece model."""
    ids = range(processor.get_piece_size())
    kinds = [
        2 if processor.is_unknown(i) else 3 if processor.is_control(i)
        else 6 if processor.is_byte(i) else 1
        for i in ids
    ]  # fmt: skip
    return sentence_piece(
        tokens=[processor.id_to_piece(i) for i in ids],
        scores=[processor.get_score(i) for i in ids],
        token_type=kinds,
        **changes,
    )
