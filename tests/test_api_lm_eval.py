"""The class that lm-eval loads, on a stand-in for lm-eval's interface; and on the real one."""

from __future__ import annotations

import importlib
import json
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from tiny_subjects import sharp_weights, write_subject

from fewbit.api.model import load
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


def test_another_device_is_logged_and_an_unknown_setting_refused(registered, folder, caplog):
    registered["fewbit"](folder, context=64, threads=1, device="cuda:0")
    assert "runs on the cpu, not on cuda:0" in caplog.text
    with pytest.raises(UsageError, match="dtype"):
        registered["fewbit"](folder, dtype="auto")


TASK = {
    "task": "tiny-choice",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "test",
    "doc_to_text": "{{prompt}}",
    "doc_to_choice": "{{choices}}",
    "doc_to_target": "{{answer}}",
    "metric_list": [{"metric": "acc"}],
}


@pytest.mark.interop
def test_lm_eval_runs_its_own_tasks_on_it(folder, tmp_path):
    """A task of lm-eval's over a local file, as its evaluator runs it, against our own scores."""
    lm_eval = importlib.import_module("lm_eval")
    tasks = importlib.import_module("lm_eval.tasks")
    importlib.import_module("fewbit.api.lm_eval")
    lines = [{"prompt": f"ab{i}", "choices": ["c", "dd", "e f"], "answer": i % 3} for i in range(6)]
    (tmp_path / "items.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = TASK | {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "items.jsonl")}}}
    result = lm_eval.simple_evaluate(
        model="fewbit",
        model_args={"pretrained": folder, "context": 64, "threads": 1},
        tasks=[task],
        task_manager=tasks.TaskManager(),
        bootstrap_iters=0,
        log_samples=True,
    )
    with load(folder) as model:
        for sample in result["samples"]["tiny-choice"]:
            line = lines[sample["doc_id"]]
            for text, (logprob, _) in zip(line["choices"], sample["filtered_resps"], strict=True):
                ids = model.tokenizer.encode(f"{line['prompt']} {text}")
                first = len(model.tokenizer.encode(line["prompt"]))
                rows = model.logits(ids[:-1], first - 1).astype(float)
                rows = rows[:, : model.tokenizer.vocabulary_size]  # the rest is padding
                scored = zip(rows, ids[first:], strict=True)
                expected = sum(row[token] - np.logaddexp.reduce(row) for row, token in scored)
                assert float(logprob) == pytest.approx(expected, abs=1e-6)
