"""Folders whose matrices follow an order of the columns: read, run, kept and written again."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from bits import same_bits
from compressed_cases import quantization as compressed_config
from compressed_cases import scheme
from packed_models import (
    compressed,
    gptq,
    llama_integers,
    packed_llama,
    random_integers,
    write_folder,
)
from rich.console import Console
from test_export_compressed import assert_equal_models, exported, quantization
from test_gptq_folder import quantization as gptq_config
from tiny_models import CONFIGS, random_weights

from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.errors import BadFileError, KernelError
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.registry import decode, parse_format
from fewbit.model.beside import beside, early_exit, low_bit_copy
from fewbit.model.chosen_kernels import kernel_plan
from fewbit.model.pieces import Piece, step_of
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import quantize
from fewbit.records.kernels import Activations
from fewbit.records.recipe import KEEP, Recipe, Role, Rule
from fewbit.report.inspection import _kernels as kernels_of_inspect
from fewbit.report.kernels import GATHERED, print_kernels

TOKENS = np.random.default_rng(5).integers(0, 320, 20)
PLAIN = RunSettings(context=64, threads=2)
Q = "model.layers.0.self_attn.q_proj"

SITES = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "gate_proj": 1, "up_proj": 1}
"""Modules of a layer that read one input, and so have one order."""


def shuffled(integers, seed: int):
    """A matrix with a group for each input in no order, all groups of one size."""
    groups = integers.scales.shape[1]
    group_of = np.random.default_rng(seed).permutation(integers.codes.shape[1]) % groups
    return replace(integers, group_of=group_of)


def act_order_llama(bits: int = 4, *, symmetric: bool = True):
    """Every linear layer of the tiny Llama with an order, one for those that read one input."""
    found = llama_integers(bits, 32, symmetric=symmetric)
    for number, (module, integers) in enumerate(found.items()):
        layer, name = module.split(".")[2], module.split(".")[-1]
        found[module] = shuffled(integers, 100 * int(layer) + SITES.get(name, 10 + number))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    stated = gptq_config(sym=True, desc_act=True)
    return packed_llama(tmp_path_factory.mktemp("act") / "m", gptq, stated, act_order_llama())


def logits(path, settings=PLAIN):
    with open_model(path) as source:
        return np.concatenate([rows.copy() for rows in runner_of(source, settings).score(TOKENS)])


# --- folders --------------------------------------------------------------------------------------


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_keeps_its_codes(tmp_path, bits, version, symmetric):
    integers = shuffled(random_integers(bits, (64, 64), bits, 32, symmetric=symmetric), 3)
    label = "gptq" if version == 1 else "gptq_v2"
    stated = gptq_config(bits, sym=symmetric, desc_act=True, checkpoint_format=label)
    path = packed_llama(tmp_path / "m", lambda m: gptq(m, version), stated, {Q: integers})
    with open_model(path) as source:
        info, tensor = source.info("layers.0.q.weight"), source.read("layers.0.q.weight")
        assert info.format.name == f"int{bits}-g32{'' if symmetric else '-asym'}-order"
        assert info.note == "" and tensor.nbytes == info.nbytes
        assert np.array_equal(info.order, np.argsort(integers.group_of, kind="stable"))
        assert np.array_equal(decode(tensor), integers.values())


def test_compressed_tensors_keep_their_codes(tmp_path):
    integers = shuffled(random_integers(1, (64, 64), 4, 32, symmetric=False), 3)

    def pack_module(m):
        index = m.group_of.astype(np.int32)
        return compressed(m, symmetric=False) | {"weight_g_idx": index}

    stated = compressed_config(scheme(symmetric=False, actorder="group"))
    with open_model(packed_llama(tmp_path / "m", pack_module, stated, {Q: integers})) as source:
        assert source.info("layers.0.q.weight").format.name == "int4-g32-asym-order"
        assert np.array_equal(decode(source.read("layers.0.q.weight")), integers.values())


def test_groups_of_unequal_size_stay_decoded(tmp_path):
    integers = random_integers(1, (64, 64), 4, 32, symmetric=True)
    index = np.arange(64) // 32
    index[0] = 1
    path = packed_llama(
        tmp_path / "m", gptq, gptq_config(desc_act=True), {Q: replace(integers, group_of=index)}
    )
    with open_model(path) as source:
        assert "not equally many inputs each, so it is decoded" in source.note("layers.0.q.weight")


@pytest.mark.parametrize("activations", [Activations.INT8, Activations.TOKEN, Activations.BF16])
def test_a_model_runs_on_the_kernels_of_its_codes(folder, activations):
    """Against the reference, whose order of sums and library functions differ: float32 rounding
    through three layers, and a code that flips moves a product by 1/127 of one of 64 inputs."""
    settings = replace(PLAIN, activations=activations, cache_type=CacheType.F32)
    reference = logits(folder, replace(settings, executor="reference", threads=None))
    native = logits(folder, settings)
    exact = activations is Activations.BF16
    assert (native - reference).std() < (2e-3 if exact else 2e-2) * reference.std()
    one = logits(folder, replace(settings, threads=1))
    assert same_bits(native, one)


def test_the_kernels_record_says_so(folder):
    with open_model(folder) as source:
        plan = kernel_plan(source, PLAIN)
    inside = [k for k in plan.kernels if k.slot.startswith("layers.")]
    assert {k.format for k in inside} == {"int4-g32-order"}
    assert all(k.gathered and k.note == "" for k in inside)
    assert all(k.kernel.startswith("w4.sym.g32/abf16") for k in inside)
    console = Console(record=True, width=200)
    print_kernels(plan, console)
    console.print(kernels_of_inspect(plan.kernels))
    said = console.export_text()
    assert f"{len(inside)} matrices {GATHERED}." in said and said.count(GATHERED) == 2


def test_strict_takes_it(folder):
    assert np.isfinite(logits(folder, replace(PLAIN, strict=True))).all()


def test_packed_weights_are_kept_and_gathered_for(folder, tmp_path):
    path = shutil.copytree(folder, tmp_path / "m")
    expected = logits(path)
    with open_model(path) as source:
        assert runner_of(source, replace(PLAIN, keep_packed=True)).loading.kept
    with open_model(path) as source:
        runner = runner_of(source, PLAIN)
        assert runner.loading.packed
        found = np.concatenate([rows.copy() for rows in runner.score(TOKENS)])
    assert same_bits(found, expected)


@pytest.mark.parametrize(
    "draft", [lambda r: early_exit(r, 2), lambda r: low_bit_copy(r, parse_format("q4_0"))]
)
def test_drafts_beside_it(folder, draft):
    """An early exit has the orders of the matrices that it shares; a copy in q4_0 has none."""
    settings = replace(PLAIN, activations=Activations.BF16, cache_type=CacheType.F32)
    found = []
    for executor in ("native", "reference"):
        threads = 1 if executor == "native" else None
        with open_model(folder) as source:
            runner = runner_of(source, replace(settings, executor=executor, threads=threads))
            found.append(_step(beside(runner, draft(runner))))
    native, reference = found
    assert (native - reference).std() < 2e-2 * reference.std()


def _step(executor):
    pages = np.zeros(1, np.int32)
    piece = Piece(TOKENS[:4].astype(np.int32), 0, pages, np.arange(4, dtype=np.int32))
    return executor.step(step_of([piece])).copy()


# --- mixtures -------------------------------------------------------------------------------------


def mixture_folder(path, *, apart: bool = False):
    """The tiny mixture of Qwen3 in GPTQ with an order of its own for each expert's inputs."""
    config = CONFIGS["qwen3-moe"]
    tensors = dict(random_weights(config))
    for seed, name in enumerate([n for n in tensors if ".experts." in n]):
        module = name.removesuffix(".weight")
        stem, _, site = module.rpartition(".")
        integers = random_integers(seed, tensors.pop(name).shape, 4, 32, symmetric=True)
        shared = hash_of(stem) + (0 if site != "down_proj" else 1) + (apart and site == "up_proj")
        packed = (
            gptq(shuffled(integers, shared)) if integers.scales.shape[1] > 1 else gptq(integers)
        )
        tensors |= {f"{module}.{part}": array for part, array in packed.items()}
    stated = gptq_config(desc_act=True)
    return write_folder(path, {**config, "quantization_config": stated}, tensors)


