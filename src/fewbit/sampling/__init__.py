"""From logits to a token: one pipeline for plain decoding, drafts and verification.

The order of the pipeline, and whose it is:

1. ids at or beyond the tokenizer's vocabulary (padding rows of the head) are masked;
2. `logit_bias` is added; a bias of -100 or less bans the token; so does the request's grammar;
3. penalties: repetition over prompt and output, frequency and presence over the output alone;
4. temperature (0 picks the largest logit and ends here);
5. top-k, then top-p over what top-k left, then min-p; softmax over what is left.

1 to 4 are vLLM's order. Truncation follows Hugging Face's (vLLM applies min-p before top-k and
top-p, so that top-p sees a larger share; llama.cpp divides by the temperature last, so its top-p
does not feel it). Truncation comes after temperature because a user who raises the temperature
asks for more candidates. Every tie is broken by (logit descending, id ascending): top-k keeps
exactly k tokens, where both others keep all that tie with the k-th.

`distribution` is the NumPy truth. `TokenSampler` and `sample_blocks` are its native twin; both
compute logits in float32 with the same operations, so they order tokens alike. A token is drawn
by inverse CDF over the kept tokens in ascending id order, with the uniform number of (seed,
sample, position, `Purpose.TOKEN`).
"""

from fewbit._native import ScriptedNumbers
from fewbit.sampling.constraint import Constraint
from fewbit.sampling.distribution import NO_HISTORY, History, adjusted_logits, distribution
from fewbit.sampling.draws import (
    Block,
    Branch,
    Drafted,
    DraftRow,
    Drawn,
    SamplingThreads,
    TokenLogprob,
    draw_proposals,
    sample_blocks,
    tree_rows,
)
from fewbit.sampling.params import BAN, SMALLEST_TEMPERATURE, SamplingParams
from fewbit.sampling.sampler import TokenSampler
from fewbit.sampling.verifier import Verifier

__all__ = [
    "BAN",
    "NO_HISTORY",
    "SMALLEST_TEMPERATURE",
    "Block",
    "Branch",
    "Constraint",
    "DraftRow",
    "Drafted",
    "Drawn",
    "History",
    "SamplingParams",
    "SamplingThreads",
    "ScriptedNumbers",
    "TokenLogprob",
    "TokenSampler",
    "Verifier",
    "adjusted_logits",
    "distribution",
    "draw_proposals",
    "sample_blocks",
    "tree_rows",
]
