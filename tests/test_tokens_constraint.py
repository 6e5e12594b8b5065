"""Masks of grammars against a slow truth: what the language's own words say about each token."""

import itertools
import re

import numpy as np
import pytest
from tiny_text import END, text_tokenizer

from fewbit.errors import RequestError
from fewbit.keyed_random import Purpose, uniform
from fewbit.sampling import (
    Block,
    DraftRow,
    SamplingParams,
    TokenSampler,
    distribution,
    draw_proposals,
    sample_blocks,
)
from fewbit.sampling.distribution import History
from fewbit.speculate.rows import pick
from fewbit.tokens.constraint import GrammarCompiler
from fewbit.tokens.grammar import Grammar, GrammarKind
from fewbit.tokens.tokenizer import Tokenizer

WORDS = [
    b"".join(letters) + b"!"
    for length in (2, 3)
    for letters in itertools.product([b"a", b"b"], repeat=length)
]
PATTERN = Grammar(GrammarKind.REGEX, "[ab]{2,3}!")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return text_tokenizer(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def compiler(tokenizer):
    return GrammarCompiler(tokenizer)


def bits(mask, size=320):
    return np.unpackbits(mask.view(np.uint8), bitorder="little")[:size].astype(bool)


def slow_truth(tokenizer, tokens):
    """Which ids may follow: those that keep the text the beginning of a word, and the end."""
    text = b"".join(tokenizer.token_bytes(t) for t in tokens if t != END)
    if END in tokens or text in WORDS:
        return {END}
    return {
        token
        for token in range(END)
        if any(word.startswith(text + tokenizer.token_bytes(token)) for word in WORDS)
    }


def ids(tokenizer, text):
    return tokenizer.encode(text, add_special=False)


@pytest.mark.parametrize("text", ["", "a", "ab", "aba", "bab!"])
def test_a_mask_is_what_the_words_allow(tokenizer, compiler, text):
    constraint = compiler.constraint(PATTERN)
    constraint.advance(ids(tokenizer, text))
    found = set(np.flatnonzero(bits(constraint.masks(())[0])).tolist())
    assert found == slow_truth(tokenizer, ids(tokenizer, text))


@pytest.mark.parametrize("seed", range(20))
def test_masks_along_a_draft_are_those_of_its_prefixes(tokenizer, compiler, seed):
    rng = np.random.default_rng(seed)
    letters = [*ids(tokenizer, "ab!"), END]
    constraint = compiler.constraint(PATTERN)
    draft = [letters[i] for i in rng.integers(0, 4, 5)]
    for _ in range(2):
        masks = constraint.masks(draft)
        for j in range(len(draft) + 1):
            assert set(np.flatnonzero(bits(masks[j])).tolist()) == slow_truth(tokenizer, draft[:j])
            if j == len(draft) or not bits(masks[j])[draft[j]] or draft[j] == END:
                break


def test_after_the_end_only_the_end_may_come(tokenizer, compiler):
    constraint = compiler.constraint(PATTERN)
    constraint.advance([*ids(tokenizer, "ab!"), END])
    assert set(np.flatnonzero(bits(constraint.masks(())[0])).tolist()) == {END}


def test_a_fork_goes_its_own_way(tokenizer, compiler):
    constraint = compiler.constraint(PATTERN)
    constraint.advance(ids(tokenizer, "a"))
    fork = constraint.fork()
    fork.advance(ids(tokenizer, "b!"))
    assert not np.array_equal(fork.masks(()), constraint.masks(()))
    assert set(np.flatnonzero(bits(constraint.masks(())[0]))) == slow_truth(
        tokenizer, ids(tokenizer, "a")
    )


def test_a_grammar_may_begin_after_a_token(tokenizer, compiler):
    """vLLM #36138: the boundary lies inside the draft; behind it the grammar holds at once."""
    begin = 300
    constraint = compiler.constraint(Grammar(PATTERN.kind, PATTERN.text, after=begin))
    draft = [7, begin, *ids(tokenizer, "ab")]
    masks = constraint.masks(draft)
    assert [bits(mask).sum() for mask in masks[:2]] == [320, 320]
    for row, text in ((2, ""), (3, "a"), (4, "ab")):
        assert set(np.flatnonzero(bits(masks[row]))) == slow_truth(tokenizer, ids(tokenizer, text))
    assert np.array_equal(constraint.masks(draft), masks)
    constraint.advance(draft[:3])
    assert set(np.flatnonzero(bits(constraint.masks(())[0]))) == slow_truth(
        tokenizer, ids(tokenizer, "a")
    )
    assert constraint.fork().masks(()).tolist() == constraint.masks(()).tolist()


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ('{"a":1}', True),
        ('{ "a" : 1 }', True),
        ('{\n\t"a": 1\n}', True),
        ('{  "a":1}', False),
        ('{\n\n"a":1}', False),
        ("{\n" + " " * 41 + '"a":1}', False),
    ],
)
def test_white_space_in_json_has_an_end(tokenizer, compiler, text, allowed):
    schema = '{"properties": {"a": {"type": "integer"}}, "required": ["a"]}'
    constraint = compiler.constraint(Grammar(GrammarKind.JSON_SCHEMA, schema))
    for token in ids(tokenizer, text):
        if not bits(constraint.masks(())[0])[token]:
            assert not allowed
            return
        constraint.advance([token])
    assert allowed


# --- in the pipeline ----------------------------------------------------------------------------

