import math

import pytest
from tiny_models import CONFIGS

from fewbit.errors import BadFileError, FewbitError, MissingError, UnsupportedError
from fewbit.model.huggingface import from_huggingface, to_huggingface
from fewbit.model.rope import RopeConfig, RopeScaling, ScalingKind


@pytest.mark.parametrize("name", CONFIGS)
def test_a_written_configuration_reads_back_equal(name):
    config = from_huggingface(CONFIGS[name])
    assert from_huggingface(to_huggingface(config)) == config


def test_defaults_are_those_of_transformers():
    config = from_huggingface(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "vocab_size": 320,
            "max_position_embeddings": 128,
        }
    )
    assert (config.kv_heads, config.head_dim, config.eps) == (4, 16, 1e-6)
    assert config.rope == RopeConfig(10_000.0)
    assert not config.tied
    assert not config.qkv_bias


def test_gemma_switches():
    config = from_huggingface(CONFIGS["gemma3"])
    assert config.windows == (8, None, 8, None)
    assert config.rope_of(0).theta == 500.0
    assert config.rope_of(1).theta == 1_000_000.0
    assert config.norm_offset == 1.0
    assert config.tied
    assert config.embed_scale == 8.0
    assert config.attention_scale == pytest.approx(1 / math.sqrt(32))


def test_scaling_of_gemma_is_for_layers_without_a_window():
    config = from_huggingface(CONFIGS["gemma3-scaled"])
    assert config.rope.scaling == RopeScaling(ScalingKind.LINEAR, 8.0)
    assert config.local_rope == RopeConfig(500.0)


def test_rope_parameters_of_version_5_equal_the_older_fields():
    old = CONFIGS["gemma3-scaled"]
    new = {k: v for k, v in old.items() if k not in ("rope_scaling", "rope_local_base_freq")}
    new["rope_parameters"] = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
    }
    assert from_huggingface(new) == from_huggingface(old)


def test_mistral_windows():
    without = {k: v for k, v in CONFIGS["mistral"].items() if k != "sliding_window"}
    assert from_huggingface(CONFIGS["mistral"]).windows == (16,) * 3
    assert from_huggingface({**without, "sliding_window": None}).windows == (None,) * 3
    assert from_huggingface(without).windows == (4096,) * 3


def test_qwen_windows_start_at_a_layer():
    sliding = {"use_sliding_window": True, "sliding_window": 32, "max_window_layers": 1}
    assert from_huggingface({**CONFIGS["qwen2"], **sliding}).windows == (None, 32, 32)
    listed = {**sliding, "layer_types": ["sliding_attention", "full_attention", "full_attention"]}
    assert from_huggingface({**CONFIGS["qwen2"], **listed}).windows == (32, None, None)


REFUSED = [
    ({"architectures": ["FalconForCausalLM"]}, UnsupportedError, "'FalconForCausalLM'"),
    ({"architectures": "LlamaForCausalLM"}, BadFileError, "architectures"),
    ({"architectures": None, "model_type": "gpt2"}, UnsupportedError, "'gpt2' is not supported"),
    ({"architectures": None, "model_type": None}, MissingError, "model_type"),
    ({"num_local_experts": 8}, UnsupportedError, "num_local_experts is 8"),
    ({"num_experts": "many"}, BadFileError, "num_experts is 'many'"),
    ({"hidden_size": -64}, BadFileError, "hidden_size is -64"),
    ({"hidden_size": 64.0}, BadFileError, "hidden_size is 64.0"),
    ({"hidden_size": True}, BadFileError, "hidden_size is True"),
    ({"hidden_size": None}, MissingError, "hidden_size"),
    ({"hidden_size": 65}, BadFileError, "multiple of num_attention_heads"),
    ({"num_attention_heads": 0}, BadFileError, "num_attention_heads is 0"),
    ({"num_key_value_heads": 3}, BadFileError, "4 query heads and 3 key heads"),
    ({"num_hidden_layers": 1 << 31}, BadFileError, "num_hidden_layers is 2147483648"),
    ({"vocab_size": 1 << 40}, BadFileError, "vocab_size"),
    ({"max_position_embeddings": 0}, BadFileError, "max_position_embeddings is 0"),
    ({"rms_norm_eps": math.nan}, BadFileError, "rms_norm_eps is nan"),
    ({"rms_norm_eps": "1e-5"}, BadFileError, "rms_norm_eps"),
    ({"head_dim": 15}, UnsupportedError, "head_dim is 15"),
    ({"hidden_act": "gelu"}, UnsupportedError, "hidden_act is 'gelu'"),
    ({"tie_word_embeddings": 1}, BadFileError, "tie_word_embeddings is 1"),
    ({"rope_theta": 0}, BadFileError, "rope_theta is 0"),
    ({"rope_theta": 1.0}, BadFileError, "rope_theta is 1.0"),
    ({"rope_scaling": []}, BadFileError, "rope_scaling"),
    ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, UnsupportedError, "kind 'dynamic'"),
    ({"rope_scaling": {"rope_type": "linear"}}, MissingError, "factor"),
    ({"rope_scaling": {"rope_type": "linear", "factor": -1}}, BadFileError, "factor is -1"),
    ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, MissingError, "low_freq_factor"),
    ({"partial_rotary_factor": 0.5}, UnsupportedError, "partial_rotary_factor is 0.5"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused_with_field_and_value(changes, kind, text):
    with pytest.raises(kind) as caught:
        from_huggingface({**CONFIGS["llama"], **changes})
    assert text in str(caught.value)


@pytest.mark.parametrize("field", [*CONFIGS["gemma3-scaled"], "layer_types", "rope_parameters"])
@pytest.mark.parametrize("value", [-1, 0, 1 << 80, "x", [], {}, [None] * 4, math.inf, {"a": {}}])
def test_no_value_of_any_field_escapes_as_another_error(field, value):
    try:
        from_huggingface({**CONFIGS["gemma3-scaled"], field: value})
    except FewbitError as error:
        assert len(str(error)) < 400


def test_layer_types_are_checked():
    with pytest.raises(BadFileError, match="list of 4 names"):
        from_huggingface({**CONFIGS["gemma3"], "layer_types": ["full_attention"]})
    with pytest.raises(UnsupportedError, match="linear_attention"):
        from_huggingface({**CONFIGS["gemma3"], "layer_types": ["linear_attention"] * 4})


def test_the_supported_architectures_are_listed():
    with pytest.raises(UnsupportedError) as caught:
        from_huggingface({**CONFIGS["llama"], "architectures": ["X"]})
    assert str(caught.value) == (
        "architecture 'X' is not supported; supported: Gemma3ForCausalLM, LlamaForCausalLM, "
        "MistralForCausalLM, MixtralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM, "
        "Qwen3MoeForCausalLM."
    )
