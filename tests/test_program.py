"""What a Program knows about itself."""

from __future__ import annotations

from fewbit.program import OUTSIDE, Add, Attention, Linear, Program


def _program() -> Program:
    ops = (
        Linear(layer=0, site="q", out="q", x="x", weight="layers.0.q.weight", bias="b"),
        Add(layer=0, site="residual", out="y", x="x", y="q"),
        Linear(layer=OUTSIDE, site="logits", out="z", x="y", weight="layers.0.q.weight"),
    )
    widths = {"x": 4, "q": 4, "y": 4, "z": 4}
    return Program(ops, widths, logits="z", layers=1, vocabulary=4, context=8)


def test_inputs_are_the_buffers_an_op_reads() -> None:
    program = _program()
    assert program.inputs(program.ops[0]) == ("x",)
    assert program.inputs(program.ops[1]) == ("x", "q")
    attention = Attention(
        layer=0, site="a", out="o", q="q", k="k", v="v", heads=1, kv_heads=1, head_dim=4, scale=1.0
    )
    assert program.inputs(attention) == ("q", "k", "v")


def test_slots_come_once_in_order() -> None:
    assert _program().slots() == ("layers.0.q.weight", "b")
