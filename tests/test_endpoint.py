import re
import zlib
from itertools import accumulate

import numpy as np
import pytest
from brought import as_said
from fake_server import delta, events, scored, serving
from tiny_subjects import TEMPLATE, begin_with_bos, tokenizer, write_subject

from fewbit.engine.loaded import load_model
from fewbit.errors import IdentityError, RequestError, UnsupportedError, UsageError
from fewbit.evaluate.answers import Ask, EngineAnswerer
from fewbit.evaluate.arms import Arms, Role, Room, local_party
from fewbit.evaluate.endpoint.answerer import EndpointParty, endpoint_party
from fewbit.evaluate.endpoint.axis import EndpointAxis, lower_bound
from fewbit.evaluate.endpoint.client import Address, Client
from fewbit.evaluate.endpoint.facts import probe_identity
from fewbit.evaluate.endpoint.stream import heard
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tools.forms import read_calls
from fewbit.model.runner import RunSettings
from fewbit.records.base import to_json
from fewbit.records.generation import FinishReason
from fewbit.sampling import SamplingParams
from fewbit.speculate.pair_probes import PITFALLS, TEXTS
from fewbit.tokens.grammar import Grammar, GrammarKind

MODELS = {"data": [{"id": "small", "owned_by": "us", "meta": {"n_vocab": 320, "size": 9}}]}
VLLM = {"data": [{"id": "small", "owned_by": "vllm", "max_model_len": 64}]}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
SECRET = "sesame-42"


def routes(**given):
    """Return routes by their last words, beside one that lists a model."""
    names = {"chat": CHAT, "text": TEXT, "props": "/props", "tokenize": "/tokenize"}
    found = {names[name]: route for name, route in given.items()}
    return {"/v1/models": lambda _: MODELS, **found}


def opened(url, sequences=4):
    return endpoint_party(Address(url)).open(Role.CANDIDATE, Room(sequences=sequences))


def answers(url, *asks, sequences=4):
    found = {}
    with opened(url, sequences) as arm:
        arm.answerer.answer(asks, lambda answer: found.setdefault(answer.name, answer))
    return [found[ask.name] for ask in asks]


def ask(name="a", prompt=({"role": "user", "content": "Hello?"},), **given):
    return Ask(name, prompt, **{"max_tokens": 8, **given})


HELLO = (
    delta(role="assistant", content=""),
    delta(content="Hel", logprobs=[scored(b"Hel", -0.5, [(b"Hel", -0.5), (b"\xe2\x82", -1.5)])]),
    delta(content="lo", logprobs=[scored(b"lo", -0.25)]),
    delta(finish="stop"),
    {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}},
)


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
    ticks = iter([0.0, 1.0, 1.5, 4.0, 4.0, 4.0, 9.0])
    found = heard("a", iter(HELLO), clock=lambda: next(ticks))
    assert (found.first_token, found.gaps, found.seconds) == (1.5, (2.5,), 9.0)


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


def test_a_model_that_the_server_has_not_is_refused_with_those_it_has():
    with serving(routes()) as (url, _):
        with pytest.raises(RequestError, match="has no model 'large'; it has small"):
            endpoint_party(Address(url, model="large"))
        assert endpoint_party(Address(url, model="small")).facts.bytes == 9


@pytest.mark.parametrize("url", ["ftp://host", "localhost:8080", "http://", "http:///v1", ""])
def test_what_is_no_address_is_refused(url):
    with pytest.raises(UsageError, match="no address"):
        Address(url)


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
    for given in (refuses, silent, deaf):
        with serving(given) as (url, _), opened(url) as arm:
            with pytest.raises(UnsupportedError, match="multiple choice"):
                arm.answerer.likelihoods("It is", [" Paris"])
            with pytest.raises(UnsupportedError, match="conversations"):
                arm.answerer.likelihoods(({"role": "user", "content": "?"},), [" Paris"])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_subject(write_subject(tmp_path_factory.mktemp("tiny") / "model"))


