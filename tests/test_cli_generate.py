"""`fewbit generate` and `fewbit chat` on a tiny model, from the command line to the record."""

import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fakes import FakeDecoder, FakeExecutor
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.cli.streaming import interruptible, stream
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.request import Request
from fewbit.engine.served import Served
from fewbit.errors import NumericalError
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json
from fewbit.records.generation import FinishReason, GenerationReport
from fewbit.runtime import chooser
from fewbit.runtime.pack import packed_form
from fewbit.sampling import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_text_model(tmp_path_factory.mktemp("tiny")))


def generate(capsys, *arguments):
    code = run(["generate", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def report_of(capsys, *arguments):
    code, out, _ = generate(capsys, *arguments, "--json", "-")
    assert code == 0
    return from_json(GenerationReport, out.encode(), name="stdout")


def test_text_goes_to_stdout_and_figures_to_stderr(model, capsys):
    code, out, err = generate(capsys, model, "-p", "hello", "--max-tokens", 12, "--draft", "ngram")
    assert code == 0
    assert out.endswith("\n")
    assert "output: 12 tokens, end to end" in err
    assert "draft ngram:" in err
    assert "draft time" in err
    assert "verify time" in err
    assert "chat template is put around" in err


@pytest.mark.parametrize("sampling", [(), ("--temperature", 1, "--seed", 3, "--min-p", 0.01)])
def test_a_draft_changes_nothing(model, capsys, sampling):
    shared = (model, "--raw", "-p", "abcabcabc", "--max-tokens", 40, *sampling)
    plain = report_of(capsys, *shared)
    drafted = report_of(capsys, *shared, "--draft", "ngram")
    assert (drafted.text, drafted.tokens) == (plain.text, plain.tokens)
    assert plain.generation.draft is None
    assert drafted.generation.draft.draft == "ngram"


def test_a_forced_instruction_set_is_in_the_record_and_changes_nothing(model, capsys):
    best = report_of(capsys, model, "-p", "abc", "--max-tokens", 5)
    forced = report_of(capsys, model, "-p", "abc", "--max-tokens", 5, "--isa", "portable")
    assert forced.conditions.isa == "portable"
    assert forced.tokens == best.tokens


def test_the_template_is_used_by_default_and_can_be_left_out(model, capsys):
    chat = report_of(capsys, model, "-p", "hi", "--max-tokens", 2)
    raw = report_of(capsys, model, "-p", "hi", "--max-tokens", 2, "--raw")
    system = report_of(capsys, model, "-p", "hi", "--max-tokens", 2, "--system", "be")
    rendered = len("<user>hi") + 1 + len("<assistant>")
    assert (chat.chat_template, chat.generation.prompt_tokens) == (True, rendered)
    assert (raw.chat_template, raw.generation.prompt_tokens) == (False, 2)
    assert system.generation.prompt_tokens == rendered + len("<system>be") + 1


def test_a_fallback_is_told_recorded_and_can_be_forbidden(model, capsys, tmp_path, monkeypatch):
    # Planted: no format needs a fallback.
    notes = {"int3-g32": "3-bit codes are run as 4-bit ones"}
    monkeypatch.setattr(
        chooser,
        "packed_form",
        lambda t, _: replace(packed_form(t), note=notes.get(t.spec.name, "")),
    )
    small = tmp_path / "small"
    assert run(["quantize", model, "--recipe", "rtn-int3-g32", "--out", str(small)]) == 0
    arguments = (small, "--raw", "-p", "ab", "--max-tokens", 2)
    code, _, err = generate(capsys, *arguments)
    assert code == 0
    assert "int3-g32: 3-bit codes are run as 4-bit ones" in err
    assert "3-bit codes" in {
        k.note.partition(" are")[0] for k in report_of(capsys, *arguments).kernels
    }
    code, out, err = generate(capsys, *arguments, "--strict")
    assert (code, out, err.count("\n")) == (2, "", 1)


def test_the_prompt_may_come_from_stdin_or_a_file(model, capsys, tmp_path, monkeypatch):
    file = tmp_path / "prompt.txt"
    file.write_text("from a file")
    fixed = (model, "--raw", "--max-tokens", 2)
    assert report_of(capsys, *fixed, "--prompt-file", file).prompt == "from a file"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"from \xff stdin")))
    assert report_of(capsys, *fixed, "-p", "-").prompt == "from � stdin"


