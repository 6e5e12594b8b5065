"""A server that says what a test wants, and what asks it."""

from fake_server import delta, events, scored

from fewbit.engine.loaded import load_model
from fewbit.evaluate.answers import Ask, EngineAnswerer
from fewbit.evaluate.arms import Role, Room
from fewbit.evaluate.endpoint.answerer import endpoint_party
from fewbit.evaluate.endpoint.client import Address
from fewbit.model.runner import RunSettings

MODELS = {"data": [{"id": "small", "owned_by": "us", "meta": {"n_vocab": 320, "size": 9}}]}
VLLM = {"data": [{"id": "small", "owned_by": "vllm", "max_model_len": 64}]}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


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
