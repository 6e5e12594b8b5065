import hashlib
from datetime import datetime

import pytest

from fewbit.errors import RequestError, TemplateError
from fewbit.tokens.chat_template import ChatTemplate

TURNS = """{%- for message in messages %}
{{- '<|' + message['role'] + '|>' + message['content'] | trim }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"""

HI = [{"role": "user", "content": " Hi <b>é</b> & 'q' "}]


def render(source, messages=HI, tools=None, **variables):
    return ChatTemplate(source, {"bos_token": "<s>"}).render(messages, tools, **variables)


def test_a_conversation_becomes_text():
    assert render(TURNS) == "<|user|>Hi <b>é</b> & 'q'<|assistant|>"
    assert render(TURNS, add_generation_prompt=False) == "<|user|>Hi <b>é</b> & 'q'"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}x", "<s>x"),
        ("{{ thinking }}", "True"),
        ("{{ tools }} {{ documents }}", "None None"),
        ("{{ nothing }}{{ messages[0].nothing }}", ""),
        ("  {% if true %}\na\n  {% endif %}\nb", "a\nb"),
        ("{% for i in range(9) %}{% if i == 1 %}{% continue %}{% endif %}"
         "{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}", "023"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}"
         "{% endfor %}{{ ns.n }}", "3"),
        ("{{ {'é': ['<', 1, none, true]} | tojson }}", '{"é": ["<", 1, null, true]}'),
        ("{{ [1, {'a': 2}] | tojson(indent=2) }}", '[\n  1,\n  {\n    "a": 2\n  }\n]'),
        ("{{ {'b': 1, 'a': 2} | tojson(sort_keys=true, separators=(',', ':')) }}", '{"a":2,"b":1}'),
        ("{{ 'é' | tojson(ensure_ascii=true) }}", '"\\u00e9"'),
        ("{{ 'a,b'.split(',')[1:] }}{{ 'xyz'[::-1] }}{{ [1, 2, 3][:2] }}", "['b']zyx[1, 2]"),
        ("{{ 'a' ~ 1 ~ none ~ [2] }}", "a1None[2]"),
        ("{{ '%s-%03d' % ('a', 7) }}{{ '%s' | format(1) }}{{ '{:>3}{}'.format(1, 'x') }}",
         "a-0071  1x"),
        ("{{ 'abc'.replace('b', '') }}{{ 'abc' | replace('b', 'X') }}{{ 'ab'.startswith('a') }}",
         "acaXcTrue"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ [3, 1, 2] | sort | join }}{{ [1, 2] | sum }}{{ [1, 5] | max }}", "12335"),
        ("{{ [{'a': 1}, {'a': 2}] | join('-', attribute='a') }}", "1-2"),
        ("{{ [{'a': 1}, {'a': 2}] | sum(attribute='a') }}", "3"),
        ("{% macro f(x, y=2) %}{{ x }}{{ y }}{{ caller() if caller }}{% endmacro %}"
         "{{ f(1) }}{% call f(3) %}!{% endcall %}", "1232!"),
        ("{% set x %}a{{ 1 }}b{% endset %}{{ x | upper }}", "A1B"),
        ("{% filter upper %}abc{{ 'd' }}{% endfilter %}", "ABCD"),
        ("{% generation %}{{ 1 + 1 }}{% endgeneration %}", "2"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ x if x is number else loop(x) }}{% endfor %}",
         "123"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}", "a1True"),
        ("{% for k, v in {'b': 1, 'a': 2} | dictsort %}{{ k }}{% endfor %}", "ab"),
        ("{{ {'a': 1}.get('b', 'x') }}{{ {(1, 2): 3}[(1, 2)] }}", "x3"),
        ("{{ 2 ** 10 }}{{ 7 // 2 }}{{ 7 % 4 }}{{ 'ab' * 2 }}{{ [0] * 2 }}", "102433abab[0, 0]"),
        ("{{ 'a\nb' | indent(2) }}|{{ 'a\nb' | indent('> ', true) }}", "a\n  b|> a\n> b"),
        ("{{ 3 is odd }}{{ 'a' is string }}{{ x is defined }}{{ 1 in [1] }}", "TrueTrueFalseTrue"),
        ("{{ messages[0]['content'] | length }}{{ messages[0].role[0] }}", "19u"),
        ("{{ dict(a=1) }}{{ [1, 2, 3] | batch(2) | list }}", "{'a': 1}[[1, 2], [3]]"),
        ("{{ strftime_now('%d %b %Y 100%%') }}", "03 Feb 2021 100%"),
    ],
)  # fmt: skip
def test_what_templates_use(source, text):
    template = ChatTemplate(source, {"bos_token": "<s>"}, clock=lambda: datetime(2021, 2, 3))
    assert template.render(HI, thinking=True) == text


