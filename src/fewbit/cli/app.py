"""The `fewbit` command: its subcommands, how errors end it, and its exit codes."""

from __future__ import annotations

import errno
import shlex
import signal
import sys
import traceback
from types import FrameType
from typing import NoReturn

from cyclopts import App, CycloptsError

from fewbit import __version__
from fewbit.cli.output import abandon_stdout
from fewbit.cli.surroundings import make_fit
from fewbit.errors import FewbitError, StoppedError

EXIT_USAGE = 2
EXIT_FAULT = 70
EXIT_INTERRUPTED = 130

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
"""What an output that cannot take more answers with: the machine's affair, no defect of ours."""

COMMANDS = {
    "pull": (
        "Fetch a model into the cache and print its path.",
        "fewbit pull smollm2-135m",
    ),
    "inspect": (
        "Show a model's architecture, formats, bits per weight, tokenizer and hazards.",
        "fewbit inspect smollm2-135m",
    ),
    "recipes": (
        "List the built-in recipes, with sizes and times for a model; or print one as TOML.",
        "fewbit recipes smollm2-135m",
    ),
    "quantize": (
        "Quantize a model by a recipe and write it with its manifest.",
        "fewbit quantize smollm2-135m --recipe rtn-int4-g32 --out small",
    ),
    "export": (
        "Write a model in the format of another runtime.",
        "fewbit export small --to gguf --out small.gguf",
    ),
    "imatrix": (
        "Measure how strong each input of each layer is, for llama.cpp's quantizer or ours.",
        "fewbit imatrix smollm2-135m --out smollm2.imatrix.gguf",
    ),
    "draft prepare": (
        "Prepare a model to draft for another: a head of frequent tokens, fast weights.",
        "fewbit draft prepare small.gguf --for large.gguf --out draft.gguf",
    ),
    "draft train": (
        "Train a head that drafts for a model from its hidden states (needs torch).",
        "fewbit draft train smollm2-135m --out head",
    ),
    "eval": (
        "Measure a model against its exact source and give a verdict.",
        "fewbit eval small --against smollm2-135m",
    ),
    "report": (
        "Draw a record again, or compare two evaluations slice by slice.",
        "fewbit report evaluation.json --html evaluation.html",
    ),
    "card": (
        "Write a model card for an artefact: README.md in a folder, FILE.md beside a GGUF file.",
        "fewbit card small --base-model HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
    "compress": (
        "Try recipes from small to large until one is accepted; keep the evidence.",
        "fewbit compress smollm2-135m --out small",
    ),
    "generate": (
        "Generate text, with exact speculation where a draft is given.",
        'fewbit generate smollm2-135m -p "Why is the sky blue?" --draft ngram',
    ),
    "chat": (
        "Talk with a model.",
        "fewbit chat smollm2-135m",
    ),
    "pair": (
        "Say whether a draft model fits a target, and name every difference.",
        "fewbit pair qwen-1.5b.gguf qwen-0.5b.gguf",
    ),
    "speed-model": (
        "Compute what speculation is worth: formula and simulation, also for a measured run.",
        "fewbit speed-model --acceptance 0.25,0.5,0.9 --draft-cost 0.1 --k 1..8",
    ),
    "certify": (
        "Prove that a draft changes nothing of what a model says; write the certificate.",
        "fewbit certify smollm2-135m --draft ngram --html certificate.html",
    ),
    "validate": (
        "Answer six questions about a quantized model with a draft, on one page.",
        "fewbit validate small.gguf --draft draft.gguf --against source.gguf",
    ),
    "bench": (
        "Measure a model's speed beside what this machine can do.",
        "fewbit bench smollm2-135m --concurrency 1,16",
    ),
}
"""Each command's one-line description and its example. The code is in `fewbit.cli.<command>`,
imported when the command runs; of two words the first is a group, with a module for all of it."""

GROUPS = {"draft": "What makes a model a better draft."}


def build() -> App:
    """Return the application with every command registered, none of them imported."""
    app = App(
        name="fewbit",
        help="Make a language model smaller and faster, and prove that it is still the same model.",
        help_prologue="Example: fewbit compress smollm2-135m --out small",
        help_epilogue="Exit codes: 0 done, ACCEPT, usable or certified, 2 bad input, 3 REJECT, not "
        "usable or not certified, 4 INCONCLUSIVE, 70 a fault of ours, 75 stopped and resumable, "
        "130 interrupted.",
        version=__version__,
        help_format="plaintext",
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    groups = {name: App(name=name, help=summary) for name, summary in GROUPS.items()}
    for group in groups.values():
        app.command(group)
    for name, (summary, example) in COMMANDS.items():
        module, _, command = name.partition(" ")
        shown = command or module
        groups.get(module, app).command(
            f"fewbit.cli.{_python_name(module)}:{_python_name(shown)}",
            name=shown,
            help=summary,
            help_prologue=f"Example: {example}",
        )
    return app


def _python_name(command: str) -> str:
    return command.replace("-", "_")


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run one command and exit with its code; a user's mistake ends in one line on stderr."""
    signal.signal(signal.SIGTERM, _terminate)
    make_fit()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its exit code."""
    result = None
    try:
        result = build()(arguments, exit_on_error=False, print_error=False)
        if sys.stdout is not None:
            sys.stdout.flush()
    except CycloptsError as error:
        return _complain(_one_line(str(error)) + " See --help.", EXIT_USAGE)
    except FewbitError as error:
        return _complain(f"{error}{_way_on(error, arguments)}", error.exit_code)
    except KeyboardInterrupt:
        return _complain("interrupted.", EXIT_INTERRUPTED)
    except BrokenPipeError:  # the reader left; what was found still decides the exit code
        abandon_stdout()
    except Exception as error:  # the last net
        return _unforeseen(error)
    return result if isinstance(result, int) else 0


def _way_on(error: FewbitError, arguments: list[str]) -> str:
    """Return how a stopped command goes on: as it was given, but for a wish to begin anew."""
    if not isinstance(error, StoppedError):
        return ""
    joined = "\0".join(arguments).replace("--resume\0never", "--resume=never")
    kept = [argument for argument in joined.split("\0") if argument != "--resume=never"]
    return f" Go on with: {shlex.join(['fewbit', *kept])}"


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """End as the shell reports a signal, but by way of every clean-up: no half output stays."""
    sys.exit(128 + number)


def _unforeseen(error: Exception) -> int:
    """Name an output without room in a sentence, and show a defect of ours in full."""
    if isinstance(error, OSError) and error.errno in _NO_ROOM:
        abandon_stdout()
        return _complain(
            f"{error.filename or 'the output'} cannot be written ({error.strerror}); make room or "
            "write elsewhere.",
            EXIT_USAGE,
        )
    traceback.print_exception(error)
    return _complain(
        f"this is a fault in fewbit {__version__}; please report the lines above.", EXIT_FAULT
    )


def _complain(message: str, code: int) -> int:
    print(f"fewbit: {message}", file=sys.stderr)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())
