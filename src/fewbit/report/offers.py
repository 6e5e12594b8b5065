"""The list of `fewbit recipes` on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.figures import size
from fewbit.records.offers import Offer, Offers
from fewbit.report.plan import duration


def print_offers(found: Offers, console: Console) -> None:
    """Print a line for each recipe, and where the figures come from."""
    table = Table("recipe", box=None, header_style="dim", pad_edge=False)
    for heading in ("bits", *(("size", "time") if found.model else ()), "KL"):
        table.add_column(heading, justify="right")
    table.add_column("for")
    for offer in found.offers:
        table.add_row(*_row(offer, with_model=found.model is not None))
    console.print(table)
    for offer in found.offers:
        if offer.refused:
            console.print(f"[yellow]{offer.recipe}[/]: {escape(offer.refused)}")
    for condition in found.conditions:
        console.print(escape(condition))
    console.print(
        "Any <method>-<format> is a recipe too (docs/commands/quantize.md); fewbit recipes NAME "
        "prints one as TOML to edit."
    )


def _row(offer: Offer, *, with_model: bool) -> tuple[str, ...]:
    divergence = offer.expected_divergence
    known = "" if divergence is None else f"{'' if offer.measured else '~'}{divergence:.2g}"
    taken: tuple[str, ...] = ()
    if with_model:
        taken = (
            "" if offer.bytes is None else size(offer.bytes),
            "" if offer.seconds is None else duration(offer.seconds),
        )
    return offer.recipe, f"{offer.bits:.2f}", *taken, known, offer.use
