"""The class that lm-eval loads, on a stand-in for lm-eval's interface."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace

import pytest
from tiny_subjects import sharp_weights, write_subject

from fewbit.errors import UsageError


class StandIn:
    """As much of lm-eval's LM as a model class touches."""

    def __init__(self):
        self.cache_hook = SimpleNamespace(add_partial=lambda *_: None)


@pytest.fixture
def registered(monkeypatch):
    """Import the class over a stand-in of the library, and give what it registered."""
    found = {}
    model, registry = ModuleType("lm_eval.api.model"), ModuleType("lm_eval.api.registry")
    model.LM = StandIn
    registry.register_model = lambda name: lambda kind: found.setdefault(name, kind)
    parts = {"lm_eval": ModuleType("lm_eval"), "lm_eval.api": ModuleType("lm_eval.api")}
    for name, module in (parts | {m.__name__: m for m in (model, registry)}).items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "fewbit.api.lm_eval", raising=False)
    importlib.import_module("fewbit.api.lm_eval")
    yield found
    sys.modules.pop("fewbit.api.lm_eval", None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_subject(tmp_path_factory.mktemp("model"), weights=sharp_weights()))


def asked(*arguments):
    return SimpleNamespace(args=arguments)


def test_the_model_is_registered_and_answers(registered, folder):
    lm = registered["fewbit"](folder, context=64, threads=1, batch_size="auto", device="cpu")
    kept = []
    lm.cache_hook = SimpleNamespace(add_partial=lambda *given: kept.append(given))
    ((logprob, greedy),) = lm.loglikelihood([asked("ab", " c")])
    assert logprob < 0 and isinstance(greedy, bool)
    assert kept == [("loglikelihood", ("ab", " c"), (logprob, greedy))]
    assert len(lm.loglikelihood_rolling([asked("abc")])) == 1
    assert isinstance(lm.generate_until([asked("ab", {"max_gen_toks": 3})])[0], str)
    assert lm.apply_chat_template([{"role": "user", "content": "hi"}]) == "hi"
    assert lm.tokenizer_name.startswith("fewbit-") and lm.chat_template(True)
    assert lm.chat_template(False) == ""


@pytest.mark.parametrize(
    ("given", "message"),
    [({"device": "cuda:0"}, "device is 'cuda:0'"), ({"dtype": "auto"}, "dtype")],
)
def test_what_it_cannot_do_is_said(registered, folder, given, message):
    with pytest.raises(UsageError, match=message):
        registered["fewbit"](folder, **given)
