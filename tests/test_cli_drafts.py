"""`--draft` with the model itself, cheaper, from the command line to the record."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.cli.drafts import chosen_draft
from fewbit.engine.named_drafts import named_draft
from fewbit.errors import FewbitError, UsageError
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import built_in
from fewbit.records.base import from_json, to_json
from fewbit.records.costs import KeptCosts
from fewbit.records.generation import GenerationReport

DRAFTS = ("nested", "exit:1", "low-bit:int4-g32", "ngram+nested", "suffix+exit:2")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The paths of a model of floats and of one of 8 bits."""
    folder = tmp_path_factory.mktemp("models")
    source = write_text_model(folder / "floats")
    quantize(open_model(source), built_in("rtn-int8-g32"), folder / "bits")
    return str(source), str(folder / "bits")


def report_of(capsys, *arguments):
    code = run(["generate", *map(str, arguments), "--json", "-"])
    out, err = capsys.readouterr()
    assert code == 0, err
    return from_json(GenerationReport, out.encode(), name="stdout")


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize(
    "sampling", [(), ("--temperature", 1, "--seed", 3)], ids=["greedy", "seed"]
)
def test_a_draft_changes_nothing(models, capsys, draft, sampling):
    shared = (models[1], "--raw", "-p", "abcabcabc", "--max-tokens", 30, *sampling)
    plain = report_of(capsys, *shared)
    drafted = report_of(capsys, *shared, "--draft", draft, "--draft-costs", "learned")
    assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
    assert drafted.generation.draft.draft == draft
    assert drafted.draft_kernels and not plain.draft_kernels
    halves = [k for k in drafted.draft_kernels if k.kernel.startswith("w4.high.")]
    assert bool(halves) == ("nested" in draft)
    nested = [
        k.kernel.startswith("w8.nest.") for k in drafted.kernels if k.kernel.startswith("w8.")
    ]
    assert nested and all(nested) == any(nested) == ("nested" in draft)


def test_what_it_reads_is_told(models, capsys):
    assert run(["generate", models[1], "-p", "a", "--max-tokens", "3", "--draft", "nested"]) == 0
    err = capsys.readouterr().err
    assert "draft: on the model's own KV cache, 1 matrix by w8.nest.g32/" in err
    assert "22 matrices by w4.high.g32/" in err


def test_costs_are_measured_with_it(models, capsys):
    report = report_of(
        capsys, models[1], "--raw", "-p", "abc", "--max-tokens", 8, "--draft", "nested",
        "--draft-costs", "measured",
    )  # fmt: skip
    assert report.generation.draft.draft == "nested"


def test_costs_that_tell_no_drafts_apart_are_measured_anew(models, capsys, tmp_path, monkeypatch):
    """Those of a combined draft that an earlier layout kept as of one."""
    monkeypatch.setenv("FEWBIT_CACHE", str(tmp_path))
    command = ["generate", models[1], "-p", "a", "--max-tokens", "4", "--draft", "suffix+nested"]
    assert run(command) == 0
    [path] = (tmp_path / "costs").iterdir()
    kept = from_json(KeptCosts, path.read_bytes(), name=str(path))
    one = kept.costs.parts[0]
    costs = replace(kept.costs, parts=(), sequences=one.sequences, draft_seconds=one.seconds)
    path.write_bytes(to_json(KeptCosts(key=kept.key, costs=costs)))
    capsys.readouterr()
    assert run(command) == 0
    assert "do not tell its drafts apart" in capsys.readouterr().err
    assert run(command) == 0
    assert "; kept in" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("draft", "words"),
    [
        ("nested", "needs weights in int8"),
        ("exit:3", "choose from 1 to 2"),
        ("exit:0", "choose from 1 to 2"),
        ("exit:x", "names no number of layers"),
        ("exit:", "names no number of layers"),
        ("low-bit:int9-g32", "2 to 8 bits"),
        ("low-bit:q4_k", "256"),
        ("nestd", "nested, exit:8, low-bit:q4_0"),
        ("exit:1+ngram", "the first is ngram or suffix"),
    ],
)
def test_a_wrong_name_is_refused_in_a_sentence(models, capsys, draft, words):
    code = run(["generate", models[0], "--raw", "-p", "abc", "--draft", draft])
    out, err = capsys.readouterr()
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_nested_draft_and_kept_weights_exclude_each_other(models, capsys):
    assert run(["generate", models[1], "-p", "a", "--draft", "nested", "--keep-packed"]) == 2
    assert "keep_packed cannot be had with nested" in capsys.readouterr().err


def test_names_with_and_without_a_model():
    assert named_draft("nested") and named_draft("exit:8") and named_draft("low-bit:q4_0")
    assert named_draft("some-model") is None
    assert named_draft("C:/models/draft.gguf") is None
    assert chosen_draft("suffix+nested", 4).path is None
    with pytest.raises(UsageError):
        chosen_draft("nested", 0)
    with pytest.raises(FewbitError):
        chosen_draft("suffix+no-such-model-anywhere/x.gguf", 4)
    with pytest.raises(UsageError, match="the first is ngram or suffix"):
        chosen_draft("nested+model.gguf", 4)
