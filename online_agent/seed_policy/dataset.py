"""Demonstrations as token ids, laid out by the renderer that serves the model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from envs.tasks.bug_repair.environment import SYSTEM_PROMPT
from envs.tasks.bug_repair.generator import generate
from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.demonstrator import Demonstration, demonstrate
from online_agent.seed_policy.habits import Habits
from online_agent.seed_policy.tokenizer import TURN_END
from online_agent.types import Int32Array


@dataclass(frozen=True, slots=True)
class Example:
    """token_ids (T,) int32; is_action (T,) bool: tokens the policy would sample."""

    token_ids: Int32Array
    is_action: npt.NDArray[np.bool_]


def demonstrations(seed: int, habits: Habits) -> Iterator[Demonstration]:
    """An endless stream, each on another task of the train split."""
    rng = random.Random(f"demonstrations/{seed}")
    while True:
        yield demonstrate(generate("train", rng.randrange(2**40)), rng, habits)


def as_example(demo: Demonstration, renderer: ChatRenderer) -> Example:
    """The conversation up to the last thing the worker wrote, piece by piece as it is served."""
    pieces = [piece.token_ids for piece in renderer.render_prompt(SYSTEM_PROMPT, demo.user, demo.tools)]
    is_action = [False] * len(pieces)
    for index, (written, answer) in enumerate(demo.turns):
        ids = renderer.encode_template_text(written + TURN_END)
        pieces.append(ids)
        is_action.append(True)
        if index < len(demo.turns) - 1:
            answered = renderer.render_observations([answer], int(ids[-1]))
            pieces += [piece.token_ids for piece in answered]
            is_action += [False] * len(answered)
    mask = np.concatenate([np.full(len(ids), acts, np.bool_) for ids, acts in zip(pieces, is_action, strict=True)])
    return Example(np.concatenate(pieces), mask)


def as_text(demo: Demonstration) -> Sequence[str]:
    """The texts the tokenizer learns its merges from."""
    names = ", ".join(f"{tool.name}({', '.join(tool.argument_names)})" for tool in demo.tools)
    texts = [tool.name for tool in demo.tools]
    texts += [f"Tools: {names}\n", SYSTEM_PROMPT, demo.user, "user\n", "assistant\n", "system\n"]
    for written, answer in demo.turns:
        texts += [written, f"user\n<tool_response>\n{answer}\n</tool_response>"]
    return texts
