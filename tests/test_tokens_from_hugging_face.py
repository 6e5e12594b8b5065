import contextlib
import json
import random

import pytest
import tokenizers
from tiny_tokenizers import byte_level, hugging_face, sentence_piece
from tokenizers import decoders, models

from fewbit.errors import BadFileError, FewbitError, UnsupportedError
from fewbit.tokens.export import to_hugging_face
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.guard import guarded
from fewbit.tokens.identity import cut_difference, fingerprint


def test_roles_and_ends():
    text, config = hugging_face()
    tokenizer = from_hugging_face(text, config, {"eos_token_id": [3, 4]})
    assert tokenizer.token_text(tokenizer.special.bos) == "<|first|>"
    assert tokenizer.special.end_of_generation == {3, 4, tokenizer.special.eos}
    assert tokenizer.special_texts == {"bos_token": "<|first|>", "eos_token": "<|last|>"}
    assert tokenizer.behaviour.prefix == (tokenizer.special.bos,)


def test_truncation_padding_and_dropout_are_not_applied():
    text, config = hugging_face()
    tree = json.loads(text)
    tree["truncation"] = {
        "direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0
    }  # fmt: skip
    tree["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "!",
    }  # fmt: skip
    tree["model"]["dropout"] = 0.5
    tokenizer = from_hugging_face(json.dumps(tree).encode(), config)
    plain = from_hugging_face(text, config)
    sentence = "Hello, world! function value comment"
    assert tokenizer.encode(sentence) == plain.encode(sentence)
    told = " ".join(tokenizer.behaviour.hazards)
    assert all(word in told for word in ("truncation", "padding", "dropout"))
    assert plain.behaviour.hazards == ()


@pytest.mark.parametrize(
    ("adds", "wanted", "prefix", "hazard"),
    [
        (True, None, 1, None),
        (True, True, 1, None),
        (True, False, 1, "add_bos_token is false, tokenizer.json adds BOS"),
        (False, None, 0, None),
        (False, False, 0, None),
        (False, True, 1, "add_bos_token is true, tokenizer.json adds none"),
    ],
)
def test_the_post_processor_decides_and_disagreement_is_told(adds, wanted, prefix, hazard):
    text, config = hugging_face(**({} if adds else {"post_processor": None}))
    tokenizer = from_hugging_face(text, config | {"add_bos_token": wanted})
    assert len(tokenizer.behaviour.prefix) == prefix
    assert (hazard is None) == (not tokenizer.behaviour.hazards)
    assert hazard is None or hazard in tokenizer.behaviour.hazards[0]


def test_a_named_token_that_is_absent_is_a_hazard():
    text, _ = hugging_face(post_processor=None)
    tokenizer = from_hugging_face(text, {"bos_token": "<none>", "add_bos_token": True})
    told = " ".join(tokenizer.behaviour.hazards)
    assert "'<none>', which is not in the vocabulary" in told
    assert "no BOS token; none is added" in told
    assert "No EOS token" in told
    assert tokenizer.special.bos is None


def test_tokens_of_the_configuration_are_added_as_transformers_does():
    text, config = hugging_face()
    size = from_hugging_face(text, config).vocabulary_size
    listed = {str(size): {"content": "<extra>", "special": True}}
    tokenizer = from_hugging_face(text, config | {"added_tokens_decoder": listed})
    assert tokenizer.encode("<extra>", add_special=False, parse_special=True) == [size]
    assert any("<extra>" in hazard for hazard in tokenizer.behaviour.hazards)
    wrong = {str(size + 7): {"content": "<extra>", "special": True}}
    with pytest.raises(BadFileError, match="do not belong together"):
        from_hugging_face(text, config | {"added_tokens_decoder": wrong})


def test_roles_beyond_the_vocabulary_are_refused():
    text, config = hugging_face()
    with pytest.raises(BadFileError, match="beyond its vocabulary"):
        from_hugging_face(text, config, {"eos_token_id": 10**6})
    with pytest.raises(BadFileError, match="eos_token_id"):
        from_hugging_face(text, config, {"eos_token_id": ["x"]})
    with pytest.raises(BadFileError, match="not a text"):
        from_hugging_face(text, config | {"eos_token": 5})


