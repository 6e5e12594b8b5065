"""The axis that measures a server against its source."""

import numpy as np
import pytest
from brought import as_said
from endpoint_cases import CHAT, HELLO, MODELS, VLLM, engine_server, routes
from fake_server import delta, events, serving
from tiny_subjects import write_subject

from fewbit.errors import UnsupportedError
from fewbit.evaluate.arms import Arms, Role, local_party
from fewbit.evaluate.endpoint.answerer import EndpointParty, endpoint_party
from fewbit.evaluate.endpoint.axis import EndpointAxis, lower_bound
from fewbit.evaluate.endpoint.client import Address
from fewbit.evaluate.subject import open_subject
from fewbit.model.runner import RunSettings


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return open_subject(write_subject(tmp_path_factory.mktemp("tiny") / "model"))


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


def test_prompts_are_new_at_each_concurrency_and_cached_ones_told_apart(source):
    """A warm prefix cache makes a first token look fast (LMBenchmark #35)."""
    usage = {"prompt_tokens": 20, "prompt_tokens_details": {"cached_tokens": 16}}
    axis = EndpointAxis(prompts={"chat": ("Hello?", "Why?")}, tokens=4, concurrency=(1, 2))

    def chat(body):
        warm = body["messages"][0]["content"].endswith("Why?")
        return events(*HELLO[:-1], {"choices": [], "usage": usage if warm else {}})

    with serving(routes(chat=chat)) as (url, asked):
        parties = {
            Role.SOURCE: local_party(source, RunSettings(threads=1)),
            Role.CANDIDATE: endpoint_party(Address(url)),
        }
        found = axis.run(Arms(parties), lambda *_: None).details
    said = [body["messages"][0]["content"] for path, _, body in asked if path == CHAT]
    assert len({text[:5] for text in said}) == len(said) == 4
    counts = {d.title: len(d.values) for d in found.latency if "first" in d.title}
    assert counts == {
        "Time to first token, 1 request at once": 1,
        "Time to first token, prompts cached, 1 request at once": 1,
        "Time to first token, 2 requests at once": 1,
        "Time to first token, prompts cached, 2 requests at once": 1,
    }


def test_a_file_on_disk_is_no_endpoint(source):
    party = local_party(source, RunSettings(threads=1))
    arms = Arms({Role.SOURCE: party, Role.CANDIDATE: party})
    axis = EndpointAxis(prompts={"chat": ("Hello?",)})
    with pytest.raises(UnsupportedError, match="leave the axis out"):
        axis.run(arms, lambda *_: None)
