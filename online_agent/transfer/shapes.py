"""Native rows as other trainers read them: one prompt, one completion, a mask of what was sampled, and the reward.

The prompt is what stands before the first sampled token; the completion is the rest, results of tools included, up to
the last sampled token. Lists of a completion are of one length; log-probs are 0 where the mask is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from online_agent.transfer.formats import Shape
from online_agent.transfer.native import Row

Decode = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Completion:
    """``mask`` is 1 for sampled tokens."""

    prompt_ids: list[int]
    ids: list[int]
    mask: list[int]
    logprobs: list[float]


def completion_of(row: Row) -> Completion | None:
    """None for a row in which nothing was sampled, or not all that was sampled has log-probs."""
    ids: list[int] = []
    mask: list[int] = []
    logprobs: list[float] = []
    for turn in row["turns"]:
        for span in turn["spans"]:
            num = len(span["token_ids"])
            is_action = span["kind"] == "action"
            if is_action and span["logprobs"] is None:
                return None
            ids += span["token_ids"]
            mask += [int(is_action)] * num
            logprobs += span["logprobs"] if is_action else [0.0] * num
    if 1 not in mask:
        return None
    first, end = mask.index(1), len(mask) - mask[::-1].index(1)
    return Completion(ids[:first], ids[first:end], mask[first:end], logprobs[first:end])


def trl_row(row: Row, decode: Decode) -> Row | None:
    """``prompt``, ``completion`` and ``reward`` as text, and the exact ids beside them."""
    completion = completion_of(row)
    if completion is None:
        return None
    return {
        "id": row["id"],
        "task": f"{row['env']}/{row['task_id']}",
        "prompt": decode(completion.prompt_ids),
        "completion": decode(completion.ids),
        "reward": row["reward"],
        "prompt_ids": completion.prompt_ids,
        "completion_ids": completion.ids,
        "completion_mask": completion.mask,
        "logprobs": completion.logprobs,
    }


def verl_row(row: Row, decode: Decode) -> Row | None:
    """The columns of verl's datasets, and those of its rollouts: ``prompts``, ``responses``, ``response_mask``."""
    completion = completion_of(row)
    if completion is None:
        return None
    return {
        "data_source": row["env"],
        "prompt": [{"role": "user", "content": decode(completion.prompt_ids)}],
        "ability": row["env"],
        "reward_model": {"style": "rule", "ground_truth": row["task_id"]},
        "extra_info": {
            "index": row["id"],
            "split": row["split"],
            "task_id": row["task_id"],
            "reward": row["reward"],
        },
        "prompts": completion.prompt_ids,
        "responses": completion.ids,
        "response_mask": completion.mask,
        "rollout_log_probs": completion.logprobs,
    }


def shaped(row: Row, shape: Shape, decode: Decode) -> Row | None:
    """The row in that shape; None where it has no place in it."""
    if shape is Shape.NATIVE:
        return row
    return trl_row(row, decode) if shape is Shape.TRL else verl_row(row, decode)
