import contextlib
import itertools
import random

import numpy as np
import pytest
from tiny_tokenizers import CONTROL, NORMAL, byte_level, sentence_piece

from fewbit.errors import BadFileError, FewbitError, MissingError, UnsupportedError
from fewbit.tokens.facts import tokenizer_facts
from fewbit.tokens.from_gguf import from_gguf
from fewbit.tokens.merges import merges_from_scores, split_merges
from fewbit.tokens.pretokenizers import WORD_RULES

WORDS = {
    # What each rule makes of one text, from the expressions read by hand.
    "gpt-2": ["I", "'ll", " pay", " $", "1234", "\n", "\n", "x"],
    "smollm": ["I", "'ll", " pay", " $", "1", "2", "3", "4", "\n", "\n", "x"],
    "llama-bpe": ["I", "'ll", " pay", " $", "123", "4", "\n\n", "x"],
    "qwen2": ["I", "'ll", " pay", " $", "1", "2", "3", "4", "\n\n", "x"],
    "default": ["I", "'", "ll", " pay", " ", "$", "123", "4", "\n", "\n", "x"],
    "falcon": ["I", "'", "ll", " pay", " ", "$", "123", "4", "\n", "\n", "x"],
}


@pytest.mark.parametrize("name", list(WORDS))
def test_word_rules_cut_as_their_family_does(name):
    cut = WORD_RULES[name].pre_tokenizer().pre_tokenize_str("I'll pay $1234\n\nx")
    shown = [text.replace("Ġ", " ").replace("Ċ", "\n") for text, _ in cut]
    assert shown == WORDS[name]


def test_composed_form_is_the_rule_of_qwen():
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    qwen = from_gguf(byte_level("qwen2"))
    assert qwen.encode(decomposed) == qwen.encode(composed)
    other = from_gguf(byte_level("llama-bpe"))
    assert other.encode(decomposed) != other.encode(composed)


def test_a_whole_word_is_taken_without_merging_where_the_rule_says_so():
    # `xyzq` is a token that no merges build.
    tokens = byte_level()["tokenizer.ggml.tokens"]
    extended = {"tokens": [*tokens, "xyzq"], "token_type": [NORMAL] * len(tokens) + [NORMAL]}
    assert (
        len(from_gguf(byte_level("llama-bpe", **extended)).encode("xyzq", add_special=False)) == 1
    )
    assert len(from_gguf(byte_level("smollm", **extended)).encode("xyzq", add_special=False)) > 1


@pytest.mark.parametrize(
    ("metadata", "prefix", "suffix"),
    [
        (byte_level("llama-bpe", add_bos_token=None), ["<|first|>"], []),
        (byte_level("smollm", add_bos_token=None), [], []),
        (byte_level("smollm", add_bos_token=False, add_eos_token=True), [], ["<|last|>"]),
        (sentence_piece(), ["<s>"], []),
        (sentence_piece(add_bos_token=False), [], []),
        (sentence_piece(add_eos_token=True), ["<s>"], ["</s>"]),
    ],
)
def test_what_is_put_around_a_text(metadata, prefix, suffix):
    tokenizer = from_gguf(metadata)
    assert [tokenizer.token_text(token) for token in tokenizer.behaviour.prefix] == prefix
    assert [tokenizer.token_text(token) for token in tokenizer.behaviour.suffix] == suffix


def test_every_end_of_generation_is_known():
    tokenizer = from_gguf(byte_level())
    assert tokenizer.special.end_of_generation == {tokenizer.special.eos}
    metadata = byte_level()
    metadata["tokenizer.ggml.tokens"][-3] = "<|im_end|>"
    metadata["tokenizer.ggml.eot_token_id"] = 7
    ends = from_gguf(metadata).special.end_of_generation
    assert ends == {7, tokenizer.special.bos, tokenizer.special.eos}


def naive_pieces(text, scores):
    """SentencePiece's rule, slowly: join the best-scored adjacent pair, the leftmost of equals."""
    symbols = list(text)
    while True:
        joined = [a + b for a, b in itertools.pairwise(symbols)]
        known = [(-scores[piece], at) for at, piece in enumerate(joined) if piece in scores]
        if not known:
            return symbols
        _, at = min(known)
        symbols[at : at + 2] = [joined[at]]


