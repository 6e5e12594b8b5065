"""Importance matrices in both of llama.cpp's forms, whole and broken."""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from fewbit.calibrate.importance import (
    Importance,
    ImportanceMatrix,
    read_importance,
    write_importance,
)
from fewbit.errors import BadFileError, FewbitError, MissingError, UsageError

DENSE, MOE = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"


def matrix() -> ImportanceMatrix:
    rng = np.random.default_rng(0)
    return ImportanceMatrix(
        {
            DENSE: Importance(rng.gamma(1, 9, (1, 64)).astype(np.float32), np.array([1024])),
            MOE: Importance(rng.gamma(1, 9, (3, 32)).astype(np.float32), np.array([100, 0, 924])),
        },
        datasets=("calibration.txt", "more.txt"),
        chunks=2,
        chunk_size=512,
    )


def by_gguf_package(path: Path, known: ImportanceMatrix, kind: str = "imatrix") -> None:
    """Write as llama-imatrix does, by the gguf package alone."""
    writer = gguf.GGUFWriter(path, arch="")
    writer.kv_data[0].clear()  # no architecture in these files
    writer.add_string("general.type", kind)
    writer.add_array("imatrix.datasets", list(known.datasets))
    writer.add_uint32("imatrix.chunk_count", known.chunks)
    writer.add_uint32("imatrix.chunk_size", known.chunk_size)
    for name, entry in known.entries.items():
        writer.add_tensor(f"{name}.in_sum2", entry.sum_squares)
        writer.add_tensor(f"{name}.counts", entry.counts.astype(np.float32)[:, None])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def dat(entries: list[tuple[bytes, int, np.ndarray]], tail: bytes = b"") -> bytes:
    """The older form, by the letter."""
    parts = [struct.pack("<i", len(entries))]
    for name, calls, values in entries:
        parts += [struct.pack("<i", len(name)), name, struct.pack("<ii", calls, values.size)]
        parts.append(values.astype("<f4").tobytes())
    return b"".join(parts) + tail


TAIL = struct.pack("<ii", 7, 4) + b"text"
VALUES = np.arange(1, 65, dtype=np.float32)


def same(a: ImportanceMatrix, b: ImportanceMatrix) -> bool:
    return (
        list(a.entries) == list(b.entries)
        and all(
            np.array_equal(a.entries[name].sum_squares, b.entries[name].sum_squares)
            and np.array_equal(a.entries[name].counts, b.entries[name].counts)
            for name in a.entries
        )
        and (a.datasets, a.chunks, a.chunk_size) == (b.datasets, b.chunks, b.chunk_size)
    )


def test_what_the_gguf_package_writes_is_read(tmp_path):
    by_gguf_package(tmp_path / "a.gguf", matrix())
    assert same(read_importance(tmp_path / "a.gguf"), matrix())


def test_what_is_written_is_read_again_and_by_the_gguf_package(tmp_path):
    write_importance(tmp_path / "a.gguf", matrix())
    assert same(read_importance(tmp_path / "a.gguf"), matrix())
    reader = gguf.GGUFReader(tmp_path / "a.gguf")
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors[f"{MOE}.in_sum2"].shape.tolist() == [32, 3]
    assert tensors[f"{MOE}.counts"].shape.tolist() == [1, 3]
    assert np.array_equal(tensors[f"{DENSE}.in_sum2"].data, matrix().entries[DENSE].sum_squares)
    assert reader.get_field("general.type").contents() == "imatrix"
    assert reader.get_field("imatrix.chunk_size").contents() == 512


def test_the_older_form_is_read(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes(dat([(DENSE.encode(), 4, VALUES), (b"b", 0, VALUES)], TAIL))
    found = read_importance(path)
    assert (found.datasets, found.chunks, found.chunk_size) == (("text",), 7, 0)
    assert found.entries[DENSE].counts.tolist() == [4]
    assert np.array_equal(found.entries[DENSE].sum_squares, VALUES[None])
    # No calls: the values are means.
    assert found.entries["b"].counts.tolist() == [1]


def test_the_oldest_form_ends_after_its_entries(tmp_path):
    path = tmp_path / "a.dat"
    path.write_bytes(dat([(b"a", 4, VALUES)]))
    assert read_importance(path).datasets == ()


def test_the_older_form_keeps_the_means(tmp_path):
    write_importance(tmp_path / "a.dat", matrix())
    found = read_importance(tmp_path / "a.dat")
    dense, moe = found.entries[DENSE], found.entries[MOE].with_experts(3)
    before = matrix().entries
    # Divided by the count and multiplied by the calls, each rounded in float32.
    mean = before[DENSE].sum_squares / 1024
    assert np.allclose(dense.sum_squares / dense.counts[0], mean, rtol=2.0**-22)
    means = moe.sum_squares / moe.counts[:, None]
    assert np.allclose(means[0], before[MOE].sum_squares[0] / 100, rtol=2.0**-22)
    assert (means[1] == 1).all()
    assert (found.datasets, found.chunks) == (("more.txt",), 2)


def test_statistics_have_the_means_that_were_counted():
    known = matrix().entries[MOE].statistics(2)
    assert known.count == 924
    assert np.allclose(known.squares, matrix().entries[MOE].sum_squares[2])
    assert np.allclose(known.largest**2 * known.count, known.squares, rtol=1e-6)
    unreached = Importance(np.zeros((1, 8), np.float32), np.array([0])).statistics()
    assert unreached.count == 0
    assert not unreached.squares.any()


def test_an_expert_that_nothing_reached_has_a_prior_and_the_others_keep_theirs():
    sums = np.random.default_rng(0).gamma(1, 9, (3, 32)).astype(np.float32)
    sums[1] = 0
    moe = Importance(sums, np.array([30_000, 0, 90_000]))
    idle, busy = moe.blended(1), moe.blended(2)
    mean = sums.sum(axis=0) / 120_000
    assert np.allclose(idle.squares / idle.count, mean)
    # At most 33 average rows of all stand beside 90,000 of its own.
    moved = np.abs(busy.squares / busy.count - sums[2] / 90_000)
    assert (moved <= 33 / 90_000 * (mean + sums[2] / 90_000)).all()
    assert "No calibration token reached this expert" in idle.remarks[0]
    assert "90000 calibration tokens reached this expert" in busy.remarks[0]
    nothing = Importance(np.zeros((2, 8), np.float32), np.array([0, 0])).blended(1)
    assert nothing.count == 0
    assert not nothing.squares.any()


def test_experts_must_divide():
    with pytest.raises(UsageError, match="1 x 64 values does not divide into 3 experts"):
        matrix().entries[DENSE].with_experts(3)


def test_a_path_says_its_form(tmp_path):
    with pytest.raises(UsageError, match=r"must end in \.gguf or \.dat"):
        write_importance(tmp_path / "a.bin", matrix())


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"no importance matrix .*nothing\.gguf"):
        read_importance(tmp_path / "nothing.gguf")