def test_ids_without_bound_are_refused():
    text, config = hugging_face()
    tree = json.loads(text)
    tree["model"]["vocab"]["!"] = 2**32 - 1
    with pytest.raises(BadFileError, match="token ids up to"):
        from_hugging_face(json.dumps(tree).encode(), config)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "is not JSON"),
        (b"<!DOCTYPE html>", "is not JSON"),
        (b"[1]", "has no model"),
        (b"{}", "has no model"),
        (b"[" * 100_000, "is not JSON"),
        (b"\xff\xfe", "is not JSON"),
        (b'{"model": {"type": "BPE"}}', "not a usable tokenizer"),
    ],
)
def test_other_files_are_refused(content, sentence):
    with pytest.raises(BadFileError, match=sentence):
        from_hugging_face(content)


def test_an_unknown_way_to_bytes_is_refused():
    backend = tokenizers.Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(UnsupportedError, match="WordPiece; supported: ByteLevel"):
        from_hugging_face(backend.to_str().encode())


def test_merges_of_absent_tokens_are_refused():
    text, config = hugging_face()
    tree = json.loads(text)
    tree["model"]["merges"].append(["q", "zzz"])
    with pytest.raises(BadFileError, match="not a usable tokenizer"):
        from_hugging_face(json.dumps(tree).encode(), config)


def test_random_damage_never_escapes_the_error_tree():
    text, config = hugging_face()
    rng = random.Random(5)
    for _ in range(300):
        data = bytearray(text)
        at = rng.randrange(len(data))
        if rng.random() < 0.2:
            del data[at:]
        for _ in range(rng.randint(1, 3)):
            if data:
                data[rng.randrange(len(data))] = rng.choice(b'"[]{}:,0123456789-aE\\\xff')
        with contextlib.suppress(FewbitError):
            from_hugging_face(bytes(data), config).encode("hello <|first|> 😀")


class PanicException(BaseException):
    """Stands for the class that pyo3 raises; it is known by its name only."""


def test_a_panic_of_the_library_is_an_error_like_others():
    with (
        pytest.raises(BadFileError, match="It broke: index out of bounds"),
        guarded(BadFileError, "It broke"),
    ):
        raise PanicException("index out of bounds\nat src/x.rs")
    with pytest.raises(KeyboardInterrupt), guarded(BadFileError, "It broke"):
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    "metadata",
    [
        byte_level("llama-bpe"),
        byte_level("qwen2", add_eos_token=True),
        byte_level("default", add_bos_token=False),
        sentence_piece(),
        sentence_piece(add_space_prefix=False, add_eos_token=True),
    ],
)
def test_an_exported_tokenizer_reads_back_as_the_same(metadata):
    tokenizer = from_gguf(metadata)
    files = to_hugging_face(tokenizer, chat_template="{{ messages }}")
    again = from_hugging_face(files.tokenizer_json, files.tokenizer_config, files.generation_config)
    assert cut_difference(tokenizer, again) is None
    assert fingerprint(tokenizer) == fingerprint(again)
    assert fingerprint(tokenizer) == fingerprint(again)
    assert files.tokenizer_config["chat_template"] == "{{ messages }}"
    assert not again.behaviour.hazards


def changed(**changes):
    return from_gguf(byte_level(**changes))


@pytest.mark.parametrize(
    ("candidate", "sentence"),
    [
        (lambda: changed(pre="gpt-2"), "cut differently at token"),
        (lambda: changed(add_bos_token=False), "cut differently at token 0"),
        (lambda: from_gguf(sentence_piece()), "cut differently at token"),
        (lambda: changed(merges=byte_level()["tokenizer.ggml.merges"][:-1]), "in the candidate"),
        (lambda: changed(merges=reordered()), "in the candidate"),
    ],
)
def test_another_cut_is_found_and_located(candidate, sentence):
    source = from_gguf(byte_level())
    assert sentence in cut_difference(source, candidate())
    assert fingerprint(source) != fingerprint(candidate())


def test_other_roles_give_another_fingerprint():
    assert fingerprint(changed(eos_token_id=5)) != fingerprint(from_gguf(byte_level()))


def reordered():
    merges = list(byte_level()["tokenizer.ggml.merges"])
    merges[0], merges[1] = merges[1], merges[0]
    return merges
