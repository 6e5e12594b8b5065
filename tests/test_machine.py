"""What the machine can do: that everything is read, counted and refused as said; never how fast."""

import pytest

from fewbit import _native
from fewbit.errors import KernelError, UsageError
from fewbit.runtime import machine
from fewbit.runtime.chooser import ISAS
from fewbit.runtime.machine import ReadProbe, measure_integer_peaks, size_beyond_caches
from fewbit.runtime.memory import Available

CHUNK = 1 << 21


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("size", [1, CHUNK, 3 * CHUNK + 5])
def test_every_word_is_read_once(threads, size):
    buffer = _native.ReadBuffer(size, threads)
    assert buffer.nbytes == -(-size // CHUNK) * CHUNK
    # Every word is 1: a chunk left out or read twice would change the sum by its words.
    expected = buffer.nbytes // 4
    for isa in _native.available_isas():
        seconds, total = buffer.read(isa)
        assert total == expected
        assert seconds > 0


def test_a_probe_gives_bytes_per_second_and_says_what_it_reads():
    probe = ReadProbe(4 * CHUNK, 2)
    assert probe.bytes == 4 * CHUNK
    assert probe.huge_bytes >= 0
    assert probe.measure() > 0


@pytest.mark.parametrize(("size", "threads"), [(CHUNK, 0), (CHUNK, 5000), (1 << 62, 1)])
def test_what_cannot_be_measured_is_refused(size, threads):
    with pytest.raises(UsageError, match=f"Reading {size} bytes with {threads} threads"):
        ReadProbe(size, threads)


def test_a_buffer_beyond_the_caches_is_as_large_as_the_model_and_memory_allow(monkeypatch):
    def plant(available):
        monkeypatch.setattr(machine, "available_memory", lambda: Available(available, "planted"))

    for much in (100 << 30, None):
        plant(much)
        assert size_beyond_caches(5) == 3 << 29
        assert size_beyond_caches(3 << 30) == 3 << 30
    plant(1 << 30)
    assert size_beyond_caches(3 << 30) == 1 << 29


def test_each_instruction_set_has_its_own_units():
    for isa in _native.available_isas():
        found = measure_integer_peaks(2, isa)
        assert [peak.isa for peak in found] == (["amx", "avx512vnni"] if isa == "amx" else [isa])
        assert all(peak.operations_per_second > 0 for peak in found)
    assert measure_integer_peaks(1)[0].isa == _native.available_isas()[0]


def test_an_instruction_set_that_is_not_here_is_refused():
    for isa in ("mmx", *set(ISAS).difference(_native.available_isas())):
        with pytest.raises(KernelError):
            measure_integer_peaks(1, isa)
    with pytest.raises(UsageError, match="0 threads"):
        measure_integer_peaks(0)
