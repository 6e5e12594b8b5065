"""Templates that try to get out of the sandbox, to run for ever or to fill the memory.

Each case must end quickly as an error of the request (or as harmless text, where Jinja gives an
undefined value), within bounds of time and memory.
"""

import time
import tracemalloc

import pytest

from fewbit.errors import TemplateError
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.template_budget import Budget, RenderLimits, limits_for

HI = [{"role": "user", "content": "x"}]

ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "subscript": "{{ ''['__class__'] }}",
    "attr": "{{ ''|attr('__class__') }}",
    "format": "{{ '{0.__class__}'.format(1) }}",
    "format map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "map": "{{ ['']|map(attribute='__class__')|list }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "clock": "{{ strftime_now._clock }}",
    "init": "{{ cycler.__init__.__globals__ }}",
    "self": "{{ self._TemplateReference__context }}",
    "code": "{% macro f() %}{% endmacro %}{{ f._func.__code__ }}",
    "namespace": "{{ namespace().__init__ }}",
    "loop": "{% for x in [1] %}{{ loop._iterable }}{% endfor %}",
    "append": "{{ messages.append(1) }}",
    "pop": "{{ messages[0].pop('role') }}",
    "encode": "{{ 'a'.encode() }}",
    "bytes": "{{ (1).to_bytes(9, 'big') }}",
    "import": "{{ (1).__class__.__base__.__subclasses__() }}",
}


@pytest.mark.parametrize("name", list(ESCAPES))
def test_nothing_leads_out_of_the_sandbox(name):
    try:
        text = ChatTemplate(ESCAPES[name]).render(HI)
    except TemplateError:
        return
    assert text in ("", "[Undefined]")


def growing(step):
    return "{% set ns = namespace(s='ab') %}{% for i in range(60) %}" + step + "{% endfor %}"


# Values that hold the last one twice, so that writing, comparing or hashing one never ends.
BILLION = (
    "{% set a = namespace(t=(1,), l=[1]) %}{% set b = namespace(t=(1,), l=[1]) %}"
    "{% for i in range(40) %}{% set a.t = (a.t, a.t) %}{% set a.l = [a.l, a.l] %}"
    "{% set b.l = [b.l, b.l] %}{% endfor %}"
)

# A tuple nested so deep that hashing it would overflow the stack of C.
DEEP = (
    "{% set a = namespace(t=(1,)) %}{% for i in range(20000) %}{% set a.t = (a.t,) %}{% endfor %}"
)

