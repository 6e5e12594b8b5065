"""Asking the engine: answers as they end, and likelihoods equal to each sequence run alone."""

import math
from dataclasses import replace

import numpy as np
import pytest
from tiny_subjects import sharp_weights, write_subject

from fewbit.engine.loaded import load_model
from fewbit.errors import IdentityError, MissingError, RequestError
from fewbit.evaluate.answers import GREEDY, Ask, EngineAnswerer
from fewbit.evaluate.likelihoods import Scoring, likelihoods
from fewbit.model.pieces import step_of
from fewbit.model.runner import RunSettings
from fewbit.records.generation import FinishReason

CHAT = ({"role": "user", "content": "the cat"},)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = write_subject(tmp_path_factory.mktemp("model"), weights=sharp_weights())
    return load_model(folder, RunSettings(threads=1, context=256, sequences=2))


def answers(loaded, asks, **options):
    found = {}
    EngineAnswerer(loaded, **options).answer(asks, lambda a: found.__setitem__(a.name, a))
    return found


def test_every_ask_is_answered_with_all_its_gaps(loaded):
    asks = [Ask(f"a{i}", "the bad abc"[: 4 + i], max_tokens=5 + i) for i in range(5)]
    found = answers(loaded, [*asks, Ask("chat", CHAT, 4)])
    assert found.keys() == {ask.name for ask in asks} | {"chat"}
    for answer in found.values():
        assert answer.first_token > 0 and answer.seconds >= answer.first_token
        assert len(answer.gaps) == answer.tokens - 1
        assert answer.finish in (FinishReason.LENGTH, FinishReason.STOP)
    assert found["a4"].prompt_tokens == 1 + len(
        loaded.tokenizer.encode("the bad ", add_special=False)
    )


def test_an_answer_does_not_depend_on_what_is_served_beside_it(loaded):
    asks = [Ask(f"a{i}", "abcdefgh"[i:], max_tokens=12) for i in range(6)]
    together = answers(loaded, asks)
    for ask in asks:
        alone = answers(loaded, [ask], sequences=1)[ask.name]
        assert alone.text == together[ask.name].text


def test_logprobs_come_for_every_token_when_asked_for(loaded):
    found = answers(loaded, [Ask("a", "the", 4, logprobs=3), Ask("b", "the", 4)])
    assert found["b"].logprobs == () and len(found["a"].logprobs) == found["a"].tokens
    for score in found["a"].logprobs:
        assert score.top[0].logprob == score.logprob  # greedy: the likeliest is taken
        assert len(score.top) == 3


def test_stop_strings_end_an_answer_before_them(loaded):
    whole = answers(loaded, [Ask("a", "the", 24)])["a"].text
    cut = answers(loaded, [Ask("a", "the", 24, stop=(whole[3:5],))])["a"]
    assert cut.text == whole[: whole.index(whole[3:5])] and cut.finish is FinishReason.STOP


