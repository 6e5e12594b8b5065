"""Two evaluations beside each other: paired where items are the same, said where they are not."""

import io

import pytest
import sample_evaluation as sample
from msgspec.structs import replace
from rich.console import Console

from fewbit.cli.app import run
from fewbit.evaluate.comparison import compare
from fewbit.records.base import from_json, to_json
from fewbit.records.comparison import Comparison
from fewbit.records.measurement import Finding
from fewbit.records.tasks import TaskFigures
from fewbit.report.comparison import comparison_page, print_comparison, rows_of

NAMES = ("a.json", "b.json")


def by_slice(found):
    return {row.compared.slice: row for row in rows_of(found)}


@pytest.fixture(scope="module")
def worse():
    """The second is three times as far from the source as the first."""
    return compare(sample.evaluation(), sample.evaluation(0.093, 1.03, candidate="b"), NAMES)


def test_items_of_the_same_names_are_paired(worse):
    kl = by_slice(worse)["language/kl"]
    assert kl.compared.items == 40
    assert kl.compared.why_not == ""
    # Each item's candidate is its mean times (0.5 + i / 40), of mean 0.9875.
    assert kl.compared.difference.value == pytest.approx(0.062 * 0.9875)
    assert kl.trend == "worse"
    assert by_slice(worse)["language/perplexity"].trend == "worse"


def test_the_same_candidate_is_no_worse_than_itself():
    found = compare(sample.evaluation(), sample.evaluation(), NAMES)
    assert found.differences == ()
    assert found.findings == ()
    trends = {row.trend for row in rows_of(found)}
    assert trends <= {"the same", "no difference shown"}
    assert all(c.difference.value in (0.0, 1.0) for c in found.slices)


def test_an_unpaired_interval_would_not_have_told(worse):
    """The negative control: on their own the intervals of two close candidates overlap."""
    close = compare(sample.evaluation(0.031), sample.evaluation(0.034), NAMES)
    kl = by_slice(close)["language/kl"]
    assert kl.compared.first.figure.high > kl.compared.second.figure.low
    assert kl.trend == "worse"


def test_other_text_is_said_and_not_paired():
    other = sample.evaluation(0.05)
    axis = other.axes[0]
    text = replace(axis.details.text, sha256="ee" * 32, name="a novel")
    axis = replace(axis, details=replace(axis.details, text=text))
    found = compare(sample.evaluation(), replace(other, axes=(axis, *other.axes[1:])), NAMES)
    assert any(s.startswith("The texts differ") and "a novel" in s for s in found.differences)
    rows = by_slice(found)
    assert rows["language/kl"].trend == "The texts differ."
    assert rows["language/kl"].difference == ""
    assert rows["tasks/arithmetic"].compared.items == 80


def test_other_items_are_not_paired_and_what_one_lacks_is_said():
    other = sample.evaluation()
    tasks = other.axes[1].slices[0]
    renamed = replace(tasks, items=tuple(replace(i, name="new " + i.name) for i in tasks.items))
    axes = (other.axes[0], replace(other.axes[1], slices=(renamed,)), *other.axes[3:])
    rows = by_slice(compare(sample.evaluation(), replace(other, axes=axes), NAMES))
    assert rows["tasks/arithmetic"].trend == "The items of the two have no names in common."
    assert rows["speed/decode/1"].trend == "Only the first measured it."


def test_items_that_changed_their_weight_are_not_the_same():
    other = sample.evaluation()
    axis = other.axes[0]
    kl = axis.slices[0]
    heavier = tuple(replace(i, weight=1.0) if n < 10 else i for n, i in enumerate(kl.items))
    axis = replace(axis, slices=(replace(kl, items=heavier), axis.slices[1]))
    found = compare(sample.evaluation(), replace(other, axes=(axis, *other.axes[1:])), NAMES)
    assert by_slice(found)["language/kl"].compared.items == 30


def test_what_differs_between_the_runs_is_said():
    other = sample.evaluation()
    other = replace(
        other,
        source=sample.facts("another"),
        conditions=replace(other.conditions, threads=4, kv="int8"),
        gate=replace(other.gate, name="mine.toml"),
        axes=other.axes[:3],
    )
    said = " ".join(compare(sample.evaluation(), other, NAMES).differences)
    for part in ("sources differ", "gates differ", "threads differ: 2 and 4", "KV caches differ"):
        assert part in said
    assert "Only the first measured kernels, memory, numerics." in said


