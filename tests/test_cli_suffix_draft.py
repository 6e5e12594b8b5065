"""`--draft suffix`, `--draft-text`, and a draft before a model, from the command line."""

import pytest
from test_cli_generate import report_of
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.cli.drafts import chosen_draft
from fewbit.errors import MissingError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_text_model(tmp_path_factory.mktemp("tiny")))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("hello hello again\n" * 20)
    return path


SHARED = ("-p", "hello hello", "--max-tokens", "24", "--temperature", "0.7", "--seed", "5")


def test_the_output_is_the_plain_one(model, text, capsys):
    plain = report_of(capsys, model, *SHARED)
    for draft in (("suffix",), ("suffix", "--draft-text", text), (f"suffix+{model}",)):
        found = report_of(capsys, model, *SHARED, "--draft", *draft)
        assert (found.text, found.tokens) == (plain.text, plain.tokens)


def test_a_draft_before_a_model_names_both(model, capsys):
    found = report_of(capsys, model, *SHARED, "--draft", f"ngram+{model}")
    assert found.generation.draft.draft.startswith("ngram+")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--draft", "ngram", "--draft-text", "x.txt"), "use the draft suffix"),
        (("--draft-text", "x.txt"), "use the draft suffix"),
        (("--draft", "suffix", "--draft-text", "/nowhere/x.txt"), "cannot be read"),
        (("--draft", "suffix+/nowhere/model.gguf"), "/nowhere/model.gguf"),
        (("--draft", "ngram+"), "nothing behind the plus"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(model, capsys, options, said):
    assert run(["generate", model, *SHARED, *options]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_text_that_is_not_utf8_is_refused(model, tmp_path, capsys):
    path = tmp_path / "binary"
    path.write_bytes(b"\xff\xfe\x00")
    options = ("--draft", "suffix", "--draft-text", str(path))
    assert run(["generate", model, *SHARED, *options]) == 2
    assert "not UTF-8" in capsys.readouterr().err


def test_a_text_that_is_not_there_is_noticed_before_a_model_is_opened(tmp_path):
    with pytest.raises(MissingError, match="cannot be read"):
        chosen_draft("suffix", 4, tmp_path / "absent")
