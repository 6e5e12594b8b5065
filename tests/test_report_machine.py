"""The axes of the machine as blocks: what stands out is shown, the rest is counted."""

import sample_machine as sample
from any_record import any_record

from fewbit.records.scan import ScanDetails
from fewbit.report.details import Bars, Curves, Distributions, Facts, Table
from fewbit.report.machine import MOST_SITES, machine_blocks


def tables(blocks):
    return {block.title: block for block in blocks if isinstance(block, Table)}


def test_memory_stands_side_by_side_with_its_peaks_as_bars():
    facts, bars, arms, fits = machine_blocks(sample.memory())
    assert isinstance(facts, Facts)
    assert isinstance(bars, Bars)
    names = [bar.name for bar in bars.bars]
    assert names[:2] == ["1 at once, source", "1 at once, candidate"]
    assert [bar.arm for bar in bars.bars] == [0, 1] * 3
    assert arms.headings == ("", "source", "candidate")
    assert arms.rows[0] == ("weights, counted", "98.0 MB", "58.8 MB")
    assert fits.rows[0][-1] == "491.0 MB, 1.02 of it"


def test_of_numerics_what_overflows_comes_first_then_the_largest_outliers():
    blocks = machine_blocks(sample.numerics())
    assert any(isinstance(block, Curves) for block in blocks)
    sites = tables(blocks)["Sites with the largest outliers"]
    assert sites.rows[0][:2] == ("0", "v (value)")
    assert len(sites.rows) == MOST_SITES
    assert sites.left_out == 120 - MOST_SITES


def test_speeds_have_a_column_for_each_arm_and_concurrency():
    blocks = machine_blocks(sample.speed())
    rates = tables(blocks)["Rates"]
    assert rates.headings == ("Arm", *(["source", "candidate"] * 3))
    assert rates.rows[0] == ("Sequences", "1", "1", "4", "4", "16", "16")
    assert rates.rows[5][:3] == ("Gap median", "1.8 ms", "1.08 ms")
    assert any(isinstance(block, Distributions) for block in blocks)
    assert tables(blocks)["Tasks"].folded


def test_kernels_are_kinds_reads_and_a_folded_list():
    found = tables(machine_blocks(sample.kernels()))
    assert list(found) == ["Kinds", "Reads", "Matrices"]
    assert found["Matrices"].folded


def test_a_scan_leaves_its_tensors_to_the_chart_of_layers():
    assert "Tensors" not in tables(machine_blocks(any_record(ScanDetails)))
