"""Chat templates against transformers' rendering of the same sources."""

import itertools

import pytest
import tokenizers
from tokenizers import models

from fewbit.errors import TemplateError
from fewbit.tokens.chat_template import ChatTemplate

pytestmark = pytest.mark.interop

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'The <weather> & "more", é',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"enum": [1, 2.5, None]}},
                "required": ["city"],
            },
        },
    }
]

CALL = {"type": "function", "function": {"name": "weather", "arguments": {"city": "Ü", "n": 1}}}

CONVERSATIONS = {
    "one": [{"role": "user", "content": "Hi <b>é</b> & 'q' \"x\"\n\n"}],
    "system": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "  a  "},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nb", "name": None},
        {"role": "user", "content": "c"},
    ],
    "tools": [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
        {"role": "tool", "content": '{"t": 3}'},
        {"role": "tool", "content": "4"},
        {"role": "assistant", "content": "3"},
    ],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}],
    "two of a kind": [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
}

# Each in the manner of a family: turns with a default system text; headers, dates and tools;
# alternating turns with refusals; thinking stripped from earlier turns.
TEMPLATES = {
    "turns": """
{%- for message in messages %}
    {%- if loop.first and messages[0]['role'] != 'system' %}
        {{- '<|im_start|>system\\nYou help.<|im_end|>\\n' }}
    {%- endif %}
    {{- '<|im_start|>' ~ message['role'] ~ '\\n' ~ message['content'] ~ '<|im_end|>' }}
{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    "headers": """{{- bos_token }}
{%- if not tools is defined or tools is none %}{%- set tools = [] %}{%- endif %}
{%- if messages and messages[0].role == "system" %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = "" %}
{%- endif %}
{{- "<|header|>system<|header_end|>\\n\\n" }}
{%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
{{- system ~ "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|header_end|>\\n\\n' + message['content'] | trim }}
        {{- '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- for call in message.tool_calls %}
            {%- for key, value in call.function.arguments | items %}
                {{- key ~ '=' ~ value | tojson ~ (', ' if not loop.last else '') }}
            {%- endfor %}
        {%- endfor %}
    {%- else %}
        {{- message.content if message.content is string else message.content | tojson }}
    {%- endif %}
{%- endfor %}""",
    "alternating": """{{ bos_token }}{%- if messages and messages[0]['role'] == 'system' -%}
  {%- set first = messages[0]['content'] + '\\n\\n' -%}{%- set rest = messages[1:] -%}
{%- else -%}{%- set first = "" -%}{%- set rest = messages -%}{%- endif -%}
{%- for message in rest -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate") }}
    {%- endif -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<turn>' + role + '\\n' + (first if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}
            {%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<turn>model\\n' }}{%- endif -%}""",
    "thinking": """{%- set ns = namespace(multi=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi and message.role == "user" and message.content is string
        and not (message.content.startswith('<tool>') and message.content.endswith('</tool>')) %}
        {%- set ns.multi = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- macro show(message, keep=false) %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if '</think>' in content and not keep %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- message.role ~ ': ' ~ content }}
{%- endmacro %}
{%- for message in messages %}
    {%- if message.role == 'tool' and (loop.first or messages[loop.index0 - 1].role != 'tool') %}
        {{- '[' }}
    {%- endif %}
    {{- show(message, keep=loop.index0 > ns.last) | replace('a', 'A') }}
    {%- if message.tool_calls %}{% generation %}{{ message.tool_calls | tojson }}
        {%- endgeneration %}{% endif %}
    {{- '\\n' if not loop.last }}
{% endfor %}
{%- if enable_thinking is defined and enable_thinking is false %}
    {{- '<think>\\n\\n</think>\\n\\n' }}
{%- endif %}""",
    "filters": """{{ messages | map(attribute='role') | unique | join(',') | upper }}
{{ messages | selectattr('role', 'in', ['user', 'tool']) | list | length }}
{{ messages | groupby('role') | map('first') | join('-') }}
{{ (messages | tojson)[:40] | indent(3, true) | title | center(60) }}|
{{ '%s %5.2f %-4d|' % ('x', 1.5, 3) }}{{ '{:>4}{a!r}'.format(1, a='b') }}
{% for row in [1, 2, 3, 4, 5] | batch(2, 0) %}{{ row | sum }}{{ loop.cycle('a', 'b') }}{% endfor %}
{{ [3, 1, 2] | sort(reverse=true) }}{{ {'b': 1, 'a': [2]} | dictsort }}{{ 7 // 2 ** 2 - 5 % 3 }}
{{ messages | reject('mapping') | list }}{{ [1, none, 'x'] | select | list }}
{{ 3.14159 | round(2) }}{{ '42' | int + '1.5' | float }}{{ 'a b' | wordcount }}{{ -3 | abs }}
{% set x %}{% for i in range(3) if i != 1 %}{{ i }}{% else %}none{% endfor %}{% endset %}{{ x }}
{% with y = 2 %}{{ y }}{% endwith %}{{ y }}{{ [1, [2, [3]]] | string | length }}
{{ 'x' is in 'xyz' }}{{ 4 is divisibleby 2 }}{{ messages is sequence }}{{ 1 == 1.0 }}{{ 'a' < 'b' }}
""",
}


@pytest.fixture(scope="module")
def theirs():
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415

    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")


@pytest.mark.parametrize(("template", "name"), list(itertools.product(TEMPLATES, CONVERSATIONS)))
def test_text_is_that_of_transformers(theirs, template, name):
    source, messages = TEMPLATES[template], CONVERSATIONS[name]
    ours = ChatTemplate(source, {"bos_token": "<s>"})
    for tools, prompt in itertools.product((None, TOOLS), (False, True)):
        variables = {"enable_thinking": prompt}
        try:
            expected = theirs.apply_chat_template(
                messages,
                tools=tools,
                chat_template=source,
                add_generation_prompt=prompt,
                tokenize=False,
                **variables,
            )
        except Exception as error:
            # Whatever their exception is, ours is one, and says the same.
            with pytest.raises(TemplateError) as met:
                ours.render(messages, tools, add_generation_prompt=prompt, **variables)
            assert str(error).splitlines()[0].rstrip(".")[:100] in str(met.value)
        else:
            text = ours.render(messages, tools, add_generation_prompt=prompt, **variables)
            assert text == expected
