"""benchmarks/measuring.py: candidates run together give what each gives alone, and are kept."""

import pytest
from benchmark_modules import imported
from tiny_models import random_weights
from tiny_subjects import CONFIG, letters, sharp_weights, write_subject

from fewbit.evaluate.axes import AxisOptions
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find

NAMES = ("planted", "measuring")


@pytest.fixture(scope="module")
def benchmark():
    with imported(NAMES) as modules:
        yield modules


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("measuring")
    write_subject(folder / "source", weights=sharp_weights())
    with open_model(folder / "source") as model:
        quantize(model, find("rtn-int8-g32"), folder / "small")
    texts = (f'{{"text": "{d.text}"}}'.replace("\n", " ") for d in _documents())
    (folder / "text.jsonl").write_text("\n".join(texts))
    return folder


def _documents():
    return letters(documents=14, characters=60).documents


@pytest.fixture(scope="module")
def candidates(benchmark, folder):
    planted = benchmark["planted"]
    good, itself, axes = planted.Kind.GOOD, planted.itself, ("language",)
    return (
        planted.Candidate("small", good, lambda *_: folder / "small", axes=axes),
        planted.Candidate("bf16 cache", good, itself, planted._BF16_CACHE, axes=axes),
        planted.Candidate("refused", good, itself, refused=True, axes=axes),
    )


def bench(benchmark, folder, into):
    """Without conversations and passages, as on the slow executor: seconds."""
    into.mkdir()
    options = AxisOptions(
        text=folder / "text.jsonl", windows=14, window_tokens=48, executor="reference", threads=1
    )
    return benchmark["measuring"].Bench(into, folder / "source", options, threads=1)


def test_together_is_as_alone(benchmark, folder, candidates, tmp_path):
    measuring, told = benchmark["measuring"], []

    def progress(what, done, of):
        told.append((what.partition(" ")[0], done, of))

    one = bench(benchmark, folder, tmp_path / "together")
    measuring.run_together(one, candidates, progress)
    (count,) = {of for _, _, of in told}
    assert {what for what, _, _ in told} == {"text"}
    assert count == 14  # each once for all candidates
    told.clear()
    together = [one.measured(candidate, progress) for candidate in candidates[:2]]
    assert not any(what == "language" for what, _, _ in told)  # nothing was run again
    alone = bench(benchmark, folder, tmp_path / "alone")
    for found, candidate in zip(together, candidates, strict=False):
        again = alone.measured(candidate, progress)
        assert found.axes[1].slices == again.axes[1].slices
        assert found.judgements == again.judgements
    assert any(what == "language" for what, _, _ in told)  # alone it was run


def test_a_run_that_was_stopped_goes_on(benchmark, folder, candidates, tmp_path):
    class Stopped(Exception):
        pass

    def stop(_what, done, _of):
        if done == 5:
            raise Stopped

    one, told = bench(benchmark, folder, tmp_path / "stopped"), []
    with pytest.raises(Stopped):
        benchmark["measuring"].run_together(one, candidates, stop)
    benchmark["measuring"].run_together(one, candidates, lambda *event: told.append(event))
    whole = bench(benchmark, folder, tmp_path / "whole")
    counted = []
    benchmark["measuring"].run_together(whole, candidates, lambda *event: counted.append(event))
    assert told[-1][2] == counted[-1][2] - 5


def test_what_was_measured_is_not_measured_again(benchmark, folder, candidates, tmp_path):
    one = bench(benchmark, folder, tmp_path / "kept")
    first = one.measured(candidates[0], lambda *_: None)

    def fail(*_):
        raise AssertionError("measured again")

    assert one.measured(candidates[0], fail) == first
    benchmark["measuring"].run_together(one, candidates[:1], fail)


def test_what_is_of_another_source_is_neither_taken_nor_in_the_way(benchmark, candidates, tmp_path):
    source = write_subject(tmp_path / "source", weights=sharp_weights())
    into = tmp_path / "into"
    into.mkdir()

    def kept():
        one = benchmark["measuring"].Bench(into, source, AxisOptions())
        return one.kept(candidates[0]), one.made

    before = kept()
    assert kept() == before
    write_subject(source, weights=random_weights(CONFIG))
    assert not {*kept()} & {*before}


def test_what_another_build_measured_is_measured_again(
    benchmark, candidates, tmp_path, monkeypatch
):
    source = write_subject(tmp_path / "source", weights=sharp_weights())
    (tmp_path / "into").mkdir()
    one = benchmark["measuring"].Bench(tmp_path / "into", source, AxisOptions())
    before = one.kept(candidates[0])
    assert one.kept(candidates[0]) == before
    monkeypatch.setattr(benchmark["measuring"], "program_digest", lambda: "rebuilt")
    assert one.kept(candidates[0]) != before