def tokenizing(source, ending=""):
    """Return what cuts texts as the source does, and conversations with an ending to each."""

    def route(body):
        if "messages" not in body:
            return {"tokens": source.tokenizer.encode(body["content"])}
        text = "".join(message["content"] for message in body["messages"]) + ending
        return {"tokens": source.tokenizer.encode(text, add_special=False)}

    return route


def identity(source, **given):
    with serving(routes(**given)) as (url, _):
        party = endpoint_party(Address(url))
        client = Client(party.address)
        try:
            found = probe_identity(client, party.facts, source)
        finally:
            client.close()
    return {check.name: check.found for check in found.checks}


def test_identity_is_what_the_server_shows_and_says_what_was_not_checked(source):
    found = identity(
        source,
        props=lambda _: {"chat_template": TEMPLATE + "\n", "eos_token": "</s>"},
        tokenize=tokenizing(source),
    )
    assert found["chat template"] == f"{len(TEMPLATE) + 1} characters"
    assert found["tokenization"] == "6 texts give the same tokens, after <s> (1)"
    assert found["special tokens"] == "end </s>"
    assert found["weights"].startswith("not checked")
    hidden = identity(source)
    assert [name for name in hidden if not hidden[name].startswith("not checked")] == ["vocabulary"]


def test_a_template_that_is_not_shown_is_known_by_what_it_writes(source):
    assert identity(source, tokenize=tokenizing(source))["chat template"] == (
        "2 conversations give the same tokens"
    )
    with pytest.raises(IdentityError, match="conversation as other tokens, from token 38 on"):
        identity(source, tokenize=tokenizing(source, "."))
    texts = tokenizing(source)
    for said in ({"tokens": []}, (400, {}, '{"error": "no template"}')):
        silent = lambda body, said=said: said if "messages" in body else texts(body)  # noqa: E731
        assert identity(source, tokenize=silent)["chat template"].startswith("not checked")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"props": lambda _: {"chat_template": "{{ 1 }}"}}, "chat template"),
        ({"props": lambda _: {"eos_token": "<end>"}}, "end-of-text token is '<end>'"),
        ({"tokenize": lambda _: {"tokens": [5, 6]}}, "from token 0 on"),
    ],
)
def test_a_server_that_shows_another_model_is_refused(source, given, named):
    with pytest.raises(IdentityError, match=named):
        identity(source, **given)


def test_pitfalls_that_the_server_cuts_otherwise_are_said(source):
    def unnormalized(body):
        tokens = tokenizing(source)(body)["tokens"]
        return {"tokens": tokens if body.get("content") != TEXTS[PITFALLS] else [*tokens[:9], 0]}

    found = identity(source, tokenize=unnormalized)["tokenization"]
    assert found.startswith("5 texts give the same tokens")
    assert "known pitfalls otherwise, from token 9 on" in found


def test_a_server_may_read_names_of_special_tokens_as_these(tmp_path):
    backend = begin_with_bos(tokenizer())
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    source = open_subject(write_subject(tmp_path / "model", backend=backend))
    text = TEXTS["a conversation"]
    read = source.tokenizer.encode(text, parse_special=True)
    assert read != source.tokenizer.encode(text)  # the control

    def told(body):
        tokens = source.tokenizer.encode(body.get("content", ""), parse_special=True)
        return {"tokens": [] if "messages" in body else tokens}

    found = identity(source, tokenize=told)["tokenization"]
    assert found.startswith("6 texts give the same tokens")


def test_a_missing_or_second_begin_of_text_is_refused(source):
    plain = source.tokenizer.encode("", add_special=True)
    for begins in ([], [*plain, *plain]):
        tokens = lambda body, begins=begins: {  # noqa: E731
            "tokens": [*begins, *source.tokenizer.encode(body["content"], add_special=False)]
        }
        with pytest.raises(IdentityError, match="begins a text otherwise"):
            identity(source, tokenize=tokens)


