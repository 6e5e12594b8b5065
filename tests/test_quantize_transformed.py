"""Recipes with transforms, from the plan to the artefact that is opened again."""

import numpy as np
import pytest
from quantize_cases import tree_hash
from test_transformed import as_f32, logits
from test_transforming import weights, windows
from tiny_models import CONFIGS, write_gguf, write_huggingface

from fewbit.calibrate.calibration import calibration_set
from fewbit.calibrate.importance import Importance, ImportanceMatrix, write_importance
from fewbit.errors import StoppedError, UnsupportedError, UsageError
from fewbit.formats.registry import F32, decode
from fewbit.model.weights import open_model
from fewbit.quantization import QuantizeSettings, execute, plan, quantize, transforming
from fewbit.quantization.importance import given_importance
from fewbit.quantization.job import Resume, Stop, claimed_job, work_folder
from fewbit.quantization.planned import Container
from fewbit.records.recipe import Recipe, Role, Rule


def recipe(*transforms, form="int8-row", method="rtn", head="int8-row"):
    rules = (Rule(role=Role.LINEAR, format=form), Rule(role=Role.HEAD, format=head))
    return Recipe(name="test", method=method, rules=rules, transforms=transforms)


def settings():
    return QuantizeSettings(calibration=calibration_set(windows(), [], window_tokens=40), threads=1)


def opened(path, name, write=write_huggingface):
    return open_model(write(path, CONFIGS[name], weights(name)))


def in_float(source):
    """Return logits with weights decoded to float32, so that only their rounding shows."""
    return logits(source, lambda _, tensor: as_f32(decode(tensor)))


def deviation(found, source):
    """Return the mean change of logits relative to their mean size.

    8-bit rounding moves those of these models by less than a tenth, a wrong fold by their own size.
    """
    wanted = logits(source)
    return np.abs(in_float(found) - wanted).mean() / np.abs(wanted).mean()


@pytest.mark.parametrize("transform", ["awq", "smoothquant", "rescale", "rotate-heads"])
@pytest.mark.parametrize("name", ["qwen2", "gemma3"])
def test_an_artefact_is_the_source_but_for_the_rounding_of_weights(tmp_path, name, transform):
    source = opened(tmp_path / "source", name)
    manifest = quantize(source, recipe(transform), tmp_path / "out", settings())
    (change,) = manifest.transforms
    assert change.name == transform
    assert "model.layers.0.self_attn.v_proj.weight" in change.tensors
    assert manifest.promised_bytes == manifest.tensor_bytes
    with open_model(tmp_path / "out") as found:
        assert deviation(found, source) < 0.1
        vector = "layers.0.attn_norm.weight"
        if transform in ("awq", "rescale"):
            assert found.info(vector).format == F32
            assert (decode(found.read(vector)) != decode(source.read(vector))).any()


def test_a_rotated_stream_unties_the_table_and_the_plan_counts_it(tmp_path):
    source = opened(tmp_path / "source", "llama-tied")
    plain, rotated = (plan(source, recipe(*names)) for names in ((), ("rotate-residual",)))
    table = next(t for t in rotated.tensors if t.slot == "head.weight")
    assert table.stored == "lm_head.weight"
    assert rotated.promised_bytes > plain.promised_bytes + table.bytes
    assert rotated.source_bytes == plain.source_bytes
    execute(rotated, tmp_path / "out", settings())
    with open_model(tmp_path / "out") as found:
        assert not found.config.tied
        assert deviation(found, source) < 0.1


def test_a_gguf_file_takes_what_it_can_express(tmp_path):
    for name in ("llama-tied", "gemma3"):
        source = opened(tmp_path / f"{name}.gguf", name, write_gguf)
        out = tmp_path / f"{name}-out.gguf"
        names = ("rotate-residual", "awq") if name != "gemma3" else ("rotate-heads", "awq")
        manifest = quantize(source, recipe(*names, form="q8_0", head="q8_0"), out, settings())
        assert [change.name for change in manifest.transforms] == list(names)
        with open_model(out) as found:
            assert ("head.weight" in found.slots) == (name != "gemma3")
            assert deviation(found, source) < 0.1


def test_a_solver_sees_the_inputs_of_the_transformed_model(tmp_path):
    source = opened(tmp_path / "source", "qwen2")
    both = recipe("awq", form="int4-g32", method="gptq", head="int8-g32")
    first = quantize(source, both, tmp_path / "one", settings())
    again = quantize(source, both, tmp_path / "two", settings())
    assert [t.sha256 for t in first.tensors] == [t.sha256 for t in again.tensors]
    assert first.transforms == again.transforms
    with open_model(tmp_path / "one") as found:
        assert deviation(found, source) < 0.5


