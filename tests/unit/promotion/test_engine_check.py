"""C15: an engine that came back on other weights gets the serving version before anything else happens."""

from __future__ import annotations

import pytest

from online_agent.errors import EngineError
from online_agent.promotion.engine_check import check_engine
from online_agent.promotion.publish import publish_newest
from online_agent.serving.client import EngineClient
from tests.unit.promotion.conftest import LIMITS, World


async def test_an_engine_on_the_serving_version_is_left_alone(world: World) -> None:
    assert not await check_engine(world.db, world.weights, world.engine, LIMITS)
    assert world.fake.bodies("/pause_generation") == []


async def test_c15_an_engine_that_restarted_on_the_base_weights_is_put_right(world: World) -> None:
    for version in range(1, 13):
        world.commit(version)
    await publish_newest(world.db, world.weights, world.engine, LIMITS)
    assert world.serving() == 12
    world.fake.version_label, world.fake.model_path = "default", str(world.weights.open(0).serving_dir)

    assert await check_engine(world.db, world.weights, world.engine, LIMITS)

    assert (await world.engine.model_info()).weight_version == 12
    assert world.fake.model_path == str(world.weights.open(12).serving_dir)
    assert world.events("engine_reloaded") == [{"held": "None", "version": 12}]


async def test_an_engine_that_is_down_is_an_error_and_changes_nothing(world: World) -> None:
    async with EngineClient("http://127.0.0.1:9") as nobody:
        with pytest.raises(EngineError):
            await check_engine(world.db, world.weights, nobody, LIMITS)
    assert world.serving() == 0
