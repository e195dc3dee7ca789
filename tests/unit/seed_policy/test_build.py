"""The built directory: served as it is, made as its command makes it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.build import CHECKPOINT_DIR, build_seed_policy, write_tokenizer
from online_agent.seed_policy.dataset import as_example, demonstrations
from online_agent.seed_policy.habits import Habits
from online_agent.seed_policy.names import TOOL_NAMES
from online_agent.seed_policy.sft import SftSettings

TINY = SftSettings(steps=3, batch=4, warmup_steps=1)
MAX_SHIPPED_BYTES = 6_000_000


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    out_dir = tmp_path_factory.mktemp("seed_policy")
    seen = []
    build_seed_policy(out_dir, seed=3, progress=lambda *args: seen.append(args), settings=TINY)
    return out_dir, seen


def test_a_build_loads_as_a_hugging_face_model_and_as_a_renderer(built):
    out_dir, seen = built
    model = AutoModelForCausalLM.from_pretrained(out_dir)
    renderer = ChatRenderer.load(out_dir)
    assert sum(p.numel() for p in model.parameters()) < 1_000_000
    assert renderer.vocab_size == model.config.vocab_size
    assert renderer.stop_token_ids == (model.config.eos_token_id,)
    assert [(step, steps) for step, steps, _ in seen] == [(1, 3), (2, 3), (3, 3)]


def test_the_same_seed_builds_the_same_weights(built, tmp_path):
    out_dir, _ = built
    build_seed_policy(tmp_path, seed=3, settings=TINY)
    first, second = (load_file(folder / "model.safetensors") for folder in (out_dir, tmp_path))
    assert first.keys() == second.keys()
    assert all(np.array_equal(first[name], second[name]) for name in first)


def test_the_number_of_micro_batches_does_not_change_what_is_learned(tmp_path):
    losses = {}
    for num in (1, 4):
        seen = []
        settings = replace(TINY, micro_batches=num)
        build_seed_policy(tmp_path / str(num), 0, lambda *args, seen=seen: seen.append(args[2]), settings)
        losses[num] = seen
    assert losses[1] == pytest.approx(losses[4], rel=1e-3)


def test_the_shipped_checkpoint_is_whole_small_and_of_this_tokenizer(tmp_path):
    files = {path.name: path for path in CHECKPOINT_DIR.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"} <= {
        *files
    }
    assert sum(path.stat().st_size for path in files.values()) < MAX_SHIPPED_BYTES
    write_tokenizer(tmp_path, 0, Habits())
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_text() == files[name].read_text(), name


def test_the_shipped_policy_predicts_demonstrations_of_held_out_habits_far_better_than_chance():
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT_DIR)
    renderer = ChatRenderer.load(CHECKPOINT_DIR)
    losses = []
    for demo in islice(demonstrations(seed=99, habits=Habits()), 16):
        example = as_example(demo, renderer)
        ids = torch.from_numpy(example.token_ids.astype(np.int64))[None]
        with torch.no_grad():
            logp = model(input_ids=ids).logits.log_softmax(-1)[0, :-1]
        taken = logp.gather(1, ids[0, 1:, None])[:, 0]
        losses.append(-taken[torch.from_numpy(example.is_action[1:])].mean().item())
    assert np.mean(losses) < 0.25  # log(1024) = 6.9


def test_demonstrations_are_laid_out_as_served_and_acted_by_the_worker_only():
    renderer = ChatRenderer.load(CHECKPOINT_DIR)
    demo = next(demonstrations(seed=5, habits=Habits()))
    example = as_example(demo, renderer)
    assert len(example.token_ids) == len(example.is_action)
    acted = example.token_ids[example.is_action]
    assert (acted == renderer.stop_token_ids[0]).sum() == len(demo.turns)
    assert renderer.decode(acted) == "".join(written + "<|im_end|>" for written, *_ in demo.turns)


def test_every_tool_name_of_the_demonstrations_is_one_token():
    renderer = ChatRenderer.load(CHECKPOINT_DIR)
    names = [name for pool in TOOL_NAMES.values() for name in pool]
    assert [name for name in names if len(renderer.encode_text(name)) != 1] == []


def test_the_template_reads_the_same_in_transformers(built):
    out_dir, _ = built
    tokenizer = AutoTokenizer.from_pretrained(out_dir)
    schema = {"type": "object", "properties": {"path": {}, "old": {}}}
    tools = [{"type": "function", "function": {"name": "edit", "parameters": schema}}]
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "fix it"},
        {"role": "assistant", "content": "x"},
        {"role": "tool", "content": "ok"},
        {"role": "tool", "content": "no"},
    ]
    text = tokenizer.apply_chat_template(messages, tools=tools, tokenize=False, add_generation_prompt=True)
    assert text == (
        "<|im_start|>system\nTools: edit(path, old)\nBe brief.<|im_end|>\n<|im_start|>user\nfix it<|im_end|>\n"
        "<|im_start|>assistant\nx<|im_end|>\n<|im_start|>user\n<tool_response>\nok\n</tool_response>\n"
        "<tool_response>\nno\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    )
    assert json.loads((out_dir / "config.json").read_text())["tie_word_embeddings"] is True
