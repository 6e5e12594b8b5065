"""Every kind of record: told by its names, drawn on a terminal and as a page, with a schema."""

import io
import json

import msgspec
import pytest
import sample_evaluation as sample
from any_record import any_record
from rich.console import Console

from fewbit.errors import BadFileError, UsageError
from fewbit.records.base import to_json
from fewbit.report.kinds import KINDS, read_record, schema

HOSTILE = "</title><script>alert(1)</script>[red]"


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request):
    return request.param


def test_a_record_is_told_from_all_other_kinds_and_read_as_it_was(kind):
    record = any_record(kind.record)
    found, again = read_record(to_json(record), "x.json")
    assert found is kind
    assert again == record
    assert to_json(again) == to_json(record)


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_kind_is_drawn_on_terminals_of_all_widths(kind, width):
    console = Console(file=io.StringIO(), width=width)
    kind.draw(any_record(kind.record), console)
    assert console.file.getvalue().strip()


def test_every_page_is_the_same_each_time_and_escapes_what_it_is_given(kind):
    record = any_record(kind.record, HOSTILE)
    page = kind.page(record)
    if kind.name != "speed-model":  # plotly names its plot anew each time, and is a script
        assert page == kind.page(record)
        assert "<script" not in page
    assert "alert(1)</script>[red]" not in page


def test_a_schema_describes_what_is_written(kind):
    described = json.loads(schema(kind.name))
    name = described["$ref"].rpartition("/")[2]
    top = described["$defs"][name]
    written = json.loads(to_json(any_record(kind.record)))
    assert set(top["required"]) <= set(written) <= set(top["properties"])
    assert top["additionalProperties"] is False
    assert top["description"]


def test_an_unknown_schema_names_those_there_are():
    with pytest.raises(UsageError, match="evaluation, compress, certificate"):
        schema("evalution")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON record"),
        (b"\xff\xfe\x00", "no JSON record"),
        (b"[1, 2]", "no JSON record"),
        (b'{"a": ' * 5000 + b"1" + b"}" * 5000, "no JSON record"),
        (b'{"a": 1', "no JSON record"),
        (b"{}", "no record that can be drawn"),
        (b'{"name": "package", "version": 2, "scripts": {}}', "no record that can be drawn"),
    ],
)
def test_foreign_files_get_one_sentence(content, said):
    with pytest.raises(BadFileError, match=said) as found:
        read_record(content, "x.json")
    assert "x.json" in str(found.value)
    assert "\n" not in str(found.value)


def test_cut_and_changed_records_get_one_sentence():
    whole = to_json(sample.evaluation())
    changed = json.loads(whole)
    hostile = [
        whole[: len(whole) // 2],
        whole.replace(b'"items_needed": 640', b'"items_needed": "many"'),
        msgspec.json.encode(changed | {"notes": 7}),
        msgspec.json.encode(changed | {"more": 7}),
        msgspec.json.encode({k: v for k, v in changed.items() if k != "gate"}),
        msgspec.json.encode(changed | {"version": 1}),
        msgspec.json.encode(changed | {"seconds": "NaN"}),
    ]
    del changed["axes"][0]["details"]["text"]["sha256"]
    hostile.append(msgspec.json.encode(changed))
    for content in hostile[:5] + hostile[6:]:
        with pytest.raises(BadFileError, match=r"x\.json") as found:
            read_record(content, "x.json")
        assert "\n" not in str(found.value)
