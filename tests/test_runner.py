from dataclasses import replace

import numpy as np
import pytest
from tiny_models import CONFIGS, HUGGINGFACE_ONLY, random_weights, write_gguf, write_huggingface

from fewbit.errors import KernelError, RequestError, UsageError
from fewbit.model.binding import bind, is_vector
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.decoder import build_program
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, load, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import quantize
from fewbit.recipes import built_in
from fewbit.records.kernels import Activations
from fewbit.runtime import chooser
from fewbit.runtime.pack import packed_form

TOKENS = np.random.default_rng(3).integers(0, 320, 150)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    weights = random_weights(CONFIGS["qwen3"])
    return write_huggingface(tmp_path_factory.mktemp("qwen3"), CONFIGS["qwen3"], weights)


@pytest.fixture(scope="module")
def runner(folder):
    return load(folder, "reference", context=160)


def test_scores_come_in_blocks_from_the_first_wanted_position(runner):
    whole = np.concatenate([rows.copy() for rows in runner.score(TOKENS, block=256)])
    assert whole.shape == (150, 320)
    blocks = [rows.copy() for rows in runner.score(TOKENS, first=80, block=32)]
    assert [len(rows) for rows in blocks] == [32, 32, 6]
    # Float64 sums in another order flip a float32 rounding at most; see test_reference.
    np.testing.assert_allclose(np.concatenate(blocks), whole[80:], atol=2e-5, rtol=0)


def test_nothing_is_wanted_beyond_the_end(runner):
    assert list(runner.score(TOKENS, first=150)) == []


@pytest.mark.parametrize("tokens", [[], [[1, 2]]])
def test_no_tokens_is_a_request_error(runner, tokens):
    with pytest.raises(RequestError, match="no tokens"):
        next(runner.score(np.array(tokens, int)))


def test_more_tokens_than_the_context_is_a_request_error(runner):
    with pytest.raises(RequestError, match="161 tokens and the context is 160"):
        next(runner.score(np.zeros(161, int)))


@pytest.mark.parametrize("token", [-1, 320, 1 << 40])
def test_an_id_outside_the_vocabulary_is_a_request_error(runner, token):
    with pytest.raises(RequestError, match=f"Token id {token} "):
        next(runner.score(np.array([1, token])))


def test_the_context_is_the_models_own_unless_asked(folder):
    assert load(folder, "reference").context == 512
    assert load(folder, "reference", context=64).executor.pages == 1
    assert load(folder, "reference", context=65, sequences=3).executor.pages == 6
    with pytest.raises(UsageError, match="context is 513"):
        load(folder, "reference", context=513)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"executor": "gpu"}, "native, reference"),
        ({"threads": 0}, "threads is 0"),
        ({"threads": "2"}, "threads is '2'; it must be a whole number"),
        ({"context": 64.0}, "context is 64.0"),
        ({"cache_type": "int3"}, "cache_type is 'int3'; choose from f32, f16, bf16, int8, int4"),
        ({"activations": "fp8"}, "activations is 'fp8'; choose from int8, int8-token"),
        ({"executor": "reference", "kernel": "f32/f32/avx2"}, "which has none"),
        ({"executor": "reference", "isa": "avx2"}, "which has none"),
    ],
)
def test_settings_are_checked(settings, text):
    with pytest.raises(UsageError, match=text):
        RunSettings(**settings)


def test_settings_take_the_names_of_their_choices():
    settings = RunSettings(cache_type="int8", activations="bf16")
    assert settings == RunSettings(cache_type=CacheType.INT8, activations=Activations.BF16)


def test_pieces_of_several_sequences_make_one_step():
    first = Piece(np.int32([1, 2, 3]), 5, np.int32([0]), np.int32([2]))
    second = Piece(np.int32([4, 5]), 0, np.int32([1]), np.int32([1, 0]), trunk=0)
    step = step_of([first, second])
    assert [s.trunk for s in step.spans] == [None, 0]
    assert step.tokens.tolist() == [1, 2, 3, 4, 5]
    assert [(s.start, s.count, s.position) for s in step.spans] == [(0, 3, 5), (3, 2, 0)]
    assert step.wanted.tolist() == [2, 4, 3]
    assert step.positions().tolist() == [5, 6, 7, 0, 1]


