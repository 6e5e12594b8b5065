"""A model card: what an artefact is, how it was made, how good it is, and how to run it."""

from __future__ import annotations

from pathlib import Path

from fewbit.records.evaluation import Evaluation
from fewbit.records.figures import describe, size
from fewbit.records.manifest import Manifest

_RUNTIMES = {
    "fewbit": ("fewbit generate {path} -p 'Why is the sky blue?'",),
    "gguf": (
        "llama-cli -m {path} -p 'Why is the sky blue?'",
        "fewbit generate {path} -p 'Why is the sky blue?'",
    ),
    "hf": (
        "vllm serve {path}",
        "fewbit generate {path} -p 'Why is the sky blue?'",
    ),
    "compressed-tensors": ("vllm serve {path}", "fewbit generate {path} -p 'Why is the sky blue?'"),
    "gptq": ("vllm serve {path}",),
    "gptq_v2": ("vllm serve {path}",),
    "awq": ("vllm serve {path}",),
}
"""Commands that run an artefact, by what it is written as."""


def folder_card(manifest: Manifest) -> str:
    """Return the card that is written into a folder with its artefact.

    It says nothing of where the folder lies, so that the same artefact has the same card.
    """
    return model_card(manifest, Path(), published_name(manifest.source.path))


def published_name(source: str) -> str:
    """Return `org/name` for a source in a cache of the Hugging Face hub, else its last name."""
    path = Path(source)
    for part in reversed(path.parts):
        *_, organization, name = ("", *part.removeprefix("models--").split("--"))
        if organization:
            return f"{organization}/{name}"
    return path.stem if path.suffix.lower() == ".gguf" else path.name


def model_card(
    manifest: Manifest, path: Path, base_model: str, evaluation: Evaluation | None = None
) -> str:
    """Return a card as Markdown with the fields that model hubs read in front.

    Args:
        manifest: of the artefact.
        path: the artefact, as commands name it; the empty path for the folder the card is in.
        base_model: what the source is called where it is published, or its path.
        evaluation: what `fewbit eval` measured of the artefact, where it did.
    """
    quantized = any(entry.status == "quantized" for entry in manifest.tensors)
    named = path.stem if path.suffix.lower() == ".gguf" else path.name
    lines = [
        "---",
        f"base_model: {base_model}",
        *(["base_model_relation: quantized"] if quantized else []),
        f"tags: [fewbit{', quantized' if quantized else ''}]",
        "---",
        "",
        f"# {named or f'{Path(base_model).name}, {manifest.recipe.name}'}",
        "",
        *_making(manifest),
        *(["", "## Quality", "", *_quality(evaluation)]),
        "",
        "## Run",
        "",
        *(f"    {line.format(path=path.name or '.')}" for line in _commands(manifest)),
    ]
    return "\n".join(lines) + "\n"


def _commands(manifest: Manifest) -> tuple[str, ...]:
    if manifest.draft is not None:
        return (f"fewbit generate {manifest.draft.target} --draft {{path}} -p 'Hello'",)
    return _RUNTIMES.get(manifest.container, ())


def _making(manifest: Manifest) -> list[str]:
    recipe = manifest.recipe
    steps = [
        *recipe.transforms,
        " and ".join(recipe.methods),
        *([f"tune {recipe.tune}"] if recipe.tune else []),
    ]
    formats = sorted({e.format for e in manifest.tensors if e.status == "quantized"})
    lines = [
        f"{size(manifest.tensor_bytes)} of tensors, {manifest.bits_per_weight:.2f} bits per weight "
        f"(source: {manifest.source_bits_per_weight:.2f}), made by fewbit "
        f"{manifest.fewbit_version}.",
        "",
        f"- recipe: `{recipe.name}` ({', then '.join(steps)}), formats {', '.join(formats)}",
        f"- source: tensors' SHA-256 `{manifest.source.sha256}`",
    ]
    text = manifest.calibration
    if text is not None:
        names = ", ".join(part.name for part in text.texts)
        lines.append(
            f"- calibration: {text.counted} tokens ({names}), SHA-256 `{text.tokens_sha256}`"
        )
    if manifest.source.quantized:
        lines.append("- the source was itself quantized already")
    return lines


def _quality(evaluation: Evaluation | None) -> list[str]:
    if evaluation is None:
        return ["Not measured. `fewbit eval` compares it with its source."]
    verdict, told = evaluation.verdict, evaluation.language
    lines = [f"- verdict: {verdict.outcome.name}"]
    for found in evaluation.judgements:
        margin = "" if found.margin is None else f", margin {found.margin:g}"
        lines.append(f"- {found.slice}: {describe(found.figure, found.margin)}{margin}")
    if told is not None:
        lines += [
            f"- same first choice: {describe(told.agreement)}",
            f"- text: {told.text.positions} positions of {told.text.name} ({told.text.windows} "
            f"windows of {told.text.window_tokens} tokens)",
        ]
    return lines