def test_merges_from_scores_do_what_sentence_piece_does():
    rng = random.Random(20)
    for _ in range(40):
        letters = rng.choice(["ab", "abc", "abcd"])
        scores = random_pieces(rng, letters, size=rng.choice([4, 9, 18]))
        tokenizer = from_gguf(of_pieces(scores))
        for _ in range(25):
            text = "".join(rng.choice(letters) for _ in range(rng.randint(1, 14)))
            ids = tokenizer.encode(text, add_special=False)
            assert [tokenizer.token_text(i) for i in ids] == naive_pieces(text, scores)


def test_that_comparison_sees_merges_in_the_order_of_ids():
    # Scores that fall with the id hide a rule that ignores scores; these do not.
    scores = {"a": -9.0, "b": -8.0, "c": -7.0, "ab": -6.0, "bc": -1.0}
    tokenizer = from_gguf(of_pieces(scores))
    ids = tokenizer.encode("abc", add_special=False)
    assert [tokenizer.token_text(i) for i in ids] == ["a", "bc"] == naive_pieces("abc", scores)
    careless = from_gguf(of_pieces(dict.fromkeys(scores, 0.0) | {"ab": 1.0}))
    ids = careless.encode("abc", add_special=False)
    assert [careless.token_text(i) for i in ids] == ["ab", "c"]


def random_pieces(rng, letters, size):
    pieces = set(letters)
    while len(pieces) < size + len(letters):
        joined = rng.choice(sorted(pieces)) + rng.choice(sorted(pieces))
        if len(joined) <= 6:
            pieces.add(joined)
    ranked = sorted(pieces)
    rng.shuffle(ranked)
    return {piece: -float(rank) for rank, piece in enumerate(ranked)}


def of_pieces(scores):
    octets = [f"<0x{byte:02X}>" for byte in range(256)]
    return sentence_piece(
        tokens=["<unk>", "<s>", "</s>", *octets, *scores],
        token_type=[2, 3, 3] + [6] * 256 + [1] * len(scores),
        scores=[0.0] * 259 + list(scores.values()),
        add_space_prefix=False,
    )


def test_control_tokens_are_never_merged_from_text():
    scores = {"<": -3.0, "s": -4.0, ">": -5.0, "<s": -1.0}
    tokenizer = from_gguf(of_pieces(scores))
    shown = [tokenizer.token_text(i) for i in tokenizer.encode("<s>", add_special=False)]
    assert shown == ["<s", ">"]
    assert tokenizer.encode("<s>", add_special=False, parse_special=True) == [1]


def test_characters_without_a_piece_become_bytes():
    tokenizer = from_gguf(sentence_piece())
    shown = [tokenizer.token_text(i) for i in tokenizer.encode("🦊", add_special=False)][-4:]
    assert shown == ["<0xF0>", "<0x9F>", "<0xA6>", "<0x8A>"]


def test_merge_lines_are_cut_at_the_first_space_that_is_not_the_first_character():
    assert split_merges(["a b", "  x", "a b"]) == [("a", "b"), (" ", "x")]
    for line in ("ab", "a ", "", " a"):
        with pytest.raises(BadFileError, match="instead of two tokens"):
            split_merges([line])


def test_merges_have_the_better_score_first():
    assert merges_from_scores({"a": 0.0, "b": 0.0, "ab": -2.0, "ba": -1.0}) == [
        ("b", "a"),
        ("a", "b"),
    ]


def broken():
    tokens = byte_level()["tokenizer.ggml.tokens"]
    pieces = sentence_piece()["tokenizer.ggml.tokens"]
    return {
        "bos beyond": (byte_level(bos_token_id=10**6), "bos_token_id is 1,000,000, beyond"),
        "negative eos": (byte_level(eos_token_id=-1), "eos_token_id is -1, beyond"),
        "eos is text": (byte_level(eos_token_id="</s>"), "instead of a value of type int"),
        "eos is true": (byte_level(eos_token_id=True), "instead of a value of type int"),
        "absent merge": (byte_level(merges=["q zzz"]), "'zzz' is not in the vocabulary"),
        "absent result": (byte_level(merges=["q z"]), "'qz' is not in the vocabulary"),
        "merge of bytes": (byte_level(merges=[b"\xff q"]), "other than UTF-8"),
        "merge of one": (byte_level(merges=["qz"]), "instead of two tokens"),
        "merges no array": (byte_level(merges="q z"), "instead of an array"),
        "duplicate": (byte_level(tokens=[*tokens[:-1], "!"]), "has '!' twice"),
        "not UTF-8": (byte_level(tokens=[*tokens[:-1], b"\xff"]), "is not UTF-8"),
        "number": (byte_level(tokens=[*tokens[:-1], 5]), "is a int instead of text"),
        "few types": (byte_level(token_type=[NORMAL]), "token_type has 1 entries"),
        "type text": (byte_level(token_type=["x"] * len(tokens)), "not an array of integers"),
        "few scores": (sentence_piece(scores=[0.0]), "scores has 1 entries"),
        "nan": (sentence_piece(scores=[float("nan")] * len(pieces)), "finite numbers"),
        "flag": (byte_level(add_bos_token=1), "instead of a value of type bool"),
        "model": (byte_level(model=7), "instead of a value of type str"),
    }


