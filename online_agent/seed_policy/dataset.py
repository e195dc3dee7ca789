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
    """token_ids (T,) int32; is_action (T,) bool: what the policy would sample; is_taught (T,) bool: no slip."""

    token_ids: Int32Array
    is_action: npt.NDArray[np.bool_]
    is_taught: npt.NDArray[np.bool_]


def demonstrations(seed: int, habits: Habits) -> Iterator[Demonstration]:
    """An endless stream, each on another task of the train split."""
    rng = random.Random(f"demonstrations/{seed}")
    while True:
        yield demonstrate(generate("train", rng.randrange(2**40)), rng, habits)


def as_example(demo: Demonstration, renderer: ChatRenderer) -> Example:
    """The conversation up to the last thing the worker wrote, piece by piece as it is served."""
    pieces = [(piece.token_ids, False, True) for piece in renderer.render_prompt(SYSTEM_PROMPT, demo.user, demo.tools)]
    for index, turn in enumerate(demo.turns):
        ids = renderer.encode_template_text(turn.written + TURN_END)
        pieces.append((ids, True, turn.is_taught))
        if index < len(demo.turns) - 1:
            answered = renderer.render_observations([turn.answer], int(ids[-1]))
            pieces += [(piece.token_ids, False, True) for piece in answered]
    return Example(
        np.concatenate([ids for ids, _, _ in pieces]),
        np.concatenate([np.full(len(ids), is_action) for ids, is_action, _ in pieces]),
        np.concatenate([np.full(len(ids), is_taught) for ids, _, is_taught in pieces]),
    )


def as_text(demo: Demonstration) -> Sequence[str]:
    """The texts the tokenizer learns its merges from."""
    names = ", ".join(f"{tool.name}({', '.join(tool.argument_names)})" for tool in demo.tools)
    texts = [tool.name for tool in demo.tools]
    texts += [f"Tools: {names}\n", SYSTEM_PROMPT, demo.user, "user\n", "assistant\n", "system\n"]
    for written, answer, _ in demo.turns:
        texts += [written, f"user\n<tool_response>\n{answer}\n</tool_response>"]
    return texts
