"""A byte-level BPE of 1,024 tokens, trained on demonstrations."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from envs.tasks.bug_repair.environment import SYSTEM_PROMPT

VOCAB_SIZE = 1024
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)

_SCAFFOLD = (
    r'<tool_call>\n\{"name": "',
    r'", "arguments": \{"',
    r'", "arguments": \{\}\}\n</tool_call>',
    r'"\}\}\n</tool_call>',
    r'": "',
    r'", "',
    r"user\n<tool_response>\n",
    r"\n</tool_response>",
    r"(?:system|user|assistant)\n",
    re.escape(SYSTEM_PROMPT),
)
_PHRASES = (
    *("def ", "return ", "for ", " for ", "if ", " if ", " in ", " is ", ", want ", "fix ", "Tools: "),
    *("error: ", "failed: ", "unknown tool ", "no file ", "text not found", "; tools: ", "; files: "),
)
_PIECES = "|".join(
    (
        *_SCAFFOLD,
        *_PHRASES,
        r"/[a-z_]+\.py",
        r"[A-Za-z_]+",
        r"[0-9]",
        r"\n *",
        r'"',
        r" ?[-+*%<>=!/]+ ?",
        r"\(\), |\), |\(\)|\):|, |: |:+",
        r"[^\w\s]",
        r" +",
    )
)
"""Each scaffold string of a call or a turn, each name, file, digit and quote is one piece of its own.

Spaces go with what stands beside a name, never with the name: so copying one out of a file or a list is copying the
very same token, which a small model learns far sooner than a translation.
"""


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=VOCAB_SIZE,
        min_frequency=1,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer
