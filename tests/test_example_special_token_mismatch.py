"""The example on its tiny models: what it finds, and nothing where nothing differs."""

import runpy
from pathlib import Path

import pytest

from fewbit.errors import UsageError
from fewbit.model.weights import open_model

EXAMPLE = Path(__file__).parent.parent / "examples" / "special_token_mismatch.py"
PROMPTS = ("a", "m", "w")


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture(scope="module")
def models(example, tmp_path_factory):
    root = tmp_path_factory.mktemp("mismatch")
    target = example["write_tiny"](root / "target")
    return target, example["write_with_other_end"](target, root / "other.gguf")


@pytest.fixture(scope="module")
def found(example, models):
    return example["measure"](*models, PROMPTS, longest=4, most=64)


def test_the_pair_check_finds_the_end_token_and_nothing_else(example, models):
    report = example["check"](*models)
    (difference,) = report.differences
    assert "<|im_end|> (258), the draft's <|endoftext|> (256)" in difference.found
    assert example["check"](models[0], models[0]).differences == ()


def test_the_tiny_model_recites_and_ends_its_turn(found):
    assert found["none"].texts == ("bcdefghijklmnopqrstuvwxyz.", "nopqrstuvwxyz.", "xyz.")


def test_the_output_is_the_targets_with_any_draft(found):
    for name in ("the target itself", "the same, other end"):
        assert found[name].tokens == found["none"].tokens
        assert found[name].texts == found["none"].texts


def test_the_mismatch_costs_the_last_drafted_token_of_each_answer(found):
    good, bad = found["the target itself"], found["the same, other end"]
    assert good.accepted == good.judged
    assert bad.judged - bad.accepted == len(PROMPTS)


def test_stopping_at_the_drafts_end_would_not_stop(found):
    lost = found["none, stopping at the draft's end"]
    assert {record.finish.value for record in lost.records} == {"length"}
    assert all(len(tokens) == 64 for tokens in lost.tokens)
    assert {record.finish.value for record in found["none"].records} == {"stop"}


def test_the_draft_differs_in_two_rows_of_its_head(models):
    with open_model(models[0]) as ours, open_model(models[1]) as theirs:
        one, other = (source.read("head.weight").codes for source in (ours, theirs))
    changed = (one != other).any(axis=1).nonzero()[0].tolist()
    assert changed == [256, 258]


def test_it_prints_the_check_and_the_figures(example, capsys):
    example["main"]([])
    printed = capsys.readouterr().out
    assert "differ special tokens: The target's end token is <|im_end|>" in printed
    assert "3 were rejected, 0 without the mismatch" in printed
    assert "Every answer ended where the target ended it" in printed


def test_a_pair_of_files_can_be_checked_alone(example, models, capsys):
    example["main"](["--pair", *map(str, models)])
    assert "other drafting for target" in capsys.readouterr().out


def test_a_model_without_both_ends_is_refused(example, tmp_path):
    folder = example["write_tiny"](tmp_path / "m")
    text = (folder / "tokenizer.json").read_text().replace("<|endoftext|>", "<|other|>")
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(UsageError, match="give a model of Qwen's family"):
        example["write_with_other_end"](folder, tmp_path / "out.gguf")
