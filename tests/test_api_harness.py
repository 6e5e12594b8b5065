"""lm-eval's three questions on a tiny model: each against rows of logits taken one by one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tiny_subjects import begin_with_bos, sharp_weights, tokenizer, write_subject

from fewbit.api.harness import Harness, generating, windows
from fewbit.engine.loaded import load_model
from fewbit.errors import MissingError, RequestError, UnsupportedError
from fewbit.model.runner import RunSettings

BOS = 1
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}"
    "{% if add_generation_prompt %}[{% endif %}"
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_subject(folder, weights=sharp_weights(), template=CHAT)
    return load_model(folder, RunSettings(threads=1, context=96, sequences=2))


@pytest.fixture
def harness(loaded):
    return Harness(loaded, sequences=2)


def asked(*arguments):
    return SimpleNamespace(args=arguments)


def truth(loaded, ids, first):
    """Sum the log-probabilities of the ids from `first` on, a row at a time."""
    total, greedy = 0.0, True
    for place in range(first, len(ids)):
        (logits,) = loaded.runner.score(np.array(ids[:place]), place - 1)
        row = logits[0, : loaded.vocabulary].astype(np.float64)
        total += row[ids[place]] - np.logaddexp.reduce(row)
        greedy = greedy and int(row.argmax()) == ids[place]
    return total, greedy


def encode(loaded, text, **options):
    return loaded.tokenizer.encode(text, add_special=False, **options)


def test_likelihoods_are_those_of_rows_taken_one_by_one(loaded, harness):
    pairs = [("ab", " the"), ("ab", "cd"), ("x", " y z"), ("ab", " q")]
    found = harness.loglikelihood([asked(*pair) for pair in pairs])
    for (context, text), (logprob, greedy) in zip(pairs, found, strict=True):
        ids = [BOS, *encode(loaded, context + text)]
        expected, first_choice = truth(loaded, ids, 1 + len(encode(loaded, context)))
        # Sums of some logs in float64 in two orders: far below 1e-9.
        assert logprob == pytest.approx(expected, abs=1e-9) and greedy == first_choice


def test_spaces_that_end_a_context_belong_to_the_continuation(loaded, harness):
    (ended,) = harness.loglikelihood([asked("ab ", "the")])
    assert [ended] == harness.loglikelihood([asked("ab", " the")])


def test_a_merge_over_the_seam_is_scored_whole(loaded, harness):
    """`t` and `he` are one token together: scored from the last token that both ways share."""
    (found,) = harness.loglikelihood([asked("abt", "he")])
    ids = [BOS, *encode(loaded, "abthe")]
    assert len(ids) == 4
    assert found[0] == pytest.approx(truth(loaded, ids, 3)[0], abs=1e-9)


def test_nothing_before_a_text_is_what_begins_one(loaded, harness):
    (found,) = harness.loglikelihood([asked("", "abc")])
    assert found[0] == pytest.approx(truth(loaded, [BOS, *encode(loaded, "abc")], 1)[0], abs=1e-9)


def test_a_text_begins_once(loaded, harness):
    """Of cases/evaluate: without its beginning, or with two, a model is another one."""
    assert harness.ids("ab").count(BOS) == 1
    assert harness.ids("<s>ab") == harness.ids("ab")
    assert harness.ids("") == (BOS,)
    text = harness.apply_chat_template([{"role": "user", "content": "ab"}])
    assert text == "<s>[ab]["
    assert harness.ids(text) == (BOS, *encode(loaded, "[ab]["))
    assert harness.ids("<s>") == (BOS,)


def test_names_of_special_tokens_are_text_until_a_template_wrote_them(harness):
    assert 2 not in harness.ids("ab</s>")
    harness.apply_chat_template([{"role": "user", "content": "ab"}])
    assert harness.ids("<s>ab</s>")[-1] == 2


def test_a_tokenizer_without_a_beginning_gets_none(tmp_path):
    folder = write_subject(tmp_path, backend=tokenizer(), weights=sharp_weights())
    bare = load_model(folder, RunSettings(threads=1, context=96))
    harness = Harness(bare, sequences=1)
    assert harness.ids("ab") == tuple(encode(bare, "ab"))
    (found,) = harness.loglikelihood([asked("", "ab")])
    assert found[0] == pytest.approx(truth(bare, [BOS, *encode(bare, "ab")], 1)[0], abs=1e-9)


def test_a_planted_second_beginning_changes_the_figures(loaded, harness):
    """The negative control: what the test above guards against does matter."""
    (once,) = harness.loglikelihood([asked("ab", " the")])
    ids = [BOS, BOS, *encode(loaded, "ab the")]
    assert abs(once[0] - truth(loaded, ids, 4)[0]) > 1e-3


def test_an_answer_that_is_begun_is_left_open(harness):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "So "}]
    text = harness.apply_chat_template(messages, add_generation_prompt=False)
    assert text == "<s>[a][So"


def test_no_template_is_an_error(loaded):
    bare = Harness(replace(loaded, template=None), sequences=1)
    with pytest.raises(MissingError, match="no chat template"):
        bare.apply_chat_template([{"role": "user", "content": "a"}])


def test_what_does_not_fit_is_refused_and_never_cut(harness):
    with pytest.raises(RequestError, match="96"):
        harness.loglikelihood([asked("a" * 90, "b" * 20)])
    with pytest.raises(RequestError, match="96"):
        harness.generate_until([asked("a" * 120, {})])


@pytest.mark.parametrize("length", [1, 2, 5, 95, 96, 97, 191, 192, 193, 400])
def test_windows_predict_each_token_once_with_all_the_context_there_is(length):
    context = 96
    predicted = []
    for first, start, end in windows(length, context):
        assert end - first <= context and first < start < end
        assert first == 0 or end - first == context
        predicted += range(start, end)
    assert predicted == list(range(1, length))


def test_windows_need_room_for_a_prediction():
    with pytest.raises(RequestError, match="at least two tokens"):
        list(windows(5, 1))


def test_whole_texts_are_scored_in_windows(loaded, harness):
    text = "abcdefgh" * 15
    ids = [BOS, *encode(loaded, text)]
    (found,) = harness.loglikelihood_rolling([asked(text)])
    expected = truth(loaded, ids[:96], 1)[0] + truth(loaded, ids[-96:], 96 - (len(ids) - 96))[0]
    assert found == pytest.approx(expected, abs=1e-8)
    assert harness.loglikelihood_rolling([asked("")]) == [0.0]


def test_texts_are_generated_greedily_up_to_what_ends_them(loaded, harness):
    (whole,) = harness.generate_until([asked("abc", {"max_gen_toks": 12})])
    ids = list(harness.ids("abc"))
    for _ in range(12):
        (logits,) = loaded.runner.score(np.array(ids), len(ids) - 1)
        ids.append(int(logits[0, : loaded.vocabulary].argmax()))
        if ids[-1] in loaded.ends:
            ids.pop()
            break
    assert whole == loaded.tokenizer.decode(ids[4:], skip_special=True)
    stop = whole[3]
    cut, again = harness.generate_until(
        [asked("abc", {"until": [stop, ""], "max_gen_toks": 12}), asked("abc", {"until": stop})]
    )
    assert cut == again == whole[: whole.index(stop)]


def test_results_are_kept_as_they_come(harness):
    kept = []
    requests = [asked("ab", " the"), asked("x", " y")]
    found = harness.loglikelihood(requests, lambda arguments, result: kept.append(arguments))
    harness.generate_until([asked("ab", {"max_gen_toks": 2})], lambda a, r: kept.append(a[0]))
    harness.loglikelihood_rolling([asked("abc")], lambda a, r: kept.append(r))
    assert kept[:2] == [("ab", " the"), ("x", " y")] and kept[2] == "ab" and kept[3] < 0
    assert len(found) == 2


def test_keywords_of_a_generation():
    assert generating({}).params.greedy and generating({}).max_tokens == 256
    assert generating({"temperature": 0.0, "until": "x"}).until == ("x",)
    assert generating({"do_sample": False, "temperature": 1.0}).params.greedy
    drawn = generating({"do_sample": True, "temperature": 0.5, "top_p": 0.9, "top_k": 5}).params
    assert (drawn.temperature, drawn.top_p, drawn.top_k) == (0.5, 0.9, 5)
    with pytest.raises(UnsupportedError, match="'num_beams'; there are until"):
        generating({"num_beams": 4})


def test_begin_with_bos_is_what_the_tiny_tokenizer_does():
    assert begin_with_bos(tokenizer()).encode("a").ids[0] == BOS
