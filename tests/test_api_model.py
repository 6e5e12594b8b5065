"""`fewbit.load`: text, streams, logits and kernels of a tiny model, and what a user gets wrong."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface
from tiny_text import write_text_files

import fewbit
from fewbit.engine.engine import Engine
from fewbit.errors import (
    BadFileError,
    FewbitError,
    MissingError,
    NumericalError,
    RequestError,
    UsageError,
)
from fewbit.model.weights import ModelSource
from fewbit.records.generation import FinishReason

MESSAGES = [{"role": "user", "content": "hello"}]
SAMPLED = fewbit.SamplingParams(temperature=0.8, seed=11)


def written(folder, name="llama", *, template=True, change=None):
    config = CONFIGS[name]
    weights = random_weights(config)
    if change is not None:
        change(weights)
    return write_text_files(write_huggingface(folder, config, weights), template=template)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return written(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def model(folder):
    with fewbit.load(folder, fewbit.RunSettings(context=192, threads=2)) as loaded:
        yield loaded


def greedy_oracle(model, prompt, count):
    """Token by token from the logits of the whole sequence, without an engine."""
    tokens = list(model.tokenizer.encode(prompt))
    start = len(tokens)
    ends = model.tokenizer.special.end_of_generation
    size = model.tokenizer.vocabulary_size
    for _ in range(count):
        tokens.append(int(np.argmax(model.logits(tokens)[-1][:size])))
        if tokens[-1] in ends:
            break
    return tuple(tokens[start:])


def test_generates_what_the_logits_say(model):
    found = model.generate("hello world", max_tokens=12)
    assert found.tokens == greedy_oracle(model, "hello world", 12)
    assert str(found) == found.text == model.tokenizer.decode(found.tokens, skip_special=True)
    assert found.record.generated_tokens == len(found.tokens)


def test_a_seed_repeats_and_another_does_not(model):
    first, again = (model.generate("abc", max_tokens=24, sampling=SAMPLED) for _ in range(2))
    assert first.tokens == again.tokens
    assert first.record.seed == 11
    other = fewbit.SamplingParams(temperature=0.8, seed=12)
    assert model.generate("abc", max_tokens=24, sampling=other).tokens != first.tokens


def test_messages_go_through_the_template_and_text_does_not(model):
    asked = model.generate(MESSAGES, max_tokens=5)
    written_out = model.tokenizer.encode(
        "<user>hello<|im_end|><assistant>", add_special=False, parse_special=True
    )
    assert asked.record.prompt_tokens == len(written_out)
    assert model.generate("hello", max_tokens=5).record.prompt_tokens == 5


def test_a_stream_brings_the_same_text_in_pieces(model):
    whole = model.generate("abc", max_tokens=24, sampling=SAMPLED)
    stream = model.stream("abc", max_tokens=24, sampling=SAMPLED)
    assert stream.result is None
    pieces = list(stream)
    assert len(pieces) > 1
    assert "".join(pieces) == whole.text
    assert stream.result is not None
    assert stream.result.tokens == whole.tokens


def test_streams_interleave(model):
    alone = [model.generate(text, max_tokens=16, sampling=SAMPLED).text for text in ("abc", "xyz")]
    streams = [model.stream(text, max_tokens=16, sampling=SAMPLED) for text in ("abc", "xyz")]
    texts = ["", ""]
    while any(stream.result is None for stream in streams):
        for i, stream in enumerate(streams):
            texts[i] += next(stream, "")
    assert texts == alone


def test_threads_take_turns(model):
    prompts = ["abc", "xyz", "hello", "0123"]
    alone = [model.generate(text, max_tokens=16).tokens for text in prompts]
    found = {}

    def run(text):
        found[text] = model.generate(text, max_tokens=16).tokens

    threads = [threading.Thread(target=run, args=(text,)) for text in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[text] for text in prompts] == alone


def test_threads_whose_first_texts_come_at_once_share_one_engine(folder, model, monkeypatch):
    """Two engines would each give the first pages of the one store to a sequence of their own."""
    prompts = ["abc", "xyz", "hello"]
    alone = [model.generate(text, max_tokens=16).tokens for text in prompts]
    engines = []

    class Slow(Engine):
        def __init__(self, *args):
            time.sleep(0.05)
            engines.append(self)
            super().__init__(*args)

    monkeypatch.setattr("fewbit.api.model.Engine", Slow)
    with (
        fewbit.load(folder, fewbit.RunSettings(context=192, threads=2)) as fresh,
        ThreadPoolExecutor(len(prompts)) as pool,
    ):
        found = list(pool.map(lambda text: fresh.generate(text, max_tokens=16).tokens, prompts))
    assert len(engines) == 1
    assert found == alone


def test_a_text_that_another_thread_begins_waits_for_logits(model, monkeypatch):
    """Both write to the first pages of the store."""
    alone = model.generate("abc", max_tokens=40).tokens
    ids = np.arange(100)
    expected, score, found = model.logits(ids), model.runner.score, []
    other = threading.Thread(
        target=lambda: found.append(model.generate("abc", max_tokens=40).tokens)
    )

    def interrupted(tokens, first):
        for block in score(tokens, first):
            if other.ident is None:
                other.start()
                other.join(0.2)
            yield block

    monkeypatch.setattr(model.runner, "score", interrupted)
    assert np.array_equal(model.logits(ids), expected)
    other.join()
    assert found == [alone]


@pytest.mark.parametrize("leave", ["close", "drop"])
def test_a_stream_left_early_makes_room(model, leave):
    stream = model.stream("abc", max_tokens=100)
    next(stream)
    with pytest.raises(RequestError, match="under way"):
        model.logits([1, 2])
    if leave == "close":
        stream.close()
        assert list(stream) == []
        assert stream.result is None
    else:
        del stream
        gc.collect()
    assert model.logits([1, 2]).shape == (2, 320)


def test_a_stream_may_be_closed_by_another_thread(model):
    """Closed in the middle of a step, as a server does when a client hangs up."""
    stream, other = model.stream("abc", max_tokens=150), model.stream("xyz", max_tokens=20)
    next(stream)
    step = model._desk._engine.step

    def close_then_step():
        stream.close()
        return step()

    model._desk._engine.step = close_then_step
    assert list(stream) == []
    assert len("".join(other)) > 0
    assert stream.result is None


def test_logits_between_generations_spoil_no_shared_prefix(model):
    prompt = "a prompt of more than one page of the store, so that a page of it is shared later on"
    before = model.generate(prompt, max_tokens=8)
    model.logits(np.arange(100))
    assert model.generate(prompt, max_tokens=8).tokens == before.tokens


def test_logits_are_those_of_the_runner(model):
    tokens = [5, 9, 300, 2, 77]
    rows = model.logits(tokens)
    assert rows.dtype == np.float32
    assert rows.shape == (5, model.vocabulary)
    expected = np.concatenate([block.copy() for block in model.runner.score(tokens)])
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_array_equal(model.logits(tokens, first=3), rows[3:])


def test_a_stop_string_ends_the_text_before_it(model):
    whole = model.generate("abc", max_tokens=24, sampling=SAMPLED).text
    stop = whole[5:7]
    found = model.generate("abc", max_tokens=24, sampling=SAMPLED, stop=stop)
    assert found.text == whole[: whole.index(stop)]
    assert found.record.finish is FinishReason.STOP
    assert model.generate("abc", max_tokens=24, sampling=SAMPLED, stop=["~~~", stop]).text == (
        found.text
    )


def test_logprobs_come_where_asked_for(model):
    found = model.generate("abc", max_tokens=4, top_logprobs=3)
    assert len(found.logprobs) == len(found.tokens)
    assert all(len(entry.top) == 3 for entry in found.logprobs)
    assert model.generate("abc", max_tokens=4).logprobs == ()


def test_a_draft_changes_nothing_but_the_record(folder):
    with fewbit.load(folder) as plain, fewbit.load(folder, draft="ngram") as drafting:
        prompt = "one two one two one two one"
        before = plain.generate(prompt, max_tokens=40)
        after = drafting.generate(prompt, max_tokens=40)
    assert after.tokens == before.tokens
    assert before.record.draft is None
    assert after.record.draft is not None


@pytest.mark.parametrize("draft", ["nested", "exit:1", "low-bit:q4_0", "suffix"])
def test_the_model_itself_drafts_and_changes_nothing_but_the_record(folder, tmp_path, draft):
    fewbit.quantize(folder, "rtn-int8-g32", out=tmp_path / "bits")
    with fewbit.load(tmp_path / "bits") as plain, fewbit.load(tmp_path / "bits", draft=draft) as it:
        before = plain.generate("abcabc", max_tokens=20)
        after = it.generate("abcabc", max_tokens=20)
    assert after.tokens == before.tokens
    assert after.record.draft.draft == draft


def test_a_draft_that_cannot_be_is_refused_at_load(folder):
    with pytest.raises(UsageError, match="needs weights in int8"):
        fewbit.load(folder, draft="nested")
    with pytest.raises(UsageError, match="names no number of layers"):
        fewbit.load(folder, draft="exit:half")
    with pytest.raises(UsageError, match="draft is of type NoneType"):
        fewbit.load(folder, draft=None)


def test_a_model_drafts_and_changes_nothing_but_the_record(folder):
    with fewbit.load(folder) as plain, fewbit.load(folder, draft=folder) as drafting:
        for prompt in ("one two", "three"):  # `logits` writes over the store between them
            before = plain.generate(prompt, max_tokens=20)
            after = drafting.generate(prompt, max_tokens=20)
            assert after.tokens == before.tokens
            assert after.record.draft.draft == folder.name
            drafting.logits([1, 2, 3])


def test_kernels_and_loading_are_on_record(model):
    assert len(model.kernels) == 3 * 7 + 2
    assert all(record.kernel for record in model.kernels)
    assert model.loading.memory.weights > 0
    assert model.context == 192
    assert "llama" in repr(model)


def test_a_closed_model_says_so(folder):
    model = fewbit.load(folder)
    model.close()
    model.close()
    assert "closed" in repr(model)
    for use in (lambda: model.generate("a"), lambda: model.logits([1]), lambda: model.tokenizer):
        with pytest.raises(UsageError, match="was closed"):
            use()


def test_closing_lets_go_of_the_weights_of_model_and_draft(folder):
    settings = fewbit.RunSettings(context=64, threads=1)
    model = fewbit.load(folder, settings, draft=folder)
    assert model.generate("abc", max_tokens=8).record.draft is not None
    executors = [weakref.ref(r.executor) for r in (model.runner, model._opened.model.runner)]
    model.close()
    gc.collect()
    assert [executor() for executor in executors] == [None, None]


@pytest.mark.parametrize(
    ("prompt", "error", "words"),
    [
        ("", RequestError, "no tokens"),
        ([], RequestError, "no messages"),
        (None, RequestError, "type NoneType"),
        (b"abc", RequestError, "type bytes"),
        ([1, 2, 3], RequestError, "Message 0"),
        ([{"role": "user"}], RequestError, "Message 0"),
        ([{"role": "user", "content": None}], RequestError, "Message 0"),
        ("x" * 500, RequestError, "shorten the prompt"),
    ],
)
def test_a_prompt_that_is_none(model, prompt, error, words):
    with pytest.raises(error, match=words):
        model.generate(prompt)
    assert model.generate("still there", max_tokens=2).tokens


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"stop": ""}, "stop string is empty"),
        ({"stop": 3}, "stop"),
        ({"stop": [3]}, "stop"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 2.5}, "max_tokens"),
        ({"sampling": {"temperature": 1}}, "SamplingParams"),
        ({"sampling": fewbit.SamplingParams(logit_bias={4000: 1.0})}, "token 4000"),
        ({"top_logprobs": -1}, "top_logprobs is -1"),
        ({"top_logprobs": "all"}, "top_logprobs"),
    ],
)
def test_an_option_that_cannot_be(model, options, words):
    with pytest.raises(RequestError, match=words):
        model.generate("abc", **options)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([], "no tokens"),
        ([[1, 2]], "no tokens"),
        ([1, 999], "999"),
        ([1, -1], "-1"),
        ([1.5], "float64"),
        ("abc", "ids"),
        ([[1], [2, 3]], "no row of ids"),
        (None, "ids"),
        (list(range(200)), "context is 192"),
    ],
)
def test_tokens_that_are_none(model, tokens, words):
    with pytest.raises(RequestError, match=words):
        model.logits(tokens)


@pytest.mark.parametrize("first", [-1, 2, "one", None, 0.5])
def test_a_first_position_that_is_none(model, first):
    with pytest.raises(RequestError, match="first is"):
        model.logits([1, 2], first)


def test_a_model_that_is_not_there(tmp_path):
    for missing in (tmp_path / "nothing", str(tmp_path / "nothing.gguf"), "smollm-135m", ""):
        with pytest.raises(MissingError):
            fewbit.load(missing)


def test_what_is_no_model(tmp_path):
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"GGUF\x03")
    with pytest.raises(BadFileError):
        fewbit.load(damaged)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FewbitError):
        fewbit.load(tmp_path / "empty")
    with pytest.raises(UsageError, match="type int"):
        fewbit.load(3)


def test_arguments_of_load(folder):
    with pytest.raises(MissingError, match=r"The draft 'tiny' .* there are: none, ngram"):
        fewbit.load(folder, draft="tiny")
    with pytest.raises(UsageError, match="type int"):
        fewbit.load(folder, draft=3)
    with pytest.raises(UsageError, match="RunSettings"):
        fewbit.load(folder, {"context": 3})
    with pytest.raises(UsageError, match="context is 1000"):
        fewbit.load(folder, fewbit.RunSettings(context=1000))


def test_a_model_without_a_template_is_asked_with_text(tmp_path):
    with fewbit.load(written(tmp_path, template=False)) as model:
        with pytest.raises(MissingError, match="no chat template; give the prompt as a string"):
            model.generate(MESSAGES)
        assert model.generate("abc", max_tokens=2).tokens


def test_a_weight_that_is_nan_is_found_at_the_first_token(tmp_path):
    def spoil(weights):
        weights["model.layers.1.mlp.up_proj.weight"][3, 4] = np.nan

    with fewbit.load(written(tmp_path, change=spoil)) as model:
        with pytest.raises(NumericalError):
            model.generate("abc")
        with pytest.raises(NumericalError, match="position 0"):
            model.logits([1, 2])


def test_two_drafts_a_text_and_measured_costs(folder, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("hello hello again\n" * 20)
    drafting = {"draft": f"suffix+{folder}", "draft_text": text, "draft_costs": "measured"}
    with fewbit.load(folder) as plain, fewbit.load(folder, draft_tokens=3, **drafting) as it:
        before, after = (m.generate("hello hello", max_tokens=12) for m in (plain, it))
    assert (after.text, after.tokens) == (before.text, before.tokens)
    assert after.record.draft.draft == f"suffix+{folder.name}"
    assert after.record.draft.longest == 3


def test_a_text_of_a_grammar_with_any_draft(folder):
    digits = fewbit.Grammar(fewbit.GrammarKind.REGEX, "[0-9]{5}")
    for draft in ("none", "ngram"):
        with fewbit.load(folder, draft=draft) as model:
            said = model.generate("12345 12345", grammar=digits).text
            assert said.isdecimal()
            assert len(said) == 5
    with fewbit.load(folder) as model, pytest.raises(RequestError, match="grammar is of type str"):
        model.generate("a", grammar="[0-9]")


def test_a_draft_that_fails_leaves_no_target_open(folder, monkeypatch):
    closed = []
    monkeypatch.setattr(ModelSource, "close", lambda self: closed.append(self.path))
    with pytest.raises(UsageError, match="choose from 1 to"):
        fewbit.load(folder, draft="exit:99")
    assert closed == [folder]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"draft": "ngram+"}, "nothing behind the plus"),
        ({"draft": "ngram", "draft_text": "x.txt"}, "looks at no other text"),
        ({"draft": "suffix", "draft_text": 3}, "draft_text is of type int"),
        ({"draft": "ngram", "draft_tokens": 0}, "at least 1"),
        ({"draft": "ngram", "draft_tokens": "8"}, "give a whole number"),
        ({"draft": "ngram", "draft_costs": "guessed"}, "choose learned or measured"),
    ],
)
def test_what_cannot_be_of_a_draft_is_refused(folder, fields, words):
    with pytest.raises(UsageError, match=words):
        fewbit.load(folder, **fields)
