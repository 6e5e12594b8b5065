"""Structured output through the engine: equal with any draft, and never outside the grammar."""

import json
from dataclasses import replace

import numpy as np
import pytest
from engine_cases import PROMPT, engine, run, said
from fakes import FakeExecutor, FixedDraft
from sampled_draft import SampledDraft
from test_engine_rejection import logits_after
from test_tokens_constraint import WIDE
from tiny_text import END, text_tokenizer

from fewbit.engine.request import Request
from fewbit.engine.stop import StopCondition
from fewbit.errors import RequestError
from fewbit.sampling import SamplingParams
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.model_draft import DraftModel, ModelDraft
from fewbit.tokens.constraint import GrammarCompiler, GrammarConstraint
from fewbit.tokens.grammar import Grammar, GrammarKind

SIZE = 320
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["xy", "z"]}, "c": {"type": "boolean"}},
    "required": ["a", "b", "c"],
    "additionalProperties": False,
}
JSON = Grammar(GrammarKind.JSON_SCHEMA, json.dumps(SCHEMA))
STOP = StopCondition(max_tokens=400, ids=frozenset({END}))
PARAMS = {
    "greedy": SamplingParams(temperature=0),
    "seeded": SamplingParams(seed=3),
    "truncated": SamplingParams(top_k=40, top_p=0.9, frequency_penalty=0.3, seed=4),
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return text_tokenizer(tmp_path_factory.mktemp("text"))


@pytest.fixture(scope="module")
def serve(tokenizer):
    """Return engines over the fake model with the tiny tokenizer's 320 ids."""
    compiler = GrammarCompiler(tokenizer)

    def made(draft=None, **fields):
        running = engine(draft, vocabulary=SIZE, **fields)
        running._served = replace(
            running._served,
            executor=FakeExecutor(SIZE),
            constraint=compiler.constraint,
            context=1000,
        )
        return running

    return made


def text_of(tokenizer, tokens):
    return tokenizer.decode([t for t in tokens if t != END])


def valid(text):
    found = json.loads(text)
    return (
        list(found) == ["a", "b", "c"]
        and isinstance(found["a"], int)
        and found["b"] in ("xy", "z")
        and isinstance(found["c"], bool)
    )


def half_true(tokens):
    """Drafts the truth, and every third token wrong: one that the grammar forbids, mostly."""
    return FixedDraft(
        lambda seen, length: [
            t if i % 3 != 2 else (t + 1) % END
            for i, t in enumerate(tokens[len(seen) : len(seen) + length])
        ]
    )


@pytest.mark.parametrize("name", list(PARAMS))
def test_the_text_satisfies_the_schema_and_depends_on_no_draft(serve, tokenizer, name):
    request = Request(PROMPT, PARAMS[name], STOP, top_logprobs=1, grammar=JSON)
    plain = run(serve(), [request])
    assert valid(text_of(tokenizer, plain[0][0]))
    assert plain[0][0][-1] == END
    everything = [*PROMPT, *plain[0][0], *[0] * 10]
    truth = FixedDraft(lambda seen, length: everything[len(seen) : len(seen) + length])
    shift = near()
    texts = (truth, half_true(everything), NgramDraft(shortest=1))
    for draft in (*texts, SampledDraft(shift), small()):
        assert said(run(serve(draft), [request])) == said(plain)
    for draft in (NgramDraft(shortest=1), small(seed=1)):
        assert said(run(serve(draft, branches=3), [request])) == said(plain)


def small(seed=0):
    executor = FakeExecutor(SIZE, seed=seed)
    return ModelDraft(DraftModel("small", executor, 1000, SIZE, ends=frozenset({END})))


def near(seed=2):
    executor = FakeExecutor(SIZE)
    noise = np.random.default_rng(seed).normal(0, 0.5, (SIZE, SIZE)).astype(np.float32)
    return lambda text: logits_after(text, executor) + noise[text[-1]]


def test_drafts_that_draw_are_masked_too_and_judged_by_what_they_drew(serve, tokenizer):
    request = Request(PROMPT, SamplingParams(), STOP, grammar=JSON)
    found = run(serve(SampledDraft(near())), [request] * 20)
    assert all(valid(text_of(tokenizer, tokens)) for tokens, *_ in found)
    positions = [p for *_, record in found for p in record.draft.positions]
    assert sum(p.accepted for p in positions) > 0.3 * sum(p.tested for p in positions)


def test_constrained_and_free_requests_share_a_batch(serve):
    requests = [
        Request(PROMPT, SamplingParams(seed=1), STOP, grammar=JSON),
        Request(PROMPT, SamplingParams(seed=1), StopCondition(max_tokens=30)),
        Request(PROMPT, SamplingParams(seed=2), STOP, grammar=JSON),
    ]
    alone = [run(serve(), [request])[0] for request in requests]
    assert said(run(serve(NgramDraft()), requests)) == said(alone)


def test_a_sequence_that_is_set_back_goes_on_in_its_grammar(serve):
    prompts = [PROMPT * n for n in (1, 9, 10, 8, 7)]
    long = Grammar(GrammarKind.REGEX, "[a-z]{70,75}")
    requests = [
        Request(prompt, SamplingParams(seed=n), STOP, grammar=long)
        for n, prompt in enumerate(prompts)
    ]
    alone = [run(serve(), [request])[0] for request in requests]
    running = serve(NgramDraft(shortest=1), pages=4)
    assert said(run(running, requests)) == said(alone)
    assert running.record.preemptions > 0


def test_cancelling_a_constrained_request_leaves_its_neighbours_alone(serve):
    request = Request(PROMPT, SamplingParams(seed=1), STOP, grammar=JSON)
    alone = run(serve(), [request])[0]
    running = serve(NgramDraft(shortest=1))
    first, second = running.add(request), running.add(request)
    tokens = []
    while running.busy:
        tokens += [
            t for output in running.step() if output.request == second for t in output.tokens
        ]
        running.cancel(first)
    assert tokens == alone[0]


# --- a grammar that begins inside a draft -------------------------------------------------------

BEGIN = 61
LETTERS = Grammar(GrammarKind.REGEX, "[ab]{30,40}", after=BEGIN)
THEN = SamplingParams(seed=8, logit_bias={BEGIN: 4.0})


def begun(serve, draft=None):
    request = Request(PROMPT, THEN, StopCondition(80, frozenset({END})), grammar=LETTERS)
    return run(serve(draft, longest=12), [request])[0]


def test_behind_the_boundary_the_grammar_holds_at_once(serve, tokenizer):
    tokens, *rest = begun(serve)
    boundary = tokens.index(BEGIN)
    assert boundary > 0
    tail = text_of(tokenizer, tokens[boundary + 1 :])
    assert len(tail) >= 30
    assert set(tail) <= {"a", "b"}
    everything = [*PROMPT, *tokens]
    blocks = []

    def choose(seen, length):
        """Whatever is drafted first holds the boundary and what an unconstrained text would say."""
        drafted = everything[len(seen) : len(seen) + length]
        if BEGIN in drafted:
            blocks.append(len(drafted))
        return [*drafted, *[33] * (length - len(drafted))]

    assert said([begun(serve, FixedDraft(choose))]) == said([(tokens, *rest)])
    assert blocks


def test_the_comparison_sees_a_tail_that_is_not_constrained(serve, monkeypatch):
    """vLLM #36138: the mask of the whole block is the one at its start."""
    plain = begun(serve)
    everything = [*PROMPT, *plain[0]]
    truth = GrammarConstraint.masks

    def deaf(self, draft):
        return np.repeat(truth(self, ()), len(draft) + 1, axis=0)

    monkeypatch.setattr(GrammarConstraint, "masks", deaf)
    draft = FixedDraft(lambda seen, length: everything[len(seen) : len(seen) + length])
    assert said([begun(serve, draft)]) != said([plain])


# --- bad input ----------------------------------------------------------------------------------


def test_a_bad_grammar_is_refused_before_any_step(serve):
    good = Request(PROMPT, stop=STOP)
    bad = Request(PROMPT, stop=STOP, grammar=Grammar(GrammarKind.REGEX, "("))
    running = serve()
    with pytest.raises(RequestError, match="regular expression"):
        run(running, [good, bad])
    assert running.record.steps == 0


def test_a_grammar_is_compiled_once_a_request(serve):
    compiled = []
    running = serve()
    compile_ = running._served.constraint
    counting = lambda grammar: compiled.append(grammar) or compile_(grammar)  # noqa: E731
    running._served = replace(running._served, constraint=counting)
    for request in [Request(PROMPT, stop=STOP, grammar=JSON)] * 2:
        running.add(request)
    assert len(compiled) == 2
    run(running, [Request(PROMPT, stop=STOP, grammar=JSON)] * 3)
    assert len(compiled) == 5


def test_an_engine_without_a_tokenizer_refuses_grammars():
    request = Request(PROMPT, stop=STOP, grammar=JSON)
    with pytest.raises(RequestError, match="nothing to apply it with"):
        run(engine(), [request])


def test_a_bias_against_all_that_the_grammar_allows_ends_in_an_error(serve):
    grammar = Grammar(GrammarKind.REGEX, "a+")
    token = only_allowed(serve, grammar)
    params = SamplingParams(temperature=0, logit_bias={token: -100})
    record = run(serve(), [Request(PROMPT, params, STOP, grammar=grammar)])[0][3]
    assert record.finish.value == "error"
    assert "every token is banned" in record.detail


@pytest.mark.parametrize("seed", [3, None])
@pytest.mark.parametrize(
    "draft", [None, lambda: NgramDraft(shortest=1), lambda: SampledDraft(near())]
)
def test_a_grammar_that_becomes_too_complex_ends_in_an_error_for_its_request_alone(
    serve, tokenizer, draft, seed
):
    """The library has such a text end, invalid as it is."""
    (letter,) = tokenizer.encode("a", add_special=False)
    insisting = SamplingParams(seed=seed, logit_bias={letter: 100.0})
    requests = [
        Request(PROMPT, insisting, STOP, grammar=WIDE),
        Request(PROMPT, PARAMS["greedy"], StopCondition(30)),
    ]
    alone = run(serve(), requests[1:])
    (tokens, _, _, record), *others = run(serve(draft and draft()), requests)
    assert tokens == [letter] * 4
    assert record.finish.value == "error"
    assert "too complex to go on" in record.detail
    assert said(others) == said(alone)


def only_allowed(serve, grammar):
    mask = serve()._served.constraint(grammar).masks(())[0]
    found = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
    assert len(found) == 1
    return int(found[0])
