"""The page's colours: read by all eyes, in light and dark, and never the only sign.

Deuteranopia is simulated by Machado, Oliveira and Fernandes (IEEE TVCG 15, 2009), severity 1.0, in
linear RGB; differences are Euclidean in Oklab (Ottosson 2020), where 0.02 is just noticeable.
Contrast is WCAG 2's: 4.5 for text, 3 for marks.
"""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from fewbit.report import svg

STYLE = Path(svg.__file__).parent / "templates" / "style.css"
DEUTERANOPIA = np.array(
    [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]]
)
TO_LMS = np.array(
    [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
)
TO_OKLAB = np.array(
    [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
)


def schemes():
    """Return the style's variables, light and dark, as colours in linear RGB."""
    light, dark = re.findall(r":root \{(.*?)\}", STYLE.read_text(), re.DOTALL)[:2]
    return {"light": _colours(light), "dark": _colours(dark)}


def _colours(block):
    return {
        name: _linear(np.array([int(code[i : i + 2], 16) for i in (0, 2, 4)]) / 255)
        for name, code in re.findall(r"--(\w+): #([0-9a-f]{6})", block)
    }


def _linear(shade):
    return np.where(shade <= 0.04045, shade / 12.92, ((shade + 0.055) / 1.055) ** 2.4)


def seen(colour):
    """Return a colour as a deuteranope sees it."""
    return np.clip(DEUTERANOPIA @ colour, 0, 1)


def apart(one, other):
    lab = [TO_OKLAB @ np.cbrt(TO_LMS @ colour) for colour in (one, other)]
    return float(np.linalg.norm(lab[0] - lab[1]))


def contrast(one, other):
    lights = sorted(float(np.array([0.2126, 0.7152, 0.0722]) @ c) + 0.05 for c in (one, other))
    return lights[1] / lights[0]


@pytest.fixture(params=["light", "dark"])
def colours(request):
    return schemes()[request.param]


def test_outcomes_are_told_apart_by_all_eyes(colours):
    for one, other in itertools.combinations(("accept", "reject", "unsure"), 2):
        assert apart(colours[one], colours[other]) > 0.1, (one, other)
        assert apart(seen(colours[one]), seen(colours[other])) > 0.1, (one, other)


def test_texts_and_marks_stand_out_from_what_is_behind_them(colours):
    for text, ground in itertools.product(
        ("ink", "muted", "accent", "accept", "reject", "unsure"), ("card", "paper", "soft")
    ):
        assert contrast(colours[text], colours[ground]) >= 4.5, (text, ground)
    for mark in ("share0", "share3", "accent"):
        assert contrast(colours[mark], colours["card"]) >= 3, mark


def test_red_and_green_would_not_pass():
    """The negative control: the usual pair looks alike to a deuteranope."""
    red, green = (_linear(np.array(rgb) / 255) for rgb in ([200, 60, 40], [110, 130, 40]))
    assert apart(red, green) > 0.1
    assert apart(seen(red), seen(green)) < 0.1


def test_shapes_and_words_say_the_same_as_colours():
    marks = [svg.icon(outcome) for outcome in ("ACCEPT", "REJECT", "INCONCLUSIVE")]
    shapes = [re.sub(r'class="[^"]*"', "", mark) for mark in marks]
    assert len(set(shapes)) == 3
