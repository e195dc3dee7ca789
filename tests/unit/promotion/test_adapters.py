"""Promotion, recovery and rollback of versions that are adapters: the rules are those of whole weights."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from online_agent.errors import EngineLost
from online_agent.promotion.engine_check import check_engine
from online_agent.promotion.publish import publish_newest
from online_agent.promotion.retention import prune_versions
from online_agent.promotion.rollback import rollback
from online_agent.serving.adapter_client import AdapterClient
from online_agent.store.records import VersionNew
from online_agent.types import VersionOrigin
from online_agent.types import VersionState as S
from tests.fakes.adapter_engine import ScriptedAdapterEngine
from tests.fakes.adapters import publish_adapter
from tests.unit.promotion.conftest import LIMITS, World


@pytest.fixture
async def adapted(world: World) -> AsyncIterator[World]:
    """Version 0 serves on an engine that takes adapters of it."""
    fake = ScriptedAdapterEngine(world.weights.open(0).serving_dir)
    async with fake.running(), AdapterClient(fake.url) as engine:
        yield replace(world, fake=fake, engine=engine)


def commit(world: World, version: int) -> None:
    made = publish_adapter(world.weights, version)
    with world.db.transaction() as tx:
        tx.weights.insert(VersionNew(version, VersionOrigin.STEP, version - 1, content_hash=made.manifest.content_hash))


async def run(world: World) -> int | None:
    return await publish_newest(world.db, world.weights, world.engine, LIMITS)


def held(world: World) -> tuple[str, list[str]]:
    """The label of the engine and the adapters it has loaded."""
    assert isinstance(world.fake, ScriptedAdapterEngine)
    return world.fake.version_label, sorted(world.fake.adapters)


async def test_a_candidate_is_served_without_a_pause(adapted: World) -> None:
    commit(adapted, 1)
    assert await run(adapted) == 1
    assert (adapted.serving(), adapted.state(0)) == (1, S.RETIRED)
    assert held(adapted) == ("1", ["v000001"])
    [swap] = adapted.events("swap")
    assert (swap["from"], swap["to"], swap["held"], swap["retractions"]) == (0, 1, 0, 0)
    assert not adapted.fake.bodies("/pause_generation")


async def test_an_adapter_that_the_engine_refuses_is_rejected_with_the_reason(adapted: World) -> None:
    commit(adapted, 1)
    await run(adapted)
    commit(adapted, 2)
    adapted.fake.faults.append("refuse_adapter")
    assert await run(adapted) is None
    assert (adapted.serving(), adapted.state(2)) == (1, S.REJECTED)
    assert "incompatible with the memory pool" in str(adapted.row(2).state_reason)
    assert held(adapted) == ("1", ["v000001"])


@pytest.mark.parametrize("reached", ["nothing", "loaded", "labelled"])
async def test_a_swapper_killed_anywhere_is_finished_by_the_next(adapted: World, reached: str) -> None:
    commit(adapted, 1)
    adapted.put(1, S.LOADING)
    assert isinstance(adapted.engine, AdapterClient)
    if reached != "nothing":
        await adapted.engine.load_adapter(1, adapted.weights.open(1).serving_dir)
    if reached == "labelled":
        await adapted.engine.set_version(1)
    await run(adapted)
    assert (adapted.serving(), adapted.state(1)) == (1, S.SERVING)
    assert held(adapted) == ("1", ["v000001"])


async def test_one_killed_after_the_switch_was_verified_needs_no_second(adapted: World) -> None:
    commit(adapted, 1)
    assert isinstance(adapted.engine, AdapterClient)
    await adapted.engine.load_adapter(1, adapted.weights.open(1).serving_dir)
    await adapted.engine.set_version(1)
    adapted.put(1, S.LOADING, S.VERIFIED)
    await run(adapted)
    assert adapted.serving() == 1
    assert len(adapted.fake.bodies("/load_lora_adapter")) == 1


async def test_an_adapter_that_kills_the_engine_is_lost_under_and_stays_loading(adapted: World) -> None:
    """Its start-up rule, as for whole weights, counts the losses and rejects the second."""
    commit(adapted, 1)
    adapted.fake.faults.append("die_on_adapter")
    with pytest.raises(EngineLost):
        await run(adapted)
    assert (adapted.serving(), adapted.state(1)) == (0, S.LOADING)


async def test_a_rollback_serves_the_content_of_the_target_under_a_new_number(adapted: World) -> None:
    for version in (1, 2):
        commit(adapted, version)
        await run(adapted)
    number = await rollback(adapted.db, adapted.weights, adapted.engine, 1, "operator", limits=LIMITS)
    manifests = [adapted.weights.open(v).manifest for v in (1, number)]
    assert manifests[0].content_hash == manifests[1].content_hash == adapted.row(number).content_hash
    assert manifests[1].base == manifests[0].base
    assert adapted.serving() == number
    assert held(adapted) == (str(number), ["v000002", f"v{number:06d}"])


async def test_a_rollback_to_the_base_serves_it_without_an_adapter(adapted: World) -> None:
    commit(adapted, 1)
    await run(adapted)
    number = await rollback(adapted.db, adapted.weights, adapted.engine, 0, "operator", limits=LIMITS)
    assert adapted.serving() == number
    assert held(adapted) == (str(number), ["v000001"])


async def test_an_engine_that_came_back_with_another_version_is_put_right(adapted: World) -> None:
    commit(adapted, 1)
    await run(adapted)
    assert isinstance(adapted.fake, ScriptedAdapterEngine)
    adapted.fake.adapters.clear()
    adapted.fake.version_label = "0"
    assert await check_engine(adapted.db, adapted.weights, adapted.engine, LIMITS)
    assert held(adapted) == ("1", ["v000001"])


async def test_retention_keeps_the_base_of_what_it_keeps(adapted: World) -> None:
    for version in range(1, 6):
        commit(adapted, version)
        await run(adapted)
    assert prune_versions(adapted.db, adapted.weights, keep_versions=2) == [1, 2]
    assert adapted.weights.versions() == [0, 3, 4, 5]
