"""A filter that chooses nothing is an error that names it and near matches (torchtitan #3199)."""

from __future__ import annotations

import functools

import pytest

from fewbit.api.filters import filter_name, near_matches, require_filter, require_some
from fewbit.errors import UsageError

LAYERS = [
    f"model.layers.{i}.{site}"
    for i in range(2)
    for site in ("self_attn.q_proj", "self_attn.v_proj", "mlp.up_proj")
] + ["lm_head"]
WANTED = "up_porj"


def only_attention(_module, fqn):
    """Choose what this docstring does not decide: lm_haed."""
    return "self_atn" in fqn


def with_default(_module, fqn, part="mpl"):
    return part in fqn


def of_a_layer(wanted, _module, fqn):
    return fqn in wanted


class Chooser:
    def __init__(self, part):
        self.part = part

    def __call__(self, _module, fqn):
        return self.part in fqn

    def method(self, _module, fqn):
        return "q_prj" in fqn


def closing_over(part):
    return lambda _module, fqn: part in fqn


@pytest.mark.parametrize(
    ("filter_fn", "near"),
    [
        (only_attention, "self_attn"),
        (with_default, "mlp"),
        (
            functools.partial(of_a_layer, {"model.layers.0.mlp.up_poj"}),
            "model.layers.0.mlp.up_proj",
        ),
        (functools.partial(of_a_layer, wanted=["lm_haed"]), "lm_head"),
        (lambda _module, fqn: fqn.endswith(".v_porj"), "v_proj"),
        (closing_over("q_pro"), "q_proj"),
        (Chooser("").method, "q_proj"),
        (Chooser("up_porj"), "up_proj"),
    ],
)
def test_near_matches_of_what_a_filter_looks_for(filter_fn, near):
    assert near in near_matches(filter_fn, LAYERS)
    with pytest.raises(UsageError, match=f"none of the 7 linear layers; did you mean .*{near}"):
        require_some([], LAYERS, filter_fn)


def test_a_filter_that_tells_nothing_is_offered_a_name():
    with pytest.raises(UsageError, match=r"one is called model\.layers\.0\.self_attn\.q_proj"):
        require_some([], LAYERS, lambda module, fqn: module is fqn)
    assert near_matches(Chooser("x"), LAYERS) == []


def test_a_right_name_is_no_near_match_of_itself():
    assert near_matches(lambda _module, fqn: fqn == "lm_head", LAYERS) == []


def test_a_filter_is_called_what_a_user_calls_it():
    assert filter_name(only_attention) == "'only_attention'"
    assert "test_api_filters.py, line" in filter_name(lambda module, fqn: False)
    assert filter_name(Chooser("x")) == "'Chooser'"
    assert filter_name(Chooser("x").method) == "'Chooser.method'"
    assert "of_a_layer" in filter_name(functools.partial(of_a_layer, []))


def test_a_model_without_layers_says_so():
    with pytest.raises(UsageError, match="no linear layer that is not quantized"):
        require_some([], [], None)


def test_something_chosen_is_fine():
    require_some(["lm_head"], LAYERS, only_attention)


@pytest.mark.parametrize("filter_fn", ["self_attn", 3, ["lm_head"]])
def test_what_cannot_be_called_is_no_filter(filter_fn):
    with pytest.raises(UsageError, match="filter_fn is of type"):
        require_filter(filter_fn)
