"""What the axes of the machine tell, with plausible figures."""

import math

import sample_details

from fewbit.records.drawn import Band, Curve
from fewbit.records.generation import FinishReason
from fewbit.records.interval import Interval
from fewbit.records.kernel_axis import KernelKind, KernelsDetails, MatrixKernel, TokenReads
from fewbit.records.memory_axis import ArmMemory, Fit, MemoryDetails, Peak
from fewbit.records.numerics import NumericsDetails, SiteNumerics
from fewbit.records.speed_axis import FinishedTask, SpeedDetails, SpeedRate

ARMS = {"source": 1.0, "candidate": 0.6}


def speed():
    return SpeedDetails(
        prompt=128,
        tokens=64,
        turns=3,
        rates=tuple(
            SpeedRate(
                arm=arm,
                sequences=count,
                prompt_tokens_per_second=4200.0,
                first_token=0.031 * count * cost,
                cached_first_token=0.004 * count * cost,
                decode_tokens_per_second=550 / cost,
                gap_median=0.0018 * cost * math.sqrt(count),
                gap_p99=0.0025 * cost * math.sqrt(count),
                gap_longest=0.04 * cost,
            )
            for count in (1, 4, 16)
            for arm, cost in ARMS.items()
        ),
        tasks=tuple(
            FinishedTask(
                name=f"question {i}",
                source_tokens=40 + i,
                candidate_tokens=48 + i,
                source_seconds=0.2,
                candidate_seconds=0.16,
                source_finish=FinishReason.STOP,
                candidate_finish=FinishReason.STOP,
            )
            for i in range(20)
        ),
        distributions=sample_details.gaps(),
    )


def memory():
    return MemoryDetails(
        length=512,
        processes=3,
        arms=tuple(
            ArmMemory(
                arm=arm,
                weights_counted=int(98_000_000 * cost),
                weights_resident=int(101_000_000 * cost),
                kv_bytes_per_token=23_040.0,
                kv_bytes_per_token_measured=23_410.0,
                peaks=tuple(
                    Peak(sequences=n, bytes=int(160_000_000 * cost + 12_000_000 * n))
                    for n in (1, 4, 16)
                ),
            )
            for arm, cost in ARMS.items()
        ),
        fits=(
            Fit(
                arm="candidate",
                budget=1_000_000_000,
                sequences=71,
                run=32,
                expected=480_000_000,
                measured=491_000_000,
            ),
        ),
    )


def kernels():
    kinds = tuple(
        KernelKind(
            arm=arm,
            format="q4_1" if arm == "source" else "int4-g64",
            kernel="w4.asym.g32/a8.g32/avx512vnni",
            activations="int8-g32",
            matrices=210,
            bytes=89_900_000,
            format_bytes=88_000_000,
        )
        for arm in ARMS
    )
    return KernelsDetails(
        kinds=kinds,
        reads=tuple(TokenReads(arm=arm, bytes=89_900_000, format_bytes=88_000_000) for arm in ARMS),
        matrices=tuple(
            MatrixKernel(
                slot=f"layers.{i}.q.weight",
                format="int4-g64",
                kernel="w4.sym.g64/a8.g32/avx512vnni",
                bytes=165_888,
                format_bytes=165_888,
            )
            for i in range(30)
        ),
    )


def numerics():
    sites = tuple(
        SiteNumerics(
            layer=i // 4,
            site=("down.input", "q.input", "k", "v")[i % 4],
            role=("input", "input", "key", "value")[i % 4],
            source_largest=10.0 + i,
            candidate_largest=10.5 + i,
            source_outlier=40.0 + i % 7,
            candidate_outlier=41.0 + i % 7,
            candidate_overflow=1 if i == 3 else 0,
        )
        for i in range(120)
    )
    bands = tuple(
        Band(low=i * 1.0, high=i + 1.0, count=4, figure=Interval(value=40.0 + i), floor=39.0 + i)
        for i in range(30)
    )
    curve = Curve(title="Outliers by layer", across="layer", unit="times the median", bands=bands)
    return NumericsDetails(text="library", windows=4, tokens=2048, sites=sites, outliers=(curve,))
