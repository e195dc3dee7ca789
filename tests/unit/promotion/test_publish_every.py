"""The engine is fed every so many-th version; a rollback is never held back."""

from __future__ import annotations

from dataclasses import replace

from online_agent.promotion.publish import publish_newest
from online_agent.promotion.rollback import rollback
from online_agent.types import VersionState as S
from tests.unit.promotion.conftest import LIMITS, World

EVERY_THIRD = replace(LIMITS, every_versions=3)


async def run(world: World) -> int | None:
    return await publish_newest(world.db, world.weights, world.engine, EVERY_THIRD)


async def test_versions_too_close_to_the_serving_one_wait_and_the_engine_is_not_touched(world: World) -> None:
    for version in (1, 2):
        world.commit(version)
        assert await run(world) is None
    assert [world.state(v) for v in range(3)] == [S.SERVING, S.CANDIDATE, S.CANDIDATE]
    assert world.fake.requests == []


async def test_the_third_version_serves_and_those_it_overtook_are_retired(world: World) -> None:
    for version in (1, 2, 3):
        world.commit(version)
        await run(world)
    assert [world.state(v) for v in range(4)] == [S.RETIRED, S.RETIRED, S.RETIRED, S.SERVING]
    assert world.row(2).state_reason == "superseded by version 3"


async def test_only_every_third_of_nine_versions_serves(world: World) -> None:
    served = []
    for version in range(1, 10):
        world.commit(version)
        served.append(await run(world))
    assert served == [None, None, 3, None, None, 6, None, None, 9]


async def test_after_a_rejected_version_the_next_one_is_due(world: World) -> None:
    for version in (1, 2, 3):
        world.commit(version)
    world.fake.faults.append("corrupt_load")
    assert await run(world) is None
    assert world.state(3) is S.REJECTED
    world.commit(4)
    assert await run(world) == 4


async def test_a_rollback_serves_at_once_and_the_distance_counts_from_it(world: World) -> None:
    for version in (1, 2, 3, 4):
        world.commit(version)
        await run(world)
    assert await rollback(world.db, world.weights, world.engine, 0, "a test", limits=EVERY_THIRD) == 5
    assert (world.state(4), world.state(5)) == (S.REJECTED, S.SERVING)
    for version in (6, 7):
        world.commit(version)
        assert await run(world) is None
    world.commit(8)
    assert await run(world) == 8