def hash_of(text: str) -> int:
    return 10 * int("".join(c for c in text if c.isdigit()))


@pytest.mark.parametrize("activations", [Activations.INT8, Activations.TOKEN, Activations.BF16])
def test_experts_gather_their_inputs(tmp_path, activations):
    path = mixture_folder(tmp_path / "m")
    settings = replace(PLAIN, activations=activations, cache_type=CacheType.F32)
    with open_model(path) as source:
        formats = {source.info(s).format.name for s in source.slots if ".experts." in s}
    assert "int4-g32-order" in formats
    native = logits(path, settings)
    reference = logits(path, replace(settings, executor="reference", threads=None))
    exact = activations is Activations.BF16
    # The median: an expert taken for another, where a code flips, moves a row by far more.
    error = np.abs(native - reference).max(axis=1)
    assert np.median(error) < (1e-3 if exact else 5e-2) * reference.std()
    assert same_bits(native, logits(path, replace(settings, threads=1)))


def test_gate_and_up_of_different_orders_are_refused(tmp_path):
    with pytest.raises(KernelError, match="lie in different orders; requantize"):
        logits(mixture_folder(tmp_path / "m", apart=True))


# --- artefacts and exports ------------------------------------------------------------------------


def kept(path, out):
    """An artefact with the layers as they are and the input table in 8 bits."""
    rules = (Rule(role=Role.LINEAR, format=KEEP), Rule(role=Role.EMBEDDING, format="int8-row"))
    recipe = Recipe(name="t", method="rtn", rules=rules)
    with open_model(path) as source:
        quantize(source, recipe, out)
    return out


