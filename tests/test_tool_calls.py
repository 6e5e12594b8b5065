import json
from dataclasses import replace
from itertools import count

import pytest
from brought import as_said
from scripted_arms import Scripted, answer, no_progress, scripted_arms
from tiny_subjects import CONFIG, write_subject

from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.evaluate.arms import Arms, Role, local_party
from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tools.asked import Presentation, presentation_of, tool_ask
from fewbit.evaluate.tools.axis import ToolsAxis, tools_axis
from fewbit.evaluate.tools.judged import judge_json
from fewbit.evaluate.tools.structured import SchemaItem
from fewbit.evaluate.tools.suite import builtin_items
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json, to_json
from fewbit.records.measurement import AxisResult
from fewbit.records.outcome import Outcome
from fewbit.records.tools import CallOutcome
from fewbit.tokens.chat_template import ChatTemplate

AXIS = ToolsAxis()
BY_ASK = {f"calls/{item.name}": item for item in AXIS.items}


def right(ask):
    """Answer as a model without fault would."""
    item = BY_ASK.get(ask.name)
    if item is None:
        return valid(ask.name) if "/" in ask.name and ask.name[0] in "fc" else sampled(ask)
    calls = [
        {"name": e.name, "arguments": {n: v[0] for n, v in e.accepted.items()}}
        for e in item.expected
    ]
    tagged = [f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls]
    return "".join(tagged) or "I have no function for that."


def sampled(ask):
    return "A story" if ask.sampling.greedy else f"A story, {ask.sampling.seed}"


def valid(name):
    """Return any JSON of the schema that an ask is about."""
    schema = next(s.schema for s in AXIS.schemas if name.endswith(f"/{s.name}"))
    return json.dumps(example(schema))


def example(schema):
    if "enum" in schema:
        return schema["enum"][0]
    match schema["type"]:
        case "object":
            return {name: example(of) for name, of in schema["properties"].items()}
        case "array":
            return [example(schema["items"])] * schema["minItems"]
        case "string":
            return "2026-01-01"
        case "boolean":
            return True
    return schema.get("minimum", 0)


def measured(source, candidate, floor=None, axis=AXIS):
    arms = scripted_arms(*(say and Scripted(say) for say in (source, candidate, floor)))
    return as_said(axis, axis.run(arms, no_progress))


def rates(result, arm="candidate"):
    return {
        s.name: sum(getattr(item, arm) for item in s.items) / len(s.items) for s in result.slices
    }


def test_a_model_without_fault_has_no_harm_on_any_slice():
    result = measured(right, right, right)
    assert {name: len(s.items) for s in result.slices for name in [s.name]} == {
        "tools/call": 192,
        "tools/arguments": 192,
        "tools/form": 192,
        "tools/irrelevance": 104,
        "structured/free": 104,
        "structured/constrained": 104,
        "tools/loops": 504,
        "answers/cap": 504,
    }
    for arm in ("source", "candidate", "floor"):
        assert set(rates(result, arm).values()) == {0.0}
    assert result.details.examples == ()
    assert {count.outcome for count in result.details.outcomes} == {CallOutcome.RIGHT}


def test_a_quant_that_repeats_calls_for_ever_or_never_stops_is_seen():
    """cases/evaluate.md 10: antirez/ds4 #335, llama.cpp #10824."""

    def forever(ask):
        item = BY_ASK.get(ask.name)
        if item is not None and item.expected:
            return right(ask) * 3
        return sampled(ask) if ask.name[0] in "ad" else "and so on " * 200

    result = measured(right, forever)
    found = rates(result)
    assert found["tools/loops"] == 1.0
    # A call made three times ends by itself; what is said instead of JSON, or of no call, does not.
    assert found["answers/cap"] == pytest.approx((104 + 208) / 504)
    assert set(rates(result, "source").values()) == {0.0}
    worst = result.details.examples[0]
    assert "repeats" in worst.candidate_says
    assert len(result.details.examples) == 12


