"""The walk-through: its commands run (on a tiny model), and its table has the rows they print."""

import re
import runpy
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_subjects import write_subject

from fewbit.cli.app import run
from fewbit.evaluate.machine.memory_axis import MemoryAxis
from fewbit.evaluate.machine.memory_probe import probe
from fewbit.evaluate.machine.speed_axis import SpeedAxis

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "walkthrough.md"


@pytest.fixture(scope="module")
def commands():
    """Return the commands of the page, as words."""
    found = re.findall(r"^```bash\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return [shlex.split(line) for block in found for line in block.splitlines()]


@pytest.fixture(scope="module")
def script():
    return runpy.run_path(str(ROOT / "examples" / "walkthrough.py"))


def rows_of(text):
    """Return the first cells of a Markdown table's rows, without numbers that may differ."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [re.sub(r"[0-9]+", "N", line.split("|")[1].strip()) for line in lines][1:]


def test_the_page_has_a_command_for_each_step(commands):
    assert [words[:2] for words in commands] == [
        ["python", "benchmarks/off_grid.py"],
        ["fewbit", "quantize"],
        ["python", "examples/walkthrough.py"],
    ]
    assert (ROOT / commands[0][1]).is_file()
    made, read = commands[1], commands[2]
    assert commands[0][-1] == made[2] == read[read.index("--against") + 1]
    assert made[made.index("--out") + 1] == read[2]


@pytest.fixture(scope="module")
def printed(commands, script, tmp_path_factory):
    """Run the page's last two commands where its source is a tiny model; return what they print."""
    folder = tmp_path_factory.mktemp("walk")
    source = write_subject(folder / "source")
    _, quantize, measure = commands
    names = {quantize[2]: str(source), "small": str(folder / "small")}
    assert run([names.get(word, word) for word in quantize[1:]]) == 0
    speed = SpeedAxis(prompt=70, tokens=8, turns=1, questions=2, answer_tokens=4)
    small = (MemoryAxis(length=80, processes=1), speed, _few(script["AXES"][2]))
    told = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fewbit.evaluate.machine.memory_axis.measure_apart", probe)
        names_of = script["main"].__globals__
        patch.setitem(names_of, "AXES", small)
        patch.setitem(names_of, "print", lambda *text: told.append(" ".join(map(str, text))))
        script["main"]([names.get(word, word) for word in measure[2:]])
    return "\n".join(told)


def _few(axis):
    """Return the axis of tasks with a few items of each, which tell as much about a page."""
    return replace(axis, tasks=tuple(replace(t, items=t.items[:3]) for t in axis.tasks))


def test_the_page_shows_the_rows_that_its_command_prints(printed):
    assert rows_of(PAGE.read_text()) == rows_of(printed)
    assert "threads, fewbit" in printed


def test_figures_are_those_of_the_run(script, printed):
    one, other = script["_bytes"]("x", 2_000_000, 500_000)[1:3]
    assert (one, other) == ("2.0 MB", "500.0 kB")
    assert script["_time"]("x", 0.5, 0.25)[1:] == ("500.0 ms", "250.0 ms", "0.50 x")
    assert re.search(r"^\| files on disk \| [0-9.]+ kB \|", printed, re.MULTILINE)