def test_a_finding_that_changed_is_said():
    other = sample.evaluation()
    failed = Finding(name="kernels/float", axis="kernels", passed=False, found="One layer fell.")
    axes = (*other.axes[:3], replace(other.axes[3], findings=(failed,)))
    found = compare(sample.evaluation(), replace(other, axes=axes), NAMES)
    page = comparison_page(found)
    assert "kernels/float: passed in the first, failed in the second. One layer fell." in page
    assert "kernels/fallback: waived in the first, absent in the second." in page


@pytest.mark.parametrize("width", [50, 160])
def test_it_is_drawn_on_wide_and_narrow_terminals_and_read_again(worse, width):
    console = Console(file=io.StringIO(), width=width)
    print_comparison(worse, console)
    assert "worse" in console.file.getvalue()
    assert from_json(Comparison, to_json(worse), name="x") == worse


@pytest.fixture
def files(tmp_path):
    (tmp_path / "a.json").write_bytes(to_json(sample.evaluation()))
    (tmp_path / "b.json").write_bytes(to_json(sample.evaluation(0.09, candidate="b")))
    (tmp_path / "c.json").write_bytes(to_json(sample.compress_report()))
    return tmp_path


def test_the_command_draws_one_and_compares_two(files, capsys):
    assert run(["report", str(files / "a.json"), "--html", str(files / "a.html")]) == 0
    assert "ACCEPT" in capsys.readouterr().out
    assert "<h1>May small replace smollm2-135m?</h1>" in (files / "a.html").read_text()
    two = ["report", str(files / "a.json"), str(files / "b.json")]
    assert run([*two, "--json", str(files / "ab.json"), "--html", str(files / "ab.html")]) == 0
    assert "worse" in capsys.readouterr().out
    page = (files / "ab.html").read_bytes()
    assert run(["report", str(files / "ab.json"), "--html", str(files / "again.html")]) == 0
    assert (files / "again.html").read_bytes() == page


def test_the_record_is_written_again_byte_for_byte(files, capsys):
    assert run(["report", str(files / "a.json"), "--json", "-"]) == 0
    assert capsys.readouterr().out.encode() == (files / "a.json").read_bytes()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["report"], "No record is named"),
        (["report", "absent.json"], "cannot be read"),
        (["report", "{}/a.json", "{}/c.json"], "only two evaluations are compared"),
        (["report", "--schema", "evaluation", "{}/a.json"], "draws nothing"),
        (["report", "--schema", "nothing"], "There is no record called 'nothing'"),
    ],
)
def test_wrong_use_is_one_sentence(files, capsys, arguments, said):
    assert run([a.format(files) for a in arguments]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def test_a_schema_is_printed(capsys):
    assert run(["report", "--schema", "evaluation"]) == 0
    assert '"$defs"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"sha256": "ee" * 32}, "The files of items differ."),
        ({"asked_as": "chat"}, "The prompts differ."),
        ({"rule": "exact"}, "The rules differ."),
    ],
)
def test_items_of_the_same_names_that_ask_something_else_are_not_paired(change, why):
    """Items without an id are named by their lines: those of any two files have names in common."""
    found = sample.evaluation()
    told = TaskFigures(
        task="arithmetic",
        kind="generation",
        rule="number",
        asked_as="text",
        items=80,
        clusters=80,
        chance=None,
        source_right=0.5,
        candidate_right=0.5,
        harmful=0,
        helpful=0,
        sha256="aa" * 32,
    )

    def with_figures(figures):
        axis = found.axes[1]
        axis = replace(axis, details=replace(axis.details, tasks=(figures,)))
        return replace(found, axes=(found.axes[0], axis, *found.axes[2:]))

    same = by_slice(compare(with_figures(told), with_figures(told), NAMES))
    assert same["tasks/arithmetic"].compared.items == 80
    rows = by_slice(compare(with_figures(told), with_figures(replace(told, **change)), NAMES))
    assert rows["tasks/arithmetic"].trend == why
    assert rows["tasks/arithmetic"].difference == ""
    assert rows["language/kl"].compared.items == 40
