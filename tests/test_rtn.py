import numpy as np
import pytest

from fewbit.formats.registry import decode, parse_format
from fewbit.methods.rtn import round_to_nearest


@pytest.mark.parametrize(
    "name", ["int2-g32", "int4-g32", "int4-g64-asym", "int8-row", "q4_0", "q8_0"]
)
def test_no_other_code_is_nearer(name):
    """A solver that became a no-op, or rounds down, has a nearer code at some element."""
    form = parse_format(name)
    weight = np.random.default_rng(0).normal(0, 1, (4, 128)).astype(np.float32)
    decoded = decode(round_to_nearest(weight, form))
    assert not np.array_equal(decoded, weight)
    # All values that a row's codes can take are the same for a group, so the distance to the
    # nearest value met anywhere in the group is a lower bound that rounding must reach.
    size = getattr(form, "group_size", None) or getattr(form, "block_size", None) or 128
    for w, d in zip(weight.reshape(-1, size), decoded.reshape(-1, size), strict=True):
        nearest = np.abs(w[:, None] - d[None, :]).min(axis=1)
        # Two codes at the same distance may differ by a float32 rounding of the difference.
        assert (
            np.abs(w - d) <= nearest + 1e-6 + 2.0**-10 * np.abs(w).max() * (name[0] == "q")
        ).all()


@pytest.mark.parametrize("symmetric", ["", "-asym"])
def test_more_bits_and_smaller_groups_have_less_error(symmetric):
    weight = np.random.default_rng(1).standard_t(3, (32, 256)).astype(np.float32)

    def error(name: str) -> float:
        return float(np.linalg.norm(decode(round_to_nearest(weight, parse_format(name))) - weight))

    by_bits = [error(f"int{bits}-g32{symmetric}") for bits in range(2, 9)]
    assert by_bits == sorted(by_bits, reverse=True)
    by_group = [error(f"int4-{where}{symmetric}") for where in ("g32", "g64", "g128", "row")]
    assert by_group == sorted(by_group)


def test_the_weight_keeps_its_bits():
    weight = np.random.default_rng(2).normal(0, 1, (4, 64)).astype(np.float32)
    before = weight.tobytes()
    round_to_nearest(weight, parse_format("int4-g32-asym"))
    round_to_nearest(weight, parse_format("q4_0"))
    assert weight.tobytes() == before
