"""gate.toml: what it says, and everything that it cannot say."""

import pytest

from fewbit.errors import BadFileError, MissingError, UsageError
from fewbit.evaluate.gating.file import DEFAULT, find_gate, read_gate, require_possible
from fewbit.records.gate import Gate, SliceRule, Waiver

GATE = """
level = 0.9

[[slices]]
match = "language/kl"
margin = 0.02
minimum_items = 20

[[slices]]
match = "tasks/*"
margin = 0.03
pool = true
optional = true
excess = false

[[waive]]
finding = "kernels/float"
reason = "The head stays in bf16."
"""


def written(tmp_path, text):
    path = tmp_path / "gate.toml"
    path.write_text(text)
    return path


def test_all_fields_are_read(tmp_path):
    path = written(tmp_path, GATE)
    assert read_gate(path) == Gate(
        name=str(path),
        level=0.9,
        slices=(
            SliceRule(match="language/kl", margin=0.02, minimum_items=20),
            SliceRule(match="tasks/*", margin=0.03, pool=True, optional=True, excess=False),
        ),
        waive=(Waiver(finding="kernels/float", reason="The head stays in bf16."),),
    )


def test_the_built_in_gate_is_possible():
    assert find_gate(None) is DEFAULT
    require_possible(DEFAULT)
    assert [rule.match for rule in DEFAULT.slices if not rule.optional] == [
        "language/kl",
        "language/perplexity",
    ]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("level = 0.9", "levels = 0.9", "key 'levels', which a gate does not have; did you mean"),
        ("margin = 0.02", "margins = 0.02", "key 'margins', which a slice does not have; did you"),
        ("finding =", "find =", "key 'find', which a waiver does not have"),
        ('"language/kl"', '"langage/kl"', "begins with no axis; did you mean language?"),
        ('"language/kl"', '"weather/kl"', "begins with no axis; there are language, tasks"),
        ("level = 0.9", "level = 1.0", "level 1; give one between"),
        ("level = 0.9", "level = 0.3", "level 0.3; give one between"),
        ("level = 0.9", 'name = "x"', "key 'name', which a gate does not have"),
        ("margin = 0.02", "margin = nan", "margin nan; give a number"),
        ("margin = 0.02", "margin = inf", "margin inf; give a number"),
        ("margin = 0.02", "", "missing required field `margin`"),
        ("margin = 0.02", 'margin = "2%"', "Expected `float`"),
        ("minimum_items = 20", "minimum_items = 3", "asks for 3 items in 12 clusters"),
        ("minimum_items = 20", "minimum_clusters = 1", "fewer than 4 clusters"),
        ('"The head stays in bf16."', '" "', "without a reason"),
        ("[[slices]]", "[slices", "is not valid"),
        ('match = "tasks/*"', "match = 3", "Expected `str`"),
    ],
)
def test_what_cannot_be_is_refused_with_a_way_out(tmp_path, old, new, says):
    assert old in GATE
    with pytest.raises((BadFileError, UsageError)) as caught:
        read_gate(written(tmp_path, GATE.replace(old, new, 1)))
    assert says in str(caught.value)


def test_a_gate_without_margins_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no \[\[slices\]\]"):
        read_gate(written(tmp_path, "level = 0.95"))


def test_slices_that_are_no_tables_are_refused(tmp_path):
    with pytest.raises(BadFileError, match="is not valid"):
        read_gate(written(tmp_path, "slices = 3"))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(MissingError, match=r"The gate .*no\.toml cannot be read"):
        find_gate(tmp_path / "no.toml")