def test_only_matrices_have_kernels(runner):
    slots = {record.slot for record in runner.kernels}
    assert slots == {slot for slot in runner.source.slots if not is_vector(slot)}
    assert "layers.0.q_norm.weight" not in slots
    assert len(runner.kernels) == 3 * 7 + 2


def test_every_matrix_without_a_kernel_is_counted(folder):
    def none(slot, tensor):
        raise KernelError(f"no kernel for {slot}.")

    source = open_model(folder)
    with pytest.raises(KernelError) as caught:
        bind(source, build_program(source.config), none)
    assert "no kernel for embed.weight." in str(caught.value)
    assert str(caught.value).endswith("The same holds for 22 more matrices.")


def test_a_fallback_is_an_error_where_it_is_forbidden(folder, tmp_path, monkeypatch):
    # Planted: no format needs a fallback.
    planted = {"int3-g32": "3-bit codes are run as 4-bit ones"}
    monkeypatch.setattr(
        chooser,
        "packed_form",
        lambda t, _: replace(packed_form(t), note=planted.get(t.spec.name, "")),
    )
    with open_model(folder) as source:
        quantize(source, built_in("rtn-int3-g32"), tmp_path / "small")
    with open_model(tmp_path / "small") as source:
        notes = {kernel.note for kernel in runner_of(source, RunSettings()).kernels}
        assert "3-bit codes are run as 4-bit ones" in notes
        with pytest.raises(
            KernelError, match=r"strict forbids \(int3-g32: 3-bit codes are run as 4-bit ones, 21"
        ):
            runner_of(source, RunSettings(strict=True))
    with open_model(folder) as source:
        runner_of(source, RunSettings(strict=True))


def test_an_unknown_instruction_set_is_refused_once(folder):
    with open_model(folder) as source, pytest.raises(KernelError) as caught:
        runner_of(source, RunSettings(isa="mmx"))
    assert str(caught.value).count("mmx") == 1


def test_a_forced_kernel_runs_the_matrices_it_names(folder, tmp_path):
    with open_model(folder) as source:
        quantize(source, built_in("rtn-int4-g32"), tmp_path / "small")
    forced = RunSettings(kernel="w4.sym.g32/a8.g32/portable")
    with open_model(tmp_path / "small") as source:
        runner = runner_of(source, forced)
        best = runner_of(source, RunSettings())
        assert {k.kernel for k in runner.kernels} == {
            "w4.sym.g32/a8.g32/portable",
            "w6.sym.g32/a8.g32/portable",
        }
        assert runner.executor.isa == "portable"
        assert planned_kernels(source, forced) == runner.kernels
        a, b = (next(r.score(TOKENS[:20])).copy() for r in (runner, best))
        assert np.array_equal(a, b)


def test_a_forced_kernel_for_weights_that_are_not_there_is_refused(folder):
    settings = RunSettings(kernel="w4.sym.g32/a8.g32/portable")
    with open_model(folder) as source, pytest.raises(KernelError) as caught:
        runner_of(source, settings)
    assert "no matrix of the model has its weights; they are packed as f32." in str(caught.value)


def test_equal_reasons_are_told_once(folder, monkeypatch):
    monkeypatch.setattr(chooser, "available_isas", lambda: ["avx2", "portable"])
    with open_model(folder) as source, pytest.raises(KernelError) as caught:
        planned_kernels(source, RunSettings(isa="avx512vnni"))
    message = str(caught.value)
    assert message.count("f32/f32/avx512: this CPU lacks AVX-512") == 1
    assert message.count("avx512vnni was asked for") == 2
    assert message.endswith("The same holds for 22 more matrices.")


@pytest.mark.parametrize("name", [n for n in CONFIGS if n not in HUGGINGFACE_ONLY])
def test_a_gguf_file_gives_the_same_logits(name, tmp_path):
    weights = random_weights(CONFIGS[name])
    settings = RunSettings(executor="reference", cache_type=CacheType.F32)
    paths = (
        write_huggingface(tmp_path / name, CONFIGS[name], weights),
        write_gguf(tmp_path / "model.gguf", CONFIGS[name], weights),
    )
    a, b = (next(runner_of(open_model(p), settings).score(TOKENS[:64])).copy() for p in paths)
    # The file keeps eps and rope divisors in float32: a few units in the last place.
    np.testing.assert_allclose(a, b, atol=2e-5, rtol=0)
