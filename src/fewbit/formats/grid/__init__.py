"""Every integer and codebook format as codes on a grid: value = scale * level[code] + offset."""

from fewbit.formats.grid.fit import fit, fit_block
from fewbit.formats.grid.grid import Grid, concatenate, nearest, stack, values
from fewbit.formats.grid.layout import GridLayout, Offset, ScaleStorage, Ties, has_grid, layout
from fewbit.formats.grid.storable import storable
from fewbit.formats.grid.stored import join, split

__all__ = [
    "Grid",
    "GridLayout",
    "Offset",
    "ScaleStorage",
    "Ties",
    "concatenate",
    "fit",
    "fit_block",
    "has_grid",
    "join",
    "layout",
    "nearest",
    "split",
    "stack",
    "storable",
    "values",
]