@pytest.mark.parametrize("name", list(broken()))
def test_damaged_metadata_is_refused(name):
    metadata, sentence = broken()[name]
    with pytest.raises(BadFileError, match=sentence):
        from_gguf(metadata)


@pytest.mark.parametrize(
    ("metadata", "kind", "sentence"),
    [
        ({}, MissingError, "carries no tokenizer"),
        (byte_level(tokens=None), MissingError, "tokens is absent"),
        (byte_level(tokens=[]), MissingError, "absent or empty"),
        (byte_level(merges=None), MissingError, "merges is absent"),
        (sentence_piece(scores=None), MissingError, "scores is absent"),
        (byte_level(model="rwkv"), UnsupportedError, "'rwkv' is not supported; supported: gpt2"),
        (
            byte_level("klingon"),
            UnsupportedError,
            "'klingon' is not supported; supported: .*smollm",
        ),
    ],
)
def test_what_is_absent_or_unknown_is_named(metadata, kind, sentence):
    with pytest.raises(kind, match=sentence):
        from_gguf(metadata)


def test_random_damage_never_escapes_the_error_tree():
    rng = random.Random(3)
    values = [None, -1, 2**63, "x", "", b"\xff", [], [None], ["a"] * 3, [0.5], True, {}, 1e400]
    for _ in range(150):
        metadata = rng.choice([byte_level, sentence_piece])()
        for key in rng.sample(sorted(metadata), 2):
            value = metadata[key]
            if isinstance(value, list) and rng.random() < 0.7:
                value = list(value)
                value[rng.randrange(len(value))] = rng.choice(values)
                metadata[key] = value
            else:
                metadata[key] = rng.choice(values)
        with contextlib.suppress(FewbitError):
            from_gguf(metadata).encode("hello <|first|> 😀")


def test_arrays_of_numpy_are_taken():
    metadata = sentence_piece()
    for name in ("scores", "token_type"):
        metadata[f"tokenizer.ggml.{name}"] = np.array(metadata[f"tokenizer.ggml.{name}"])
    assert from_gguf(metadata).encode("hi") == from_gguf(sentence_piece()).encode("hi")


def test_an_empty_token_does_not_match_everywhere():
    tokens = byte_level()["tokenizer.ggml.tokens"]
    tokenizer = from_gguf(byte_level(tokens=[*tokens[:-1], ""]))
    assert tokenizer.decode(tokenizer.encode("hi", add_special=False)) == "hi"


def test_hazards_are_told():
    tokens = byte_level()["tokenizer.ggml.tokens"]
    lost = byte_level(tokens=["<gone>", *tokens[1:]], merges=[], bos_token_id=None)
    lost = {key: value for key, value in lost.items() if not key.endswith((".pre", "eos_token_id"))}
    facts = tokenizer_facts(from_gguf(lost))
    for part in ("pre is absent", "1 of the 256 bytes", "names no BOS", "no EOS"):
        assert any(part in hazard for hazard in facts.hazards), part
    clean = tokenizer_facts(from_gguf(byte_level()))
    assert clean.hazards == ()
    assert (clean.kind, clean.pre_tokenizer) == ("byte-level BPE", "smollm")
    assert clean.bos is not None
    assert clean.bos.text == "<|first|>"
    assert clean.special_tokens == 2
    assert clean.added_tokens == 3


def test_sentence_piece_hazards_are_told():
    tokens = sentence_piece()["tokenizer.ggml.tokens"]
    tokens[tokens.index("<0x00>")] = "<gone>"
    facts = tokenizer_facts(from_gguf(sentence_piece(tokens=tokens, remove_extra_whitespaces=True)))
    assert any("1 of the 256 byte tokens" in hazard for hazard in facts.hazards)
    assert any("remove_extra_whitespaces" in hazard for hazard in facts.hazards)


def test_control_types_decide_what_is_special():
    types = byte_level()["tokenizer.ggml.token_type"]
    changed = from_gguf(byte_level(token_type=[*types[:-1], CONTROL]))
    assert len(changed.special_ids) == 3
