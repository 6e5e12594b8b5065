"""Training a draft head: torch computes what the native executor does, and training helps."""

import importlib.util
from dataclasses import replace

import numpy as np
import pytest
from head_cases import KEPT, SIZES, head_weights, write_speculators
from tiny_models import random_weights, write_huggingface
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.errors import MissingError, UsageError
from fewbit.model.head_runner import head_runner
from fewbit.model.head_source import open_head
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.tune.head import HeadSettings, head_config, train_head


def test_a_number_that_cannot_be_is_refused():
    for fields in ({"steps": 0}, {"unrolled": 0}, {"steps": 1.5}, {"rate": 0.0}):
        with pytest.raises(UsageError):
            HeadSettings(**fields)


def test_without_torch_it_says_how_to_get_it(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"fewbit\[torch\]"):
        train_head(None, KEPT, [], [], HeadSettings())
    assert run(["draft", "train", "nowhere", "--out", str(tmp_path / "head")]) == 2
    assert "fewbit[torch]" in capsys.readouterr().err


@pytest.fixture
def one_thread():
    """Operations of some microseconds are not shared out well on a busy machine."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def target(tmp_path):
    config = {**SIZES, "num_hidden_layers": 6}
    path = write_huggingface(tmp_path / "target", config, random_weights(config))
    settings = RunSettings(context=128, threads=1, states=lambda layers: (2, 3, 3))
    return runner_of(open_model(path), settings)


@pytest.mark.interop
@pytest.mark.parametrize(
    "fields", [{}, {"norm_before_residual": True}, {"norm_output": True}], ids=str
)
def test_torch_unrolls_what_the_native_head_drafts(target, tmp_path, fields):
    torch = pytest.importorskip("torch")
    students = pytest.importorskip("fewbit.tune.head_student")
    weights = head_weights(SIZES)
    path = write_speculators(
        tmp_path / "head", SIZES, weights, eagle_aux_hidden_state_layer_ids=[2, 3, 3], **fields
    )
    source = open_head(path)
    runner, rng = head_runner(source, target, pages=2), np.random.default_rng(1)
    tokens, states = rng.integers(0, 320, 9), rng.standard_normal((8, 144)).astype(np.float32)
    pages, last = np.arange(2, dtype=np.int32), np.array([4], np.int32)
    native = []
    hidden = runner.fuse(states[:5])
    step = step_of([Piece(tokens[1:6].astype(np.int32), 0, pages, last)])
    for i in range(3):
        logits, hidden = runner.step(step, hidden)
        native.append(logits[-1].copy())
        next_token = tokens[6 + i : 7 + i].astype(np.int32)
        step = step_of([Piece(next_token, 5 + i, pages, np.zeros(1, np.int32))])
    student, memory = students.HeadStudent(source.config, weights), students.Memory()
    embedded = torch.from_numpy(weights["embed_tokens.weight"][tokens])
    made = student.fuse(torch.from_numpy(states))
    for i in range(3):
        rows = 8 - i
        logits, made = student.advance(embedded[i + 1 :], made[:rows], memory)
        found = logits[4].detach().numpy()
        # The store rounds keys and values to 16 bits: 2^-11 of each.
        assert np.abs(found - native[i]).max() < 0.01 * np.abs(native[i]).max()


@pytest.mark.interop
@pytest.mark.usefixtures("one_thread")
def test_training_brings_the_head_closer(target):
    rng = np.random.default_rng(2)
    windows = [rng.integers(0, 320, 60).astype(np.int32) for _ in range(4)]
    settings = HeadSettings(steps=40, rate=3e-3)
    trained = train_head(target, np.arange(320, dtype=np.int32), windows, windows[:2], settings)
    assert trained.after[0] > trained.before[0] + 0.1
    assert trained.config.after == (2, 3, 3)
    assert trained.config == replace(head_config(target.config, 320), after=(2, 3, 3))


@pytest.mark.interop
def test_windows_that_are_too_short_are_refused(target):
    with pytest.raises(UsageError, match="5 tokens"):
        train_head(target, KEPT, [np.zeros(4, np.int32)], [], HeadSettings())


@pytest.mark.interop
@pytest.mark.usefixtures("one_thread")
def test_from_the_command_line_to_a_text(tmp_path, capsys):
    model = write_text_model(tmp_path / "model")
    text = tmp_path / "text.txt"
    text.write_text("hello hello again and again\n" * 200)
    arguments = ["draft", "train", str(model), "--out", str(tmp_path / "head")]
    small = ("--steps", "3", "--tokens", "64", "--window", "64", "--calibration-windows", "4")
    assert run([*arguments, *small, "--calibration", str(text)]) == 0
    assert "before training" in capsys.readouterr().err
    assert run([*arguments, *small]) == 2
    assert "exists already" in capsys.readouterr().err
    generate = ["generate", str(model), "-p", "hello", "--max-tokens", "8"]
    assert run([*generate, "--draft", str(tmp_path / "head")]) == 0
