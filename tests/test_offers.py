"""`fewbit recipes`: the list, what is told of a model, and recipes as TOML."""

import pytest
from quantize_cases import folder

from fewbit.cli.app import run
from fewbit.errors import BadFileError
from fewbit.model.weights import open_model
from fewbit.quantization import plan
from fewbit.quantization.offers import MEASURED, USES, expected, nominal_bits, offers
from fewbit.recipes import built_in, built_in_names, find, read_recipe, to_toml


def test_the_list_says_what_to_expect_and_from_where(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert run(["recipes"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in USES)
    assert "that of SmolLM2-135M" in said
    assert "Figures without ~ were measured" in said


def test_measured_figures_are_not_reckoned_and_reckoned_ones_follow_bits():
    assert expected("gptq-refined-q4_0") == (0.121, True)
    assert all(expected(name) == (value, True) for name, value in MEASURED.items())
    (more, sure), (less, _) = expected("gptq-int4-g32"), expected("gptq-int5-g32")
    assert not sure
    assert more == pytest.approx(4 * less)
    assert more == pytest.approx(MEASURED["gptq-q4_0"])  # the same bits
    assert expected("gptq-refined-int4-g32")[0] < expected("imatrix-int4-g32")[0]
    assert expected("rtn-int2-g32")[0] is None
    assert nominal_bits("gptq-q4_k") == 4.5


def test_a_model_has_sizes_as_its_plans_promise_and_times(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    path = folder(tmp_path)
    with open_model(path) as source:
        found = offers(source)
        for offer in found.offers:
            assert offer.bytes == plan(source, built_in(offer.recipe)).promised_bytes
            assert offer.seconds is not None and offer.seconds > 0
    assert run(["recipes", str(path)]) == 0
    assert "Times are rough" in capsys.readouterr().out


def test_what_does_not_fit_a_model_is_said(tmp_path):
    with open_model(folder(tmp_path, "qwen2")) as source:
        assert all(not offer.refused for offer in offers(source).offers)


@pytest.mark.parametrize("name", ["gptq-refined-q4_k", "awq-int4-g128-asym", "rtn-w8a8"])
def test_a_recipe_is_printed_as_a_file_that_gives_it_back(name, tmp_path, capsys):
    assert run(["recipes", name]) == 0
    path = tmp_path / "r.toml"
    path.write_text(capsys.readouterr().out)
    assert read_recipe(path) == built_in(name)
    assert find(str(path)) == built_in(name)


def test_every_built_in_recipe_survives_as_toml(tmp_path):
    path = tmp_path / "r.toml"
    for name in built_in_names()[::7]:
        path.write_text(to_toml(built_in(name)))
        assert read_recipe(path) == built_in(name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("methd = 'rtn'", r"'methd', which a recipe does not have; did you mean method"),
        ("[[rules]]\nformt = 'q8_0'", r"'formt', which a rule does not have; did you mean format"),
        ("xyz = 1", r"'xyz', which a recipe does not have; it has name, method"),
    ],
)
def test_case_4_an_unknown_key_has_near_matches(tmp_path, text, said):
    path = tmp_path / "r.toml"
    path.write_text(f"name = 'r'\n{text}")
    with pytest.raises(BadFileError, match=said):
        read_recipe(path)


def test_what_is_neither_a_recipe_nor_a_model_names_near_recipes(capsys):
    assert run(["recipes", "gptq-q4_00"]) == 2
    assert "is no built-in recipe. Recipes with such a name are gptq-q4_0" in (
        capsys.readouterr().err
    )
