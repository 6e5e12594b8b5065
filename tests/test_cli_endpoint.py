"""`fewbit eval URL`: what a server runs, against a model on disk."""

import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from endpoint_cases import engine_server, routes
from fake_server import delta, events, serving
from tiny_subjects import TEMPLATE, write_subject

from fewbit.cli.app import run
from fewbit.evaluate.endpoint.axis import EndpointAxis
from fewbit.evaluate.subject import open_subject
from fewbit.records.base import from_json
from fewbit.records.evaluation import Evaluation

SECRET = "sesame-42"
ANSWER = (delta(content="Hello"), delta(finish="stop"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_subject(tmp_path_factory.mktemp("tiny") / "model"))


@pytest.fixture(scope="module")
def shown(model):
    """Return what a server shows that runs the model."""
    source = open_subject(Path(model))
    return {
        "props": lambda _: {"chat_template": TEMPLATE, "eos_token": "</s>", "build_info": "b1"},
        "tokenize": lambda body: {"tokens": source.tokenizer.encode(body["content"])},
    }


def test_a_server_is_measured_and_what_could_not_be_checked_is_said(
    model, shown, tmp_path, monkeypatch
):
    short = partial(EndpointAxis, prompts={"chat": ("Hi?",)}, tokens=4, top=9)
    monkeypatch.setattr("fewbit.evaluate.endpoint.evaluation.EndpointAxis", short)
    monkeypatch.setenv("FEWBIT_TEST_KEY", SECRET)
    json, html = tmp_path / "e.json", tmp_path / "e.html"
    chat = engine_server(open_subject(Path(model)))
    with serving(routes(chat=chat, **shown)) as (url, asked):
        options = ("--axes", "endpoint", "--threads", "1", "--key-env", "FEWBIT_TEST_KEY")
        written = ("--json", str(json), "--html", str(html), "--work", str(tmp_path / "work"))
        code = run(["eval", f"{url}/v1", "--against", model, *options, *written])
        count = len([path for path, *_ in asked if path.endswith("completions")])
        told = ("--json", str(tmp_path / "again.json"))
        assert run(["eval", url, "--against", model, *options, *told, *written[-2:]]) == code
        again = len([path for path, *_ in asked if path.endswith("completions")])
        monkeypatch.setattr(
            "fewbit.evaluate.endpoint.answerer.program_digest", lambda: "another build"
        )
        assert run(["eval", url, "--against", model, *options, *written[-2:]]) == code
        anew = len([path for path, *_ in asked if path.endswith("completions")])
    found = from_json(Evaluation, json.read_bytes(), name="e.json")
    assert code == found.verdict.outcome.exit_code
    assert [axis.axis for axis in found.axes] == ["endpoint"]
    assert (found.candidate.name, found.candidate.path) == ("small", url)
    assert found.identity.checks[-1].found.startswith("not checked")
    assert any("b1" in note for note in found.notes)
    assert not any("earlier run" in note for note in found.notes)
    assert count == again == 2  # the second run asked nothing anew, and says so
    assert anew == 2 * count
    second = from_json(Evaluation, (tmp_path / "again.json").read_bytes(), name="again.json")
    assert any("earlier run kept" in note for note in second.notes)
    assert all(headers["Authorization"] == f"Bearer {SECRET}" for _, headers, _ in asked)
    kept = b"".join(p.read_bytes() for p in (tmp_path / "work").rglob("*") if p.is_file())
    assert SECRET.encode() not in json.read_bytes() + html.read_bytes() + kept


def test_a_server_of_another_model_is_refused_before_anything_is_asked(model, shown, capsys):
    other = {**shown, "props": lambda _: {"chat_template": "{{ 1 }}"}}
    with serving(routes(chat=lambda _: events(delta(finish="stop")), **other)) as (url, asked):
        assert run(["eval", url, "--against", model]) == 2
    assert "chat template" in capsys.readouterr().err
    assert not [path for path, *_ in asked if path.endswith("completions")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_command_while_the_server_is_silent(model, shown, tmp_path, number):
    """It is not waited for; what was answered is kept, and how to go on is said."""
    silent, released = Event(), Event()
    work = tmp_path / "work"

    def chat(body):
        if list(work.rglob("*.jsonl")):  # the first answer is kept
            silent.set()
            released.wait(60)
        return events(*ANSWER)

    command = [sys.executable, "-c", "from fewbit.cli.app import main; main()", "eval"]
    with serving(routes(chat=chat, **shown)) as (url, _):
        command += [url, "--against", model, "--axes", "endpoint", "--work", str(work)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        try:
            assert silent.wait(60)
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
        finally:
            process.kill()
            released.set()
    assert process.returncode == 75, err
    assert "Go on with: fewbit eval" in err
    assert sum(len(path.read_text().splitlines()) for path in work.rglob("*.jsonl")) >= 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("URL", "--axes", "language"), "cannot be measured on a server"),
        (("URL", "--served-model", "large"), "has no model 'large'"),
        (("URL", "--key-env", "FEWBIT_NO_SUCH_KEY"), "FEWBIT_NO_SUCH_KEY"),
        (("MODEL", "--key-env", "HOME"), "behind a URL"),
        (("MODEL", "--served-model", "x"), "behind a URL"),
        (("URL", "--kv", "int4", "--rotate-keys"), "--kv and --rotate-keys would change nothing"),
        (("URL", "--activations", "bf16"), "--activations would change nothing"),
        (("URL", "--windows", "12"), "--windows would change nothing"),
        (("URL", "--text", "x.txt"), "--text would change nothing"),
        (("http://localhost:port",), "no address"),
        (("http://",), "no address"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(model, shown, capsys, arguments, said):
    with serving(routes(**shown)) as (url, _):
        named = [{"URL": url, "MODEL": model}.get(word, word) for word in arguments]
        assert run(["eval", *named, "--against", model]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
