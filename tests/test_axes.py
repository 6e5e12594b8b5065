"""Axes by name."""

import pytest

from fewbit.errors import UsageError
from fewbit.evaluate.axes import AXES, AxisOptions, axes_named


def names(*chosen, **options):
    return [axis.name for axis in axes_named(chosen, AxisOptions(**options))]


def test_every_axis_is_made_under_its_own_name():
    assert names("all") == list(AXES)
    assert len(AXES) == 9


def test_axes_run_in_one_order_each_once():
    assert names("kernels", "language", "kernels") == ["language", "kernels"]


def test_what_runs_by_default_depends_on_what_can():
    assert names() == ["language", "kernels", "numerics"]
    assert names(executor="reference") == ["language"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("langauge", "no axis 'langauge'; did you mean language"),
        ("qqq", "no axis 'qqq'; there are language, tasks"),
    ],
)
def test_an_unknown_name_is_refused_with_near_ones(name, message):
    with pytest.raises(UsageError, match=message):
        names("speed", name)


def test_a_suite_that_no_axis_reads_is_refused(tmp_path):
    with pytest.raises(UsageError, match="No axis that is measured reads the suite"):
        names("language", "speed", suite=tmp_path)
