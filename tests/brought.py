"""That an axis brings no slice and no finding but those that it says it can bring."""

from __future__ import annotations

from fewbit.evaluate.axis import Axis
from fewbit.records.measurement import AxisResult


def as_said(axis: Axis, result: AxisResult) -> AxisResult:
    """Return a result of the axis, whose names and measures are held to `Axis.brings`."""
    possible = axis.brings
    for one in result.slices:
        assert possible.slices[one.name] is one.measure, one.name
    assert {finding.name for finding in result.findings} <= {*possible.findings}
    return result
