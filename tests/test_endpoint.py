"""A model behind a URL, asked as ours are: answers, likelihoods, and what goes wrong."""

import re
import time
import zlib
from itertools import accumulate
from threading import Event

import pytest
from endpoint_cases import CHAT, HELLO, VLLM, answers, ask, opened, routes
from fake_server import delta, events, serving
from tiny_subjects import write_subject

from fewbit.errors import RequestError, UnsupportedError, UsageError
from fewbit.evaluate.arms import Arms, Role, Room, local_party
from fewbit.evaluate.endpoint.answerer import endpoint_party
from fewbit.evaluate.endpoint.client import Address
from fewbit.evaluate.endpoint.stream import heard
from fewbit.evaluate.endpoint.together import as_they_end
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tasks.axis import TasksAxis
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem
from fewbit.evaluate.tasks.spec import Task, TaskSpec
from fewbit.evaluate.tools.forms import read_calls
from fewbit.model.runner import RunSettings
from fewbit.records.answers import Answer
from fewbit.records.base import from_json, to_json
from fewbit.records.generation import FinishReason
from fewbit.sampling import SamplingParams
from fewbit.tokens.grammar import Grammar, GrammarKind

SECRET = "sesame-42"


def test_an_answer_is_what_the_events_say():
    with serving(routes(chat=lambda _: events(*HELLO))) as (url, asked):
        (found,) = answers(url, ask(logprobs=2, stop=("\n",), sampling=SamplingParams(seed=7)))
    assert (found.text, found.tokens, found.finish) == ("Hello", 3, FinishReason.STOP)
    assert (found.prompt_tokens, len(found.gaps)) == (5, 1)
    assert 0 < found.first_token <= found.seconds
    assert [(s.token, s.logprob) for s in found.logprobs] == [("Hel", -0.5), ("lo", -0.25)]
    assert [c.token.encode("latin-1") for c in found.logprobs[0].top] == [b"Hel", b"\xe2\x82"]
    body = asked[-1][2]
    assert body["messages"] == [{"role": "user", "content": "Hello?"}]
    assert (body["temperature"], body["seed"], body["stop"]) == (1.0, 7, ["\n"])
    assert (body["logprobs"], body["top_logprobs"], body["model"]) == (True, 2, "small")


def test_times_are_those_of_the_events():
    ticks = iter([1.0, 1.5, 4.0, 4.0, 4.0, 9.0])
    found = heard("a", iter(HELLO), 0.0, clock=lambda: next(ticks))
    assert (found.first_token, found.gaps, found.seconds) == (1.5, (2.5,), 9.0)


def test_the_wait_for_a_server_s_first_line_counts_to_the_first_token():
    """llama-server sends nothing, not even a status, before it has the first token."""

    def late(_):
        time.sleep(0.2)
        return events(*HELLO)

    with serving(routes(chat=late)) as (url, _):
        (found,) = answers(url, ask())
    assert 0.2 <= found.first_token <= found.seconds


def test_surrogates_are_joined_to_characters_and_half_ones_replaced():
    """As of a server that sends the halves of a pair in two events, or one alone."""
    halves = [delta(content=c) for c in ("\ud83d", "\ude00", " \ud83d.")]
    with serving(routes(chat=lambda _: events(*halves, delta(finish="stop")))) as (url, _):
        (found,) = answers(url, ask())
    assert found.text == "\U0001f600 \ufffd."
    assert from_json(Answer, to_json(found), name="answer") == found


def test_a_text_goes_to_completions_and_is_cut_at_its_length():
    chunk = {"choices": [{"text": " world", "finish_reason": "length"}]}
    with serving(routes(text=lambda _: events(chunk))) as (url, asked):
        (found,) = answers(url, ask(prompt="Hello"))
    assert (found.text, found.finish) == (" world", FinishReason.LENGTH)
    assert asked[-1][2]["prompt"] == "Hello"


def test_calls_that_the_server_took_out_of_the_text_are_put_back():
    first = {"index": 0, "id": "x", "function": {"name": "f", "arguments": ""}}
    rest = {"index": 0, "function": {"arguments": '{"a": 1}'}}
    second = {"index": 1, "function": {"name": "g"}}
    chunks = [delta(content="Well. "), *(delta(tool_calls=[c]) for c in (first, rest, second))]
    tools = ({"type": "function", "function": {"name": "f", "parameters": {}}},)
    with serving(routes(chat=lambda _: events(*chunks, delta(finish="tool_calls")))) as (
        url,
        asked,
    ):
        (found,) = answers(url, ask(tools=tools))
    calls = read_calls(found.text, ["f", "g"]).calls
    assert [(call.name, call.arguments) for call in calls] == [("f", {"a": 1}), ("g", {})]
    assert found.finish is FinishReason.STOP
    assert asked[-1][2]["tools"] == list(tools)