def test_a_quantized_source_is_recorded_as_one_though_transforms_decode_it(tmp_path):
    with opened(tmp_path / "plain.gguf", "qwen2", write_gguf) as plain:
        quantize(plain, recipe(form="q8_0", head="q8_0"), tmp_path / "q8.gguf")
    with open_model(tmp_path / "q8.gguf") as source:
        out = tmp_path / "q4.gguf"
        manifest = quantize(source, recipe("rescale", form="q4_0", head="q8_0"), out)
        assert manifest.source.quantized
        assert manifest.source.formats["q8_0"] > 0
        kept = {t.slot: t.format for t in manifest.tensors if t.status == "kept"}
        assert kept["embed.weight"] == "q8_0"
        with open_model(out) as found:
            assert deviation(found, source) < 1.0


def test_transforms_that_need_text_say_so(tmp_path):
    source = opened(tmp_path / "source", "qwen2")
    with pytest.raises(UsageError, match="looks at what layers read"):
        quantize(source, recipe("awq"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_importance_matrix_does_not_know_the_inputs_behind_a_transform(tmp_path):
    source = opened(tmp_path / "source", "qwen2")
    entry = Importance(np.ones((1, 64), np.float32), np.array([9], np.int64))
    matrix = ImportanceMatrix({"blk.0.attn_q.weight": entry}, ("text",), 1, 9)
    write_importance(tmp_path / "m.gguf", matrix)
    given = QuantizeSettings(importance=given_importance(tmp_path / "m.gguf"))
    with pytest.raises(UsageError, match=r"transforms the model \(rescale\)"):
        quantize(source, recipe("rescale", method="imatrix"), tmp_path / "out", given)
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_is_refused_in_the_plan(tmp_path):
    source = opened(tmp_path / "source", "gemma3")
    with pytest.raises(UnsupportedError, match="post_attn_norm"):
        plan(source, recipe("rotate-residual"))
    with pytest.raises(UnsupportedError, match="'spin' is not known"):
        plan(source, recipe("spin"), Container.FEWBIT)


def counted_searches(monkeypatch, stop=None, after=0):
    """Count the searches of sites; ask for a stop in the one with number `after`."""
    found = []
    for name in ("search_awq", "search_smoothquant"):
        true = getattr(transforming, name)

        def search(*arguments, true=true):
            found.append(1)
            if stop is not None and len(found) == after:
                stop.ask()
            return true(*arguments)

        monkeypatch.setattr(transforming, name, search)
    return found


@pytest.mark.parametrize("transforms", [("awq",), ("smoothquant",), ("smoothquant", "awq")])
def test_a_search_that_was_stopped_goes_on_at_the_next_site(tmp_path, transforms, monkeypatch):
    source, asked = opened(tmp_path / "in", "llama-tied"), recipe(*transforms)
    with monkeypatch.context() as patched:
        every = counted_searches(patched)
        quantize(source, asked, tmp_path / "whole", settings())
    stop = Stop()
    with monkeypatch.context() as patched, pytest.raises(StoppedError):
        before = counted_searches(patched, stop, after=len(every) - 3)
        with claimed_job(tmp_path / "out", Resume.AUTO, stop) as job:
            execute(plan(source, asked), tmp_path / "out", settings(), job=job)
    assert len(before) == len(every) - 3
    kept = sorted(work_folder(tmp_path / "out").glob("transform-*.safetensors"))
    assert len(kept) == len(before)
    kept[0].write_bytes(b"damaged")  # it is searched again
    after = counted_searches(monkeypatch)
    quantize(source, asked, tmp_path / "out", settings())
    assert len(after) == 3 + 1
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "whole")


def test_a_stop_while_solving_searches_nothing_again(tmp_path, monkeypatch):
    source, asked = opened(tmp_path / "in", "qwen2"), recipe("awq", method="gptq")
    quantize(source, asked, tmp_path / "whole", settings())

    def killed(what, done, _):
        if what.startswith("solving") and done == 2:
            raise KeyboardInterrupt

    with pytest.raises(StoppedError):
        quantize(source, asked, tmp_path / "out", settings(), killed)
    again = counted_searches(monkeypatch)
    quantize(source, asked, tmp_path / "out", settings())
    assert not again
    assert tree_hash(tmp_path / "out") == tree_hash(tmp_path / "whole")
