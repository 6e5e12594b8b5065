"""What of tuning works, or refuses, without torch."""

import importlib.util

import numpy as np
import pytest

from fewbit.errors import MissingError, UsageError
from fewbit.tune import Tuned, TuneSettings, TuneText, require_torch


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, "steps is 0"),
        ({"batch": -1}, "batch is -1"),
        ({"rate": 0.0}, "rate is 0.0"),
        ({"rate": float("nan")}, "rate is nan"),
        ({"code_rate": 2.0}, "code_rate is 2.0"),
        ({"warmup": 1.0}, "warmup is 1.0"),
        ({"hidden": -1.0}, "hidden is -1.0"),
    ],
)
def test_settings_out_of_range_are_refused(changes, said):
    with pytest.raises(UsageError, match=said):
        TuneSettings(**changes)


def test_steps_have_an_end():
    assert TuneSettings(steps=10**6).steps == 10**6
    with pytest.raises(UsageError, match="steps is 1000001; there are at most 1000000"):
        TuneSettings(steps=10**6 + 1)


def test_masks_must_fit_their_windows():
    with pytest.raises(UsageError, match="1 masks do not fit the 2 windows"):
        TuneText([np.zeros(4, np.int32)] * 2, [np.ones(4, np.bool_)])


def test_without_torch_tuning_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"pip install 'fewbit\[torch\]'"):
        require_torch()


def test_what_can_be_tuned():
    assert [what.value for what in Tuned] == ["scales", "rounding", "weights"]
