"""`fewbit quantize --from-manifest`: the same artefact again, bit for bit, or why not."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.cli.calibration import CalibrationOptions
from fewbit.cli.tuning import TuneOptions
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.model.weights import ModelSource
    from fewbit.progress import Progress
    from fewbit.quantization import QuantizeSettings
    from fewbit.records.manifest import Manifest

EXIT_DIFFERENT = 3


@dataclass(frozen=True)
class Again:
    """A manifest whose artefact is made once more."""

    manifest: Manifest

    @property
    def calibration(self) -> CalibrationOptions:
        """The options that gave its calibration."""
        making = self.manifest.making
        assert making is not None
        found = CalibrationOptions(
            inputs=self.manifest.inputs or "quantized",
            imatrix=None if making.imatrix is None else Path(making.imatrix),
        )
        if making.text is None:
            return found
        return replace(
            found,
            calibration=tuple(map(Path, making.text.files)),
            calibration_windows=making.text.windows,
            window=making.text.window,
            calibration_seed=making.text.seed,
        )

    @property
    def tuning(self) -> TuneOptions:
        """The options that gave its tuning."""
        making = self.manifest.making
        assert making is not None
        windows = making.tune_windows
        return TuneOptions() if windows is None else TuneOptions(tune_windows=windows)

    def check_source(self, source: ModelSource, progress: Progress) -> None:
        """Refuse another source; say what may keep the bits from being the same."""
        from fewbit.quantization.making import doubts, require_source

        require_source(self.manifest, source)
        for doubt in doubts(self.manifest):
            progress(doubt, 0, 0)

    def settings(self, found: QuantizeSettings) -> QuantizeSettings:
        """Refuse other texts; return the settings with what only the manifest knows."""
        from fewbit.quantization.making import require_same_text, tune_settings

        for wanted, text in (
            (self.manifest.calibration, found.calibration),
            (self.manifest.tuning_text, found.tuning_text),
        ):
            require_same_text(wanted, None if text is None else text.facts)
        return replace(
            found, allocation=self.manifest.allocation, tuning=tune_settings(self.manifest)
        )

    def compare(self, made: Manifest) -> int:
        """Say whether the tensors are the same bits, and return the exit code."""
        from fewbit.quantization.making import differing

        names = differing(self.manifest, made)
        if not names:
            print(f"All {len(made.tensors)} tensors are the manifest's, bit for bit.")
            return 0
        print(
            f"fewbit: {len(names)} of {len(made.tensors)} tensors are not the manifest's bits, "
            f"{names[0]} among them.",
            file=sys.stderr,
        )
        return EXIT_DIFFERENT


def again(path: Path | None, given: str | None, *, options: bool) -> Again | None:
    """Return what to make once more, or None where a recipe is given instead.

    Raises:
        UsageError: neither a manifest nor a recipe is given, or both, or options beside a manifest;
            or it is that of a prepared draft.
        MissingError, BadFileError: as `open_manifest`.
    """
    from fewbit.quantization.making import open_manifest

    if (path is None) == (given is None):
        raise UsageError("Give either --recipe or --from-manifest.")
    if path is None:
        return None
    if options:
        raise UsageError(
            "A manifest says how its artefact was calibrated and tuned; leave those options out."
        )
    manifest = open_manifest(path)
    if manifest.draft is not None:
        raise UsageError(
            f"{path} is of a draft that was prepared for {manifest.draft.target}; give its source "
            "to 'fewbit draft prepare' with the same options to make it again."
        )
    return Again(manifest)
