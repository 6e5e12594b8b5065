"""What a gate names beside what its axes can bring: refused before anything is measured."""

import pytest
from msgspec.structs import replace

from fewbit.errors import UsageError
from fewbit.evaluate.artefact.scan import BRINGS
from fewbit.evaluate.axes import AXES, AxisOptions
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.endpoint.axis import EndpointAxis
from fewbit.evaluate.gating.declared import require_known
from fewbit.evaluate.gating.file import DEFAULT, find_gate
from fewbit.records.gate import Gate, SliceRule, Waiver
from fewbit.records.measurement import Measure

LANGUAGE = Brings(
    {"language/kl": Measure.MEAN, "language/perplexity": Measure.PERPLEXITY},
    ("language/begins-once",),
)
KERNELS = Brings({}, ("kernels/float", "kernels/packed"))


@pytest.fixture(scope="module")
def all_axes(tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("One text.\n\nAnother text.")
    return [BRINGS, *(make(AxisOptions(text=text)).brings for make in AXES.values())]


def gate(*matches, waive=(), **rule):
    slices = tuple(SliceRule(match=match, margin=0.1, **rule) for match in matches)
    return Gate(slices=slices, waive=tuple(Waiver(finding=w, reason="Said.") for w in waive))


@pytest.mark.parametrize(
    ("match", "near"),
    [
        ("tools/lops", "did you mean tools/loops"),
        ("language/lk", "did you mean language/kl"),
        ("tasks/fact", "did you mean tasks/facts"),
        ("speed/decode/2", "did you mean speed/decode/4"),
        ("memory/peek/*", "did you mean memory/peak/4"),
        ("numerics/clips", "did you mean numerics/clipped"),
        ("long-context/neddle", "did you mean long-context/needle"),
        ("safety/xyzzy", "there are safety/refuse-unsafe, safety/answer-safe"),
        ("kernels/float", "there are"),
    ],
)
def test_a_misspelt_slice_is_refused_with_near_ones(all_axes, match, near):
    with pytest.raises(UsageError, match=f"'{match.replace('*', '.*')}' .* fits no slice; ") as met:
        require_known(all_axes, gate(match))
    assert near in str(met.value)


@pytest.mark.parametrize("name", ["kernels/flaot", "kernels/*", "kernels", "scan/clipt"])
def test_waivers_are_by_whole_names(all_axes, name):
    with pytest.raises(UsageError, match=f"'{name.replace('*', '.*')}', which is no finding"):
        require_known(all_axes, gate(waive=(name,)))


def test_every_finding_can_be_waived(all_axes):
    names = [finding for one in all_axes for finding in one.findings]
    assert {"scan/manifest", "memory/fits", "answers/repeatable", "numerics/overflow"} <= {*names}
    require_known(all_axes, gate(waive=names))


def test_the_built_in_gate_fits_all_axes_and_each_of_its_patterns_fits_one(all_axes):
    require_known(all_axes, DEFAULT)
    require_known(all_axes, replace(DEFAULT, slices=tuple(map(required, DEFAULT.slices))))
    require_known([EndpointAxis().brings], find_gate(None))


def required(rule):
    return replace(rule, optional=False)


def test_what_belongs_to_an_axis_that_does_not_run_is_no_error():
    require_known([LANGUAGE], gate("language/kl", "tools/lops", waive=("kernels/flaot",)))


def test_an_optional_rule_may_be_meant_for_other_texts():
    require_known([LANGUAGE], gate("language/kl/poems", optional=True))
    with pytest.raises(UsageError, match="language/kl/poems"):
        require_known([LANGUAGE], gate("language/kl/poems"))


def test_slices_of_several_measures_are_not_judged_as_one():
    with pytest.raises(UsageError, match="as one, but language/kl is a mean"):
        require_known([LANGUAGE], gate("language/*", pool=True))
    # The first rule that fits counts, so that one of them alone is left to the pool.
    require_known([LANGUAGE], Gate(slices=(*gate("language/kl").slices, *POOLED.slices)))


POOLED = gate("language/*", pool=True)


def test_a_share_of_the_sources_own_rate_is_for_rates_alone():
    with pytest.raises(UsageError, match="language/kl is no proportion"):
        require_known([LANGUAGE], gate("language/kl", relative=0.2))


def test_a_share_of_the_rate_does_not_concern_what_an_earlier_rule_judges():
    brings = Brings({"tools/format": Measure.PROPORTION, "tools/seconds": Measure.RATIO}, ())
    own = gate("tools/*", relative=0.2)
    with pytest.raises(UsageError, match="tools/seconds is no proportion"):
        require_known([brings], own)
    require_known([brings], Gate(slices=(*gate("tools/seconds").slices, *own.slices)))


def test_a_rule_for_which_earlier_ones_leave_nothing_is_refused_unless_it_is_optional():
    first, rest = gate("language/*").slices, gate("language/kl").slices
    with pytest.raises(UsageError, match=r"judge all that its 'language/kl' fits \(language/kl\)"):
        require_known([LANGUAGE], Gate(slices=(*first, *rest)))
    require_known([LANGUAGE], Gate(slices=(*rest, *first)))
    require_known([LANGUAGE], Gate(slices=(*first, *map(optional, rest))))


def optional(rule):
    return replace(rule, optional=True)
