"""The memory plan of tuning, on the sizes of a model with one and a half billion weights."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.formats.registry import F32, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.model.decoder import build_program, slot_shapes
from fewbit.model.huggingface import from_huggingface
from fewbit.runtime.memory import Available
from fewbit.tune import Tuned, TuneSettings
from fewbit.tune.memory import plan

CONFIG = from_huggingface(
    {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151936,
        "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
)
GIGABYTE = 10**9


def planned(what, available, name="q4_k", positions=2048, **changes):
    form = parse_format(name)
    start = {
        slot: QuantTensor(F32 if shape[0] == 1 else form, shape, np.empty((shape[0], 0), np.uint8))
        for slot, shape in slot_shapes(CONFIG).items()
    }
    settings = TuneSettings(what=what, **changes)
    program = build_program(CONFIG)
    return plan(program, start, settings, positions, Available(available, "left"))


@pytest.mark.parametrize("what", Tuned)
def test_a_billion_and_a_half_fit_in_20_gb_with_layers_computed_again(what):
    memory, recompute = planned(what, 20 * GIGABYTE, recompute=True)
    assert recompute
    assert memory.needed < 20 * GIGABYTE
    # One byte a code, two of residual and moment each, two of gradient: 7 for 1.54e9 weights.
    least = 1.5e9 * (1 if what is Tuned.SCALES else 7)
    assert memory.codes + memory.state > least


def test_layers_are_computed_again_only_where_memory_asks_for_it():
    roomy, kept = planned(Tuned.SCALES, 64 * GIGABYTE)
    tight, again = planned(Tuned.SCALES, 9 * GIGABYTE)
    assert (kept, again) == (False, True)
    assert tight.needed < 9 * GIGABYTE < roomy.needed
    unknown, kept = planned(Tuned.SCALES, None)
    assert not kept
    assert unknown.available is None


def test_too_little_memory_is_refused_with_numbers_and_a_way_out():
    with pytest.raises(UsageError, match=r"Tuning weights needs .* GB .* 8\.0 GB is left; .*batch"):
        planned(Tuned.WEIGHTS, 8 * GIGABYTE)
    with pytest.raises(UsageError, match="shorten the windows"):
        planned(Tuned.SCALES, GIGABYTE, batch=1)


def test_more_positions_take_more_memory_and_larger_groups_less():
    few, many = (planned(Tuned.SCALES, None, positions=p)[0] for p in (512, 2048))
    assert few.layers < many.layers
    fine, coarse = (planned(Tuned.SCALES, None, name=n)[0] for n in ("int4-g32", "int4-g128"))
    assert coarse.state < fine.state