def test_a_schema_goes_as_a_response_format_and_other_grammars_are_refused():
    with serving(routes(chat=lambda _: events(*HELLO))) as (url, asked):
        answers(url, ask(grammar=Grammar(GrammarKind.JSON_SCHEMA, '{"type": "integer"}')))
        told = asked[-1][2]["response_format"]
        assert told["json_schema"]["schema"] == {"type": "integer"}
        with pytest.raises(UnsupportedError, match="regular expression"):
            answers(url, ask(grammar=Grammar(GrammarKind.REGEX, "a+")))


def test_many_are_asked_at_once_and_each_is_kept():
    with serving(routes(chat=lambda _: events(*HELLO))) as (url, _):
        found = answers(url, *(ask(str(i)) for i in range(20)), sequences=8)
    assert [answer.name for answer in found] == [str(i) for i in range(20)]


def test_a_silent_request_is_not_waited_for_where_another_fails():
    released, waited = Event(), []

    def chat(body):
        if body["messages"][0]["content"] == "fails":
            return 500, {}, "oops"
        waited.append(released.wait(10))
        return events(*HELLO)

    asks = [ask(name, ({"role": "user", "content": name},)) for name in ("hangs", "fails", "never")]
    with serving(routes(chat=chat)) as (url, asked):
        with pytest.raises(RequestError, match="oops"):
            answers(url, *asks, sequences=2)
        assert not waited
        released.set()
    assert len([path for path, *_ in asked if path == CHAT]) == 2  # and the third never


def test_no_task_begins_behind_one_that_failed():
    """Not even where nobody has heard of that yet."""
    begun = []
    ended = as_they_end([lambda: "first", lambda: 1 // 0, lambda: begun.append("third")], 1)
    assert next(ended) == "first"
    time.sleep(0.1)
    with pytest.raises(ZeroDivisionError):
        next(ended)
    assert not begun


def test_a_busy_server_is_asked_again():
    said = iter([(503, {"Retry-After": "0"}, "{}"), (429, {"Retry-After": "0"}, "{}")])
    chat = routes(chat=lambda _: next(said, None) or events(*HELLO))
    with serving(chat) as (url, asked):
        (found,) = answers(url, ask())
    assert found.text == "Hello"
    assert len([path for path, *_ in asked if path == CHAT]) == 3


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ((400, {}, '{"error": {"message": "too long\\nby far"}}'), "400: too long by far"),
        ((500, {}, "oops"), "500: oops"),
        (events({"error": {"message": "no room"}}), "gave up"),
        (events(delta(content="Hel")), "without a reason"),
        (events(delta(content="Hel", finish="odd")), "none of a completion"),
        (events({"choices": 3}), "none of a completion"),
        ((200, {"Content-Type": "text/event-stream"}, "data: {\n\n"), "no JSON"),
        ((200, {"Content-Type": "text/event-stream"}, f"data: {'[' * 99999}\n\n"), "no JSON"),
        ((200, {"Content-Type": "text/html"}, "<p>hello</p>"), ""),
    ],
)
def test_what_goes_wrong_is_one_sentence_of_ours(said, named):
    with serving(routes(chat=lambda _: said)) as (url, _), pytest.raises(RequestError) as caught:
        answers(url, ask())
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_there_is_named():
    with serving({}) as (url, _), pytest.raises(RequestError, match="lists no model"):
        endpoint_party(Address(url))
    with pytest.raises(RequestError, match="cannot be reached"):
        endpoint_party(Address(url))


def test_a_connection_is_tried_four_times(monkeypatch):
    tried = []

    def refuse(address, *_, **__):
        tried.append(address)
        raise ConnectionRefusedError

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("time.sleep", lambda _: None)
    with pytest.raises(RequestError, match="cannot be reached"):
        endpoint_party(Address("http://127.0.0.1:9"))
    assert len(tried) == 4


def test_a_model_that_the_server_has_not_is_refused_with_those_it_has():
    with serving(routes()) as (url, _):
        with pytest.raises(RequestError, match="has no model 'large'; it has small"):
            endpoint_party(Address(url, model="large"))
        assert endpoint_party(Address(url, model="small")).facts.bytes == 9


