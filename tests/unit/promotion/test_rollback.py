"""Going back: a new number with old content; what is unusable is refused and nothing changes (C31, C32)."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from online_agent.errors import Conflict, CorruptVersion, Fenced, NotFound, SwapFailed
from online_agent.promotion.publish import publish_newest
from online_agent.promotion.retention import prune_versions
from online_agent.promotion.rollback import check_target, rollback
from online_agent.store.records import StepNew, VersionNew
from online_agent.types import VersionOrigin
from online_agent.types import VersionState as S
from tests.unit.promotion.conftest import LIMITS, World


async def serve_up_to(world: World, last: int) -> None:
    for version in range(1, last + 1):
        world.commit(version)
        await publish_newest(world.db, world.weights, world.engine, LIMITS)
    assert world.serving() == last


async def roll(world: World, target: int, request_id: str = "") -> int:
    return await rollback(world.db, world.weights, world.engine, target, "tester", limits=LIMITS, request_id=request_id)


async def test_the_content_serves_again_under_a_new_number(world: World) -> None:
    await serve_up_to(world, 3)
    version = await roll(world, 1)
    assert (version, world.serving()) == (4, 4)
    made = world.row(4)
    assert (made.origin, made.parent) == (VersionOrigin.ROLLBACK, 1)
    assert world.weights.open(4).manifest.content_hash == world.weights.open(1).manifest.content_hash
    assert made.content_hash == world.weights.open(1).manifest.content_hash
    assert (await world.engine.model_info()).weight_version == 4


async def test_c31_the_learner_must_go_on_from_the_rollback_and_the_running_step_is_fenced_out(world: World) -> None:
    """Mid-step on v8 an operator rolls back to v6; the step that finishes then is not published."""
    await serve_up_to(world, 8)
    with world.db.transaction() as tx:
        before = tx.control.get()
        number = tx.weights.next_version()
    version = await roll(world, 6)
    with world.db.transaction() as tx:
        control = tx.control.get()
        assert control.fence == before.fence + 1
        assert control.current_version == version
    world.write(number)
    with pytest.raises(Fenced), world.db.transaction() as tx:
        tx.steps.reserve(StepNew(tx.steps.next_step(), [], "x", 8, before.fence, "learner", 60.0))
    assert world.serving() == version
    assert world.row(version).parent == 6
    assert sorted(p.name for p in (world.weights.open(version).learner_dir).iterdir()) == [
        "critic.safetensors",
        "state.json",
    ]


async def test_versions_after_the_target_are_marked_and_the_rollback_is_an_event(world: World) -> None:
    await serve_up_to(world, 3)
    await roll(world, 1)
    assert [world.row(v).is_rolled_back for v in range(5)] == [False, False, True, True, False]
    (event,) = world.events("rollback")
    assert (event["from"], event["target"], event["version"], event["actor"]) == (3, 1, 4, "tester")


async def test_a_candidate_that_waited_never_serves_after_the_rollback(world: World) -> None:
    await serve_up_to(world, 2)
    world.commit(3)
    assert await roll(world, 1) == 4
    assert world.state(3) is S.REJECTED
    assert world.row(3).served_at is None


async def test_the_same_request_twice_makes_one_version(world: World) -> None:
    await serve_up_to(world, 2)
    assert await roll(world, 1, "r1") == 3
    assert await roll(world, 1, "r1") == 3
    assert len(world.events("rollback")) == 1


async def test_a_crash_after_the_row_leaves_a_candidate_that_the_sweep_promotes(world: World) -> None:
    await serve_up_to(world, 2)
    world.weights.copy_as(1, 3)
    with world.db.transaction() as tx:
        tx.control.fence_out(1)
        tx.weights.insert(VersionNew(3, VersionOrigin.ROLLBACK, parent=1))
    assert await publish_newest(world.db, world.weights, world.engine, LIMITS) == 3


async def test_a_crash_after_the_copy_leaves_a_number_that_is_never_used_again(world: World) -> None:
    await serve_up_to(world, 2)
    with world.db.transaction() as tx:
        lost = tx.weights.next_version()
    world.weights.copy_as(1, lost)
    assert await roll(world, 1) == lost + 1


async def test_c32_non_finite_weights_are_refused_and_the_served_version_stays(world: World) -> None:
    await serve_up_to(world, 2)
    tensors = load_file(world.weights.open(1).serving_dir / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    with world.weights.writer(3) as directory:
        shutil.copytree(world.models / "base", directory / "serving", dirs_exist_ok=True)
        save_file(tensors, directory / "serving" / "model.safetensors")
        save_file(tensors, directory / "learner" / "critic.safetensors")
        (directory / "learner" / "state.json").write_text("{}")
    with world.db.transaction() as tx:
        tx.weights.insert(VersionNew(3, VersionOrigin.STEP, parent=2))

    assert await publish_newest(world.db, world.weights, world.engine, LIMITS) is None
    assert world.state(3) is S.REJECTED
    assert world.serving() == 2
    with pytest.raises(Conflict, match="version 3 is rejected"):
        await roll(world, 3)
    assert CorruptVersion.http_status == 409
    assert (await world.engine.model_info()).weight_version == 2


async def test_c32_a_version_damaged_on_disk_is_refused_as_a_target(world: World) -> None:
    await serve_up_to(world, 2)
    path = world.weights.path(1) / "serving" / "model.safetensors"
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(CorruptVersion, match=r"model\.safetensors"):
        check_target(world.db, world.weights, 1)
    with pytest.raises(CorruptVersion):
        await roll(world, 1)
    assert world.serving() == 2
    assert world.events("rollback") == []
    with world.db.reading() as tx:
        assert tx.control.get().fence == 0


async def test_c32_retention_keeps_what_serves_and_what_can_be_rolled_back_to(world: World) -> None:
    await serve_up_to(world, 6)
    with world.db.transaction() as tx:
        tx.weights.pin(1)
    assert prune_versions(world.db, world.weights, 2) == [0, 2, 3]
    assert world.weights.versions() == [1, 4, 5, 6]


async def test_a_pruned_target_is_a_conflict_that_names_it(world: World) -> None:
    await serve_up_to(world, 6)
    prune_versions(world.db, world.weights, 2)
    with pytest.raises(Conflict, match="files of version 2 were pruned"):
        await roll(world, 2)


async def test_an_unknown_target_is_not_found(world: World) -> None:
    with pytest.raises(NotFound, match="99"):
        await roll(world, 99)


async def test_an_engine_that_refuses_the_copy_keeps_what_serves(world: World) -> None:
    await serve_up_to(world, 2)
    world.fake.faults.append("corrupt_load")
    with pytest.raises(SwapFailed, match="a copy of 1"):
        await roll(world, 1)
    assert world.serving() == 2
    assert (await world.engine.model_info()).weight_version == 2
