"""`fewbit recipes`: what there is to choose from, and a recipe as a file to edit."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.output import JsonOption
from fewbit.errors import FewbitError, UsageError


def recipes(
    name: Annotated[str | None, Parameter(name="NAME")] = None, /, *, json: JsonOption = None
) -> int:
    """List the built-in recipes, with sizes and times for a model; or print one as TOML.

    Args:
        name: A model, for which sizes and times are told, or a recipe, which is printed.
        json: Write the list or the recipe to this file too; - prints it on stdout instead.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_model
    from fewbit.quantization.offers import offers
    from fewbit.recipes import built_in_names, find, to_toml
    from fewbit.report.offers import print_offers

    if name is None:
        deliver(offers(), json, print_offers)
        return 0
    if name in built_in_names() or name.endswith(".toml"):
        deliver(find(name), json, lambda recipe, _: print(to_toml(recipe), end=""))
        return 0
    try:
        path = locate(name)
    except FewbitError as error:
        raise UsageError(_neither(name, error)) from error
    with open_model(path) as source:
        deliver(offers(source), json, print_offers)
    return 0


def _neither(name: str, error: FewbitError) -> str:
    """Return that something is no model, and no recipe; recipes with near names first."""
    import difflib

    from fewbit.recipes import built_in_names

    near = difflib.get_close_matches(name, built_in_names(), 3)
    hint = f"Recipes with such a name are {', '.join(near)}. " if near else ""
    return f"'{name}' is no built-in recipe. {hint}{error}"
