"""`fewbit draft prepare`: what it writes, that it writes it whole, and what it refuses."""

import hashlib

import numpy as np
import pytest
from tiny_models import random_weights
from tiny_subjects import CONFIG, capitals, tokenizer, write_subject

from fewbit.calibrate.text import collect, document
from fewbit.cli.app import run
from fewbit.model.cut_head import TARGET, kept_ids
from fewbit.model.weights import open_draft_model, open_model
from fewbit.quantization import draft as preparing
from fewbit.records.manifest import manifest_path, read_manifest

HALVES = {
    preparing.Half.CALIBRATION: collect("calibration", [document("a", "the cat; then the dog.\n")]),
    preparing.Half.EVALUATION: collect("evaluation", [document("b", "the cat ZZ")]),
}


@pytest.fixture(autouse=True)
def short_text(monkeypatch):
    monkeypatch.setattr(preparing, "default_text", HALVES.__getitem__)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    large = write_subject(folder / "large")
    small = write_subject(folder / "small", weights=random_weights(CONFIG, seed=3))
    text = folder / "text.txt"
    text.write_text("def the_answer():\n    return 42\n\n" * 40)
    return large, small, text


def prepare(models, out, *arguments):
    large, small, text = models
    fixed = ("--for", large, "--calibration", text, "--calibration-windows", 3, "--window", 64)
    command = ["draft", "prepare", small, *fixed, "--out", out, *arguments]
    return run([str(argument) for argument in command])


def test_what_is_written(models, tmp_path, capsys):
    out = tmp_path / "draft.gguf"
    assert prepare(models, out, "--tokens", 40) == 0
    printed = capsys.readouterr().out
    assert "its head has 40 of 320 tokens" in " ".join(printed.split())
    assert str(out) in printed
    manifest, opened = read_manifest(out), open_draft_model(out)
    kept, facts = kept_ids(opened), manifest.draft
    assert opened.checkpoint.facts.metadata[TARGET] == facts.target == "large"
    assert (facts.kept, facts.vocabulary) == (40, 320) == (len(kept), opened.config.vocabulary)
    words = tokenizer()
    seen = words.encode("the cat; then the dog.\n", add_special_tokens=False).ids
    assert {0, 1, 2, *seen} <= set(kept.tolist())
    assert set(kept.tolist()) <= set(range(words.get_vocab_size()))
    assert facts.coverage == pytest.approx(6 / 8, abs=0.15)
    formats = {entry.slot: entry.format for entry in manifest.tensors}
    assert formats["head.weight"] == formats["layers.0.down.weight"] == "q4_0"
    assert formats["embed.weight"] == "f32"
    assert manifest.calibration is not None


def test_the_head_has_the_rows_of_the_kept_tokens(models, tmp_path):
    """Kept as they are, its rows are the source's; the input table is whole."""
    out, recipe = tmp_path / "draft.gguf", tmp_path / "layers.toml"
    recipe.write_text(
        'name = "layers"\nmethod = "rtn"\n[[rules]]\nrole = "linear"\nformat = "q8_0"\n'
    )
    assert prepare(models, out, "--tokens", 40, "--recipe", recipe) == 0
    source, opened = open_model(models[1]), open_draft_model(out)
    whole = source.read("embed.weight").codes
    assert np.array_equal(opened.read("embed.weight").codes, whole)
    assert np.array_equal(opened.read("head.weight").codes, whole[kept_ids(opened)])


def test_the_same_command_gives_the_same_bits(models, tmp_path):
    digests = set()
    for name in ("a.gguf", "b.gguf"):
        assert prepare(models, tmp_path / name, "--tokens", 30) == 0
        digests.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_a_plan_writes_nothing(models, tmp_path, capsys):
    assert prepare(models, tmp_path / "draft.gguf", "--plan") == 2  # more tokens than there are
    assert prepare(models, tmp_path / "draft.gguf", "--tokens", 40, "--plan") == 0
    assert "q4_0" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_a_stopped_job_goes_on_to_the_same_bits(models, tmp_path, monkeypatch):
    whole, out = tmp_path / "whole.gguf", tmp_path / "draft.gguf"
    assert prepare(models, whole, "--tokens", 30) == 0
    real = preparing.execute

    def interrupted(planned, path, settings, progress, job):
        def stop(what, done, total):
            if what.startswith("solving") and done:
                raise KeyboardInterrupt
            progress(what, done, total)

        return real(planned, path, settings, stop, job)

    with monkeypatch.context() as patch:
        patch.setattr(preparing, "execute", interrupted)
        assert prepare(models, out, "--tokens", 30) == 75
    assert not out.exists()
    assert not manifest_path(out).exists()
    assert prepare(models, out, "--tokens", 31) == 2  # the work is for another head
    assert prepare(models, out, "--tokens", 30) == 0
    assert out.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob(".*.work"))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--tokens", 0), "A head of 0 tokens"),
        (("--tokens", 2), "3 special tokens always stay"),
        (("--tokens", 2, "--plan"), "3 special tokens always stay"),
        (("--tokens", 4000), "A head of 4,000 tokens"),
        (("--tokens", 30, "--recipe", "nope"), "There is no recipe"),
        (("--tokens", 30, "--recipe", "rtn-int4-g32"), "GGUF"),
    ],
)
def test_bad_input_is_named(models, tmp_path, capsys, arguments, said):
    assert prepare(models, tmp_path / "draft.gguf", *arguments) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.glob("*.gguf"))


def test_outputs_that_cannot_be(models, tmp_path, capsys):
    assert prepare(models, tmp_path / "draft", "--tokens", 30) == 2
    assert "draft.gguf" in capsys.readouterr().err
    taken = tmp_path / "taken.gguf"
    taken.write_bytes(b"mine")
    assert prepare(models, taken, "--tokens", 30) == 2
    assert taken.read_bytes() == b"mine"


def test_a_draft_is_not_prepared_twice_nor_for_another_vocabulary(models, tmp_path, capsys):
    large, small, text = models
    out = tmp_path / "draft.gguf"
    assert prepare(models, out, "--tokens", 30) == 0
    assert prepare(("nowhere", small, text), tmp_path / "new.gguf", "--tokens", 30) == 2
    assert "'nowhere'" in capsys.readouterr().err
    assert prepare((large, out, text), tmp_path / "again.gguf", "--tokens", 20) == 2
    assert "prepared as a draft" in capsys.readouterr().err
    ends = {"bos_token": "A", "eos_token": "B"}
    other = write_subject(tmp_path / "other", backend=capitals(), tokenizer_config=ends)
    assert prepare((large, other, text), tmp_path / "new.gguf", "--tokens", 20) == 2
    assert "other cannot draft for large" in capsys.readouterr().err


def test_its_card_runs_it_as_a_draft_and_its_manifest_makes_no_model(models, tmp_path, capsys):
    out = tmp_path / "draft.gguf"
    assert prepare(models, out, "--tokens", 30) == 0
    assert run(["card", str(out)]) == 0
    card = (tmp_path / "draft.gguf.md").read_text()
    assert "fewbit generate large --draft draft.gguf" in card
    assert "llama-cli" not in card
    again = ["quantize", str(models[1]), "--from-manifest", str(out), "--out", str(tmp_path / "b")]
    assert run(again) == 2
    assert "fewbit draft prepare" in capsys.readouterr().err
