import pytest
from msgspec.structs import replace

from fewbit.errors import BadFileError, MissingError, UnsupportedError, UsageError
from fewbit.formats.registry import parse_format
from fewbit.methods.solvers import METHODS
from fewbit.recipes import built_in, built_in_names, checked, find, to_toml
from fewbit.records.kernels import Activations
from fewbit.records.recipe import KEEP, Role


@pytest.mark.parametrize("name", built_in_names())
def test_every_built_in_recipe_names_real_formats(name):
    recipe = built_in(name)
    assert recipe.name == name
    assert [rule.role for rule in recipe.rules] == [Role.LINEAR, Role.EMBEDDING, Role.HEAD]
    for rule in recipe.rules:
        for form in (rule.format, *rule.fallback):
            assert form == KEEP or parse_format(form).name == form
    if name.endswith("-w8a8"):
        assert [r.activations.value for r in recipe.rules] == ["int8-token", "int8", "int8"]
        return
    if name != "rtn-fp8":
        solved = name.removeprefix("awq-") if recipe.transforms else name
        assert solved.removesuffix("-wo") in {
            f"{recipe.method}-{recipe.rules[0].format}",
            recipe.rules[0].format if recipe.method == "imatrix" else "",
        }
    weight_only = Activations.BF16 if name.endswith("-wo") else Activations.INT8
    assert {rule.activations for rule in recipe.rules} == {weight_only}


def test_every_combination_of_the_grammar_is_there():
    names = built_in_names()
    assert len(names) == len(set(names)) == (len(METHODS) + 3) * (7 * 4 * 2 * 2 + 12) + 4
    for name in ("rtn-int4-g32", "rtn-int8-row-asym", "rtn-int4-g32-wo", "gptq-q4_k"):
        assert name in names


def test_awq_rescales_before_scales_are_searched():
    recipe = built_in("awq-int4-g128")
    assert recipe.transforms == ("awq",)
    assert recipe.method == "imatrix"
    assert not any(built_in(f"{method}-int4-g128").transforms for method in METHODS)
    behind = built_in("awq-gptq-refined-q4_0")
    assert (behind.transforms, behind.method) == (("awq",), "gptq-refined")
    assert built_in("awq-gptq-int4-g32").method == "gptq"
    assert built_in("smoothquant-w8a8").transforms == ("smoothquant",)
    assert built_in("rotated-w8a8").transforms[-2:] == ("rotate-mlp", "smoothquant")


@pytest.mark.parametrize(
    ("name", "linear", "embedding", "head"),
    [
        ("rtn-int2-g32", "int2-g32", "int4-g32", "int6-g32"),
        ("rtn-int4-g128-asym", "int4-g128-asym", "int4-g128-asym", "int6-g128-asym"),
        ("rtn-int8-row", "int8-row", "int8-row", "int8-row"),
        ("mse-int5-g64", "int5-g64", "int5-g64", "int6-g64"),
        ("rtn-q4_0", "q4_0", "q4_0", "q8_0"),
        ("rtn-q8_0", "q8_0", "q8_0", "q8_0"),
        ("imatrix-q4_1", "q4_1", "q4_1", "q6_k"),
        ("gptq-q3_k", "q3_k", "q3_k", "q6_k"),
        ("gptq-iq4_xs", "iq4_xs", "iq4_xs", "q6_k"),
        ("rtn-fp8", "fp8_e4m3-row", "fp8_e4m3-row", "fp8_e4m3-row"),
    ],
)
def test_tables_get_at_least_their_bits(name, linear, embedding, head):
    assert [rule.format for rule in built_in(name).rules] == [linear, embedding, head]


@pytest.mark.parametrize(
    ("name", "fallback"),
    [
        ("q2_k", "q4_0"),
        ("q3_k", "q4_0"),
        ("q4_k", "q5_0"),
        ("q5_k", "q5_1"),
        ("q6_k", "q8_0"),
        ("iq4_xs", "iq4_nl"),
    ],
)
def test_a_block_of_256_falls_back_to_the_type_that_llama_cpp_takes(name, fallback):
    linear, _, head = built_in(f"rtn-{name}").rules
    assert linear.fallback == (fallback, KEEP)
    assert head.fallback == ("q8_0", KEEP)


def test_a_group_falls_back_to_smaller_ones():
    rule = built_in("rtn-int4-g128-asym").rules[0]
    assert rule.fallback == ("int4-g64-asym", "int4-g32-asym")
    assert built_in("rtn-int4-g32").rules[0].fallback == ()


@pytest.mark.parametrize(
    ("name", "near"),
    [("rtn-int4-g23", "rtn-int4-g32"), ("rtn-q4_2", "rtn-q4_1"), ("int4-g32", "rtn-int4-g32")],
)
def test_an_unknown_recipe_has_near_matches(name, near):
    with pytest.raises(UnsupportedError, match=near):
        find(name)


def test_a_name_like_nothing_still_says_what_there_is():
    with pytest.raises(UnsupportedError, match=r"rtn-fp8, or the path of a \.toml file"):
        find("%%%")


