"""`quantize_` on a fewbit model: the same kernels and logits as an artefact of that format has."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface
from tiny_text import write_text_files

import fewbit
from fewbit.errors import (
    FewbitError,
    KernelError,
    NumericalError,
    RequestError,
    UnsupportedError,
    UsageError,
)
from fewbit.formats.registry import decode, encode, parse_format
from fewbit.records.kernels import Activations
from fewbit.records.recipe import Role, Rule

TOKENS = [5, 9, 300, 2, 77, 31]
SETTINGS = fewbit.RunSettings(context=64, threads=1)
INT4 = fewbit.Int4WeightOnlyConfig(group_size=32)


def written(folder, name="llama", change=None):
    weights = random_weights(CONFIGS[name])
    if change is not None:
        change(weights)
    return write_text_files(write_huggingface(folder, CONFIGS[name], weights))


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root, made = tmp_path_factory.mktemp("models"), {}

    def folder(name):
        if name not in made:
            made[name] = written(root / name, name)
        return made[name]

    return folder


@pytest.fixture
def model(folders):
    with fewbit.load(folders("llama"), SETTINGS) as loaded:
        yield loaded


def formats(model):
    return {record.slot: record.format for record in model.kernels}


CONFIGURATIONS = {
    "int4": (INT4, "int4-g32-asym", Activations.BF16),
    "int8": (fewbit.Int8WeightOnlyConfig(), "int8-row", Activations.BF16),
    "w8a8": (fewbit.Int8DynamicActivationInt8WeightConfig(), "int8-row", Activations.TOKEN),
    "fp8": (fewbit.Float8WeightOnlyConfig(), "fp8_e4m3-row", Activations.INT8),
}


@pytest.mark.parametrize("kind", CONFIGURATIONS)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gemma3", "mixtral"])
def test_an_artefact_of_the_same_format_has_the_same_logits(folders, tmp_path, name, kind):
    """Bit for bit: both run one kernel on one encoding of the same weights."""
    config, form, activations = CONFIGURATIONS[kind]
    rules = tuple(
        Rule(role=role, format=form, activations=activations) for role in (Role.LINEAR, Role.HEAD)
    )
    recipe = fewbit.Recipe(name="same", method="rtn", rules=rules)
    artefact = fewbit.quantize(folders(name), recipe, out=tmp_path / "same")
    with fewbit.load(folders(name), SETTINGS) as model, artefact.load(SETTINGS) as same:
        before = model.logits(TOKENS)
        fewbit.quantize_(model, config)
        assert formats(model) == formats(same)
        np.testing.assert_array_equal(model.logits(TOKENS), same.logits(TOKENS))
        assert not np.array_equal(model.logits(TOKENS), before)
        assert model.generate("abc", max_tokens=3).tokens


def test_layers_have_the_names_of_hugging_face(model):
    seen = {}

    def look(module, fqn):
        seen[fqn] = module
        return fqn == "lm_head"

    fewbit.quantize_(model, INT4, look)
    assert len(seen) == 3 * 7 + 1
    down = seen["model.layers.2.mlp.down_proj"]
    assert (down.in_features, down.out_features, down.format) == (96, 64, "f32")
    changed = {slot for slot, form in formats(model).items() if form != "f32"}
    assert changed == {"head.weight"}


def test_layers_may_have_one_configuration_each(model):
    fewbit.quantize_(model, INT4, lambda _module, fqn: "mlp" in fqn)
    fewbit.quantize_(model, fewbit.Int8WeightOnlyConfig(), lambda _module, fqn: "attn" in fqn)
    found = formats(model)
    assert found["layers.0.up.weight"] == "int4-g32-asym"
    assert found["layers.0.q.weight"] == "int8-row"
    assert found["head.weight"] == "f32"
    fewbit.quantize_(model, fewbit.Float8WeightOnlyConfig())
    assert formats(model)["head.weight"] == "fp8_e4m3-row"
    assert formats(model)["layers.0.up.weight"] == "int4-g32-asym"
    with pytest.raises(UsageError, match="no linear layer that is not quantized yet"):
        fewbit.quantize_(model, INT4)
    with pytest.raises(UsageError, match="lm_head is quantized already"):
        fewbit.quantize_(model, INT4, lambda _module, fqn: fqn == "lm_head")


def test_a_tied_table_is_the_head_and_stays_one(folders):
    with fewbit.load(folders("llama-tied"), SETTINGS) as model:
        tied = []
        fewbit.quantize_(model, INT4, lambda module, fqn: module.tied and not tied.append(fqn))
        assert tied == ["lm_head"]
        assert formats(model)["embed.weight"] == "int4-g32-asym"
        assert "head.weight" not in formats(model)


def test_a_router_is_no_layer(folders):
    with fewbit.load(folders("mixtral"), SETTINGS) as model:
        fewbit.quantize_(model, INT4)
        kept = {slot for slot, form in formats(model).items() if form == "f32"}
        assert kept == {"embed.weight", *(f"layers.{i}.router.weight" for i in range(3))}


def test_what_has_the_format_already_comes_through_bit_for_bit(folders, tmp_path):
    artefact = fewbit.quantize(folders("llama"), "rtn-int4-g32-asym-wo", out=tmp_path / "small")
    with artefact.load(SETTINGS) as model:
        before = model.logits(TOKENS)
        fewbit.quantize_(model, INT4, lambda module, _fqn: module.format == "int4-g32-asym")
        np.testing.assert_array_equal(model.logits(TOKENS), before)


def test_hqq_finds_other_scales(folders):
    found = []
    for algorithm in ("tinygemm", "hqq"):
        with fewbit.load(folders("llama"), SETTINGS) as model:
            fewbit.quantize_(
                model,
                fewbit.Int4WeightOnlyConfig(group_size=32, int4_choose_qparams_algorithm=algorithm),
            )
            found.append(decode(model.source.read("layers.0.q.weight")))
    assert not np.array_equal(*found)
    weight = random_weights(CONFIGS["llama"])["model.layers.0.self_attn.q_proj.weight"]
    expected = decode(encode(weight, parse_format("int4-g32-asym")))
    np.testing.assert_array_equal(found[0], expected)


def test_packed_weights_of_the_files_are_neither_used_nor_replaced(folders):
    """Planted: without the check, the file's packed weights would stand for the new ones."""
    folder = folders("qwen3")
    settings = fewbit.RunSettings(context=64, threads=1, keep_packed=True)
    fewbit.load(folder, settings).close()
    with fewbit.load(folder, settings) as model:
        assert model.loading.packed
        kept = [path for path in folder.iterdir() if "packed" in path.name]
        content = kept[0].read_bytes()
        before = model.logits(TOKENS)
        fewbit.quantize_(model, INT4)
        assert not model.loading.packed
        assert model.loading.notes == ()
        assert not np.array_equal(model.logits(TOKENS), before)
        assert kept[0].read_bytes() == content
    with fewbit.load(folder, settings) as again:
        assert again.loading.packed
        np.testing.assert_array_equal(again.logits(TOKENS), before)


