"""A committed version comes into service, or is refused and the last good one goes on serving."""

from __future__ import annotations

import asyncio

import pytest

from online_agent.errors import Busy, EngineError, EngineLost
from online_agent.promotion.lease import SwapLimits, engine_lease
from online_agent.promotion.publish import publish, publish_newest
from online_agent.promotion.states import ATTEMPTS
from online_agent.serving.client import EngineClient
from online_agent.types import VersionState as S
from tests.fakes.engine import ScriptedEngine
from tests.unit.promotion.conftest import LIMITS, World


async def run(world: World) -> int | None:
    return await publish_newest(world.db, world.weights, world.engine, LIMITS)


async def test_a_candidate_serves_and_the_one_before_is_retired(world: World) -> None:
    world.commit(1)
    assert await run(world) == 1
    assert (world.state(0), world.state(1)) == (S.RETIRED, S.SERVING)
    assert (await world.engine.model_info()).weight_version == 1
    assert await world.engine.is_healthy()


async def test_the_swap_is_an_event_with_its_numbers(world: World) -> None:
    world.commit(1)
    await run(world)
    (event,) = world.events("swap")
    assert (event["from"], event["to"], event["failed"]) == (0, 1, 0)
    assert 0 < event["paused_s"] <= event["seconds"] < 5  # type: ignore[operator]
    assert event["started"] < event["ended"]  # type: ignore[operator]


async def test_only_the_newest_candidate_is_loaded(world: World) -> None:
    for version in (1, 2, 3):
        world.commit(version)
    assert await run(world) == 3
    assert [world.state(v) for v in range(4)] == [S.RETIRED, S.RETIRED, S.RETIRED, S.SERVING]
    assert world.row(1).state_reason == "superseded by version 3"
    assert world.row(1).served_at is None
    assert [body["weight_version"] for body in world.fake.bodies("/update_weights_from_disk")] == ["3"]


async def test_without_a_candidate_the_engine_is_not_touched(world: World) -> None:
    assert await run(world) is None
    assert world.fake.requests == []


@pytest.mark.parametrize("fault", ["refuse_load", "corrupt_load"])
async def test_a_version_the_engine_does_not_take_is_rejected_and_the_last_good_serves(
    world: World, fault: str
) -> None:
    world.commit(1)
    world.fake.faults.append(fault)
    assert await run(world) is None
    assert (world.state(0), world.state(1)) == (S.SERVING, S.REJECTED)
    assert (await world.engine.model_info()).weight_version == 0
    assert await world.engine.is_healthy()
    (event,) = world.events("version_rejected")
    assert event["version"] == 1


async def test_the_version_after_a_rejected_one_is_taken(world: World) -> None:
    world.commit(1)
    world.fake.faults.append("corrupt_load")
    await run(world)
    world.commit(2)
    assert await run(world) == 2


async def test_a_truncated_file_is_refused_before_the_engine_hears_of_it(world: World) -> None:
    world.commit(1)
    path = world.weights.path(1) / "serving" / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:1000])
    assert await run(world) is None
    assert world.state(1) is S.REJECTED
    assert "model.safetensors" in (world.row(1).state_reason or "")
    assert world.fake.bodies("/pause_generation") == []


async def test_an_engine_that_is_down_rejects_nothing(world: World) -> None:
    world.commit(1)
    async with EngineClient("http://127.0.0.1:9") as nobody:
        with pytest.raises(EngineError):
            await publish_newest(world.db, world.weights, nobody, LIMITS)
    assert (world.state(0), world.state(1)) == (S.SERVING, S.CANDIDATE)


async def test_an_engine_that_dies_in_the_swap_gets_the_version_again_when_it_is_back(world: World) -> None:
    world.commit(1)
    port = int(world.fake.url.rsplit(":", 1)[1])
    world.fake.faults.append("die_on_load")
    with pytest.raises(EngineLost):
        await run(world)
    assert (world.state(0), world.state(1)) == (S.SERVING, S.LOADING)
    reborn = ScriptedEngine(world.weights.open(0).serving_dir, version=0)
    async with reborn.running(port):
        assert await run(world) == 1
        assert reborn.version_label == "1"


async def test_a_version_under_which_the_engine_died_twice_is_taken_for_the_cause(world: World) -> None:
    world.commit(1)
    world.put(1, S.LOADING)
    with world.db.transaction() as tx:
        tx.weights.add_metrics(1, {ATTEMPTS: 1})
    assert await run(world) is None
    assert world.state(1) is S.REJECTED
    assert "2 times" in (world.row(1).state_reason or "")
    assert (await world.engine.model_info()).weight_version == 0


async def test_one_swapper_at_a_time(world: World) -> None:
    world.commit(1)
    async with engine_lease(world.db, 30.0):
        with pytest.raises(Busy):
            await run(world)
    assert world.state(1) is S.CANDIDATE
    assert await run(world) == 1


async def test_two_swappers_at_once_make_one_swap(world: World) -> None:
    world.commit(1)
    results = await asyncio.gather(run(world), run(world), return_exceptions=True)
    assert 1 in results
    assert len(world.fake.bodies("/update_weights_from_disk")) == 1
    assert len(world.events("swap")) == 1


async def test_the_lease_of_a_killed_swapper_runs_out(world: World) -> None:
    world.commit(1)
    with world.db.transaction() as tx:
        assert tx.leases.acquire("engine", "killed", 0.2)
    with pytest.raises(Busy):
        await run(world)
    async with engine_lease(world.db, 30.0, wait_s=5.0):
        pass
    assert await run(world) == 1


async def test_publishing_a_version_that_serves_does_nothing(world: World) -> None:
    record = await publish(world.db, world.weights, world.engine, 0, SwapLimits())
    assert record.state is S.SERVING
    assert world.fake.requests == []


async def test_publishing_twice_swaps_once(world: World) -> None:
    world.commit(1)
    for _ in range(2):
        assert (await publish(world.db, world.weights, world.engine, 1, LIMITS)).state is S.SERVING
    assert len(world.events("swap")) == 1
