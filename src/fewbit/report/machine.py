"""What the axes of the machine keep, as blocks: memory side by side, sites that stand out."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.records.base import Record
from fewbit.records.figures import size
from fewbit.records.memory_axis import ArmMemory, Fit, MemoryDetails
from fewbit.records.numerics import NumericsDetails, SiteNumerics
from fewbit.records.scan import ScanDetails
from fewbit.report.charts import Bar
from fewbit.report.details import Bars, Block, Facts, Table, blocks_of

MOST_SITES = 24


def machine_blocks(details: Record | None) -> list[Block]:
    """Return the blocks of any details; memory, numerics and scan in a form of their own."""
    match details:
        case MemoryDetails():
            return _memory(details)
        case NumericsDetails():
            return _numerics(details)
        case ScanDetails():  # its tensors are the chart of layers
            return blocks_of(details, {"tensors"})
        case _:
            return blocks_of(details)


def _memory(details: MemoryDetails) -> list[Block]:
    facts = Facts(
        (
            ("Tokens of each sequence", f"{details.length:,}"),
            ("Processes of each arm", str(details.processes)),
        )
    )
    return [facts, Bars("Peak memory", _peaks(details.arms)), _arms(details.arms), _fits(details)]


def _peaks(arms: Sequence[ArmMemory]) -> tuple[Bar, ...]:
    """Return a bar for each number of sequences and arm, arms next to each other."""
    numbers = sorted({peak.sequences for arm in arms for peak in arm.peaks})
    return tuple(
        Bar(f"{number} at once, {arm.arm}", peak.bytes, size(peak.bytes), place)
        for number in numbers
        for place, arm in enumerate(arms)
        for peak in arm.peaks
        if peak.sequences == number
    )


def _arms(arms: Sequence[ArmMemory]) -> Table:
    rows = (
        ("weights, counted", *(size(arm.weights_counted) for arm in arms)),
        ("weights, resident", *(size(arm.weights_resident) for arm in arms)),
        ("keys and values a token, counted", *(size(int(a.kv_bytes_per_token)) for a in arms)),
        (
            "keys and values a token, measured",
            *(size(int(arm.kv_bytes_per_token_measured)) for arm in arms),
        ),
    )
    headings = ("", *(arm.arm for arm in arms))
    return Table("Weights, keys and values", headings, (False, *(True for _ in arms)), rows)


def _fits(details: MemoryDetails) -> Table:
    headings = ("arm", "budget", "sequences that fit", "run", "peak expected", "peak measured")
    rows = tuple(
        (fit.arm, size(fit.budget), str(fit.sequences), str(fit.run), *_expected(fit))
        for fit in details.fits
    )
    return Table("How many sequences fit", headings, (False, *(True for _ in headings[1:])), rows)


def _expected(fit: Fit) -> tuple[str, str]:
    ratio = fit.measured / fit.expected if fit.expected else 0.0
    return size(fit.expected), f"{size(fit.measured)}, {ratio:.2f} of it"


def _numerics(details: NumericsDetails) -> list[Block]:
    """Return the blocks, of sites only those that stand out."""
    sites = sorted(details.sites, key=_standing_out, reverse=True)[:MOST_SITES]
    others = blocks_of(details, {"sites"})
    arms = ("source", "candidate")
    largest, outlier = (
        (f"largest, {arm}" for arm in arms),
        (f"over the median, {arm}" for arm in arms),
    )
    headings = ("layer", "site", *largest, *outlier, "clipped", "zeroed")
    rows = tuple(
        (
            str(site.layer),
            f"{site.site} ({site.role})",
            f"{site.source_largest:.4g}",
            f"{site.candidate_largest:.4g}",
            f"{site.source_outlier:.4g}",
            f"{site.candidate_outlier:.4g}",
            f"{site.candidate_clipped:.2%}",
            f"{site.candidate_zeroed:.2%}",
        )
        for site in sites
    )
    numbers = (True, False, *(True for _ in headings[2:]))
    left = len(details.sites) - len(sites)
    return [*others, Table("Sites with the largest outliers", headings, numbers, rows, left)]


def _standing_out(site: SiteNumerics) -> tuple[int, float]:
    """Order sites: what is not finite or overflows first, then by outlier."""
    return site.candidate_not_finite + site.candidate_overflow, site.candidate_outlier
