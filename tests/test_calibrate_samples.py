"""What a model writes by itself."""

import numpy as np
import pytest
from fakes import FakeExecutor
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.calibrate.samples import (
    SampleSettings,
    Writer,
    pages_of,
    write_samples,
    writing_executor,
)
from fewbit.errors import NumericalError
from fewbit.model.pieces import Piece, step_of
from fewbit.model.weights import open_model
from fewbit.sampling import SamplingParams, distribution

OPENINGS = ((1, 2, 3), (4,), (5, 6))


def samples(windows=7, length=150, *, executor=None, **changed):
    settings = SampleSettings(windows=windows, length=length, **changed)
    runs = executor or FakeExecutor(pages=pages_of(settings))
    return write_samples(Writer(runs, 28, frozenset({9})), OPENINGS, settings)


def test_windows_are_full_and_keep_to_the_vocabulary():
    found = samples()
    assert [len(window) for window in found] == [150] * 7
    assert all(window.dtype == np.int32 and window.max() < 28 for window in found)


def test_the_batch_changes_nothing():
    for one, other in zip(samples(batch=32), samples(batch=2), strict=True):
        assert np.array_equal(one, other)


def test_another_seed_writes_something_else():
    assert not np.array_equal(samples()[0], samples(seed=1)[0])


def test_the_next_opening_follows_where_a_text_ends():
    for number, window in enumerate(samples()):
        ends = np.flatnonzero(window == 9)
        assert len(ends)
        following = OPENINGS[(number + 1) % 3]
        place = ends[0] + 1
        assert tuple(window[place : place + len(following)]) == following


def test_tokens_follow_the_models_own_distribution():
    """Counts of the first drawn token against its probability.

    With n = 600 draws a count deviates by at most sqrt(n p (1 - p)); five of these are never
    reached by 28 tokens. The control is the uniform distribution, which must fail that.
    """
    drawn = np.array([window[3] for window in samples(windows=600, length=4)[::3]])
    executor = FakeExecutor(pages=1)
    piece = Piece(
        np.array(OPENINGS[0], np.int32), 0, np.zeros(1, np.int32), np.array([2], np.int32)
    )
    wanted = distribution(executor.step(step_of([piece]))[0], SamplingParams(), vocabulary=28)
    counts, n = np.bincount(drawn, minlength=28), len(drawn)

    def worst(probabilities):
        spread = np.sqrt(n * probabilities * (1 - probabilities)) + 1
        return np.max(np.abs(counts - n * probabilities) / spread)

    assert worst(wanted[:28]) < 5
    assert worst(np.full(28, 1 / 28)) > 5


def test_a_logit_that_is_not_finite_is_said():
    class Broken(FakeExecutor):
        def step(self, step):
            return super().step(step) * np.float32(np.nan)

    with pytest.raises(NumericalError, match="wrote calibration text"):
        samples(executor=Broken(pages=64))


def test_a_real_model_writes_with_rounded_matrices(tmp_path):
    config = CONFIGS["llama-tied"]
    folder = write_huggingface(tmp_path / "m", config, random_weights(config))
    settings = SampleSettings(windows=3, length=70, batch=2)
    with open_model(folder) as source:
        executor = writing_executor(source, pages_of(settings), 1)
        found = write_samples(Writer(executor, 320, frozenset()), OPENINGS, settings)
    assert len(found) == 3 and all(len(window) == 70 for window in found)