WORK = {
    "nested ranges": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}"
    "{% endfor %}",
    "filtered range": "{% for i in range(99999) %}{% for j in range(99999) if false %}{% endfor %}"
    "{% endfor %}",
    "large range": "{% for i in range(10**9) %}{% endfor %}",
    "output": "{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}",
    "output of a set": "{% set x %}{% for i in range(99999) %}" + "x" * 1000 + "{% endfor %}"
    "{% endset %}",
    "output of a call": "{% macro f() %}{% for i in range(99999) %}{{ caller() }}{% endfor %}"
    "{% endmacro %}{% call f() %}" + "x" * 1000 + "{% endcall %}",
    "product": "{{ 'a' * 10**9 }}",
    "product turned": "{{ 10**9 * 'a' }}",
    "product of a list": "{{ [0] * 10**9 }}",
    "sum": growing("{% set ns.s = ns.s + ns.s %}"),
    "tilde": growing("{% set ns.s = ns.s ~ ns.s %}"),
    "join": growing("{% set ns.s = [ns.s, ns.s]|join %}"),
    "join by": "{{ (['']*90000)|join('x'*90000) }}",
    "join method": growing("{% set ns.s = ''.join([ns.s, ns.s]) %}"),
    "percent": growing("{% set ns.s = '%s%s' % (ns.s, ns.s) %}"),
    "percent key": growing("{% set ns.s = '%(a)s%(a)s' % {'a': ns.s} %}"),
    "format": growing("{% set ns.s = '{0}{0}'.format(ns.s) %}"),
    "format filter": growing("{% set ns.s = '%s%s'|format(ns.s, ns.s) %}"),
    "replace": growing("{% set ns.s = ns.s|replace('a', 'aaaaaaaaa') %}"),
    "replace method": growing("{% set ns.s = ns.s.replace('a', 'aaaaaaaaa') %}"),
    "set": growing("{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
    "macro": growing("{% macro f() %}{{ ns.s }}{{ ns.s }}{% endmacro %}{% set ns.s = f() %}"),
    "center": "{{ 'a'|center(10**9) }}",
    "center block": "{% filter center(1000000000) %}x{% endfilter %}",
    "center when compiled": "{% autoescape 'a'|center(1000000000) %}{% endautoescape %}",
    "ljust": "{{ 'a'.ljust(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "width": "{{ '%1000000000d' % 1 }}",
    "width given": "{{ '%*d' % (1000000000, 1) }}",
    "precision": "{{ '%.1000000000f' % 1 }}",
    "width behind a key": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "width as a test": "{{ '%1000000000d' is odd }}",
    "width of format": "{{ '{:1000000000d}'.format(1) }}",
    "width of format given": "{{ '{:{w}d}'.format(1, w=1000000000) }}",
    "indent": "{{ 'a\nb'|indent(10**9) }}",
    "indent of json": "{{ [1]|tojson(indent=10**9) }}",
    "batch": "{{ [1]|batch(10**9, 'x')|list }}",
    "power": "{{ 10**(10**7) }}",
    "squares": "{% set ns = namespace(x=10) %}{% for i in range(60) %}{% set ns.x = ns.x*ns.x %}"
    "{% endfor %}",
    "round": "{{ 1.5|round(10**9, 'ceil') }}",
    "macro of itself": "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
    "block of itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "tree of macros": "{% macro f(n) %}{% if n > 0 %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}"
    "{% endmacro %}{{ f(60) }}",
    "tree of loops": "{% for x in [1, 2] recursive %}{% if loop.depth < 40 %}{{ loop([1, 2]) }}"
    "{% endif %}{% endfor %}",
    "copies": "{% set s = 'a'*900000 %}{% set ns = namespace(l=[]) %}{% for i in range(9999) %}"
    "{% set ns.l = ns.l + [s[1:]] %}{% endfor %}",
    "scans": "{% set s = 'a'*900000 %}{% for i in range(9999) %}{% if s.count('b') %}{% endif %}"
    "{% endfor %}",
    "shared items": "{{ (['a'*900000]*90000)|select|join }}",
    "lists of a range": "{% for i in range(999) %}{% set x = range(99999)|list %}{% endfor %}",
    "sum of lists": "{{ ([[1]*20]*40000)|sum(start=[]) }}",
    "date": "{{ strftime_now('%1000000000Y') }}",
    "parentheses": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep ifs": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "deep fors": "{% for a in [1] %}" * 60 + "{% endfor %}" * 60,
    "chain": "{{ 1" + "+1" * 9000 + " }}",
    "path": "{{ a" + ".b" * 9000 + " }}",
    "written": BILLION + "{{ a.l }}",
    "compared": BILLION + "{{ a.l == b.l }}",
    "contained": BILLION + "{{ a.l in [b.l] }}",
    "tested": BILLION + "{{ a.l is upper }}",
    "selected": BILLION + "{{ [a.l]|select('in', [b.l])|list }}",
    "changed": BILLION + "{% for y in [a.l, b.l] %}{{ loop.changed(y) }}{% endfor %}",
    "json": BILLION + "{{ a.l|tojson }}",
    "safe": BILLION + "{{ a.l|safe }}",
    "hashed": BILLION + "{{ {a.t: 1} }}",
    "unique": BILLION + "{{ [a.t]|unique|list }}",
    "name of a filter": BILLION + "{{ [1]|map(a.t)|list }}",
    "attribute": BILLION + "{{ [{}]|sum(attribute=a.l) }}",
    "subscript": BILLION + "{{ {}[[a.l]].x }}",
    "message": BILLION + "{{ raise_exception(a.l) }}",
    "namespace": BILLION + "{{ a }}",
    "pairs": BILLION + "{{ namespace([(a.t, 1)]) }}",
    "deep key": DEEP + "{{ {a.t: 1} }}",
    "deep get": DEEP + "{{ {}.get(a.t) }}",
    "deep subscript": DEEP + "{{ {}[a.t] }}",
    "deep test": DEEP + "{{ a.t is filter }}",
    "own namespace": "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
}  # fmt: skip