def test_an_artefact_keeps_the_order(folder, tmp_path):
    out = kept(folder, tmp_path / "artefact")
    with open_model(folder) as before, open_model(out) as source:
        assert source.info("layers.0.q.weight").format.name == "int4-g32-order"
        for slot in (s for s in source.slots if s.startswith("layers.")):
            one, other = before.read(slot), source.read(slot)
            assert one.spec == other.spec and np.array_equal(decode(one), decode(other))
    assert np.isfinite(logits(out)).all()


@pytest.mark.parametrize("change", [lambda o: o[:1].repeat(len(o)), lambda o: o - 1])
def test_an_artefact_with_a_damaged_order_is_refused(folder, tmp_path, change):
    out = kept(folder, tmp_path / "artefact")
    file = out / "model.safetensors"
    with SafetensorsFile(file) as read:
        stored = read.header.tensors[f"{Q}.weight.order"]
    raw = bytearray(file.read_bytes())
    begin, size = stored.place
    order = np.frombuffer(raw[begin : begin + size], "<i4")
    raw[begin : begin + size] = change(order).astype("<i4").tobytes()
    file.write_bytes(raw)
    with pytest.raises(BadFileError, match="does not have every column once"):
        open_model(out)


@pytest.mark.parametrize("to", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("through", ["folder", "artefact"])
def test_gptq_files_come_back_as_they_were(folder, tmp_path, to, through):
    source = folder if through == "folder" else kept(folder, tmp_path / "artefact")
    record = exported(source, tmp_path / "out", to)
    changed = [t for t in record.changed if t.slot.startswith("layers.")]
    assert changed == [] and quantization(tmp_path / "out")["desc_act"] is True
    names = ("qweight", "scales", "g_idx") + (("qzeros",) if to == "gptq" else ())
    file = "model.safetensors"
    with SafetensorsFile(folder / file) as one, SafetensorsFile(tmp_path / "out" / file) as other:
        for name in names:
            stored = [np.array(f.read(f"{Q}.{name}").codes) for f in (one, other)]
            assert np.array_equal(*stored), name
    if through == "folder":
        assert_equal_models(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("to", "form"),
    [
        ("compressed-tensors", "int4-g32"),
        ("awq", "int4-g32-asym"),
        ("torchao", "int4-g32"),
        ("gguf", "q8_0"),
        ("hf", "bf16"),
    ],
)
def test_other_targets_say_what_it_costs(folder, to, form):
    with open_model(folder) as source:
        planned = plan_export(source, find_target(to, ExportSettings()))
    found = {t.slot: t for t in planned.record.tensors}["layers.0.q.weight"]
    assert found.format == form and found.reason == "int4-g32-order is not held"
    assert 0.001 < found.expected_error < (0.2 if to != "hf" else 0.004)
