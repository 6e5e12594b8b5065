import pytest

from fewbit.evaluate.tools.forms import MOST_CHARACTERS, Call, form_of, read_calls
from fewbit.records.tools import CallForm

LAMP = Call("set_lamp", {"room": "hall", "percent": 40})
STOCK = Call("shop.stock", {"item": "rope"})
OFFERED = ("set_lamp", "shop.stock")


@pytest.mark.parametrize(
    ("text", "form", "calls"),
    [
        (
            '<tool_call>\n{"name": "set_lamp", "arguments": {"room": "hall", "percent": 40}}\n'
            "</tool_call>",
            CallForm.TAGGED,
            [LAMP],
        ),
        (
            'Let me see.\n<tool_call>{"name": "shop.stock", "arguments": {"item": "rope"}}'
            '</tool_call>\n<tool_call>{"name": "set_lamp", "arguments": {"room": "hall", '
            '"percent": 40}}',
            CallForm.TAGGED,
            [STOCK, LAMP],
        ),
        ('{"name": "shop.stock", "parameters": {"item": "rope"}}', CallForm.JSON, [STOCK]),
        (
            'Sure:\n```json\n[{"name": "shop.stock", "arguments": {"item": "rope"}}]\n```\nDone.',
            CallForm.JSON,
            [STOCK],
        ),
        (
            '{"name": "shop.stock", "arguments": {"item": "rope"}};\n'
            '{"name": "set_lamp", "arguments": {"room": "hall", "percent": 40}} and so on',
            CallForm.JSON,
            [STOCK, LAMP],
        ),
        (
            '{"type": "function", "function": {"name": "shop.stock", "arguments": '
            '"{\\"item\\": \\"rope\\"}"}}',
            CallForm.JSON,
            [STOCK],
        ),
        (
            'I call {"name": "shop.stock", "arguments": {"item": "rope"}} now.',
            CallForm.JSON,
            [STOCK],
        ),
        (
            "[shop.stock(item='rope'), set_lamp(room=\"hall\", percent=40)]",
            CallForm.PYTHON,
            [STOCK, LAMP],
        ),
        ("shop.stock(item='rope')", CallForm.PYTHON, [STOCK]),
        (
            "set_lamp(room=null, percent=-1.5)",
            CallForm.PYTHON,
            [Call("set_lamp", {"room": None, "percent": -1.5})],
        ),
    ],
)
def test_every_form_is_read(text, form, calls):
    found = read_calls(text, OFFERED)
    assert (found.fault, found.form, list(found.calls)) == ("", form, calls)


@pytest.mark.parametrize(
    "text", ["", "The lamp is at 40 percent.", "I would use set_lamp for that.", "f(x) = x + 1"]
)
def test_a_text_without_a_call_has_none(text):
    found = read_calls(text, OFFERED)
    assert (found.calls, found.form, found.fault) == ((), None, "")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("<tool_call>\nset the lamp\n</tool_call>", "no JSON"),
        ('<tool_call>{"name": "set_lamp", "arguments": {"room": ', "no JSON"),
        ('{"name": "set_lamp", "arguments": 3}', "no object"),
        ('{"name": 3}', "no name"),
        ("[1, 2]", "no object with a name"),
        ("set_lamp('hall', 40)", "no name"),
        ("set_lamp(room=hall)", "no value"),
        ("set_lamp(room='hall'", "no Python"),
        ("set_lamp(room='hall'); import os", "more than calls"),
        ("[set_lamp(room='hall'), 3]", "no call"),
        ("[" * 5000, ""),
        ("x" * (MOST_CHARACTERS + 1), "characters"),
        ("set_lamp(room=" + "(" * 3000 + ")" * 3000 + ")", ""),
    ],
)
def test_what_begins_as_a_call_and_is_none_says_why(text, why):
    found = read_calls(text, OFFERED)
    assert found.fault and why in found.fault
    assert not found.calls


def test_nothing_of_a_python_call_is_run(tmp_path):
    target = tmp_path / "made"
    found = read_calls(f"set_lamp(room=open({str(target)!r}, 'w'))", OFFERED)
    assert "no value" in found.fault
    assert not target.exists()


def test_a_template_that_teaches_tags_is_known_by_them():
    assert form_of("... <tool_call>\n{...}") is CallForm.TAGGED
    assert form_of("plain") is form_of(None) is CallForm.JSON


def test_equal_calls_have_equal_texts():
    assert Call("f", {"a": 1, "b": 2}).text == Call("f", {"b": 2, "a": 1}).text


@pytest.mark.parametrize(
    "value", ["{'a', 'b'}", "b'x'", "1 + 2j", "...", "{1: 'a', 'b': 2}", "[{(1, 2): 3}]"]
)
def test_a_python_value_that_json_has_not_is_no_argument(value):
    """Each would have no text as JSON, by which calls are told to be the same."""
    found = read_calls(f"set_lamp(room={value})", OFFERED)
    assert "no value that JSON has" in found.fault and not found.calls


def test_python_values_that_json_has_are_arguments():
    (call,) = read_calls("set_lamp(room=['a', (1, 2.5)], on=True, by={'x': None})", OFFERED).calls
    assert call.arguments == {"room": ["a", (1, 2.5)], "on": True, "by": {"x": None}}
    assert call.text == Call(call.name, call.arguments).text
