"""Exercise 5: two tokenizers that agree in every token but one, and what that does to speculation.

    python examples/special_token_mismatch.py
    python examples/special_token_mismatch.py --model qwen2.5-coder-0.5b-instruct-q4_k_m.gguf
    python examples/special_token_mismatch.py --pair TARGET.gguf DRAFT.gguf

A base model ends a text with <|endoftext|>, the instruct model of its family a turn with
<|im_end|>. Both tokens are in both vocabularies, so every text is cut alike, and the pair looks
perfect. A draft of such a kind is made here from the target itself: the rows of its head for the
two tokens change places, and its metadata name the other end. Everything but the last token of an
answer is what the target says.

Without --model the two are generated: a tiny model that recites the alphabet from the letter it is
given, and then ends its turn.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import tokenizers
from numpy.typing import NDArray
from rich.console import Console
from safetensors.numpy import save_file
from tokenizers import decoders, models, pre_tokenizers

from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel, load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.formats.spec import QuantTensor
from fewbit.model.families import gguf_name
from fewbit.model.gguf_view import as_gguf
from fewbit.model.runner import RunSettings
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import open_model
from fewbit.records.generation import GenerationRecord
from fewbit.records.pair import PairReport
from fewbit.report.pair import print_pair
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.pair import check_pair
from fewbit.speculate.pair_member import member_of
from fewbit.tokens.tokenizer import Tokenizer

OTHER_END, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
LETTERS = "abcdefghijklmnopqrstuvwxyz."
TEMPLATE = (
    "{% for m in messages %}" + START + "{{ m.content }}{% endfor %}"
    "{# the letter is the question, what follows it the answer #}"
)
QUESTIONS = (
    "What is 17 + 25? Answer with the number only.",
    "Name the capital of France in one word.",
    "Write a Python expression for the square of x, without explanation.",
    "Is 97 prime? Answer yes or no.",
)
HEAD = gguf_name("head.weight")
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Answers:
    """What some generations came to, all together."""

    tokens: tuple[tuple[int, ...], ...]
    texts: tuple[str, ...]
    records: tuple[GenerationRecord, ...]

    @property
    def steps(self) -> int:
        """Steps of the target after the prompt."""
        return sum(r.plain_steps + (r.draft.blocks if r.draft else 0) for r in self.records)

    @property
    def judged(self) -> int:
        """Drafted tokens that the target came to judge."""
        return sum(p.tested for r in self.records if r.draft for p in r.draft.positions)

    @property
    def accepted(self) -> int:
        """Those that it accepted."""
        return sum(p.accepted for r in self.records if r.draft for p in r.draft.positions)


def tiny_tokenizer() -> tokenizers.Tokenizer:
    """Return a byte-level BPE without merges, with the three special tokens of a chat."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    ids = {text: token for token, text in enumerate(alphabet)}
    backend = tokenizers.Tokenizer(models.BPE(ids, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([OTHER_END, START, END])
    return backend


def write_tiny(folder: Path) -> Path:
    """Write a model that says the alphabet, then <|im_end|>, then begins a turn of its own.

    Its attention and MLP add nothing, so its output depends on the last token alone: the head's
    row of a token points where the embedding of the token before it points.
    """
    backend, hidden, inner = tiny_tokenizer(), 64, 32
    size = backend.get_vocab_size()
    chain = [backend.token_to_id(text) for text in (*LETTERS, END, START, LETTERS[0])]
    embedding = np.random.default_rng(0).standard_normal((size, hidden)).astype(np.float32)
    head = np.zeros_like(embedding)
    for before, after in pairwise(chain):
        head[after] += embedding[before]
    zeros = {
        "self_attn.q_proj": (hidden, hidden),
        "self_attn.k_proj": (hidden, hidden),
        "self_attn.v_proj": (hidden, hidden),
        "self_attn.o_proj": (hidden, hidden),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
    }
    ones = np.ones(hidden, np.float32)
    layer = "model.layers.0"
    weights = {f"{layer}.{name}.weight": np.zeros(s, np.float32) for name, s in zeros.items()}
    weights |= {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": head,
        "model.norm.weight": ones,
        f"{layer}.input_layernorm.weight": ones,
        f"{layer}.post_attention_layernorm.weight": ones,
    }
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": size,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
    }
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(backend.to_str())
    described = {"eos_token": END, "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def write_with_other_end(model: Path, out: Path) -> Path:
    """Write a model as a GGUF file whose head says <|endoftext|> where it said <|im_end|>.

    Raises:
        UsageError: the model has not both tokens, or shares one table between input and output.
    """
    with open_model(model) as source:
        ours, other = _ends(tokenizer_of(source), model)
        file = as_gguf(source).checkpoint
        if HEAD not in file.tensors:
            raise UsageError(f"{model} has one table for input and output; give another model.")

        def read(name: str) -> QuantTensor:
            tensor = file.read(name)
            return (
                tensor.take_rows(_swapped(tensor.shape[0], ours, other)) if name == HEAD else tensor
            )

        changes = {"tokenizer.ggml.eos_token_id": (ValueType.UINT32, other)}
        write_gguf(out, overlay(file.facts, changes), list(file.tensors.values()), read)
    return out


def check(target: Path, draft: Path) -> PairReport:
    """Return what the pair check finds."""
    with open_model(target) as ours, open_model(draft) as theirs:
        return check_pair(member_of(ours), member_of(theirs))


def answers(
    loaded: LoadedModel,
    prompts: Sequence[tuple[int, ...]],
    speculation: Speculation | None,
    stop: StopCondition,
) -> Answers:
    """Generate greedily, one prompt after another."""
    engine = Engine(loaded.served, speculation)
    tokens, texts, records = [], [], []
    for prompt in prompts:
        said: list[int] = []
        text = ""
        for output in engine.generate([Request(prompt, GREEDY, stop)]):
            said += output.tokens
            text += output.text
            if output.record is not None:
                records.append(output.record)
        tokens.append(tuple(said))
        texts.append(text)
    return Answers(tuple(tokens), tuple(texts), tuple(records))


def measure(
    target: Path, draft: Path, prompts: Sequence[str], *, longest: int, most: int
) -> Mapping[str, Answers]:
    """Generate without a draft, with the target drafting for itself, and with the other draft.

    And then without a draft again, but stopping at the draft's end instead of the target's.
    """
    settings = RunSettings()
    loaded = load_model(target, settings)
    asked = [loaded.chat_prompt([{"role": "user", "content": text}]) for text in prompts]
    stop = StopCondition(most, loaded.ends)
    _, other = _ends(loaded.tokenizer, target)
    found = {"none": answers(loaded, asked, None, stop)}
    for name, path in (("the target itself", target), ("the same, other end", draft)):
        opened = load_draft(path, loaded, settings)
        speculation = Speculation(opened.draft, longest, control=FixedLengths)
        found[name] = answers(loaded, asked, speculation, stop)
    found["none, stopping at the draft's end"] = answers(
        loaded, asked, None, StopCondition(most, frozenset({other}))
    )
    return found


def table(found: Mapping[str, Answers]) -> str:
    """Return what each way of generating came to."""
    plain = found["none"]
    lines = [
        f"{'draft':36}{'tokens':>8}{'steps':>7}{'judged':>8}{'accepted':>10}"
        f"  {'ended by':16}answers"
    ]
    for name, one in found.items():
        same = "as without a draft" if one.tokens == plain.tokens else "OTHER"
        ended = ", ".join(sorted({record.finish.value for record in one.records}))
        share = f"{one.accepted / one.judged:.1%}" if one.judged else "-"
        lines.append(
            f"{name:36}{sum(map(len, one.tokens)):8}{one.steps:7}{one.judged:8}{share:>10}"
            f"  {ended:16}{same}"
        )
    return "\n".join(lines)


def _ends(tokenizer: Tokenizer, model: Path) -> tuple[int, int]:
    found = {text: token for token, text in tokenizer.added_tokens.items()}
    if END not in found or OTHER_END not in found:
        raise UsageError(f"{model} has no {END} and {OTHER_END}; give a model of Qwen's family.")
    return found[END], found[OTHER_END]


def _swapped(rows: int, one: int, other: int) -> NDArray[np.intp]:
    order = np.arange(rows)
    order[[one, other]] = other, one
    return order


def _say(found: Mapping[str, Answers]) -> list[str]:
    """Return what the figures mean, in sentences."""
    good, bad = found["the target itself"], found["the same, other end"]
    on = found["none, stopping at the draft's end"]
    return [
        f"Of {bad.judged} judged tokens {bad.judged - bad.accepted} were rejected, "
        f"{good.judged - good.accepted} without the mismatch: the last one of each answer.",
        "Every answer ended where the target ended it, at the same token.",
        f"A loop that stops at the draft's end goes on: {sum(map(len, on.tokens))} tokens instead "
        f"of {sum(map(len, bad.tokens))}. The first answer then reads {on.texts[0][:120]!r}.",
    ]


def main(arguments: Sequence[str] | None = None) -> None:
    """Find the mismatch, then show what it does."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, help="a GGUF file of Qwen's family")
    parser.add_argument("--pair", type=Path, nargs=2, metavar=("TARGET", "DRAFT"))
    parser.add_argument("--longest", type=int, default=4, help="tokens drafted at once")
    parser.add_argument("--most", type=int, default=64, help="tokens of an answer")
    given = parser.parse_args(arguments)
    console = Console(width=100, highlight=False)
    if given.pair:
        print_pair(check(*given.pair), console)
        return
    with tempfile.TemporaryDirectory() as folder:
        target = given.model or write_tiny(Path(folder) / "target")
        draft = write_with_other_end(target, Path(folder) / "other-end.gguf")
        print_pair(check(target, draft), console)
        prompts = QUESTIONS if given.model else ("a", "m", "w")
        found = measure(target, draft, prompts, longest=given.longest, most=given.most)
    print(table(found), *_say(found), sep="\n")


if __name__ == "__main__":
    main()
