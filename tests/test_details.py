"""Details of an axis taken apart into blocks, whatever record they are."""

from enum import Enum

from fewbit.records.base import Record
from fewbit.records.drawn import Band, Curve, Distribution, Example
from fewbit.records.interval import Interval
from fewbit.records.kernels import KernelRecord
from fewbit.report.details import (
    MOST_ROWS,
    Curves,
    Distributions,
    Examples,
    Facts,
    Lines,
    Table,
    blocks_of,
    said,
    words,
)


class Kind(Enum):
    ONE = "one"


class Part(Record, frozen=True, kw_only=True):
    layer: int
    error: float
    what: str = ""


class Details(Record, frozen=True, kw_only=True, tag="test"):
    weights_bytes: int = 98_000_000
    seconds: float = 0.0125
    share: Interval = Interval(value=0.5, low=0.4, high=0.6)
    kind: Kind = Kind.ONE
    strict: bool = True
    empty: str = ""
    absent: int | None = None
    parts: tuple[Part, ...] = ()
    curves: tuple[Curve, ...] = ()
    gaps: tuple[Distribution, ...] = ()
    examples: tuple[Example, ...] = ()
    sentences: tuple[str, ...] = ()
    kernels: tuple[KernelRecord, ...] = ()
    part: Part | None = None


def example(name, harm):
    return Example(name=name, slice="tasks/x", asked="?", source="a", candidate="b", harm=harm)


def test_scalars_become_one_table_of_facts_and_what_is_empty_is_left_out():
    (facts,) = blocks_of(Details())
    assert facts == Facts(
        (
            ("Weights bytes", "98.0 MB"),
            ("Seconds", "12.5 ms"),
            ("Share", "0.5 [0.4, 0.6]"),
            ("Kind", "one"),
            ("Strict", "yes"),
        )
    )


def test_records_of_one_kind_become_rows_and_columns_without_content_are_left_out():
    details = Details(parts=tuple(Part(layer=i, error=i / 8) for i in range(3)))
    table = blocks_of(details)[1]
    assert isinstance(table, Table)
    assert table.headings == ("Layer", "Error")
    assert table.kinds == "nn"
    assert table.rows[1] == ("1", "0.125")
    assert not table.folded


def test_a_long_table_is_folded_and_says_how_much_it_leaves_out():
    details = Details(parts=tuple(Part(layer=i, error=0.0) for i in range(MOST_ROWS + 7)))
    table = blocks_of(details)[1]
    assert table.folded
    assert len(table.rows) == MOST_ROWS
    assert table.left_out == 7


def test_curves_distributions_examples_sentences_and_kernels_are_what_they_are():
    band = Band(low=0, high=None, count=1, figure=Interval(value=1.0))
    curve = Curve(title="t", across="position", unit="nats", bands=(band,))
    gaps = [Distribution(title="gap", arm=a, unit="seconds", values=(0.1,)) for a in "sc"]
    kernel = KernelRecord(slot="x", format="q4_0", kernel="k", activations="int8", bytes=1)
    details = Details(
        curves=(curve,),
        gaps=(*gaps, Distribution(title="first", arm="s", unit="seconds", values=(0.2,))),
        examples=(example("mild", 0.1), example("worst", 1.0)),
        sentences=("One.",),
        kernels=(kernel, kernel),
        part=Part(layer=1, error=0.5, what="x"),
    )
    blocks = blocks_of(details)
    kinds = [type(block) for block in blocks]
    assert kinds == [Facts, Curves, Distributions, Distributions, Examples, Lines, Table, Table]
    assert [arm.arm for arm in blocks[2].arms] == ["s", "c"]
    assert blocks[2].rows[0] == ("s", "1", "100 ms", "100 ms", "100 ms")
    assert [e.name for e in blocks[4].examples] == ["worst", "mild"]
    assert blocks[6].rows == (("q4_0", "k", "int8", "2", ""),)
    assert blocks[7].rows == (("Layer", "1"), ("Error", "0.5"), ("What", "x"))


def test_fields_can_be_left_to_a_template():
    assert blocks_of(Details(sentences=("One.",)), {"sentences"}) == blocks_of(Details())
    assert blocks_of(None) == []


def test_values_in_words():
    assert said("count", 12_345) == "12,345"
    assert said("kv_bytes_per_token", 23_040) == "23.0 kB"
    assert said("ttft_seconds", 2.5) == "2.5 s"
    assert said("names", ("a", "b")) == "a, b"
    assert words("kv_bytes_per_token") == "KV bytes per token"