def test_the_bound_is_never_above_the_divergence_and_is_it_where_all_is_told():
    rng = np.random.default_rng(5)
    for _ in range(200):
        p, q = (rng.dirichlet(np.full(50, 0.3)) for _ in range(2))
        whole = float(np.sum(p * np.log(p / q)))
        told = np.argsort(-q)[:5]
        assert 0 <= lower_bound(p[told], q[told]) <= whole + 1e-9
        # All told, what is left over is rounding, against the least that is left to others.
        assert lower_bound(p, q) == pytest.approx(whole, abs=1e-5)
    assert lower_bound(p[told], p[told]) == pytest.approx(0, abs=1e-12)


def engine_server(source, spoil=0.0, *, by_id=False):
    """Return what answers chats as our engine does; `spoil` is added to every log-probability
    but the likeliest. `by_id` names tokens as vLLM does where it is asked to, with a text that is
    of no use."""
    loaded = load_model(source.model.path, RunSettings(threads=1))

    def named(token):
        return f"token_id:{token}".encode() if by_id else loaded.tokenizer.token_bytes(token)

    def chat(body):
        assert not body.get("logprobs") or body.get("return_tokens_as_token_ids", False) is by_id
        found = []
        prompt = tuple(body["messages"])
        asked = Ask("x", prompt, body["max_tokens"], logprobs=body.get("top_logprobs"))
        EngineAnswerer(loaded).answer([asked], found.append)
        chunks = []
        ids = {loaded.tokenizer.token_text(i): i for i in range(loaded.vocabulary)}
        for score in found[0].logprobs:
            data = named(ids[score.token])
            top = [
                (named(ids[c.token]), c.logprob + spoil * (rank > 0))
                for rank, c in enumerate(score.top)
            ]
            chunks.append(delta(content="x", logprobs=[scored(data, score.logprob, top)]))
        return events(*chunks, delta(finish=found[0].finish.value))

    return chat


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize(("spoil", "least", "most"), [(0.0, 0.0, 1e-6), (-1.0, 0.01, 2.0)])
def test_the_axis_measures_a_server_against_its_source(source, spoil, least, most, by_id):
    axis = EndpointAxis(
        prompts={"chat": ("Hello?", "What is it?")}, tokens=6, top=12, concurrency=(1, 2)
    )
    settings = RunSettings(threads=1)
    models = {"/v1/models": lambda _: VLLM if by_id else MODELS}
    with serving({**routes(chat=engine_server(source, spoil, by_id=by_id)), **models}) as (url, _):
        parties = {
            Role.SOURCE: local_party(source, settings),
            Role.CANDIDATE: endpoint_party(Address(url)),
        }
        result = as_said(axis, axis.run(Arms(parties), lambda *_: None))
    (kl,) = result.slices
    mean = sum(item.candidate for item in kl.items) / len(kl.items)
    assert least <= mean <= most
    assert {item.cluster for item in kl.items} == {"1/chat/0", "1/chat/1"}
    assert [d.title for d in result.details.latency] == [
        "Time to first token, 1 request at once",
        "Gap between tokens, 1 request at once",
        "Time to first token, 2 requests at once",
        "Gap between tokens, 2 requests at once",
    ]
    assert 0 < result.details.unseen < 1
    assert isinstance(parties[Role.CANDIDATE], EndpointParty)


def test_without_log_probabilities_there_are_times_and_no_divergence(source):
    axis = EndpointAxis(prompts={"chat": ("Hello?",)}, tokens=6, concurrency=(1,))
    chunks = [delta(content="x"), delta(content="y"), delta(finish="stop")]
    with serving(routes(chat=lambda _: events(*chunks))) as (url, _):
        parties = {
            Role.SOURCE: local_party(source, RunSettings(threads=1)),
            Role.CANDIDATE: endpoint_party(Address(url)),
        }
        result = axis.run(Arms(parties), lambda *_: None)
    assert result.slices == ()
    assert "no divergence was measured" in result.notes[0]
    assert len(result.details.latency[1].values) == 1


def test_a_file_on_disk_is_no_endpoint(source):
    party = local_party(source, RunSettings(threads=1))
    arms = Arms({Role.SOURCE: party, Role.CANDIDATE: party})
    axis = EndpointAxis(prompts={"chat": ("Hello?",)})
    with pytest.raises(UnsupportedError, match="leave the axis out"):
        axis.run(arms, lambda *_: None)
