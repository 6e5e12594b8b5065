"""Loading a model while it is interrupted."""

import signal
import threading
import time

import pytest

from fewbit.engine import loaded
from fewbit.model.runner import RunSettings


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