@pytest.mark.parametrize("name", list(WORK))
def test_work_is_bounded(name):
    started = time.process_time()
    with pytest.raises(TemplateError):
        ChatTemplate(WORK[name]).render(HI)
    # Alone on one core the slowest takes 0.4 s.
    assert time.process_time() - started < 3.0


@pytest.mark.parametrize("name", ["output of a set", "tilde", "copies", "shared items", "json"])
def test_memory_is_bounded(name):
    tracemalloc.start()
    with pytest.raises(TemplateError):
        ChatTemplate(WORK[name]).render(HI)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # All that may be processed is 8 million characters, of one byte here; lists count eight.
    assert peak < 70_000_000


def test_without_the_bounds_the_cases_would_run():
    # The same templates, small, do what the bounds are there to stop: so those do stop them.
    small = "{% for i in range(99) %}{% for j in range(99) %}x{% endfor %}{% endfor %}"
    assert len(ChatTemplate(small).render(HI)) == 99 * 99
    tight = RenderLimits(steps=9_000, processed=10**9, written=10**9, seconds=60.0)
    with pytest.raises(TemplateError, match="more than 9,000 steps"):
        ChatTemplate(small).render(HI, limits=tight)
    tight = RenderLimits(steps=10**9, processed=10**9, written=9_000, seconds=60.0)
    with pytest.raises(TemplateError, match="more than 9,000 characters"):
        ChatTemplate(small).render(HI, limits=tight)
    tight = RenderLimits(steps=10**9, processed=9_000, written=10**9, seconds=60.0)
    with pytest.raises(TemplateError, match="handled more than 9,000 characters"):
        ChatTemplate(small).render(HI, limits=tight)


def test_time_is_a_bound_too():
    endless = RenderLimits(steps=10**12, processed=10**15, written=10**12, seconds=0.2)
    started = time.monotonic()
    with pytest.raises(TemplateError, match=r"more than 0.2 seconds"):
        ChatTemplate(WORK["nested ranges"]).render(HI, limits=endless)
    assert time.monotonic() - started < 5.0


def test_bounds_grow_with_the_conversation():
    long = [{"role": "user", "content": "word " * 1000}] * 400
    source = "{% for m in messages %}{{ m.role ~ ': ' ~ m.content|trim }}\n{% endfor %}"
    assert len(ChatTemplate(source).render(long)) == 400 * (6 + 4999 + 1)
    looking_back = (
        "{% for m in messages %}{% for n in messages[:loop.index0] %}"
        "{% if n.role == 'system' %}{% endif %}{% endfor %}{{ m.role }}{% endfor %}"
    )
    assert ChatTemplate(looking_back).render(long) == "user" * 400


@pytest.mark.parametrize(
    ("value", "weight"),
    [("abc", 4), (7, 2), ([], 1), (["a", "b"], 6), ({"a": "b"}, 6), (range(10), 89), (None, 25)],
)
def test_weights(value, weight):
    # One for each node, and its text; a scalar on its own is no node.
    found = Budget(limits_for(0)).weigh(value)
    assert abs(found - weight) <= 2


def test_a_value_is_counted_as_often_as_it_is_held():
    shared = ["x" * 100]
    budget = Budget(limits_for(0))
    assert budget.weigh([shared] * 10) >= 1000