def test_tools_and_variables_reach_the_template():
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert render("{{ tools | tojson }}", tools=tools) == (
        '[{"type": "function", "function": {"name": "f"}}]'
    )


def test_keys_without_a_value_are_absent():
    messages = [{"role": "assistant", "content": None, "parts": [None]}]
    source = "{{ messages[0].content is defined }} {{ messages[0].parts }}"
    assert render(source, messages) == "False [None]"


def test_what_the_template_says_is_the_error():
    source = "{% if messages[0].role != 'system' %}{{ raise_exception('system first') }}{% endif %}"
    with pytest.raises(TemplateError, match="refuses this conversation: system first"):
        render(source)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("{% for %}", "malformed in line 1"),
        ("a\n{{ x | nope }}", "malformed in line 2: No filter named 'nope'"),
        ("{{ 1 / 0 }}", r"failed \(ZeroDivisionError\)"),
        ("{{ messages[0].a.b }}", r"failed \(UndefinedError\).*no attribute 'a'"),
        ("{{ x | tojson }}", r"failed \(TypeError\)"),
        ("{% include 'x' %}", "uses include in line 1"),
        ("{% import 'x' as y %}", "uses import"),
        ("{% extends 'x' %}", "uses extends"),
        ("x" * 70_000, "has 70,000 characters"),
    ],
)
def test_a_bad_template_is_an_error_of_the_request(source, sentence):
    template = ChatTemplate(source)  # keeping it is no error: only chats need it
    with pytest.raises(TemplateError, match=sentence):
        template.render(HI)


def test_a_template_is_used_again_after_a_failure():
    template = ChatTemplate("{{ messages[1].content if messages[0].role == 'system' else 'ok' }}")
    assert template.render(HI) == "ok"
    with pytest.raises(TemplateError):
        template.render([{"role": "system"}])
    assert template.render(HI) == "ok"


@pytest.mark.parametrize(
    ("messages", "sentence"),
    [
        ([{"role": "user", "content": object()}], r"messages\[0\].content is a object"),
        ([{"role": "user", "content": b"x"}], r"messages\[0\].content is a bytes"),
        ([], "conversation is empty"),
        (["hi"], r"messages\[0\] is no object"),
    ],
)
def test_only_plain_data_is_taken(messages, sentence):
    with pytest.raises(RequestError, match=sentence):
        render("x", messages)


def test_deep_data_is_refused():
    value = "x"
    for _ in range(100):
        value = [value]
    with pytest.raises(RequestError, match="nested more than 48 deep"):
        render("x", [{"role": "user", "content": value}])


def test_classes_of_callers_lose_their_methods():
    class Loud(str):
        def shout(self):
            return self.upper()

    messages = [{"role": "user", "content": Loud("x")}]
    assert render("{{ messages[0].content.shout is defined }}", messages) == "False"


def test_the_conversation_is_not_changed():
    messages = [{"role": "user", "content": "x", "name": None}]
    render("{{ messages }}", messages)
    assert messages == [{"role": "user", "content": "x", "name": None}]


def test_the_digest_is_that_of_the_source():
    assert ChatTemplate("x").digest == hashlib.sha256(b"x").hexdigest()
