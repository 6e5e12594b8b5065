"""What SGLang would refuse, as its source reads; nothing here was run there.

Read in `sglang/srt/layers/quantization` (compressed_tensors, gptq, awq; versions of 2025 and 2026):

* compressed-tensors: `weights.num_bits` 4 or 8 in pack-quantized, in groups or rows, with or
  without zero points; the container of every group is the `format` of the whole; the experts of a
  mixture take the scheme of the target `Linear`, without zero points.
* GPTQ: asks for `bits` (2, 3, 4, 8), `group_size`, `desc_act` and `sym`; `dynamic` as GPTQModel has
  it, matched against `qkv_proj` and `gate_up_proj`.
* AWQ: asks for `bits` (4), `group_size` and `zero_point`; `modules_to_not_convert` are parts of
  names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fewbit.export.compressed_scheme import PACKED, Scheme
from fewbit.formats.spec import QuantSpec

_AS_READ = "SGLang, as its source reads (not run there),"


def compressed_limits(schemes: Sequence[Scheme], *, mixture: bool) -> Iterator[str]:
    """Yield, as sentences, what SGLang does not take of a model in compressed-tensors."""
    containers = {scheme.container for scheme in schemes}
    if PACKED in containers and len(containers) > 1:
        others = ", ".join(sorted(containers - {PACKED}))
        yield f"{_AS_READ} refuses packed weights beside {others}."
    packed = [s.form for s in schemes if s.container == PACKED and isinstance(s.form, QuantSpec)]
    odd = dict.fromkeys(form.name for form in packed if form.bits not in (4, 8))
    if odd:
        yield f"{_AS_READ} has packed weights of 4 and 8 bits, not {', '.join(odd)}."
    if not mixture:
        return
    if len({scheme.shared for scheme in schemes}) > 1:
        yield f"{_AS_READ} gives all experts the scheme of the target Linear; here they differ."
    if any(not form.symmetric for form in packed):
        yield f"{_AS_READ} has no zero points in a mixture's experts."
