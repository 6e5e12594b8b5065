import pytest

from fewbit.evaluate.tools.forms import Call, Parsed
from fewbit.evaluate.tools.key import Expected, ToolItem, judge_calls
from fewbit.records.tools import CallForm, CallOutcome

PROPERTIES = {
    "city": {"type": "string"},
    "nights": {"type": "integer"},
    "price": {"type": "number"},
    "quiet": {"type": "boolean"},
    "guests": {"type": "array", "items": {"type": "string"}},
    "address": {"type": "object"},
}
ACCEPTED = {
    "city": ["Graz", "Graz, Austria"],
    "nights": [3],
    "price": [80.5, 80],
    "quiet": [True, ""],
    "guests": [["Ada", "Bo"], ["Bo", "Ada"]],
    "address": [{"street": ["Elm Road"], "number": [7, ""]}],
}
RIGHT = {
    "city": "graz",
    "nights": 3,
    "price": 80,
    "quiet": True,
    "guests": ["Ada", "Bo"],
    "address": {"street": "elm-road", "number": 7},
}


def tool(name):
    return {
        "type": "function",
        "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}},
    }


def item(*expected, offered=("hotel.book", "hotel.cancel")):
    question = ({"role": "user", "content": "?"},)
    return ToolItem("item", "simple", "item", question, tuple(map(tool, offered)), expected)


BOOKING = item(Expected("hotel.book", ACCEPTED))


def judged(of, *calls):
    return judge_calls(of, Parsed(tuple(calls), CallForm.JSON if calls else None))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"city": "GRAZ  Austria"},
        {"guests": ["Bo", "Ada"]},
        {"price": 80.5},
        {"address": {"street": "Elm Road"}},
    ],
)
def test_arguments_are_right_in_every_accepted_way(change):
    assert judged(BOOKING, Call("hotel.book", RIGHT | change)).outcome is CallOutcome.RIGHT


def test_a_key_that_contradicts_the_declared_type_counts():
    venue = item(Expected("hotel.book", {"city": [True]}))
    assert judged(venue, Call("hotel.book", {"city": True})).outcome is CallOutcome.RIGHT
    assert judged(venue, Call("hotel.book", {"city": "True"})).outcome is not CallOutcome.RIGHT


def test_an_optional_argument_may_be_absent_and_dots_may_be_written_as_servers_allow():
    given = {name: value for name, value in RIGHT.items() if name != "quiet"}
    assert judged(BOOKING, Call("hotel_book", given)).outcome is CallOutcome.RIGHT


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"city": "Linz"}, "city"),
        ({"nights": 3.0}, "nights"),
        ({"nights": "3"}, "nights"),
        ({"nights": True}, "nights"),
        ({"price": 81}, "price"),
        ({"quiet": 1}, "quiet"),
        ({"quiet": "True"}, "quiet"),
        ({"guests": ["Ada"]}, "guests"),
        ({"guests": "Ada, Bo"}, "guests"),
        ({"address": {"number": 7}}, "address"),
        ({"address": {"street": "Elm Road", "floor": 1}}, "address"),
        ({"stars": 4}, "stars"),
    ],
)
def test_a_wrong_argument_is_named(change, named):
    found = judged(BOOKING, Call("hotel.book", RIGHT | change))
    assert found.outcome is CallOutcome.WRONG_ARGUMENTS
    assert named in found.why


def test_a_missing_argument_is_named():
    given = {name: value for name, value in RIGHT.items() if name != "city"}
    assert "city is missing" in judged(BOOKING, Call("hotel.book", given)).why


def test_every_failure_has_its_kind():
    right = Call("hotel.book", RIGHT)
    assert judged(BOOKING).outcome is CallOutcome.NO_CALL
    assert judged(BOOKING, Call("hotel.cancel", {})).outcome is CallOutcome.WRONG_FUNCTION
    assert judged(BOOKING, right, Call("hotel.cancel", {})).outcome is CallOutcome.WRONG_FUNCTION
    assert judged(BOOKING, right, right).outcome is CallOutcome.WRONG_NUMBER
    unread = judge_calls(BOOKING, Parsed(form=CallForm.JSON, fault="no JSON"))
    assert unread.outcome is CallOutcome.UNPARSED


def test_where_no_function_fits_no_call_is_right():
    assert judged(item()).outcome is CallOutcome.RIGHT
    assert judged(item(), Call("hotel.book", {})).outcome is CallOutcome.UNASKED


def test_several_calls_are_right_in_any_order():
    wide = Expected("hotel.cancel", {"nights": [1, 2]})
    narrow = Expected("hotel.cancel", {"nights": [1]})
    calls = Call("hotel.cancel", {"nights": 1}), Call("hotel.cancel", {"nights": 2})
    both = item(wide, narrow)
    # Taken greedily, the wide one gets the call that only the narrow one can do with.
    assert judged(both, *calls).outcome is CallOutcome.RIGHT
    assert judged(both, *reversed(calls)).outcome is CallOutcome.RIGHT
    same = judged(both, calls[1], calls[1])
    assert same.outcome is CallOutcome.WRONG_ARGUMENTS
    assert "nights" in same.why
