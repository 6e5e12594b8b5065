"""A file of packed weights: used where it is sound and belongs here, and never trusted."""

import json
import os
import random
import shutil

import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface
from tiny_text import write_text_files

import fewbit.model.packed
from fewbit._native import PackedFile, available_isas
from fewbit.errors import BadFileError
from fewbit.evaluate.machine.speed import SpeedSettings, measure_speed
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import built_in
from fewbit.runtime import packed_file
from fewbit.runtime.packed_file import DATA, MAGIC, packed_path, read_packed

TOKENS = np.random.default_rng(5).integers(0, 320, 20)
KEEP = RunSettings(context=64, threads=2, keep_packed=True)
PLAIN = RunSettings(context=64, threads=2)


def logits(runner):
    return np.concatenate([rows.copy() for rows in runner.score(TOKENS)])


def run(path, settings=PLAIN):
    with open_model(path) as source:
        runner = runner_of(source, settings)
        return runner.loading, logits(runner)


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A quantized folder with its packed weights beside it, and the logits without them."""
    place = tmp_path_factory.mktemp("kept")
    weights = random_weights(CONFIGS["llama"])
    with open_model(write_huggingface(place / "source", CONFIGS["llama"], weights)) as source:
        quantize(source, built_in("rtn-int4-g32"), place / "small")
    _, expected = run(place / "small")
    record, _ = run(place / "small", KEEP)
    assert record.kept
    return place / "small", expected


@pytest.fixture
def copy(kept, tmp_path):
    """A copy that a test may damage; times of writing are those of the original."""
    return shutil.copytree(kept[0], tmp_path / "small")


def test_a_second_start_maps_the_same_weights(kept):
    record, second = run(kept[0])
    assert (record.packed, record.kept, record.notes) == (str(packed_path(kept[0])), "", ())
    np.testing.assert_array_equal(second, kept[1])


@pytest.mark.parametrize("isa", available_isas())
def test_one_file_serves_every_instruction_set(kept, isa):
    record, second = run(kept[0], RunSettings(context=64, threads=1, isa=isa, strict=True))
    assert record.packed
    np.testing.assert_array_equal(second, kept[1])


def test_a_gguf_file_has_its_packed_weights_beside_it(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    first, expected = run(path, KEEP)
    assert first.kept == str(tmp_path / "m.gguf.fewbit-packed")
    second, met = run(path, KEEP)
    assert (second.packed, second.kept) == (first.kept, "")
    np.testing.assert_array_equal(met, expected)


def test_nothing_is_written_unless_asked(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    record, _ = run(path)
    assert (record.packed, record.kept, record.notes) == ("", "", ())
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.gguf"]


def test_the_reference_neither_reads_nor_writes(copy):
    packed_path(copy).unlink()
    record, _ = run(copy, RunSettings(context=64, executor="reference", keep_packed=True))
    assert (record.packed, record.kept) == ("", "")
    assert not packed_path(copy).exists()


def test_bytes_are_copied_where_the_mapping_has_small_pages(kept, monkeypatch):
    copies = []
    monkeypatch.setattr(packed_file, "_on_huge_pages", lambda file: copies.append(file) or False)
    record, second = run(kept[0])
    assert record.packed
    assert len(copies) == 1
    np.testing.assert_array_equal(second, kept[1])


# --- files that are not used --------------------------------------------------------------------


def refused(copy, words):
    """The file gives a note and nothing else; --keep-packed replaces it."""
    record, met = run(copy)
    assert record.packed == ""
    (note,) = record.notes
    assert words in note
    assert "the weights are packed again" in note
    again, _ = run(copy, KEEP)
    assert again.kept
    assert run(copy)[0].packed
    return met


def rewritten(path, change):
    content = bytearray(path.read_bytes())
    length = int.from_bytes(content[8:16], "little")
    head = change(content[16 : 16 + length].decode()).encode()
    content[8:DATA] = (len(head).to_bytes(8, "little") + head).ljust(DATA - 8, b"\0")
    path.write_bytes(content)


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda p: p.write_bytes(p.read_bytes()[:-1]), "bytes instead of"),
        (lambda p: p.write_bytes(p.read_bytes() + b"\0"), "bytes instead of"),
        (lambda p: p.write_bytes(b""), "cannot be read"),
        (lambda p: p.write_bytes(MAGIC), "fewer than any such file"),
        (lambda p: p.write_bytes(b"x" * (DATA + 64)), "does not begin"),
        (lambda p: flip(p, DATA + 100), "has other bytes for"),
        (lambda p: flip(p, p.stat().st_size - 1), "has other bytes for"),
        (lambda p: flip(p, 15), "claims a header of"),
        (lambda p: rewritten(p, lambda h: h[:-1]), "has a header that cannot be read"),
        (lambda p: rewritten(p, lambda h: "[" * 100_000), "has a header that cannot be read"),
        (lambda p: rewritten(p, lambda h: h.replace('"fewbit":"', '"fewbit":"9')), "by fewbit '9"),
        (lambda p: rewritten(p, lambda h: h.replace('"layout":', '"layout":9')), "(layout 9"),
        (lambda p: rewritten(p, lambda h: h.replace('"offset":', '"offset":9', 1)), "other matr"),
    ],
)
def test_a_damaged_file_is_told_and_not_used(copy, kept, damage, words):
    damage(packed_path(copy))
    np.testing.assert_array_equal(refused(copy, words), kept[1])


def test_a_folder_in_its_place_is_told(copy):
    packed_path(copy).unlink()
    packed_path(copy).mkdir()
    record, _ = run(copy, KEEP)
    assert len(record.notes) == 2
    assert "is no regular file" in record.notes[0]
    assert "not kept" in record.notes[1]


def test_a_pipe_in_its_place_is_told_and_not_waited_for(copy):
    path = packed_path(copy)
    path.unlink()
    os.mkfifo(path)
    assert "is no regular file" in run(copy, KEEP)[0].notes[0]
    assert path.is_file()


def test_a_model_written_anew_makes_the_file_stale(copy, kept):
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes())
    refused(copy, "another version of the model's files")


def test_another_configuration_makes_the_file_stale(copy):
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "note": 1}))
    refused(copy, "another version of the model's files")


def test_a_file_with_planted_weights_and_matching_size_is_caught(copy, kept, monkeypatch):
    """The negative control: without checksums the planted bytes would run."""
    content = np.fromfile(packed_path(copy), np.uint8)
    content[DATA + 64 :: 64] ^= 2
    content.tofile(packed_path(copy))
    assert run(copy)[0].packed == ""

    def unchecked(path, plan, threads):
        header = packed_file._read_header(PackedFile(str(path)), path)
        sums = [int(text, 16) for text in header.checksums]

        class Blind:
            def __init__(self, file):
                self._file = file

            def checksums(self, _ranges, _threads):
                return sums

            def __getattr__(self, name):
                return getattr(self._file, name)

        monkeypatch.setattr(packed_file, "_mapped", lambda p: Blind(PackedFile(str(p))))
        return read_packed(path, plan, threads)

    monkeypatch.setattr(fewbit.model.packed, "read_packed", unchecked)
    record, met = run(copy)
    assert record.packed
    assert not np.array_equal(met, kept[1])


def test_thousands_of_damaged_headers_end_in_one_kind_of_error(copy):
    path = packed_path(copy)
    content = path.read_bytes()
    with open_model(copy) as source:
        plan = packed_file._read_header(PackedFile(str(path)), path).plan
        assert source.checkpoint.stamps() == plan.files
    length = int.from_bytes(content[8:16], "little")
    generator = random.Random(11)
    refused_count = 0
    with path.open("r+b") as file:
        for _ in range(3000):
            at = generator.randrange(16 + length)
            old = content[at : at + generator.randrange(1, 9)]
            new = bytes(generator.randrange(256) for _ in old)
            file.seek(at)
            file.write(new)
            file.flush()
            try:
                read_packed(path, plan, 1)
                assert new == old
            except BadFileError as error:
                refused_count += 1
                assert str(path) in str(error)
            file.seek(at)
            file.write(old)
            file.flush()
    assert refused_count > 2900
    assert read_packed(path, plan, 1)


# --- files that cannot be written ---------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_told(copy, monkeypatch):
    packed_path(copy).unlink()

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fewbit.atomic.tempfile.mkstemp", full)
    record, _ = run(copy, KEEP)
    (note,) = record.notes
    assert "were not kept" in note
    assert "No space left on device" in note
    assert record.kept == ""
    assert not packed_path(copy).exists()


def test_two_at_once_leave_one_whole_file(copy, kept):
    packed_path(copy).unlink()
    with open_model(copy) as one, open_model(copy) as two:
        runners = [runner_of(source, KEEP) for source in (one, two)]
        assert runners[0].loading.kept
        assert runners[1].loading.packed
        assert len(list(copy.glob("*fewbit-packed*"))) == 1
        for runner in runners:
            np.testing.assert_array_equal(logits(runner), kept[1])


def test_a_mapping_outlives_the_file_that_replaces_it(copy, kept):
    with open_model(copy) as source:
        runner = runner_of(source, PLAIN)
        packed_path(copy).unlink()
        np.testing.assert_array_equal(logits(runner), kept[1])


# --- the native part ----------------------------------------------------------------------------


def test_checksums_see_every_flipped_bit_and_every_swap(tmp_path):
    generator = np.random.default_rng(1)
    content = generator.integers(0, 256, (1 << 20) + 77, dtype=np.uint8)
    path = tmp_path / "bytes"

    def sum_of(values):
        path.write_bytes(values.tobytes())
        file = PackedFile(str(path))
        (one,), (two,) = (file.checksums([(0, file.size)], threads) for threads in (1, 3))
        assert one == two
        assert file.copy(2).checksums([(0, file.size)], 2) == [one]
        return one

    whole = sum_of(content)
    for at in (0, 63, 64, 1 << 19, (1 << 20) - 1, 1 << 20, len(content) - 1):
        flipped = content.copy()
        flipped[at] ^= 1 << int(generator.integers(8))
        assert sum_of(flipped) != whole
    swapped = content.copy()
    swapped[:64], swapped[64:128] = content[64:128], content[:64]
    assert sum_of(swapped) != whole


def test_ranges_beyond_the_file_are_refused(tmp_path):
    path = tmp_path / "bytes"
    path.write_bytes(bytes(4096))
    file = PackedFile(str(path))
    for ranges in ([(4096, 1)], [(0, 4097)], [(2**64 - 1, 2)]):
        with pytest.raises(ValueError, match="beyond the file"):
            file.checksums(ranges, 1)
    for offset, rows in ((64, 2048), (32, 16), (4096, 16)):
        with pytest.raises(ValueError, match=r"beyond|multiple of 64"):
            file.matrix(offset, "f32", rows, 64, 0, 0, False)
    with pytest.raises(ValueError, match="no packed form"):
        file.matrix(0, "q9", 16, 32, 0, 0, False)
    with pytest.raises(ValueError, match="at least one row"):
        file.matrix(0, "f32", -16, 32, 0, 0, False)


def test_a_benchmark_tells_of_a_useless_file(copy):
    write_text_files(copy)
    flip(packed_path(copy), DATA + 100)
    settings = SpeedSettings(
        prompt=4, tokens=2, concurrency=(1,), threads=1, buffer_bytes=1 << 21, keep_packed=True
    )
    first, second = measure_speed(copy, settings), measure_speed(copy, settings)
    (note,) = first.loading.notes
    assert "is damaged: it has other bytes for" in note
    assert first.loading.kept == second.loading.packed == str(packed_path(copy))
