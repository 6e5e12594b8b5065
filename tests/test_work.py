"""What a step reads and computes, against counts made by hand from the configuration."""

import math

import msgspec
import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.evaluate.machine.work import cache_bytes, integer_operations, weight_bytes
from fewbit.model.chosen_kernels import planned_kernels
from fewbit.model.decoder import build_program
from fewbit.model.runner import RunSettings
from fewbit.model.weights import open_model


def opened(folder, name):
    config = CONFIGS[name]
    source = open_model(write_huggingface(folder, config, random_weights(config)))
    return build_program(source.config), planned_kernels(source, RunSettings())


def as_integer(kernels):
    """Return the kernels as if all of them took int8 inputs."""
    return [msgspec.structs.replace(kernel, activations="int8-g32") for kernel in kernels]


def matrix_weights(config):
    """Return the weights of all layers' matrices, and of the head."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    width = config.get("head_dim", hidden // heads)
    attention = hidden * width * (2 * heads + 2 * config["num_key_value_heads"])
    layer = attention + 3 * hidden * config["intermediate_size"]
    return config["num_hidden_layers"] * layer, config["vocab_size"] * hidden


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gemma3"])
def test_operations_are_two_a_weight_and_the_head_runs_for_the_wanted_rows(tmp_path, name):
    program, kernels = opened(tmp_path, name)
    layers, head = matrix_weights(CONFIGS[name])
    assert integer_operations(program, as_integer(kernels), 7, 3) == 2 * (7 * layers + 3 * head)


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_a_row_passes_the_chosen_experts_and_reads_their_share(tmp_path, name):
    config = CONFIGS[name]
    program, kernels = opened(tmp_path, name)
    experts = config.get("num_local_experts") or config["num_experts"]
    used, width = (
        config["num_experts_per_tok"],
        config.get("moe_intermediate_size", config["intermediate_size"]),
    )
    of_experts = [k for k in kernels if ".experts." in k.slot]
    matrix = config["hidden_size"] * width
    operations = 2 * 7 * used * 3 * matrix * config["num_hidden_layers"]
    assert integer_operations(program, as_integer(of_experts), 7, 1) == operations
    every, table = (sum(k.bytes for k in ks) for ks in (of_experts, kernels[:1]))
    rest = sum(k.bytes for k in kernels) - every - table
    assert weight_bytes(program, kernels) == rest + every * used // experts


def test_float_kernels_do_no_integer_operations(tmp_path):
    program, kernels = opened(tmp_path, "llama")
    assert integer_operations(program, kernels, 7, 3) == 0
    one = [as_integer([k])[0] if k.slot.startswith("layers.0.q") else k for k in kernels]
    assert integer_operations(program, one, 7, 3) == 2 * 7 * 64 * 64


def test_an_input_table_of_its_own_is_not_read_and_a_shared_one_is(tmp_path):
    program, kernels = opened(tmp_path / "own", "llama")
    table = next(k.bytes for k in kernels if "embed" in k.slot)
    assert weight_bytes(program, kernels) == sum(k.bytes for k in kernels) - table
    program, kernels = opened(tmp_path / "shared", "llama-tied")
    assert weight_bytes(program, kernels) == sum(k.bytes for k in kernels)


def test_a_window_bounds_what_a_layer_reads(tmp_path):
    program, _ = opened(tmp_path, "gemma3")  # 4 layers, every second one with a window of 8
    assert cache_bytes(program, 400.0, 8) == 8 * 400
    assert cache_bytes(program, 400.0, 100) == 2 * 8 * 100 + 2 * 100 * 100
    assert math.isclose(cache_bytes(program, 400.0, 1), 400)
