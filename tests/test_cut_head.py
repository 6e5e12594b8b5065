"""A head with some of the tokens: the same logits for them, and a file that is only a draft."""

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.checkpoint.gguf_types import ArrayOf, ValueType
from fewbit.checkpoint.gguf_write import overlay
from fewbit.checkpoint.gguf_write import write_gguf as write_tensors
from fewbit.cli.app import run
from fewbit.errors import BadFileError, UnsupportedError, UsageError
from fewbit.formats.spec import digest
from fewbit.model.cut_head import TARGET, cut_head, kept_ids
from fewbit.model.gguf import KEPT
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_draft_model, open_model

KEEP = np.array([0, 2, 3, 40, 41, 100, 319], np.int32)
TOKENS = np.random.default_rng(1).integers(0, 320, 40)


def model(folder, name):
    config = CONFIGS[name]
    return write_gguf(folder / f"{name}.gguf", config, random_weights(config))


def written(path, source, **changes):
    """Write a cut model as it is."""
    facts = source.checkpoint.facts
    changed = {f"fewbit.draft.{key}": value for key, value in changes.items()}
    infos = list(source.checkpoint.tensors.values())
    write_tensors(path, overlay(facts, changed), infos, source.checkpoint.read)
    return path


def logits(source, executor="native"):
    runner = runner_of(source, RunSettings(executor=executor, threads=1, context=64))
    return np.concatenate([rows.copy() for rows in runner.score(TOKENS)])


@pytest.mark.parametrize("executor", ["native", "reference"])
@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3-long-window"])
def test_the_logits_of_the_kept_tokens_are_the_same_bits(tmp_path, name, executor):
    path = model(tmp_path, name)
    cut = cut_head(open_model(path), KEEP, "big")
    assert cut.config.head_rows == len(KEEP)
    assert not cut.config.tied
    whole = logits(open_model(path), executor)
    assert np.array_equal(logits(cut, executor), whole[:, KEEP])


def test_a_folder_is_cut_in_its_gguf_form(tmp_path):
    config = CONFIGS["qwen2"]
    folder = write_huggingface(tmp_path / "folder", config, random_weights(config))
    whole = logits(open_model(folder))
    assert np.array_equal(logits(cut_head(open_model(folder), KEEP, "big")), whole[:, KEEP])


def test_a_written_one_keeps_its_ids_and_opens_only_as_a_draft(tmp_path):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    path = written(tmp_path / "small.gguf", cut)
    opened = open_draft_model(path)
    assert kept_ids(opened).tolist() == KEEP.tolist()
    facts = opened.checkpoint.facts
    assert isinstance(facts, GgufFacts)
    assert facts.metadata[TARGET] == "big"
    assert np.array_equal(logits(opened), logits(cut))
    with pytest.raises(UnsupportedError, match="prepared as a draft: its head has 7 of 320 tokens"):
        open_model(path)


@pytest.mark.parametrize(
    "command",
    [
        ("generate", "-p", "a"),
        ("bench",),
        ("export", "--to", "gguf", "--plan"),
        ("quantize", "--recipe", "rtn-q4_0", "--plan"),
    ],
    ids=lambda command: command[0],
)
def test_commands_say_what_it_is(tmp_path, capsys, command):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    path = written(tmp_path / "small.gguf", cut)
    assert run([command[0], str(path), *command[1:]]) == 2
    assert "--draft" in capsys.readouterr().err


def test_it_is_not_cut_twice(tmp_path):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    opened = open_draft_model(written(tmp_path / "small.gguf", cut))
    with pytest.raises(UsageError, match="prepared as a draft already"):
        cut_head(opened, KEEP, "big")


def test_a_whole_model_has_no_kept_ids(tmp_path):
    assert kept_ids(open_model(model(tmp_path, "llama"))) is None


@pytest.mark.parametrize(
    "stored",
    [
        [0, 2, 2, 40, 41, 100, 319],
        [3, 2, 4, 40, 41, 100, 319],
        [-1, 2, 3, 40, 41, 100, 319],
        [0, 2, 3, 40, 41, 100, 320],
    ],
    ids=["twice", "descending", "negative", "beyond the vocabulary"],
)
def test_hostile_ids_are_refused(tmp_path, stored):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    kept = (ArrayOf(ValueType.INT32), stored)
    source = open_draft_model(written(tmp_path / "small.gguf", cut, kept=kept))
    with pytest.raises(BadFileError, match="must have ascending ids below 320"):
        kept_ids(source)


@pytest.mark.parametrize(
    "kept",
    [
        (ArrayOf(ValueType.INT32), [1, 2]),
        (ArrayOf(ValueType.INT32), []),
        (ArrayOf(ValueType.INT32), list(range(321))),
        (ValueType.STRING, "all"),
        None,
    ],
    ids=["fewer than rows", "none", "more than the vocabulary", "text", "absent"],
)
def test_a_head_that_does_not_fit_its_ids_is_refused(tmp_path, kept):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    path = written(tmp_path / "small.gguf", cut, kept=kept)
    with pytest.raises(BadFileError):
        open_draft_model(path)


def test_ids_without_a_head_of_its_own_are_refused(tmp_path):
    source = open_model(model(tmp_path, "llama-tied"))
    kept = (ArrayOf(ValueType.INT32), KEEP.tolist())
    with pytest.raises(BadFileError, match="is the table of the embedding"):
        open_draft_model(written(tmp_path / "small.gguf", source, kept=kept))


def test_the_hash_of_a_cut_head_is_that_of_the_whole(tmp_path):
    source = open_model(model(tmp_path, "llama"))
    whole = source.checkpoint.digest("output.weight")
    cut = cut_head(source, KEEP, "big")
    assert cut.checkpoint.digest("output.weight") == whole
    assert digest(cut.checkpoint.read("output.weight")) != whole
    assert KEPT == "fewbit.draft.kept"


@pytest.mark.parametrize("options", [(), ("--kernels",)], ids=["facts", "kernels"])
def test_what_a_prepared_draft_is_can_be_looked_at(tmp_path, capsys, options):
    cut = cut_head(open_model(model(tmp_path, "llama")), KEEP, "big")
    path = written(tmp_path / "small.gguf", cut)
    assert run(["inspect", str(path), *options]) == 0
    assert "small" in capsys.readouterr().out
