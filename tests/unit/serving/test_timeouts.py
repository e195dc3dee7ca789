"""How long an engine may take: a stream as long as it goes on saying something, a call without one until its end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import numpy as np
import pytest

from online_agent.errors import EngineUnavailable
from online_agent.serving.client import EngineClient, new_rid
from online_agent.types import Sampling
from tests.fakes.engine import Reply, ScriptedEngine

PROMPT, SAMPLING = np.arange(20, 40, dtype=np.int32), Sampling(1.0, 1.0, 8)
TIMEOUT_S = 0.5


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine().running() as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url, request_timeout_s=TIMEOUT_S, vocab_size=500, context_length=1024) as client:
        yield client


async def test_a_stream_may_take_longer_than_the_time_out_while_it_goes_on(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.token_delay_s = 0.15
    engine.replies.append(Reply(list(range(100, 108))))
    parts = [part async for part in client.generate_stream(PROMPT, SAMPLING, [], new_rid())]
    assert parts[-1].generation is not None
    assert len(parts[-1].generation.token_ids) == 8, "1.2 s of tokens under a time-out of 0.5 s"


async def test_a_stream_that_says_nothing_for_the_time_out_is_given_up(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.replies.append(Reply([100], delay_s=30))
    parts = client.generate_stream(PROMPT, SAMPLING, [], new_rid())
    with pytest.raises(EngineUnavailable, match="generate"):
        await anext(parts)


async def test_a_call_without_a_stream_is_given_up_after_the_time_out(
    engine: ScriptedEngine, client: EngineClient
) -> None:
    engine.token_delay_s = 0.15
    engine.replies.append(Reply(list(range(100, 108))))
    with pytest.raises(EngineUnavailable, match="generate"):
        await client.generate(PROMPT, SAMPLING, [], new_rid())
