import math

import pytest

from fewbit.checkpoint.checkpoint import TensorInfo
from fewbit.errors import BadFileError, FewbitError, MissingError, UnsupportedError
from fewbit.formats.registry import F32
from fewbit.model.gguf import from_gguf
from fewbit.model.huggingface import from_huggingface, to_huggingface
from fewbit.model.rope import RopeConfig, ScalingKind

LLAMA = {
    "general.architecture": "llama",
    "llama.block_count": 2,
    "llama.context_length": 256,
    "llama.embedding_length": 64,
    "llama.feed_forward_length": 96,
    "llama.attention.head_count": 4,
    "llama.attention.head_count_kv": 2,
    "llama.attention.layer_norm_rms_epsilon": 9.999999974752427e-07,
    "llama.rope.freq_base": 5000.0,
}
EMBEDDING = {"token_embd.weight": TensorInfo("token_embd.weight", F32, (320, 64), 320 * 64 * 4)}


def gemma(**changes):
    keys = {
        k.replace("llama", "gemma3"): v for k, v in LLAMA.items() if k != "general.architecture"
    }
    keys |= {"general.architecture": "gemma3", "gemma3.attention.sliding_window": 8}
    return keys | {f"gemma3.{k}": v for k, v in changes.items()}


def test_a_plain_llama():
    config = from_gguf(LLAMA, EMBEDDING)
    assert (config.layers, config.heads, config.kv_heads, config.head_dim) == (2, 4, 2, 16)
    assert config.vocabulary == 320
    assert config.tied
    assert config.rope == RopeConfig(5000.0)
    assert to_huggingface(config)["rms_norm_eps"] == 1e-06


def test_the_head_and_biases_are_found_among_the_tensors():
    more = dict.fromkeys(("output.weight", "blk.0.attn_q.bias"), EMBEDDING["token_embd.weight"])
    config = from_gguf(LLAMA, {**EMBEDDING, **more})
    assert not config.tied
    assert config.qkv_bias
    assert not config.output_bias


def test_gemma_pattern_is_a_period_or_a_list():
    assert from_gguf(gemma(block_count=7), EMBEDDING).windows == (8,) * 5 + (None, 8)
    period = gemma(**{"attention.sliding_window_pattern": 2})
    assert from_gguf(period, EMBEDDING).windows == (8, None)
    listed = gemma(**{"attention.sliding_window_pattern": [False, True]})
    assert from_gguf(listed, EMBEDDING).windows == (None, 8)


def test_divisors_of_llama_3_become_its_scaling_again():
    wanted = from_huggingface(
        {
            **to_huggingface(from_gguf(LLAMA, EMBEDDING)),
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
        }
    )
    divisors = tuple(
        _llama3_divisor(2 * math.pi * 5000.0 ** (i / 16), 32.0) for i in range(0, 16, 2)
    )
    config = from_gguf(LLAMA, EMBEDDING, divisors)
    assert config.rope.scaling.kind is ScalingKind.FACTORS
    assert from_huggingface(to_huggingface(config)).rope == wanted.rope


def _llama3_divisor(wavelength: float, factor: float) -> float:
    if wavelength < 8192 / 4:
        return 1.0
    if wavelength > 8192:
        return factor
    smooth = (8192 / wavelength - 1) / 3
    return 1 / ((1 - smooth) / factor + smooth)


def test_divisors_of_no_known_scaling_cannot_be_written_for_transformers():
    config = from_gguf(LLAMA, EMBEDDING, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0))
    with pytest.raises(UnsupportedError, match=r"rope_freqs\.weight"):
        to_huggingface(config)


REFUSED = [
    (
        {"general.architecture": "bloom"},
        UnsupportedError,
        "supported: gemma3, llama, llama with experts, qwen2",
    ),
    ({"general.architecture": None}, MissingError, "general.architecture"),
    ({"llama.attention.head_count": 0}, BadFileError, "llama.attention.head_count is 0"),
    ({"llama.block_count": 1 << 31}, BadFileError, "llama.block_count is 2147483648"),
    ({"llama.embedding_length": -64}, BadFileError, "llama.embedding_length is -64"),
    ({"llama.attention.head_count_kv": [2, 2]}, BadFileError, "head_count_kv is [2, 2]"),
    ({"llama.expert_count": 8}, MissingError, "llama.expert_used_count"),
    ({"llama.expert_count": -1}, BadFileError, "llama.expert_count is -1"),
    ({"llama.rope.dimension_count": 8}, UnsupportedError, "rope.dimension_count is 8"),
    ({"llama.attention.value_length": 8}, UnsupportedError, "value_length is 8"),
    ({"llama.rope.scaling.type": "longrope"}, UnsupportedError, "'longrope'"),
    ({"llama.rope.scaling.type": "linear"}, MissingError, "llama.rope.scaling.factor"),
    ({"llama.context_length": 0}, BadFileError, "llama.context_length is 0"),
    ({"llama.attention.layer_norm_rms_epsilon": None}, MissingError, "rms_epsilon"),
]


@pytest.mark.parametrize(("changes", "kind", "text"), REFUSED)
def test_what_cannot_be_is_refused_with_key_and_value(changes, kind, text):
    with pytest.raises(kind) as caught:
        from_gguf({**LLAMA, **changes}, EMBEDDING)
    assert text in str(caught.value)


@pytest.mark.parametrize("key", [*gemma(), "gemma3.attention.sliding_window_pattern"])
@pytest.mark.parametrize("value", [-1, 0, 1 << 63, "x", b"x", [], [[]], math.nan, False])
def test_no_value_of_any_key_escapes_as_another_error(key, value):
    try:
        from_gguf({**gemma(), key: value}, EMBEDDING)
    except FewbitError as error:
        assert len(str(error)) < 400


@pytest.mark.parametrize(
    "divisors", [(1.0,), *((d,) * 8 for d in (0.0, math.nan, -1.0, 1e-40, math.inf))]
)
def test_damaged_divisors_are_refused(divisors):
    with pytest.raises(BadFileError, match=r"rope_freqs\.weight"):
        from_gguf(LLAMA, EMBEDDING, divisors)


def test_a_file_without_an_embedding_is_refused():
    with pytest.raises(MissingError, match=r"token_embd\.weight"):
        from_gguf(LLAMA, {})