def test_the_gate_rejects_what_never_ends_and_accepts_what_does():
    def verdicts(candidate):
        judgements, _ = judge([measured(right, candidate)], find_gate(None))
        return {found.slice: found.outcome for found in judgements}

    def rambling(ask):
        """Never end every third answer."""
        return right(ask) if len(ask.name) % 3 else "on and on " * 200

    good = verdicts(right)
    assert set(good.values()) <= {Outcome.ACCEPT, None}  # None is judged with others, as one
    assert good["tools/loops"] is good["answers/cap"] is Outcome.ACCEPT
    found = verdicts(rambling)
    assert found["tools/loops"] is found["answers/cap"] is Outcome.REJECT


def test_each_fault_is_seen_by_its_slice_alone():
    faults = {
        "tools/arguments": lambda text: text.replace("kitchen", "cellar"),
        "tools/form": lambda text: text.replace("<tool_call>", "").replace("</tool_call>", "\n"),
    }
    for name, spoil in faults.items():
        found = rates(measured(right, lambda ask, spoil=spoil: spoil(right(ask))))
        assert found[name] > 0
        assert {other for other, rate in found.items() if rate} == {name}


def test_a_call_that_cannot_be_read_is_a_failure_of_its_own_kind():
    result = measured(right, lambda ask: right(ask).replace("}</tool_call>", "</tool_call>"))
    calls = [c for c in result.details.outcomes if c.kind == "simple"]
    assert {(c.outcome, c.source, c.candidate) for c in calls} == {
        (CallOutcome.RIGHT, 64, 0),
        (CallOutcome.UNPARSED, 0, 64),
    }
    assert "not parsed" in result.details.examples[0].candidate_says


def test_a_runtime_that_ignores_the_temperature_is_found():
    always_greedy = measured(right, lambda ask: "A story")
    never = count()
    always_drawn = measured(right, lambda ask: f"A story, {next(never)}")
    found = [
        {finding.name: finding.passed for finding in result.findings}
        for result in (measured(right, right), always_greedy, always_drawn)
    ]
    assert found == [
        {"answers/repeatable": True, "answers/temperature": True},
        {"answers/repeatable": True, "answers/temperature": False},
        {"answers/repeatable": False, "answers/temperature": True},
    ]
    assert "6 (candidate)" in always_greedy.findings[1].found


def test_a_source_near_chance_is_said_in_the_notes():
    result = measured(lambda _: "Hello.", lambda _: "Hello.")
    assert any("The source itself makes 0 of 192" in note for note in result.notes)


@pytest.mark.parametrize(
    "said",
    [
        '<tool_call>{"name": "\\ud83d", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "set_lamp", "arguments": {"\\ud83d": 1}}</tool_call>',
    ],
)
def test_half_a_character_from_an_escape_can_be_written_down(said):
    """JSON's escapes can make text that UTF-8 has not; a report must not end there."""
    result = measured(right, lambda ask: said if ask.name in BY_ASK else right(ask))
    assert from_json(AxisResult, to_json(result), name="result") == result


def test_half_a_character_in_a_property_s_name_can_be_written_down():
    item = SchemaItem("a", "a", {"additionalProperties": {"type": "integer"}}, "")
    judged = judge_json(item, answer("a", '{"\\udc00": "x"}'))
    assert judged.wrong and judged.says.encode()


def test_the_result_can_be_written_and_read():
    result = measured(right, lambda _: "{", right)
    assert from_json(AxisResult, to_json(result), name="it") == result


