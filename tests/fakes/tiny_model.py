"""A random Qwen3 directory small enough to serve in tests: config, byte-level BPE, chat template, safetensors."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 500
CONTEXT_LENGTH = 1024
HIDDEN, NUM_LAYERS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM, FFN = 64, 2, 4, 2, 16, 128
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKUP_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

CHAT_TEMPLATE = r"""
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content }}{%- endif %}
    {%- if tools %}
        {{- '\n\nTools:' }}
        {%- for tool in tools %}
            {{- '\n' + tool.function.name + '(' + (tool.function.parameters.properties or {}) | join(', ') + ')' }}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {%- if messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- elif message.role != 'system' %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""

_CORPUS = [
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "src/calc.py"}}\n</tool_call>',
    "def add(a, b):\n    return a + b\n",
    "fix src/calc.py: add(2, 3) is -1, want 5",
    "hello\nhello",
    "the hello world of tests passed and failed",
]


def build_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - 16,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS * 4, trainer)
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKUP_TOKENS])
    return tokenizer


def write_tiny_model(model_dir: Path, seed: int = 0, *, chat_template: str = CHAT_TEMPLATE, scale: float = 0.2) -> Path:
    """A complete directory with weights drawn from ``seed``; tied embeddings, so no ``lm_head.weight``.

    Its config names no end-of-sequence token, so that the server stops at the ids a request gives and nowhere else.
    """
    model_dir.mkdir(parents=True, exist_ok=True)
    tokenizer = build_tokenizer()
    tokenizer.save(str(model_dir / "tokenizer.json"))
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCAB_SIZE,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": NUM_LAYERS,
        "num_attention_heads": NUM_HEADS,
        "num_key_value_heads": NUM_KV_HEADS,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_LENGTH,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "float32",
        "pad_token_id": 0,
    }
    (model_dir / "config.json").write_text(json.dumps(config, indent=1))
    (model_dir / "chat_template.jinja").write_text(chat_template)
    (model_dir / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "model_max_length": 1024})
    )
    save_file(tiny_weights(seed, scale), model_dir / "model.safetensors", metadata={"format": "pt"})
    return model_dir


def tiny_weights(seed: int, scale: float = 0.2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    weights = {"model.embed_tokens.weight": draw(VOCAB_SIZE, HIDDEN), "model.norm.weight": np.ones(HIDDEN, np.float32)}
    for layer in range(NUM_LAYERS):
        prefix = f"model.layers.{layer}"
        weights |= {
            f"{prefix}.self_attn.q_proj.weight": draw(NUM_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.k_proj.weight": draw(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.v_proj.weight": draw(NUM_KV_HEADS * HEAD_DIM, HIDDEN),
            f"{prefix}.self_attn.o_proj.weight": draw(HIDDEN, NUM_HEADS * HEAD_DIM),
            f"{prefix}.self_attn.q_norm.weight": np.ones(HEAD_DIM, np.float32),
            f"{prefix}.self_attn.k_norm.weight": np.ones(HEAD_DIM, np.float32),
            f"{prefix}.mlp.gate_proj.weight": draw(FFN, HIDDEN),
            f"{prefix}.mlp.up_proj.weight": draw(FFN, HIDDEN),
            f"{prefix}.mlp.down_proj.weight": draw(HIDDEN, FFN),
            f"{prefix}.input_layernorm.weight": np.ones(HIDDEN, np.float32),
            f"{prefix}.post_attention_layernorm.weight": np.ones(HIDDEN, np.float32),
        }
    return weights
