import re
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_tokenizers import PROBES, byte_level, hugging_face, sentence_piece

from fewbit.errors import RequestError
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.from_hugging_face import from_hugging_face
from fewbit.tokens.tokenizer import clean_text

BUILDERS = {
    "byte-level": lambda: from_gguf(byte_level()),
    "sentence-piece": lambda: from_gguf(sentence_piece()),
    "sentence-piece-bare": lambda: from_gguf(sentence_piece(add_space_prefix=False)),
    "hugging-face": lambda: from_hugging_face(*hugging_face()),
}


@pytest.fixture(scope="module", params=list(BUILDERS))
def tokenizer(request):
    return BUILDERS[request.param]()


@pytest.mark.parametrize("text", PROBES)
def test_text_comes_back(tokenizer, text):
    for parse in (False, True):
        ids = tokenizer.encode(text, add_special=False, parse_special=parse)
        assert tokenizer.decode(ids) == expected_text(tokenizer, text, parse)


def expected_text(tokenizer, text, parse) -> str:
    """The text, but for what SentencePiece cannot tell apart or adds."""
    if has_pieces(tokenizer):
        text = text.replace("▁", " ")
    if tokenizer.strips_leading_space:
        # The mark at the start of a text is put behind every added token too, as transformers and
        # llama.cpp do it.
        added = [
            t for i, t in tokenizer.added_tokens.items() if parse or i not in tokenizer.special_ids
        ]
        either = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
        text = re.sub(f"({either})(?!{either}|$)", r"\1 ", text, flags=re.DOTALL)
    return text


def has_pieces(tokenizer) -> bool:
    return tokenizer.behaviour.pieces.kind == "SentencePiece BPE"


def test_a_prompt_cannot_inject_special_tokens():
    tokenizer = BUILDERS["byte-level"]()
    start, end = tokenizer.special.bos, tokenizer.special.eos
    text = "<|first|>hi<|last|>"
    assert not {start, end} & set(tokenizer.encode(text, add_special=False))
    parsed = tokenizer.encode(text, add_special=False, parse_special=True)
    assert parsed[0] == start
    assert parsed[-1] == end
    # What is added but not special is read either way.
    tool = tokenizer.backend.token_to_id("<tool>")
    assert tool in tokenizer.encode("x<tool>y")


def test_special_tokens_are_put_around_a_text_when_asked(tokenizer):
    bare = tokenizer.encode("hi", add_special=False)
    assert tokenizer.encode("hi") == [tokenizer.special.bos, *bare]
    assert tokenizer.encode("") == [tokenizer.special.bos]
    assert tokenizer.encode("", add_special=False) == []


def test_special_tokens_are_left_out_of_the_text_when_asked(tokenizer):
    ids = [*tokenizer.encode("hi"), tokenizer.special.eos]
    assert tokenizer.decode(ids, skip_special=True) == "hi"
    assert tokenizer.token_text(tokenizer.special.eos) in tokenizer.decode(ids)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"a\xffb", "a\ufffdb"),
        (b"\xe6\x97", "\ufffd"),
        (b"\xf0\x9f\x98x", "\ufffdx"),
        ("a\ud800b", "a\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("caf\udce9", "caf\ufffd"),
        ("日本", "日本"),
    ],
)
def test_invalid_text_becomes_replacement_characters(tokenizer, data, text):
    assert clean_text(data) == text
    assert tokenizer.encode(data) == tokenizer.encode(text)


@given(st.binary(max_size=40))
def test_any_bytes_can_be_encoded(data):
    tokenizer = shared("byte-level")
    text = data.decode("utf-8", "replace")
    assert tokenizer.decode(tokenizer.encode(data, add_special=False)) == text


def test_an_id_without_a_token_is_an_error_of_the_request(tokenizer):
    for token in (-1, tokenizer.vocabulary_size, 1 << 40):
        with pytest.raises(RequestError, match="padding rows"):
            tokenizer.decode([token])
        with pytest.raises(RequestError):
            tokenizer.token_bytes(token)


def test_bytes_of_single_tokens_make_up_the_text(tokenizer):
    ids = tokenizer.encode("naïve 日本 😀 12", add_special=False)
    whole = b"".join(tokenizer.token_bytes(token) for token in ids)
    assert whole.decode().removeprefix(" ") == "naïve 日本 😀 12"
    assert tokenizer.decode_bytes(ids) == "naïve 日本 😀 12".encode()


@pytest.mark.parametrize("unit", ["a", " ", "\n", "1", ".", " a", "日", "😀", "<|first|>", "▁"])
def test_long_runs_are_fast(tokenizer, unit):
    text = unit * (100_000 // len(unit.encode()))
    started = time.process_time()
    ids = tokenizer.encode(text, add_special=False, parse_special=True)
    encoded = time.process_time()
    data = tokenizer.decode_bytes(ids)
    decoded = time.process_time()
    # A second is the bound asked for; most take 0.05 s alone on one core. Time of the
    # process, since others may keep the machine busy.
    assert encoded - started < 1.0
    assert decoded - encoded < 1.0
    assert data.decode() == expected_text(tokenizer, text, True)


def test_threads_share_a_tokenizer():
    tokenizer = BUILDERS["byte-level"]()
    text = "<|first|>hi<|last|>"
    expected = {parse: tokenizer.encode(text, parse_special=parse) for parse in (False, True)}
    wrong = []

    def work(parse: bool) -> None:
        wrong.extend(
            1 for _ in range(300) if tokenizer.encode(text, parse_special=parse) != expected[parse]
        )

    threads = [threading.Thread(target=work, args=(parse,)) for parse in (False, True) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_SHARED = {}


def shared(name):
    if name not in _SHARED:
        _SHARED[name] = BUILDERS[name]()
    return _SHARED[name]


@given(st.data())
def test_a_stream_is_the_whole_decode(data):
    tokenizer = shared(data.draw(st.sampled_from(list(BUILDERS))))
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocabulary_size - 1), max_size=30))
    skip = data.draw(st.booleans())
    stream = tokenizer.stream(skip_special=skip)
    pieces = [stream.push(token) for token in ids]
    assert "".join(pieces) + stream.finish() == tokenizer.decode(ids, skip_special=skip)


@pytest.mark.parametrize("name", list(BUILDERS))
def test_a_stream_continues_a_prompt(name):
    tokenizer = shared(name)
    prompt = tokenizer.encode("Hello,")
    rest = tokenizer.encode("x world", add_special=False)[1:]
    stream = tokenizer.stream(after=prompt)
    text = "".join(map(stream.push, rest)) + stream.finish()
    whole = tokenizer.decode([*prompt, *rest], skip_special=True)
    assert tokenizer.decode(prompt, skip_special=True) + text == whole


def test_half_a_character_is_held_back():
    tokenizer = shared("byte-level")
    ids = tokenizer.encode("🦊", add_special=False)
    assert len(ids) > 1
    stream = tokenizer.stream()
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🦊"]
    assert stream.finish() == ""
    stream = tokenizer.stream()
    assert stream.push(ids[0]) == ""
    assert stream.finish() == "\ufffd"


def test_the_stream_test_would_see_bytes_decoded_one_by_one():
    tokenizer = shared("byte-level")
    ids = tokenizer.encode("🦊", add_special=False)
    careless = "".join(tokenizer.decode([token]) for token in ids)
    assert careless != tokenizer.decode(ids)