def test_answers_are_asked_once_and_kept(tmp_path):
    asked = []

    def counting(ask):
        asked.append(ask.name)
        if len(asked) == 100:
            raise KeyboardInterrupt
        return right(ask)

    arms = scripted_arms(Scripted(counting), Scripted(right), work=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        AXIS.run(arms, no_progress)
    result = AXIS.run(arms, no_progress)
    assert len(asked) == 534 + 1  # the one in which it was stopped
    assert set(rates(result).values()) == {0.0}


def test_every_question_of_the_suite_names_every_value_of_its_calls():
    items = builtin_items()
    assert len({item.name for item in items}) == len(items) == 296
    for item in items:
        for expected in item.expected:
            for values in expected.accepted.values():
                flag = {True: "yes", False: "no"}
                word = flag[values[0]] if isinstance(values[0], bool) else str(values[0])
                assert word in item.question


def test_functions_are_told_as_the_template_has_room_for_them():
    plain = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    knowing = ChatTemplate(
        "{% if tools %}{{ tools | tojson }}{% endif %}{{ messages[-1].content }}"
    )
    broken = ChatTemplate("{% if tools %}{{ raise_exception('none') }}{% endif %}hello")
    told = [presentation_of(template) for template in (plain, knowing, broken, None)]
    assert told == [
        Presentation.MESSAGE,
        Presentation.TEMPLATE,
        Presentation.MESSAGE,
        Presentation.TEXT,
    ]
    item = AXIS.items[0]
    asks = {way: tool_ask(item, way) for way in told}
    assert asks[Presentation.TEMPLATE].tools == item.tools
    assert asks[Presentation.MESSAGE].prompt[0]["role"] == "system"
    assert item.offered[0] in asks[Presentation.MESSAGE].prompt[0]["content"]
    assert asks[Presentation.TEXT].prompt.endswith("\nAnswer:")
    assert not asks[Presentation.TEXT].tools


def test_an_axis_without_items_is_refused():
    with pytest.raises(UsageError, match="neither functions nor schemas"):
        ToolsAxis(items=(), schemas=())


def test_a_folder_of_files_takes_the_place_of_the_suite(tmp_path):
    (note,) = tools_axis(tmp_path).notes
    assert "neither tools/*.json nor schemas/*.jsonl" in note
    assert replace(tools_axis(tmp_path), notes=()) == tools_axis(None) == AXIS
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "mine.jsonl").write_text('{"id": "a", "schema": {"type": "integer"}}')
    found = tools_axis(tmp_path)
    assert (found.items, [item.name for item in found.schemas]) == ((), ["a"])


def test_two_questions_of_one_id_are_refused_since_one_would_be_lost(tmp_path):
    (tmp_path / "schemas").mkdir()
    for name in ("one", "two"):
        line = '{"id": "a", "schema": {"type": "integer"}}'
        (tmp_path / "schemas" / f"{name}.jsonl").write_text(line)
    with pytest.raises(BadFileError, match="two questions with the id 'a'"):
        tools_axis(tmp_path)


def test_a_folder_that_is_not_there_is_no_reason_to_run_the_built_in_suite(tmp_path):
    with pytest.raises(MissingError, match="is no folder"):
        tools_axis(tmp_path / "mistyped")


def test_what_the_axis_says_of_its_items_stands_in_the_record():
    arms = scripted_arms(Scripted(right), Scripted(right))
    found = replace(AXIS, notes=("The built-in suite ran.",)).run(arms, no_progress)
    assert found.notes[0] == "The built-in suite ran."


def test_the_engine_writes_json_of_the_schema_under_a_grammar(tmp_path):
    schema = {
        "type": "object",
        "properties": {"ok": {"type": "boolean"}},
        "required": ["ok"],
        "additionalProperties": False,
    }
    axis = ToolsAxis(
        items=builtin_items()[:1],
        schemas=(
            SchemaItem("flag", "flag", schema, ""),
            SchemaItem("long", "long", {**schema, "description": "x" * 2000}, ""),
            SchemaItem("odd", "odd", {"type": "string", "pattern": "(?=a)b"}, ""),
        ),
        context=2048,
        sequences=2,
    )
    config = {**CONFIG, "max_position_embeddings": 4096}
    subject = open_subject(write_subject(tmp_path / "model", config=config))
    party = local_party(subject, RunSettings(threads=1))
    result = axis.run(Arms({Role.SOURCE: party, Role.CANDIDATE: party}), no_progress)
    (constrained,) = (s for s in result.slices if s.name == "structured/constrained")
    assert [(item.name, item.candidate) for item in constrained.items] == [("constrained/flag", 0)]
    left = {out.name: out.why for out in result.details.left_out}
    assert set(left) == {"free/long", "constrained/long", "constrained/odd"}
    assert "do not fit" in left["free/long"]
    assert all(item.source == item.candidate for s in result.slices for item in s.items)