_NO_ADDRESSES = ["ftp://host", "localhost:8080", "http://", "http:///v1", ""]
_NO_ADDRESSES += ["http://host:port", "http://host:99999", "http://host:0", "http://[::1"]


@pytest.mark.parametrize("url", _NO_ADDRESSES)
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="no address"):
        Address(url)


def test_what_is_no_address_is_shown_without_its_password():
    with pytest.raises(UsageError) as caught:
        Address(f"http://ada:{SECRET}@host:port/v1?token={SECRET}")
    assert "host:port" in str(caught.value) and SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://[::1]:8080/v1", "http://[::1]:8080"),
        ("https://[fe80::2]", "https://[fe80::2]"),
        ("http://ada:x@host:80/a/v1/", "http://host:80/a"),
    ],
)
def test_an_address_keeps_what_leads_there(url, shown):
    assert Address(url).shown == shown


def test_secrets_reach_the_server_and_nothing_else():
    with serving(routes(chat=lambda _: (401, {}, "{}"))) as (url, asked):
        login = url.replace("http://", f"http://ada:{SECRET}@") + f"/v1?token={SECRET}"
        party = endpoint_party(Address(login))
        assert party.facts.url == url
        keyed = endpoint_party(Address(url, key=SECRET))
        with pytest.raises(RequestError) as caught, keyed.open(Role.CANDIDATE, Room()) as arm:
            arm.answerer.answer([ask()], lambda _: None)
        assert asked[-1][1]["Authorization"] == f"Bearer {SECRET}"
        assert any(headers.get("Authorization", "").startswith("Basic") for _, headers, _ in asked)
    shown = [str(caught.value), repr(keyed), to_json(party.facts).decode(), party.fingerprint]
    assert not any(SECRET in text for text in shown)
    assert SECRET not in repr(Address(url, key=SECRET))


def echoed(body):
    """Give log-probabilities of `Paris.` and its prompt, a token a letter."""
    text = body["prompt"] + "!"
    best = {letter: {letter: -1.0} for letter in text} | {".": {".": -1.0, ",": -0.5}}
    told = {
        "tokens": list(text),
        "text_offset": list(range(len(text))),
        "token_logprobs": [None, *[-1.0] * (len(text) - 1)],
        "top_logprobs": [None if i == 0 else best[letter] for i, letter in enumerate(text)],
    }
    return {"choices": [{"logprobs": told}]}


def test_likelihoods_come_from_an_echo():
    with serving(routes(text=echoed)) as (url, _), opened(url) as arm:
        found = arm.answerer.likelihoods("It is", [" Paris", " a."])
    assert [(one.logprob, one.tokens, one.greedy) for one in found] == [
        (-6.0, 6, True),
        (-3.0, 3, False),
    ]


def words(body):
    """Echo a text as vLLM does: begun with `<s>`, a token a word, its leading space dropped."""
    assert body.get("return_tokens_as_token_ids")
    text = ["<s>", *(part.strip() for part in re.findall(r" ?[^ ]+", body["prompt"])), "!"]
    told = {
        "tokens": [f"token_id:{zlib.crc32(word.encode())}" for word in text],
        "text_offset": list(accumulate(map(len, text[:-1]), initial=0)),
        "token_logprobs": [None, *(-float(len(word)) for word in text[1:])],
        "top_logprobs": [None, *({"x": -2.0} for _ in text[1:])],
    }
    return {"choices": [{"logprobs": told}], "usage": {"prompt_tokens": len(text) - 1}}


def test_likelihoods_are_of_the_tokens_behind_those_that_all_share():
    """Offsets lead astray: of a text that is begun by a token, and of tokens without spaces."""
    vllm = {**routes(text=words), "/v1/models": lambda _: VLLM}
    with serving(vllm) as (url, _), opened(url) as arm:
        found = arm.answerer.likelihoods("It is the city", [" of Paris", " a"])
        joined = arm.answerer.likelihoods("It is", ["land it", " a"])
        with pytest.raises(RequestError, match="continuation 2 adds no token"):
            arm.answerer.likelihoods("It is", [" a", ""])
    assert [(one.logprob, one.tokens, one.greedy) for one in found] == [
        (-7.0, 2, False),
        (-1.0, 1, True),
    ]
    assert [(one.logprob, one.tokens) for one in joined] == [(-8.0, 2), (-3.0, 2)]


