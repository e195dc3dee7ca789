"""From nothing to a Hugging Face directory: tokenizer, demonstrations, imitation, files."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.dataset import as_example, as_text, demonstrations
from online_agent.seed_policy.habits import Habits
from online_agent.seed_policy.sft import Progress, SftSettings, fine_tune
from online_agent.seed_policy.tokenizer import END_OF_TEXT, TURN_END, VOCAB_SIZE, train_tokenizer

DEFAULT_SEED = 0
CHECKPOINT_DIR = Path(__file__).parent / "checkpoint"
"""The shipped build of the default seed."""

CONTEXT_LENGTH = 1024
_TOKENIZER_DEMOS = 3000
_TEMPLATE = Path(__file__).parent / "chat_template.jinja"


def build_seed_policy(
    out_dir: Path,
    seed: int = DEFAULT_SEED,
    progress: Progress | None = None,
    settings: SftSettings | None = None,
    habits: Habits | None = None,
) -> None:
    """Write a complete Hugging Face directory to ``out_dir``; the same seed gives the same policy on one machine.

    About three minutes on one core. ``progress`` gets (step, steps, loss). Sets torch to one thread meanwhile.
    """
    habits = habits or Habits()
    out_dir.mkdir(parents=True, exist_ok=True)
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.manual_seed(seed)
        write_tokenizer(out_dir, seed, habits)
        config = model_config()
        config.save_pretrained(out_dir)
        renderer = ChatRenderer.load(out_dir)
        model = Qwen3ForCausalLM(config)  # type: ignore[no-untyped-call]
        examples = (as_example(demo, renderer) for demo in demonstrations(seed, habits))
        fine_tune(model, examples, settings or SftSettings(), progress)
        model.save_pretrained(out_dir, safe_serialization=True)
    finally:
        torch.set_num_threads(num_threads)


def model_config() -> Qwen3Config:
    """0.72 M parameters: the size that learns most in the time two CPU cores give it."""
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=384,
        max_position_embeddings=CONTEXT_LENGTH,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        initializer_range=0.02,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        dtype="float32",
        architectures=["Qwen3ForCausalLM"],
    )


def write_tokenizer(out_dir: Path, seed: int, habits: Habits) -> None:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    texts = (text for demo in islice(demonstrations(seed + 1, habits), _TOKENIZER_DEMOS) for text in as_text(demo))
    tokenizer = train_tokenizer(texts)
    tokenizer.save(str(out_dir / "tokenizer.json"))
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "model_max_length": CONTEXT_LENGTH,
        "clean_up_tokenization_spaces": False,
    }
    (out_dir / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n")
    (out_dir / "chat_template.jinja").write_text(_TEMPLATE.read_text())