def write(tmp_path, text: str) -> str:
    path = tmp_path / "r.toml"
    path.write_text(text)
    return str(path)


def test_a_recipe_of_ones_own(tmp_path):
    recipe = find(
        write(
            tmp_path,
            """
            name = "mine"
            method = "mse"
            [[rules]]
            match = "layers.*.down.weight"
            format = "int8-g32"
            [[rules]]
            role = "linear"
            format = "int4-g64"
            fallback = ["int4-g32", "keep"]
            """,
        )
    )
    assert recipe.rules[0].match == "layers.*.down.weight"
    assert recipe.rules[1].role is Role.LINEAR
    assert recipe.rules[1].fallback == ("int4-g32", "keep")


def test_methods_of_rules_and_steps_of_tuning_come_from_the_file_and_go_back(tmp_path):
    recipe = find(
        write(
            tmp_path,
            """
            name = "mine"
            method = "gptq"
            tune = "scales"
            tune_steps = 30
            propagation = 0.25
            [[rules]]
            match = "layers.*.down.weight"
            format = "int8-g32"
            method = "mse"
            [[rules]]
            role = "linear"
            format = "int4-g32"
            """,
        )
    )
    assert [rule.method for rule in recipe.rules] == ["mse", None]
    assert (recipe.methods, recipe.tune_steps) == (("gptq", "mse"), 30)
    assert recipe.propagation == 0.25
    assert find(write(tmp_path, to_toml(recipe))) == recipe


@pytest.mark.parametrize(
    ("key", "near"),
    [("tune_step = 3", "'tune_step'.*tune_steps"), ("methods = 'rtn'", "'methods'.*method")],
)
def test_an_unknown_key_of_a_recipe_has_near_matches(tmp_path, key, near):
    text = f"name='x'\nmethod='rtn'\n{key}\n[[rules]]\nrole='linear'\nformat='int4-g32'"
    with pytest.raises(BadFileError, match=near):
        find(write(tmp_path, text))


def test_an_unknown_key_of_a_rule_has_near_matches(tmp_path):
    text = "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nformat='int4-g32'\nmetod='mse'"
    with pytest.raises(BadFileError, match=r"'metod', which a rule does not have; did you mean m"):
        find(write(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("name = ", BadFileError, "not valid"),
        (
            "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nformat='q4_0'\nmethod='gpt'",
            UnsupportedError,
            "method 'gpt'",
        ),
        (
            "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nformat='keep'\nmethod='mse'",
            UsageError,
            "would do nothing",
        ),
        (
            "name='x'\nmethod='rtn'\ntune_steps=9\n[[rules]]\nrole='linear'\nformat='q4_0'",
            UsageError,
            "tunes nothing",
        ),
        (
            "name='x'\nmethod='gptq'\npropagation=1.5\n[[rules]]\nrole='linear'\nformat='q4_0'",
            UsageError,
            "propagation is 1.5 .* from 0 to 1",
        ),
        (
            "name='x'\nmethod='mse'\npropagation=0.5\n[[rules]]\nrole='linear'\nformat='q4_0'",
            UsageError,
            "method mse cannot .* gptq or gptq-refined",
        ),
        ("name = 'x'\nrules = []", BadFileError, "method"),
        ("name = 'x'\nmethod = 'best'\nrules = []", UnsupportedError, "rtn, mse"),
        ("name = 'x'\nmethod = 'rtn'\nrules = []", UsageError, "no rules"),
        ("name='x'\nmethod='rtn'\n[[rules]]\nformat='int4-g32'", UsageError, "Rule 1 .* either"),
        (
            "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nmatch='*'\nformat='int4-g32'",
            UsageError,
            "either",
        ),
        (
            "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nformat='int4'",
            UnsupportedError,
            "'int4' is not known",
        ),
        (
            "name='x'\nmethod='rtn'\n[[rules]]\nrole='linear'\nformat='int4-g32'\nbits=4",
            BadFileError,
            "bits",
        ),
        ("name='x'\nmethod='rtn'\n[[rules]]\nrole='norm'\nformat='int4-g32'", BadFileError, "norm"),
    ],
)
def test_a_recipe_that_cannot_be_is_refused(tmp_path, text, error, message):
    with pytest.raises(error, match=message):
        find(write(tmp_path, text))


@pytest.mark.parametrize("name", ["", "a/b", "../../home", "a\nb", "x" * 101, "\u0416" * 51])
def test_files_can_be_named_by_a_recipe(name):
    recipe = built_in("rtn-int4-g32")
    assert checked(replace(recipe, name="x" * 100)).name
    with pytest.raises(UsageError, match="files are named by it"):
        checked(replace(recipe, name=name))


def test_a_recipe_that_is_not_there_or_far_too_large_is_refused(tmp_path):
    with pytest.raises(MissingError, match=r"no\.toml cannot be read"):
        find(str(tmp_path / "no.toml"))
    with pytest.raises(BadFileError, match="at most 1 MiB"):
        find(write(tmp_path, "#" * (2 << 20)))