def alone(loaded, ids, start):
    """Return the log-probabilities of a sequence's tokens from `start` on, run by itself."""
    rows = np.concatenate([b.copy() for b in loaded.runner.score(ids[:-1], start - 1)])
    rows = rows[:, : loaded.vocabulary].astype(np.float64)
    shifted = rows - rows.max(axis=1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    targets = ids[start:]
    greedy = rows.argmax(axis=1).tolist() == list(targets)
    return math.fsum(chances[i, t] for i, t in enumerate(targets)), greedy


@pytest.mark.parametrize("context", [1, 2, 63, 64, 65, 128, 200])
def test_likelihoods_are_those_of_each_sequence_alone(loaded, context):
    rng = np.random.default_rng(context)
    given = [1, *rng.integers(3, 200, context - 1).tolist()]
    wholes = [[*given, *rng.integers(3, 200, n).tolist()] for n in (1, 3, 30, 2, 40, 1)]
    found = likelihoods(Scoring(loaded.runner, loaded.vocabulary), given, wholes)
    for whole, likelihood in zip(wholes, found, strict=True):
        logprob, greedy = alone(loaded, whole, context)
        # Equal rows by law 1; the sums differ by a few roundings of numbers below 100.
        assert likelihood.logprob == pytest.approx(logprob, abs=1e-11)
        assert (likelihood.tokens, likelihood.greedy) == (len(whole) - context, greedy)


@pytest.mark.parametrize("context", [1, 2, 60, 64, 65, 100])
def test_sequences_that_begin_alike_are_each_as_if_alone(loaded, context, monkeypatch):
    """Of three tokens, so that most begin alike; some twice, and steps of any few of them."""
    monkeypatch.setattr("fewbit.evaluate.likelihoods._ROWS", 90)
    rng = np.random.default_rng(context)
    given = [1, *rng.integers(3, 6, context - 1).tolist()]
    lengths = rng.integers(1, 70, 14)
    wholes = [[*given, *np.repeat(rng.integers(3, 6, n), 5)[:n].tolist()] for n in lengths]
    wholes += [wholes[0], wholes[3]]
    found = likelihoods(Scoring(loaded.runner, loaded.vocabulary), given, wholes)
    for whole, likelihood in zip(wholes, found, strict=True):
        logprob, greedy = alone(loaded, whole, context)
        # Rows and sums as above; up to 70 numbers.
        assert likelihood.logprob == pytest.approx(logprob, abs=1e-11)
        assert (likelihood.tokens, likelihood.greedy) == (len(whole) - context, greedy)


@pytest.fixture
def rows(loaded, monkeypatch):
    """How many rows each step has, as steps are run."""
    executor, counts = loaded.runner.executor, []
    step = type(executor).step

    def counted(self, given):
        counts.append(len(given.tokens))
        return step(self, given)

    monkeypatch.setattr(type(executor), "step", counted)
    return counts


def test_what_sequences_share_is_run_once(loaded, rows):
    """A page; six more of the context; and the beginnings of two questions, of nine and twelve."""
    rng = np.random.default_rng(5)
    given = [1, *rng.integers(3, 200, 69).tolist()]
    begun = [[20, *rng.integers(3, 200, 8).tolist()], [21, *rng.integers(3, 200, 11).tolist()]]
    wholes = [[*given, *one, 30 + i, 7, 8, 9, 10] for one in begun for i in range(3)]
    likelihoods(Scoring(loaded.runner, loaded.vocabulary), given, wholes)
    # The last token of a sequence is not run, and what three answers share comes before their five.
    assert rows == [64, (6 + 9 + 4) + 2 * 4 + (6 + 12 + 4) + 2 * 4]


def test_a_sequence_is_not_run_anew_for_little(loaded, rows):
    """The second question shares 40 rows of the context, and its answers only two more."""
    given = [1, *([5, 6, 7] * 34), 8]
    wholes = [[*given, *one, i, 9] for one in ([20, 21], [22, 23]) for i in (30, 31)]
    likelihoods(Scoring(loaded.runner, loaded.vocabulary), given, wholes)
    assert rows == [64, (40 + 3) + 1 + 3 + 3]


def test_without_what_it_branches_off_a_likelihood_is_another(loaded, monkeypatch):
    """Planted: the pieces of a step forget their trunks."""
    given = loaded.text_prompt("the cat")
    wholes = [[*given, 20, 21, i, 9] for i in (30, 31)]
    scoring = Scoring(loaded.runner, loaded.vocabulary)
    right = likelihoods(scoring, given, wholes)[1].logprob
    others = [[*given[:1], *([9] * len(given)), i, 41, 42] for i in (40, 50)]
    likelihoods(scoring, given[:1], others)  # what the pages then hold is of others

    def forgetful(pieces):
        return step_of([replace(piece, trunk=None) for piece in pieces])

    monkeypatch.setattr("fewbit.evaluate.likelihoods.step_of", forgetful)
    assert abs(likelihoods(scoring, given, wholes)[1].logprob - right) > 1e-6


def test_a_greedy_continuation_is_found_to_be_one(loaded):
    given = loaded.text_prompt("the")
    greedy = list(given)
    for _ in range(3):
        row = next(loaded.runner.score(greedy, len(greedy) - 1))[0, : loaded.vocabulary]
        greedy.append(int(row.argmax()))
    other = [*greedy[:-1], greedy[-1] - 1]
    found = likelihoods(Scoring(loaded.runner, loaded.vocabulary), given, [greedy, other])
    assert [likelihood.greedy for likelihood in found] == [True, False]


def test_joined_tokens_are_scored_alike_for_all_continuations(loaded):
    # "t" and "he" join to one token, so the context's "t" is scored with each continuation.
    found = EngineAnswerer(loaded).likelihoods("a t", ["he", "o"])
    assert [likelihood.tokens for likelihood in found] == [1, 2]
    apart = EngineAnswerer(loaded).likelihoods("a t", ["o"])[0]
    before = EngineAnswerer(loaded).likelihoods("a ", ["t"])[0]
    assert found[1].logprob == pytest.approx(before.logprob + apart.logprob, abs=1e-11)


def test_a_conversation_is_scored_behind_its_template(loaded):
    found = EngineAnswerer(loaded).likelihoods(CHAT, ["ab", "c"])
    given = loaded.chat_prompt(CHAT)
    whole = [*given, *loaded.tokenizer.encode("ab", add_special=False)]
    assert found[0].logprob == pytest.approx(alone(loaded, whole, len(given))[0], abs=1e-11)


def test_what_cannot_be_scored_is_refused(loaded):
    answerer = EngineAnswerer(loaded)
    with pytest.raises(RequestError, match="continuation 2 adds no token"):
        answerer.likelihoods("the", ["a", ""])
    with pytest.raises(RequestError, match="the context is 256"):
        answerer.likelihoods("a" * 300, ["b"])
    with pytest.raises(RequestError, match="no token stands before"):
        likelihoods(Scoring(loaded.runner, loaded.vocabulary), [], [[5]])


def test_facts_say_what_begins_a_text(loaded):
    facts = EngineAnswerer(loaded, name="source").facts
    assert facts.name == "source" and facts.begins == "<s> (1)"
    assert facts.template == loaded.template.digest


def write(tmp_path, **options):
    folder = write_subject(tmp_path / "model", **options)
    return load_model(folder, RunSettings(threads=1, context=64))


def test_a_template_that_begins_twice_is_refused(tmp_path):
    twice = write(tmp_path, template="<s><s>{{ messages[0].content }}")
    with pytest.raises(IdentityError, match="<s> twice"):
        answers(twice, [Ask("a", CHAT, 4)])


def test_a_conversation_needs_a_template(tmp_path):
    bare = write(tmp_path, template=None)
    with pytest.raises(MissingError, match="no chat template"):
        answers(bare, [Ask("a", CHAT, 4)])
    assert EngineAnswerer(bare).facts.template == ""


def test_asks_are_greedy_by_default():
    assert Ask("a", "b", 1).sampling is GREEDY and GREEDY.greedy