PARAMS = [
    SamplingParams(),
    SamplingParams(top_k=3, repetition_penalty=1.5),
    SamplingParams(top_p=0.6, logit_bias={7: -100}),
]


class Allowing:
    """A constraint that always allows the same ids, at random."""

    problem = ""

    def __init__(self, seed, size):
        self.allowed = np.random.default_rng(seed).random(-(-size // 32) * 32) < 0.2
        self.advanced = []

    def masks(self, draft):
        packed = np.packbits(self.allowed, bitorder="little").view(np.int32)
        return np.tile(packed, (len(draft) + 1, 1))

    def advance(self, tokens):
        self.advanced += tokens

    def fork(self):
        return self


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("size", [320, 300, 64, 31])
def test_the_native_pipeline_masks_as_the_truth_does(params, size):
    for seed in range(8):
        constraint = Allowing(seed, size)
        logits = np.random.default_rng(seed).normal(0, 2, (1, size)).astype(np.float32)
        sampler = TokenSampler(params, seed=seed, prompt=(1, 2))
        sampler.constrain(constraint)
        drawn = sample_blocks(logits, [Block(sampler, 0, 9)])[0]
        row = distribution(
            logits[0],
            params,
            History(np.array([1, 2], np.int32), 2),
            allowed=constraint.allowed[:size],
        )
        assert drawn.tokens == [pick(row, uniform(seed, 0, 9, Purpose.TOKEN))]
        assert constraint.advanced == drawn.tokens


def test_a_draft_over_some_ids_is_masked_by_the_targets_ids():
    support = np.arange(1, 300, 3, dtype=np.int32)
    constraint = Allowing(0, 320)
    sampler = TokenSampler(SamplingParams(), seed=0)
    sampler.constrain(constraint)
    into = np.empty(100, np.float32)
    logits = np.zeros((1, 100), np.float32)
    drawn = draw_proposals(logits, [DraftRow(sampler.fork(), 0, 5, 5, into)], support=support)
    assert constraint.allowed[drawn[0].token]
    assert np.array_equal(into > 0, constraint.allowed[support])


def test_a_mask_that_is_too_short_is_refused():
    sampler = TokenSampler(SamplingParams(), seed=0)
    sampler.constrain(Allowing(0, 32))
    with pytest.raises(ValueError, match="short of ids"):
        sample_blocks(np.zeros((1, 33), np.float32), [Block(sampler, 0, 0)])


# --- bad input ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        (Grammar(GrammarKind.JSON_SCHEMA, '{"type": "strin"}'), "the JSON schema .*: .*strin"),
        (Grammar(GrammarKind.JSON_SCHEMA, "{"), "the JSON schema cannot be used"),
        (Grammar(GrammarKind.JSON_SCHEMA, "true"), "the JSON schema cannot be used: .*object"),
        (Grammar(GrammarKind.JSON_SCHEMA, "[1]"), "the JSON schema cannot be used: .*object"),
        (Grammar(GrammarKind.REGEX, "\ud800"), "the regular expression cannot be used"),
        (Grammar(GrammarKind.LARK, 'start: "a" missing'), "the Lark grammar .*: .*missing"),
        (Grammar(GrammarKind.REGEX, "("), "the regular expression cannot be used"),
        (Grammar(GrammarKind.REGEX, "a", after=320), r"after token 320, but ids are in \[0, 319\]"),
    ],
)
def test_a_grammar_that_is_none_is_refused_in_a_sentence(compiler, grammar, words):
    with pytest.raises(RequestError, match=words) as refused:
        compiler.constraint(grammar)
    assert "\n" not in str(refused.value)


def test_a_tokenizer_without_an_end_has_no_grammars(tokenizer):
    class Endless(Tokenizer):
        def __init__(self):
            self.behaviour = tokenizer.behaviour

        @property
        def special(self):
            return type(tokenizer.special)()

    with pytest.raises(RequestError, match="no end of text"):
        GrammarCompiler(Endless()).constraint(PATTERN)


# --- the library's own limits -------------------------------------------------------------------

WIDE = Grammar(
    GrammarKind.LARK,
    "\n".join(
        [
            'start: any "."',
            "any: " + " | ".join(f"kind{i}" for i in range(200)),
            *(f'kind{i}: kind{i} kind{i} | "a"' for i in range(200)),
        ]
    ),
)
"""A row of the parser has over 2,000 items behind four letters, which is more than it takes."""


def allowed(mask):
    return set(np.flatnonzero(bits(mask)).tolist())


def test_where_the_library_gives_up_nothing_may_come_and_it_is_said(tokenizer, compiler):
    """It would have the text end there, as if it were complete."""
    letter, dot = ids(tokenizer, "a.")
    constraint = compiler.constraint(WIDE)
    for count in range(4):
        assert allowed(constraint.masks(())[0]) == ({letter, dot} if count else {letter})
        assert not constraint.problem
        constraint.advance([letter])
    assert allowed(constraint.masks(())[0]) == set()
    assert re.search("too complex to go on .*2201 items.*simpler", constraint.problem)
    assert "<state>" not in constraint.problem


def test_a_draft_that_leads_where_the_library_gives_up_does_no_harm(tokenizer, compiler):
    letter, dot = ids(tokenizer, "a.")
    constraint = compiler.constraint(WIDE)
    for _ in range(2):
        masks = constraint.masks([letter] * 6)
        assert [allowed(m) for m in masks[:5]] == [{letter}, *[{letter, dot}] * 3, set()]
    constraint.advance([letter, dot])
    assert allowed(constraint.masks(())[0]) == {END}