@pytest.mark.parametrize("ending", ["gguf", "dat"])
def test_a_file_cut_anywhere_is_refused(tmp_path, ending):
    whole, cut = tmp_path / f"whole.{ending}", tmp_path / f"cut.{ending}"
    write_importance(whole, matrix())
    content = whole.read_bytes()
    entries = len(content)
    if ending == "dat":  # cut right after the entries it is a whole file of the oldest form
        entries -= struct.calcsize("<ii") + len("more.txt")
    for size in range(0, len(content) - 32, 23):
        if size == entries:
            continue
        cut.write_bytes(content[:size])
        with pytest.raises(BadFileError):
            read_importance(cut)


def test_any_flipped_byte_is_read_or_refused(tmp_path):
    write_importance(tmp_path / "a.gguf", matrix())
    content = bytearray((tmp_path / "a.gguf").read_bytes())
    path = tmp_path / "b.gguf"
    for place in range(4, len(content), 29):
        content[place] ^= 0xFF
        path.write_bytes(content)
        try:
            found = read_importance(path)
        except FewbitError:
            pass
        else:
            assert all(np.isfinite(e.sum_squares).all() for e in found.entries.values())
        content[place] ^= 0xFF


HOSTILE = {
    "negative entries": struct.pack("<i", -1),
    "a billion entries": struct.pack("<i", 1 << 30),
    "no entries": struct.pack("<i", 0),
    "a name of 2 GiB": struct.pack("<ii", 1, (1 << 31) - 1),
    "a name that is no text": dat([(b"\xff\xfe", 1, VALUES)]),
    "no values": dat([(b"a", 1, VALUES[:0])]),
    "more values than bytes": struct.pack("<iici", 1, 1, b"a", 1) + struct.pack("<i", 1 << 30),
    "an entry twice": dat([(b"a", 1, VALUES), (b"a", 1, VALUES)]),
    "NaN": dat([(b"a", 1, np.array([1, np.nan]))], TAIL),
    "infinity": dat([(b"a", 1, np.array([1, np.inf]))], TAIL),
    "a negative sum": dat([(b"a", 1, np.array([1, -1.0]))], TAIL),
    "bytes after the end": dat([(b"a", 1, VALUES)], TAIL + b"x"),
    "negative calls": dat([(b"a", -4, VALUES)], TAIL),
    "text": b"Once upon a time there was no importance matrix.",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_of_the_older_form_are_refused_in_one_sentence(tmp_path, kind):
    path = tmp_path / "a.dat"
    path.write_bytes(HOSTILE[kind])
    with pytest.raises(BadFileError, match=r"a\.dat") as caught:
        read_importance(path)
    assert "\n" not in str(caught.value)


def broken(path: Path, kind: str) -> None:
    known = matrix()
    if kind == "a model":
        by_gguf_package(path, known, kind="model")
        return
    writer = gguf.GGUFWriter(path, arch="")
    writer.add_string("general.type", "imatrix")
    writer.add_array("imatrix.datasets", [1] if kind == "numbers for texts" else ["a"])
    if kind != "no chunks":
        writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 512)
    sums, counts = known.entries[MOE].sum_squares, np.ones((3, 1), np.float32)
    if kind == "NaN":
        sums[1, 2] = np.nan
    if kind == "half a token":
        counts[1] = 0.5
    if kind == "fewer counts":
        counts = counts[:2]
    if kind == "f16 sums":
        sums = sums.astype(np.float16)
    writer.add_tensor(f"{MOE}.in_sum2", sums)
    if kind != "no counts":
        writer.add_tensor(f"{MOE}.counts", counts)
    if kind == "a stranger":
        writer.add_tensor("output.weight", counts)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("a model", "general.type is 'model', not 'imatrix'"),
        ("numbers for texts", "imatrix.datasets is no list of texts"),
        ("no chunks", "imatrix.chunk_count is 'None', no whole number"),
        ("NaN", "is nan at input 2, expert 1"),
        ("half a token", "is no whole number"),
        ("fewer counts", "sums of 3 experts and counts of 2"),
        ("f16 sums", r"is f16 of shape \(3, 32\), not f32"),
        ("no counts", "has no '.counts' beside it"),
        ("a stranger", "'output.weight' belongs to no importance matrix"),
    ],
)
def test_what_is_wrong_with_a_gguf_file_is_said(tmp_path, kind, problem):
    broken(tmp_path / "a.gguf", kind)
    with pytest.raises(BadFileError, match=problem):
        read_importance(tmp_path / "a.gguf")
