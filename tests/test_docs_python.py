"""Every Python example of the documentation runs; the models in it are a tiny one here."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tiny_models import CONFIGS, random_weights, write_huggingface
from tiny_text import write_text_files

ROOT = Path(__file__).parent.parent
PAGES = ("docs/python.md", "docs/start.md", "README.md")
STAND_INS = {
    '"smollm2-135m"': '"model"',
    '"model.gguf"': '"model"',
    'load("small")': 'load("model")',
}


def blocks(page):
    """Return the Python blocks of a page, each with the number of its first line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.finditer(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def run(page, *, torch):
    """Run a page's blocks in one namespace, as a reader would; those about torch where it is."""
    names = {}
    for line, code in blocks(page):
        if "torch." in code and not torch:
            continue
        # Blank lines before it give a failure the line that it has on the page.
        exec(compile("\n" * (line - 1) + standing_in(code), page, "exec"), names)
    return names


def standing_in(code):
    for known, stand_in in STAND_INS.items():
        code = code.replace(known, stand_in)
    return code


@pytest.fixture
def here(tmp_path, monkeypatch):
    config = CONFIGS["llama"] | {"max_position_embeddings": 4096}
    write_text_files(write_huggingface(tmp_path / "model", config, random_weights(config)))
    (tmp_path / "calibration.txt").write_text("A few words to calibrate on, again and again. " * 60)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_example_runs(page, here):
    run(page, torch=False)


@pytest.mark.interop
def test_every_example_runs_where_torch_is(here, capsys):
    names = run("docs/python.md", torch=True)
    out = capsys.readouterr().out
    assert "QuantizedLinear(in_features=64, out_features=256, bias=True, weight=int8-row" in out
    assert "chose none of the 1 linear layers" in out
    assert names["error"] < 0.5


def test_the_page_has_examples_of_everything():
    code = "".join(code for _, code in blocks("docs/python.md"))
    for name in ("load", "generate", "stream", "logits", "kernels", "quantize", "quantize_"):
        assert f"{name}" in code, name


def test_the_readme_shows_what_the_page_shows():
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    for _, code in blocks("README.md"):
        assert code in page


def test_an_example_that_fails_is_seen(here, monkeypatch, tmp_path):
    (tmp_path / "wrong.md").write_text(
        'Text\n\n```python\nimport fewbit\nfewbit.load("no.gguf")\n```\n'
    )
    monkeypatch.setattr("test_docs_python.ROOT", tmp_path)
    with pytest.raises(Exception, match=r"no\.gguf"):
        run("wrong.md", torch=False)
