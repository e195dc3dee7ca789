"""A stream put together from its events: one that came whole, and one of which the network lost or repeated a part."""

from __future__ import annotations

import orjson
import pytest

from online_agent.serving.streams import StreamAssembler
from online_agent.types import Generation

IDS = [11, 12, 13, 2]


def event(new: list[int], num_sampled: int, *, is_last: bool = False) -> bytes:
    meta = {
        "finish_reason": {"type": "stop", "matched": 2} if is_last else None,
        "completion_tokens": num_sampled,
        "weight_version": "7",
        "output_token_logprobs": [[-0.5, token_id, None] for token_id in new],
    }
    return orjson.dumps({"output_ids": new, "meta_info": meta})


EVENTS = [event([token_id], number) for number, token_id in enumerate(IDS, 1)] + [event([], len(IDS), is_last=True)]


def assembled(events: list[bytes]) -> Generation:
    """As a server of one version streams it, whose parts line up whatever is missing."""
    assembler = StreamAssembler("http://engine", version=7)
    generation = [assembler.add(data).generation for data in events][-1]
    assert generation is not None
    return generation


def test_every_event_once_is_the_whole_generation() -> None:
    generation = assembled(EVENTS)
    assert (generation.token_ids.tolist(), generation.misalignment) == (IDS, None)


@pytest.mark.parametrize("lost", range(4))
def test_a_stream_that_lost_an_event_is_not_trained_on(lost: int) -> None:
    generation = assembled(EVENTS[:lost] + EVENTS[lost + 1 :])
    assert generation.misalignment == "http://engine, version 7: 4 tokens were sampled but 3 ids came"


@pytest.mark.parametrize("repeated", range(1, 4))
def test_a_stream_that_repeats_an_event_is_not_trained_on(repeated: int) -> None:
    generation = assembled(EVENTS[: repeated + 1] + EVENTS[repeated:])
    assert generation.misalignment == "http://engine, version 7: 4 tokens were sampled but 5 ids came"
