"""Loading a model, interrupted or not, and what its engines share."""

import signal
import threading
import time

import pytest
from tiny_text import write_text_model

from fewbit.engine import loaded
from fewbit.model.runner import RunSettings
from fewbit.tokens import constraint
from fewbit.tokens.grammar import Grammar, GrammarKind


def test_an_interrupt_leaves_no_thread_that_still_loads(monkeypatch, tmp_path):
    ended = []

    def slow(_source, _settings):
        time.sleep(0.1)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
        time.sleep(0.2)
        ended.append(True)

    monkeypatch.setattr(loaded, "open_model", lambda path: path)
    monkeypatch.setattr(loaded, "tokenizer_of", lambda source: source)
    monkeypatch.setattr(loaded, "runner_of", slow)
    with pytest.raises(KeyboardInterrupt):
        loaded.load_model(tmp_path, RunSettings())
    assert ended


def test_engines_of_a_model_read_its_vocabulary_for_grammars_once(monkeypatch, tmp_path):
    read = []

    class Counting(constraint.GrammarCompiler):
        def __init__(self, tokenizer):
            super().__init__(tokenizer)
            read.append(tokenizer)

    monkeypatch.setattr(constraint, "GrammarCompiler", Counting)
    model = loaded.load_model(write_text_model(tmp_path), RunSettings(threads=1))
    for served in (model.served, model.served):
        assert served.constraint(Grammar(GrammarKind.REGEX, "a+")) is not None
    assert len(read) == 1
