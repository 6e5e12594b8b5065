"""Which requests an engine can serve, and how far a sequence may grow."""

import pytest
from engine_cases import GREEDY, PROMPT, engine, run

from fewbit.engine.request import Request
from fewbit.errors import RequestError
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request((1,) * 400), "has 400 tokens and the context holds 400"),
        (Request((1, 30)), "token 30, but the vocabulary has 30"),
        (Request((-1,)), "token -1"),
        (Request((1,), SamplingParams(logit_bias={30: 1.0})), "logit_bias names token 30"),
    ],
)
def test_a_request_the_model_cannot_serve_is_refused_before_any_step(request_, words):
    running = engine()
    with pytest.raises(RequestError, match=words):
        list(running.generate([Request((1,)), request_]))
    assert not running.busy


def test_the_store_bounds_the_context_too():
    running = engine(context=1000, pages=2)
    assert running.context == 2 * PAGE
    tokens, *_ = run(running, [Request(PROMPT, GREEDY)])[0]
    assert len(PROMPT) + len(tokens) == 2 * PAGE