def test_what_a_server_would_choose_by_itself_is_said():
    """vLLM samples as the model's folder recommends, and llama-server with a top-k, unless told."""
    with serving(routes(chat=lambda _: events(*HELLO))) as (url, asked):
        answers(
            url,
            ask(sampling=SamplingParams(temperature=0)),
            ask("b", sampling=SamplingParams(top_k=3)),
        )
    neutral = {"top_p": 1.0, "top_k": -1, "min_p": 0.0}
    neutral |= {"repetition_penalty": 1.0, "repeat_penalty": 1.0}  # of vLLM, of llama-server
    first, second = (body for path, _, body in asked if path == CHAT)
    by_top = {body["top_k"]: body for body in (first, second)}
    assert neutral.items() <= by_top[-1].items() and by_top[-1]["temperature"] == 0
    assert set(by_top) == {-1, 3}


def test_a_server_without_an_echo_is_said_to_have_none():
    refuses = routes(text=lambda _: (400, {}, '{"error": {"message": "Only no echo"}}'))
    silent = routes(text=lambda _: {"choices": [{"text": "x", "logprobs": None}]})
    one = {"tokens": ["x"], "token_logprobs": [-1.0], "top_logprobs": [None]}
    deaf = routes(text=lambda _: {"choices": [{"logprobs": one}], "usage": {"prompt_tokens": 4}})
    spoken = ({"role": "user", "content": "?"},)
    for given in (refuses, silent, deaf):
        with serving(given) as (url, _), opened(url) as arm:
            with pytest.raises(UnsupportedError, match="multiple choice"):
                arm.answerer.likelihoods("It is", [" Paris"])
            with pytest.raises(UnsupportedError, match="conversations"):
                arm.answerer.likelihoods(spoken, [" Paris"])
            assert "multiple choice" in arm.answerer.unscored("It is")
    with serving(routes(text=echoed)) as (url, _), opened(url) as arm:
        assert arm.answerer.unscored("It is") == ""
        assert "conversations" in arm.answerer.unscored(spoken)


def test_a_server_that_fails_is_not_one_without_an_echo():
    fails = routes(text=lambda _: (500, {}, "oops"))
    with serving(fails) as (url, _), opened(url) as arm:
        with pytest.raises(RequestError, match="500: oops"):
            arm.answerer.likelihoods("It is", [" a"])
        with pytest.raises(RequestError, match="500: oops"):
            arm.answerer.unscored("It is")


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_subject(write_subject(tmp_path_factory.mktemp("tiny") / "model"))


CHOICE = ChoiceItem("c", "c", ("It is",), (" Paris", " a."), 0)
SPOKEN = GenerationItem("g", "g", "Hello?", ("Hello",))


def tasks(*items):
    """Return a task for each item."""
    kinds = {ChoiceItem: ("choice", "likelihood"), GenerationItem: ("generation", "contains")}
    return tuple(
        Task(TaskSpec(name=item.name, file="x", kind=kind, rule=rule), (item,), "")
        for item in items
        for kind, rule in [kinds[type(item)]]
    )


def test_multiple_choice_is_left_out_where_the_server_gives_no_likelihoods(source):
    """Of llama-server, which refuses `echo`, the other tasks are measured all the same."""
    refuses = routes(
        chat=lambda _: events(*HELLO),
        text=lambda _: (400, {}, '{"error": {"message": "Only no echo"}}'),
    )
    local = local_party(source, RunSettings(threads=1))
    with serving(refuses) as (url, _):
        arms = Arms({Role.SOURCE: local, Role.CANDIDATE: endpoint_party(Address(url))})
        found = TasksAxis(tasks(CHOICE, SPOKEN)).run(arms, lambda *_: None)
        with pytest.raises(UnsupportedError, match="multiple choice"):
            TasksAxis(tasks(CHOICE)).run(arms, lambda *_: None)
    assert [one.name for one in found.slices] == ["tasks/g"]
    assert found.notes[0].startswith("Not asked, and counted nowhere: c. ")
    assert "Only no echo" in found.notes[0]
    with serving(routes(chat=lambda _: events(*HELLO), text=echoed)) as (url, _):
        arms = Arms({Role.SOURCE: local, Role.CANDIDATE: endpoint_party(Address(url))})
        found = TasksAxis(tasks(CHOICE, SPOKEN)).run(arms, lambda *_: None)
    assert [one.name for one in found.slices] == ["tasks/c", "tasks/g"] and found.notes == ()
