from dataclasses import fields

import numpy as np
import pytest
from tiny_models import CONFIGS, weight_shapes

from fewbit.model.decoder import build_program, slot_shapes
from fewbit.model.families import FAMILIES, expert_of, gguf_name, huggingface_name
from fewbit.model.huggingface import from_huggingface
from fewbit.program import Attention, CacheType, Linear, Mixture, RmsNorm, Rope, RopeTable, Softcap

each_config = pytest.mark.parametrize("name", CONFIGS)


def program_of(name, **changes):
    return build_program(from_huggingface({**CONFIGS[name], **changes}))


@each_config
def test_every_buffer_is_written_once_and_before_it_is_read(name):
    program = program_of(name)
    written = set()
    for op in program.ops:
        assert set(program.inputs(op)) <= written
        assert op.out not in written
        written.add(op.out)
    assert written == set(program.widths)
    assert program.logits in written


@each_config
def test_every_buffer_but_the_logits_is_read(name):
    program = program_of(name)
    read = {buffer for op in program.ops for buffer in program.inputs(op)}
    assert set(program.widths) - read == {program.logits}


@each_config
def test_widths_agree_between_ops(name):
    program = program_of(name)
    shapes = slot_shapes(from_huggingface(CONFIGS[name]))
    widths = program.widths
    for op in program.ops:
        match op:
            case Linear():
                assert shapes[op.weight] == (widths[op.out], widths[op.x])
            case RmsNorm():
                assert widths[op.out] == widths[op.x]
                assert widths[op.x] % op.width == 0
            case Rope():
                assert widths[op.table] == op.head_dim
            case RopeTable():
                assert widths[op.out] == 2 * len(op.frequencies)
            case Attention():
                assert widths[op.q] == widths[op.out] == op.heads * op.head_dim
                assert widths[op.k] == widths[op.v] == op.kv_heads * op.head_dim
            case Mixture():
                width = shapes[op.experts[0].gate][0]
                assert widths[op.x] == widths[op.out]
                assert widths[op.router] == len(op.experts)
                for expert in op.experts:
                    assert shapes[expert.gate] == shapes[expert.up] == (width, widths[op.x])
                    assert shapes[expert.down] == (widths[op.out], width)
            case _:
                assert all(widths[name] == widths[op.out] for name in program.inputs(op))


@each_config
def test_slots_are_exactly_the_stored_tensors(name):
    config = from_huggingface(CONFIGS[name])
    family = FAMILIES[config.family]
    shapes = slot_shapes(config)
    assert tuple(shapes) == build_program(config).slots()
    named = {huggingface_name(family, slot): shape for slot, shape in shapes.items()}
    stored = {n: s if len(s) == 2 else (1, *s) for n, s in weight_shapes(CONFIGS[name]).items()}
    assert named == stored
    single = [slot for slot in shapes if expert_of(slot) is None]
    shared = {gguf_name(slot) for slot in shapes.keys() - single}
    mixtures = sum(config.has_mixture(layer) for layer in range(config.layers))
    assert len({gguf_name(slot) for slot in single} | shared) == len(single) + 3 * mixtures


def test_a_tied_model_has_one_table():
    program = program_of("llama-tied")
    head = program.ops[-1]
    assert isinstance(head, Linear)
    assert head.weight == "embed.weight"
    assert "head.weight" not in program.slots()


def test_gemma_has_two_rope_tables_and_windows_by_layer():
    program = program_of("gemma3")
    assert [op.site for op in program.ops if isinstance(op, RopeTable)] == ["local_rope", "rope"]
    windows = [op.window for op in program.ops if isinstance(op, Attention)]
    assert windows == [8, None, 8, None]
    tables = [op.table for op in program.ops if isinstance(op, Rope)]
    assert tables == ["local_rope", "local_rope", "rope", "rope"] * 2


def test_soft_caps_only_where_the_configuration_has_them():
    assert not any(isinstance(op, Softcap) for op in program_of("gemma3").ops)
    program = program_of("gemma3", final_logit_softcapping=5.0, attn_logit_softcapping=7.0)
    assert isinstance(program.ops[-1], Softcap)
    assert {op.softcap for op in program.ops if isinstance(op, Attention)} == {7.0}


def test_the_same_configuration_gives_the_same_program():
    assert program_of("qwen3") == program_of("qwen3")
    assert program_of("qwen3").cache_type is CacheType.F16


def test_ops_are_values():
    for op in program_of("gemma3").ops:
        for field in fields(op):
            assert not isinstance(getattr(op, field.name), np.ndarray)
