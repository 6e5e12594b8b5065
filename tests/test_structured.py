import pytest

from fewbit.evaluate.tools.structured import json_fault, schema_fault
from fewbit.evaluate.tools.structured_suite import builtin_schemas

DRAFT4 = "http://json-schema.org/draft-04/schema#"
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name", "age"],
    "additionalProperties": False,
    "$defs": {"age": {"type": "integer", "minimum": 0}},
}


@pytest.mark.parametrize(
    "text", ['{"name": "Ada", "age": 3}', '\n```json\n{"name": "Ada", "age": 3}\n```\n']
)
def test_json_of_the_schema_has_no_fault(text):
    assert json_fault(text, SCHEMA) == ""


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no JSON"),
        ('Here: {"name": "Ada", "age": 3}', "no JSON"),
        ('{"name": "Ada", "age": 3} and more', "no JSON"),
        ('{"name": "Ada", "age": NaN}', "no JSON"),
        ('{"name": "Ada", "age": -1}', "$.age"),
        ('{"name": "Ada"}', "age"),
        ('{"name": "Ada", "age": 3, "town": "Graz"}', "town"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_fault_is_named(text, why):
    assert why in json_fault(text, SCHEMA)


def test_a_schema_without_an_end_is_a_fault_and_no_crash():
    assert json_fault("3", {"$ref": "#"}) != ""


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (True, "no object"),
        ({"type": "strin"}, "no schema"),
        ({"$ref": "https://example.org/other.json"}, "refers to"),
        ({"properties": {"a": {"$ref": "#/$defs/absent"}}}, "refers to"),
        ({"type": "string", "pattern": "(?<x"}, "no schema"),
        ({"$schema": DRAFT4, "patternProperties": {"(?<x": {}}}, "the pattern"),
    ],
)
def test_a_schema_that_cannot_be_used_says_why(schema, why):
    assert why in schema_fault(schema)


def test_a_property_may_be_called_as_a_keyword_is():
    schema = {
        "type": "object",
        "properties": {"pattern": {"type": "string"}, "$ref": {"type": "integer"}},
        "enum": [{"$ref": "elsewhere"}],
    }
    assert schema_fault(schema) == ""
    assert schema_fault(SCHEMA) == ""
    assert schema_fault({"$schema": DRAFT4, **SCHEMA}) == ""


def test_the_suite_is_usable_and_has_no_two_alike():
    items = builtin_schemas()
    assert len(items) == 104
    assert not [item.name for item in items if schema_fault(item.schema)]
    assert len({item.name for item in items}) == len({item.question for item in items}) == 104


@pytest.mark.parametrize("number", ["1e999", "1" * 400, "-" + "9" * 400 + ".5"])
def test_a_number_beyond_a_float_is_a_fault_or_none_and_no_crash(number):
    assert json_fault(number, {"type": "number", "multipleOf": 0.1}) != ""


def test_patterns_where_no_schema_is_are_not_read():
    assert schema_fault({"x-notes": {"patternProperties": 3}}) == ""
    assert schema_fault({"x-notes": {"patternProperties": ["(?<x", 1]}}) == ""
