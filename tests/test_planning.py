"""What a plan decides, and what it refuses; lines of shared/cases/quantize.md by their number."""

import dataclasses

import numpy as np
import pytest
from quantize_cases import HEAD_8, LINEAR_4, folder, recipe
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_write import write_gguf as rewrite_gguf
from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import BLOCK_FORMATS, parse_format
from fewbit.methods.solvers import METHODS
from fewbit.methods.statistics import InputStatistics
from fewbit.model.weights import open_model
from fewbit.quantization import (
    execute,
    plan,
    quantize,
    require_no_fallback,
)
from fewbit.quantization.planning import require_rules_used
from fewbit.recipes import built_in
from fewbit.records.recipe import KEEP, Role, Rule


@pytest.fixture
def llama(tmp_path):
    return folder(tmp_path)


def test_case_4_a_pattern_that_fits_nothing_names_near_ones(llama):
    with pytest.raises(UsageError, match=r"'layers\.0\.dwon\.weight'.*layers\.0\.down\.weight"):
        plan(open_model(llama), recipe(LINEAR_4, Rule(match="layers.0.dwon.weight", format="q8_0")))


def test_case_4_a_pattern_that_fits_only_vectors_fits_nothing(llama):
    with pytest.raises(UsageError, match=r"fits no matrix"):
        plan(open_model(llama), recipe(LINEAR_4, Rule(match="*norm.weight", format="q8_0")))


def test_case_4_a_recipe_that_would_quantize_nothing_is_refused(llama, tmp_path):
    quantize(open_model(llama), built_in("rtn-int4-g32"), tmp_path / "out")
    with pytest.raises(UsageError, match=r"would quantize nothing .* int4-g32 has 4\.5 bits"):
        plan(open_model(tmp_path / "out"), built_in("rtn-int8-g32"))


def test_case_14_a_group_that_does_not_divide_is_refused_in_the_plan_with_names(llama):
    with pytest.raises(
        UsageError, match=r"layers\.0\.mlp\.down_proj\.weight with 96 columns \(int4-g64\)"
    ):
        plan(open_model(llama), recipe(Rule(role=Role.LINEAR, format="int4-g64")))


def test_case_14_a_declared_fallback_is_taken_and_recorded(llama, tmp_path):
    planned = plan(open_model(llama), built_in("rtn-int4-g64"))
    assert planned.fallbacks == (
        "int4-g64 does not divide 96 columns, so 3 matrices are in int4-g32.",
    )
    with pytest.raises(UsageError, match=r"needs fallbacks, which strict forbids \(int4-g64 does"):
        require_no_fallback(planned)
    require_no_fallback(plan(open_model(llama), built_in("rtn-int4-g32")))
    manifest = execute(planned, tmp_path / "out")
    entry = next(e for e in manifest.tensors if e.slot == "layers.1.down.weight")
    assert (entry.format, entry.fallback) == ("int4-g32", "int4-g64")
    assert entry.reason == "int4-g64 does not divide 96 columns"


def test_case_15_an_override_equal_to_the_default_is_honoured(llama):
    override = Rule(match="head.weight", format="int4-g32")
    planned = plan(open_model(llama), recipe(override, LINEAR_4, HEAD_8))
    formats = {t.slot: t.format.name for t in planned.tensors}
    assert formats["head.weight"] == formats["layers.0.q.weight"] == "int4-g32"
    without = plan(open_model(llama), recipe(LINEAR_4, HEAD_8))
    assert {t.slot: t.format.name for t in without.tensors}["head.weight"] == "int8-g32"


