"""Which tokens of a conversation the model writes, and which of those are protocol."""

import pytest
from tiny_subjects import begin_with_bos, tokenizer

from fewbit.errors import TemplateError
from fewbit.evaluate.language.conversations import Chat, chats_text, conversations, passages
from fewbit.evaluate.language.passages import chat_passages, short_passages
from fewbit.evaluate.language.protocol import Mark, render_turns
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.from_hugging_face import from_hugging_face

TURNS = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}</s>\n{% endfor %}"
NO_SYSTEM = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
MESSAGES = (
    {"role": "system", "content": 'Tools: {"name": "add"}'},
    {"role": "user", "content": 'What is {"a": 1} plus one?'},
    {
        "role": "assistant",
        "content": '<tool_call>\n{"name": "add", "n": [1, {"b": "x,y"}]}\n</tool_call>',
    },
    {"role": "user", "content": "2"},
    {"role": "assistant", "content": "It is {2}, and [1] is a note."},
)


@pytest.fixture(scope="module")
def words():
    """A byte-level tokenizer, so that a token is a byte but for <s>, </s>, `th` and `the`."""
    config = {"bos_token": "<s>", "eos_token": "</s>"}
    return from_hugging_face(begin_with_bos(tokenizer()).to_str().encode(), config)


def chosen(words, turns, mask):
    return words.decode(turns.tokens[mask].tolist())


def template(words, source=TURNS):
    return ChatTemplate(source, words.special_texts)


def test_answers_and_the_ends_of_their_turns_are_what_the_model_writes(words):
    turns = render_turns(words, template(words), MESSAGES)
    answers = [m["content"] for m in MESSAGES if m["role"] == "assistant"]
    assert chosen(words, turns, turns.written) == "".join(f"{a}</s>" for a in answers)
    assert chosen(words, turns, turns.marks[Mark.END_OF_TURN]) == "</s></s>"


def test_an_end_may_stand_behind_white_space_and_nothing_else(words):
    spaced = render_turns(words, template(words, TURNS.replace("</s>", " \n</s>")), MESSAGES)
    assert chosen(words, spaced, spaced.marks[Mark.END_OF_TURN]) == "</s></s>"
    other = render_turns(words, template(words, TURNS.replace("</s>", " stop</s>")), MESSAGES)
    assert not other.marks[Mark.END_OF_TURN].any()


def test_punctuation_of_json_is_that_of_objects_in_answers_alone(words):
    turns = render_turns(words, template(words), MESSAGES)
    # Every mark of the object but those inside its texts: "x,y" is not told apart by bytes alone.
    assert chosen(words, turns, turns.marks[Mark.JSON]) == '{"":"","":[,{"":","}]}'
    assert chosen(words, turns, turns.marks[Mark.TOOL_CALL]) == "<"
    assert turns.marks[Mark.TOOL_CALL].sum() == 1


def test_a_template_that_strips_and_one_that_rewrites(words):
    stripped = TURNS.replace("m.content", "m.content | trim")
    spaced = tuple({**m, "content": f"  {m['content']} "} for m in MESSAGES)
    plain = render_turns(words, template(words), MESSAGES)
    turns = render_turns(words, template(words, stripped), spaced)
    assert (turns.written == plain.written).all()
    shouting = render_turns(
        words, template(words, TURNS.replace("m.content", "m.content | upper")), MESSAGES
    )
    assert not shouting.written.any()


def test_a_system_message_that_a_template_refuses_moves_into_the_first_question(words):
    chats = (Chat("sum", MESSAGES),)
    plain = chat_passages(words, template(words), chats, 512)
    found = chat_passages(words, template(words, NO_SYSTEM + TURNS), chats, 512)
    assert (plain.note, found.note != "") == ("", True)
    (one,), (other,) = plain.passages, found.passages
    assert one.counted.sum() == other.counted.sum()
    bare = (Chat("sum", MESSAGES[1:]),)
    with pytest.raises(TemplateError):
        chat_passages(words, template(words, "{{ raise_exception('never') }}"), bare, 512)
    with pytest.raises(TemplateError, match="never"):
        chat_passages(words, template(words, "{{ raise_exception('never') }}"), chats, 512)


def test_a_conversation_is_compared_from_its_first_answer_on(words):
    (found,) = chat_passages(words, template(words), (Chat("sum", MESSAGES),), 512).passages
    turns = render_turns(words, template(words), MESSAGES)
    assert found.counted[0]
    assert len(found.counted) == len(found.tokens) - 1 - found.first == len(found.positions)
    targets = found.tokens[found.positions + 1]
    assert words.decode(targets[found.counted].tolist()) == chosen(words, turns, turns.written)
    for kind in Mark:
        marked = words.decode(targets[found.marks[kind]].tolist())
        assert marked == chosen(words, turns, turns.marks[kind])
    (cut,) = chat_passages(words, template(words), (Chat("sum", MESSAGES),), 80).passages
    assert len(cut.tokens) == 80
    assert len(cut.marks[Mark.JSON]) == len(cut.counted) == 79 - cut.first
    assert chat_passages(words, template(words), (Chat("sum", MESSAGES),), 20).passages == ()


def test_the_built_in_conversations_have_enough_of_every_kind(words):
    """A slice of fewer than 12 documents is not judged."""
    found = chat_passages(words, template(words), conversations(), 4096).passages
    assert len(found) == len({p.document.name for p in found}) >= 24
    for kind, least in ((Mark.END_OF_TURN, 24), (Mark.JSON, 12), (Mark.TOOL_CALL, 12)):
        assert sum(bool(p.marks[kind].any()) for p in found) >= least
    assert len(chats_text(conversations()).documents) == len(conversations())
    roles = {m["role"] for chat in conversations() for m in chat.messages}
    assert roles == {"system", "user", "assistant"}


def test_the_built_in_passages_are_of_many_languages(words):
    found = list(short_passages(words, passages(), "languages", 200))
    assert len(found) == len(passages().documents) >= 16
    assert all(p.first == 0 and p.tokens[0] == 1 and len(p.tokens) == 200 for p in found)
    assert all(p.counted.all() for p in found)