def test_the_record_goes_to_a_file_beside_the_text(model, capsys, tmp_path):
    target = tmp_path / "record.json"
    _, out, _ = generate(capsys, model, "-p", "x", "--max-tokens", 3, "--json", target)
    report = from_json(GenerationReport, target.read_bytes(), name="record.json")
    assert report.text == out.removesuffix("\n") or report.text == out
    assert report.generation.generated_tokens == len(report.tokens)
    assert report.conditions.threads >= 1


def test_the_record_says_how_keys_and_values_were_stored(model, capsys):
    plain = report_of(capsys, model, "-p", "x", "--max-tokens", 3)
    assert (plain.conditions.kv, plain.conditions.rotated_keys) == ("f16", False)
    other = report_of(capsys, model, "-p", "x", "--max-tokens", 3, "--kv", "bf16", "--rotate-keys")
    assert (other.conditions.kv, other.conditions.rotated_keys) == ("bf16", True)


def test_a_stop_string_ends_the_text(model, capsys):
    text = report_of(capsys, model, "-p", "x", "--max-tokens", 30, "--raw").text
    string = text[4:6]
    stopped = report_of(capsys, model, "-p", "x", "--max-tokens", 30, "--raw", "--stop", string)
    assert stopped.text == text[: text.find(string)]
    assert stopped.generation.finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "give a prompt"),
        (("-p", "x", "--prompt-file", "y"), "give a prompt"),
        (("--prompt-file", "/nowhere"), "/nowhere cannot be read"),
        (("-p", "x", "--top-p", 2), "top_p is 2.0"),
        (("-p", "x", "--max-tokens", 0), "max_tokens is 0"),
        (("-p", "x", "--draft-tokens", 0), "must be at least 1"),
        (("-p", "x", "--draft", "magic"), "draft"),
        (("-p", "x", "--logit-bias", "a=1"), "--logit-bias is 'a=1'"),
        (("-p", "x", "--logit-bias", "99999=1"), "logit_bias names token 99999"),
        (("-p", "x", "--raw", "--system", "y"), "--system needs a chat template"),
        (("-p", "", "--raw"), "the prompt has no tokens"),
        (("-p", "x" * 600, "--raw"), "600 tokens and the context holds 512"),
        (("-p", "x", "--context", 9999), "context is 9999"),
        (("-p", "x", "--isa", "mmx"), "No instruction set 'mmx'"),
        (("-p", "x", "--kernel", "q4"), "'q4' is no kernel"),
        (("-p", "x", "--kernel", "f32/f32/avx2", "--executor", "reference"), "which has none"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(model, capsys, arguments, words):
    code, out, err = generate(capsys, model, *arguments)
    assert code == 2
    assert out == ""
    assert words in err
    assert "Traceback" not in err


def test_a_model_without_a_template_continues_the_text(tmp_path, capsys):
    folder = write_text_model(tmp_path, template=False)
    code, _, err = generate(capsys, folder, "-p", "x", "--max-tokens", 2)
    assert code == 0
    assert "no chat template; the text is continued" in err
    code, _, err = generate(capsys, folder, "-p", "x", "--chat")
    assert code == 2
    assert "use --raw" in err


def test_names_of_special_tokens_in_a_prompt_are_text(model):
    loaded = load_model(Path(model), RunSettings())
    (end,) = loaded.ends
    assert end not in loaded.text_prompt("<|im_end|>")
    assert loaded.chat_prompt([{"role": "user", "content": "x"}]).count(end) == 1


# --- Ctrl-C -------------------------------------------------------------------------------------


def endless_engine(**model):
    executor = FakeExecutor(**model)
    return Engine(Served(executor, executor.vocabulary, 4000, FakeDecoder))


def test_ctrl_c_keeps_what_was_generated():
    texts = []

    def write(text):
        texts.append(text)
        if len(texts) == 20:
            signal.raise_signal(signal.SIGINT)

    request = Request((1, 2), SamplingParams(seed=1))
    streamed = stream(endless_engine(), request, write)
    assert streamed.record.finish is FinishReason.CANCELLED
    assert streamed.text == "".join(texts)
    assert streamed.record.generated_tokens == len(streamed.tokens) == 20


def test_a_second_ctrl_c_interrupts():
    with interruptible() as pressed:
        signal.raise_signal(signal.SIGINT)
        assert pressed()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_fault_is_raised_after_the_text_before_it():
    engine = endless_engine()
    engine._served.executor.poisoned = 8
    texts = []
    with pytest.raises(NumericalError, match="token 3"):
        stream(engine, Request((1, 2), SamplingParams(seed=1)), texts.append)
    assert len("".join(texts)) >= 5
    assert not engine.busy


def test_ctrl_c_ends_the_command_with_130(model):
    command = [sys.executable, "-c", "from fewbit.cli.app import main; main()", "generate", model]
    command += ["-p", "hello", "--raw", "--max-tokens", "500", "--temperature", "1", "--seed", "1"]
    command += ["--executor", "reference"]  # slow enough that 500 tokens outlast the signal
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ
    )
    first = process.stdout.read(1)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert first
    assert process.returncode == 130, err
    assert b"ended by cancelled" in err
    assert out.endswith(b"\n")