def test_case_18_tensors_without_a_name_in_the_layout_are_declared_absent(tmp_path):
    config = CONFIGS["llama3"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    planned = plan(source, built_in("rtn-int4-g32"))
    assert [(t.source.name, t.reason) for t in planned.absent] == [
        ("rope_freqs.weight", "the configuration holds it as rope scaling")
    ]
    assert {t.source.name for t in planned.tensors} == set(source.checkpoint.tensors)


def test_what_gguf_cannot_hold_or_be_made_from_is_refused(llama, tmp_path):
    with pytest.raises(UnsupportedError, match="int4-g32, which GGUF has no type for"):
        quantize(open_model(llama), built_in("rtn-int4-g32"), tmp_path / "out.gguf")
    other = CONFIGS["qwen3-moe-sparse"]
    source = write_huggingface(tmp_path / "other", other, random_weights(other))
    with pytest.raises(UnsupportedError, match="norm_topk_prob"):
        quantize(open_model(source), built_in("rtn-q4_0"), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def test_a_tensor_that_cannot_be_decoded_is_named(tmp_path):
    config = CONFIGS["qwen2"]
    source = open_model(write_gguf(tmp_path / "in.gguf", config, random_weights(config)))
    strange = parse_format("q8_1")

    def info(known: TensorInfo) -> TensorInfo:
        if known.name != "blk.0.attn_q.weight":
            return known
        return TensorInfo(known.name, strange, known.shape, 64 * 72)

    def read(name: str):
        tensor = source.checkpoint.read(name)
        if name != "blk.0.attn_q.weight":
            return tensor
        return dataclasses.replace(tensor, spec=strange, codes=np.zeros((64, 72), np.uint8))

    facts = source.checkpoint.facts
    assert isinstance(facts, GgufFacts)
    path = tmp_path / "strange.gguf"
    rewrite_gguf(path, facts, [info(t) for t in source.checkpoint.tensors.values()], read)
    with pytest.raises(UnsupportedError, match=r"blk\.0\.attn_q\.weight is in q8_1"):
        plan(open_model(path), built_in("rtn-int2-g32"))
    keeping = recipe(Rule(match="layers.0.q.weight", format=KEEP), LINEAR_4)
    kept = plan(open_model(path), keeping)
    assert {t.status for t in kept.tensors if t.source.name == "blk.0.attn_q.weight"} == {"kept"}


@pytest.mark.parametrize("method", ["gptq", "gptq-refined", "hqq", "imatrix"])
@pytest.mark.parametrize("form", ["int8-tensor", "int8-channel", "q8_1"])
def test_case_14_what_a_method_cannot_make_is_refused_in_the_plan(llama, method, form):
    rules = Rule(match="layers.2.down.weight", format=form), LINEAR_4
    with pytest.raises(UnsupportedError, match=rf"down_proj\.weight \({form} by {method}\)"):
        plan(open_model(llama), recipe(*rules, method=method))


@pytest.mark.parametrize("method", ["gptq", "gptq-refined"])
def test_case_14_floats_are_not_solved_for(llama, method):
    """The head is solved last: its refusal would come when all else is done."""
    for form in ("fp8_e4m3-row", "bf16"):
        head = Rule(role=Role.HEAD, format=form)
        with pytest.raises(UnsupportedError, match=rf"lm_head\.weight \({form} by {method}\)"):
            plan(open_model(llama), recipe(LINEAR_4, head, method=method))
        rounded = Rule(role=Role.HEAD, format=form, method="rtn")
        plan(open_model(llama), recipe(LINEAR_4, rounded, method=method))


def test_an_input_table_has_no_inputs_and_is_rounded(llama):
    table = Rule(role=Role.EMBEDDING, format="fp8_e4m3-row")
    plan(open_model(llama), recipe(LINEAR_4, table, method="gptq"))


@pytest.mark.parametrize("method", ["rtn", "mse"])
def test_types_without_an_encoder_are_refused_in_the_plan(llama, method):
    with pytest.raises(UnsupportedError, match=f"i8 by {method}"):
        plan(open_model(llama), recipe(Rule(role=Role.LINEAR, format="i8"), method=method))


@pytest.mark.parametrize("method", sorted(METHODS))
def test_what_a_plan_admits_every_method_makes(method):
    """Formats that are admitted and fail would fail late; those refused could be made."""
    names = ["int4-g32", "int4-g32-asym", "int3-row", "int8-tensor", "int8-channel", "bf16", "f16"]
    names += ["fp8_e4m3-row", "fp8_e4m3-tensor", *BLOCK_FORMATS]
    random = np.random.default_rng(0)
    weight = random.standard_normal((4, 256)).astype(np.float32)
    x = random.standard_normal((512, 256)).astype(np.float32)
    statistics = InputStatistics(
        count=512,
        squares=np.square(x, dtype=np.float64).sum(axis=0),
        largest=np.abs(x).max(axis=0),
        absolute=np.abs(x).sum(axis=0, dtype=np.float64),
        gram=x.T @ x,
    )
    for name in names:
        form = parse_format(name)
        try:
            METHODS[method].solve(weight, statistics, form)
            made = True
        except UnsupportedError:
            made = False
        assert METHODS[method].makes(form) == made, name


def test_case_15_a_rule_that_never_decides_is_refused(llama, tmp_path):
    idle = recipe(LINEAR_4, Rule(match="layers.*.down.weight", format="int8-g32"))
    with pytest.raises(UsageError, match=r"Rule 2 .*'layers\.\*\.down\.weight'\) never decides"):
        quantize(open_model(llama), idle, tmp_path / "out")
    require_rules_used(plan(open_model(llama), recipe(*reversed(idle.rules))))
    partly = (
        Rule(match="layers.0.*", format="int8-g32"),
        Rule(match="*.q.weight", format="int6-g32"),
    )
    require_rules_used(plan(open_model(llama), recipe(*partly)))
    no_such_role = recipe(LINEAR_4, Rule(role=Role.LINEAR, format="int8-g32"))
    require_rules_used(plan(open_model(llama), no_such_role))  # a role of built-in recipes
