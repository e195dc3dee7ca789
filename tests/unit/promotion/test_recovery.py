"""Killed between any two states, the next swapper brings everything to an end without being told how."""

from __future__ import annotations

import pytest

from online_agent.promotion.publish import publish_newest
from online_agent.types import VersionState as S
from tests.unit.promotion.conftest import LIMITS, World


async def run(world: World) -> int | None:
    return await publish_newest(world.db, world.weights, world.engine, LIMITS)


async def test_killed_before_the_engine_heard_of_it(world: World) -> None:
    world.commit(1)
    world.put(1, S.LOADING)
    await run(world)
    assert (world.serving(), world.state(0), world.state(1)) == (1, S.RETIRED, S.SERVING)


async def test_killed_while_the_engine_was_paused(world: World) -> None:
    world.commit(1)
    world.put(1, S.LOADING)
    await world.engine.pause()
    await run(world)
    assert world.serving() == 1
    assert await world.engine.is_healthy()


async def test_killed_after_the_engine_had_loaded_it_but_before_it_was_verified(world: World) -> None:
    world.commit(1)
    world.put(1, S.LOADING)
    await world.engine.pause()
    await world.engine.update_weights(world.weights.open(1).serving_dir, 1)
    await run(world)
    assert world.serving() == 1
    assert (await world.engine.model_info()).weight_version == 1
    assert await world.engine.is_healthy()


async def test_killed_after_it_was_verified_it_serves_without_another_swap(world: World) -> None:
    world.commit(1)
    await world.engine.update_weights(world.weights.open(1).serving_dir, 1)
    world.put(1, S.LOADING, S.VERIFIED)
    await run(world)
    assert (world.serving(), world.state(0)) == (1, S.RETIRED)
    assert len(world.fake.bodies("/update_weights_from_disk")) == 1
    assert [event["to"] for event in world.events("swap")] == [1]


async def test_killed_after_it_was_verified_and_the_engine_restarted_since(world: World) -> None:
    world.commit(1)
    world.put(1, S.LOADING, S.VERIFIED)
    assert (await world.engine.model_info()).weight_version == 0
    await run(world)
    assert world.serving() == 1
    assert (await world.engine.model_info()).weight_version == 1


async def test_killed_while_rejecting_the_last_good_version_is_put_back(world: World) -> None:
    world.commit(1)
    await world.engine.pause()
    await world.engine.update_weights(world.weights.open(1).serving_dir, 1)
    world.put(1, S.LOADING, S.REJECTING)
    await run(world)
    assert (world.serving(), world.state(1)) == (0, S.REJECTED)
    assert (await world.engine.model_info()).weight_version == 0
    assert await world.engine.is_healthy()


@pytest.mark.parametrize("left", [S.LOADING, S.VERIFIED])
async def test_a_newer_candidate_overtakes_what_was_left_behind(world: World, left: S) -> None:
    world.commit(1)
    world.put(1, *([S.LOADING] if left is S.LOADING else [S.LOADING, S.VERIFIED]))
    world.commit(2)
    await run(world)
    assert (world.serving(), world.state(1)) == (2, S.RETIRED)
