"""Resident memory as the system counts it: this process' own, not its parent's."""

import subprocess
import sys

import numpy as np

from fewbit.evaluate.machine import resident

MEGABYTE = 1 << 20
SAY = "from fewbit.evaluate.machine.resident import peak_memory; print(peak_memory())"


def test_a_child_does_not_begin_with_what_its_parent_had():
    held = np.ones(400 * MEGABYTE, np.int8)
    command = [sys.executable, "-c", SAY]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert MEGABYTE < int(said) < held.nbytes
    assert resident.peak_memory() > held.nbytes


def test_the_peak_is_at_least_what_there_is():
    now = resident.resident("VmRSS")
    assert 0 < now <= resident.peak_memory()


def test_a_figure_that_is_not_kept_is_none(tmp_path, monkeypatch):
    assert resident.resident("VmNone") is None
    monkeypatch.setattr(resident, "PROCESSES", tmp_path / "none")
    assert resident.peak_memory() > MEGABYTE  # as getrusage has it