def unchanged(model, before, error, words, *arguments):
    with pytest.raises(error, match=words):
        fewbit.quantize_(model, *arguments)
    np.testing.assert_array_equal(model.logits(TOKENS), before)
    assert set(formats(model).values()) == {"f32"}


def test_what_does_not_fit_is_named_and_nothing_changes(model):
    """The MLP's 96 inputs do not divide into groups of 64; those of attention do."""
    before = model.logits(TOKENS)
    config = fewbit.Int4WeightOnlyConfig(group_size=64)
    words = r"model\.layers\.0\.mlp\.down_proj has 96 inputs.*groups of 64.*filter_fn"
    unchanged(model, before, UsageError, words, config)
    words = "chose none of the 22 linear layers; did you mean .*down_proj"
    unchanged(model, before, UsageError, words, INT4, lambda _m, fqn: "down_porj" in fqn)
    unchanged(model, before, UsageError, "filter_fn is of type str", INT4, "down_proj")
    unchanged(model, before, UsageError, "configuration is str", "int4")
    unchanged(model, before, UnsupportedError, "device is 'cuda:0'", INT4, None, "cuda:0")
    stream = model.stream("abc", max_tokens=50)
    next(stream)
    with pytest.raises(RequestError, match="under way"):
        fewbit.quantize_(model, INT4)
    stream.close()
    fewbit.quantize_(model, config, lambda module, _fqn: module.in_features == 64, "cpu")
    assert formats(model)["layers.0.q.weight"] == "int4-g64-asym"


def test_what_was_made_ahead_is_let_go_of_and_made_again(model):
    fewbit.quantize_(model, INT4)
    assert model.source.ready == {}
    again = model.source.read("layers.0.q.weight")
    packed = model.runner.executor.matrices["layers.0.q.weight"]
    np.testing.assert_array_equal(packed.decode_row(3), decode(again)[3])


def test_columns_that_no_kernel_reads_are_refused(tmp_path):
    config = CONFIGS["llama"] | {"intermediate_size": 80}
    folder = write_text_files(write_huggingface(tmp_path / "odd", config, random_weights(config)))
    with (
        fewbit.load(folder, SETTINGS) as model,
        pytest.raises(KernelError, match=r"layers\.0\.mlp\.down_proj.*80 columns.*multiple of 32"),
    ):
        fewbit.quantize_(model, fewbit.Int8WeightOnlyConfig())


def test_a_weight_that_is_nan_is_named_and_nothing_changes(tmp_path):
    def spoil(weights):
        weights["model.layers.2.mlp.up_proj.weight"][3, 4] = np.nan

    with fewbit.load(written(tmp_path, change=spoil), SETTINGS) as model:
        words = r"model\.layers\.2\.mlp\.up_proj: .*row 3, column 4"
        with pytest.raises(NumericalError, match=words):
            fewbit.quantize_(model, INT4)
        assert set(formats(model).values()) == {"f32"}


def test_a_closed_model_and_what_is_none(folders):
    model = fewbit.load(folders("llama"), SETTINGS)
    model.close()
    with pytest.raises(UsageError, match="was closed"):
        fewbit.quantize_(model, INT4)
    for wrong in (None, "model", folders("llama"), object()):
        with pytest.raises(FewbitError, match="give what fewbit"):
            fewbit.quantize_(wrong, INT4)


def test_without_torch_the_extra_is_named(monkeypatch):
    """Whether torch is installed here or not."""
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"pip install 'fewbit\[torch\]'"):
        fewbit.quantize_(object(), INT4)