# --- chat ---------------------------------------------------------------------------------------


def test_a_conversation_reuses_its_prefix(model, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hello " * 40 + "\n\nagain\n/exit\nnever\n"))
    assert run(["chat", model, "--max-tokens", "8", "--seed", "1", "--draft", "ngram"]) == 0
    out, err = capsys.readouterr()
    assert out.count("\n") >= 2
    assert err.count("output:") == 2
    assert "cached)" in err.split("output:")[1]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_full_context_leaves_the_choice_to_who_talks(model, capsys, monkeypatch):
    """Nothing of the conversation is dropped unless that is asked for."""
    monkeypatch.setattr("sys.stdin", Terminal(f"hello\n{'no room ' * 9}\nhi\n/new\nhello\n"))
    assert run(["chat", model, "--context", "64", "--max-tokens", "4", "--temperature", "0"]) == 0
    out, err = capsys.readouterr()
    first, refused, later, begun, anew, end = err.split("leaves.\n> ")[1].split("> ")
    assert "prompt: 23 tokens" in first and "prompt: 23 tokens" in anew
    assert "context holds 64" in refused and "/new begins anew" in refused
    assert "--context 512 has more room" in refused
    assert "output:" not in refused + begun + end
    assert "prompt: 48 tokens" in later  # as after the first answer
    assert out.splitlines()[0] == out.splitlines()[-1]


def test_a_full_context_ends_a_chat_that_nobody_is_at(model, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO(f"hello\n{'no room ' * 9}\nhi\n"))
    assert run(["chat", model, "--context", "64", "--max-tokens", "4"]) == 2
    err = capsys.readouterr().err
    assert err.count("output:") == 1 and "leaves no room for an answer" in err


def test_a_chat_needs_a_template(tmp_path, capsys):
    assert run(["chat", str(write_text_model(tmp_path, template=False))]) == 2
    assert "no chat template" in capsys.readouterr().err


# --- structured output --------------------------------------------------------------------------


def written_text(tmp_path, name, text):
    file = tmp_path / name
    file.write_text(text)
    return file


@pytest.mark.parametrize("draft", ["none", "ngram"])
def test_a_json_schema_holds_with_any_draft(model, capsys, tmp_path, draft):
    schema = written_text(tmp_path, "schema.json", '{"enum": [{"city": "Ulm", "size": 7}]}')
    report = report_of(
        capsys, model, "--raw", "-p", "abc", "--json-schema", schema, "--draft", draft
    )
    assert json.loads(report.text) == {"city": "Ulm", "size": 7}
    assert report.grammar.kind == "JSON schema"
    assert report.grammar.text == schema.read_text()
    assert report.generation.finish is FinishReason.STOP


def test_a_grammar_of_larks_holds(model, capsys, tmp_path):
    grammar = written_text(tmp_path, "grammar.lark", 'start: "yes" | "no"')
    assert report_of(capsys, model, "-p", "abc", "--grammar", grammar).text in ("yes", "no")


@pytest.mark.parametrize(
    "refused",
    [
        ("{", ["--json-schema", "FILE"], "schema.json is no JSON: .* give a JSON schema"),
        ('{"type": "thing"}', ["--json-schema", "FILE"], "the JSON schema cannot be used: .*thing"),
        ("{}", ["--json-schema", "FILE", "--grammar", "FILE"], "choose one"),
        ("start: b", ["--grammar", "FILE"], "the Lark grammar cannot be used"),
        ("", ["--json-schema", "missing.json"], "missing.json cannot be read"),
    ],
)
def test_a_structure_that_cannot_be_is_refused(model, capsys, tmp_path, refused):
    text, arguments, words = refused
    file = written_text(tmp_path, "schema.json", text)
    given = [str(file) if argument == "FILE" else argument for argument in arguments]
    code, out, err = generate(capsys, model, "-p", "abc", *given)
    assert code == 2
    assert out == ""
    assert re.search(words, err)
    assert "Traceback" not in err
