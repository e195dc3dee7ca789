"""Training state, events, adaptation, drift, readiness, metrics and the dashboard."""

from __future__ import annotations

import re

import pytest

from online_agent.errors import EngineUnavailable
from online_agent.store.records import StepNew, VersionNew
from online_agent.types import StepStatus, VersionOrigin
from tests.fakes.api import World


def commit_step(world: World, version: int) -> None:
    """One committed step over everything that waits, as the learner does it."""
    with world.db.transaction() as tx:
        step = tx.steps.next_step()
        episodes = tx.episodes.reserve(step, tx.episodes.queue().num_ready, 1, 8)
        fence = tx.control.get().fence
        tx.steps.reserve(StepNew(step, [e.id for e in episodes], "identity", 1, fence, "learner", 60))
        metrics = {"tokens/kept": 5, "tokens/total": 6, "staleness/histogram": [1, 1], "actor/loss": None}
        tx.steps.commit(step, VersionNew(version, VersionOrigin.STEP, 1, step), metrics, fence)


async def test_training_tells_queue_steps_and_drops(world: World) -> None:
    for _ in range(2):
        await world.episode()
    before = (await world.client.get("/v1/training")).json()
    assert (before["state"], before["queue"]["graded"], before["steps_committed"]) == ("waiting", 2, 0)
    commit_step(world, 2)
    after = (await world.client.get("/v1/training")).json()
    assert (after["queue"]["graded"], after["queue"]["trained"], after["steps_committed"]) == (0, 2, 1)
    assert (after["serving_version"], after["current_version"], after["episodes_trained_twice"]) == (1, 2, 0)
    assert (after["steps"][0]["status"], after["steps"][0]["num_episodes"]) == (StepStatus.COMMITTED, 2)


async def test_steps_come_in_pages_newest_first(world: World) -> None:
    for version in (2, 3):
        await world.episode()
        commit_step(world, version)
    page = (await world.client.get("/v1/training/steps?limit=1")).json()
    rest = (await world.client.get(f"/v1/training/steps?limit=1&cursor={page['next_cursor']}")).json()
    assert [row["version"] for row in page["data"] + rest["data"]] == [3, 2]


async def test_a_version_names_the_episodes_of_its_tenant_that_made_it(world: World) -> None:
    mine, theirs = await world.episode(), await world.episode(who="other")
    commit_step(world, 2)
    path = "/v1/weights/2/episodes"
    assert [e["id"] for e in (await world.client.get(path)).json()["data"]] == [mine["id"]]
    others = (await world.client.get(path, headers=world.headers("other"))).json()
    assert [e["id"] for e in others["data"]] == [theirs["id"]]


async def test_pause_and_resume(world: World) -> None:
    assert (await world.client.post("/v1/training/pause")).json() == {"is_paused": True}
    assert (await world.client.get("/v1/training")).json()["state"] == "paused"
    assert (await world.client.post("/v1/training/resume")).json() == {"is_paused": False}
    assert (await world.client.get("/v1/training")).json()["state"] == "waiting"


async def test_events_are_read_on_from_the_last_one_seen(world: World) -> None:
    with world.db.transaction() as tx:
        for number in range(5):
            tx.events.add("swap" if number % 2 else "ewma_reset", {"number": number}, version=number)
    first = (await world.client.get("/v1/events?limit=2")).json()
    rest = (await world.client.get(f"/v1/events?after={first['last_id']}")).json()
    assert [e["data"]["number"] for e in first["data"] + rest["data"]] == [0, 1, 2, 3, 4]
    assert (first["next_cursor"], rest["next_cursor"]) == (str(first["last_id"]), None)
    nothing = (await world.client.get(f"/v1/events?after={rest['last_id']}")).json()
    assert nothing == {"data": [], "next_cursor": None, "last_id": rest["last_id"]}
    swaps = (await world.client.get("/v1/events?kind=swap")).json()
    assert [e["data"]["number"] for e in swaps["data"]] == [1, 3]


async def test_adaptation_shows_the_fall_at_a_change_and_the_recovery(world: World) -> None:
    async def play(reward: float, count: int) -> None:
        world.runner.reward = reward
        for _ in range(count):
            await world.episode()

    await play(1.0, 4)
    change = {"env": "add_one", "kind": "rename_tool", "params": {"tool": "edit_file", "to": "patch_file"}}
    await world.client.post("/v1/changes", json={**change, "visibility": "silent"})
    await play(0.0, 4)
    await play(1.0, 4)
    body = (await world.client.get("/v1/adaptation?env=add_one&window=4")).json()
    (effect,) = body["changes"]
    assert (effect["before"]["rate"], effect["after"]["rate"], effect["latest"]["rate"]) == (1.0, 0.0, 1.0)
    assert (effect["episode"], effect["episodes_to_recover"]) == (4, 8)
    assert effect["after"]["high"] == pytest.approx(0.489890, abs=1e-5)  # Wilson 95 % of 0 of 4
    assert body["num_episodes"] == 12
    assert body["points"][-1]["rate"]["n"] == 4
    assert [m["kind"] for m in body["markers"]] == ["version", "change"]


async def test_adaptation_of_an_unknown_environment_is_404(world: World) -> None:
    assert (await world.client.get("/v1/adaptation?env=nope")).status_code == 404
    assert (await world.client.get("/v1/adaptation")).status_code == 400


async def test_drift_shows_detectors_alarms_and_resets(world: World) -> None:
    with world.db.transaction() as tx:
        tx.detectors.save("drift/add_one", {"summary": {"mean": 0.5}, "monitor": {}})
        tx.events.add("drift_detected", {"detector": "drift/add_one"})
        tx.events.add("ewma_reset", {"cause": "rollback"})
    body = (await world.client.get("/v1/drift")).json()
    assert body["detectors"] == [{"name": "drift/add_one", "state": {"mean": 0.5}}]
    assert [e["kind"] for e in body["alarms"]] == ["drift_detected"]
    assert [e["data"]["cause"] for e in body["resets"]] == ["rollback"]


async def test_tasks_of_both_splits_can_be_read_without_their_hidden_part(world: World) -> None:
    body = (await world.client.get("/v1/envs/add_one/tasks?split=heldout&start=7&limit=2")).json()
    assert [task["id"] for task in body["data"]] == ["heldout-7", "heldout-8"]
    assert set(body["data"][0]) == {"id", "split", "prompt", "files"}
    assert (await world.client.get("/v1/envs/nope/tasks")).status_code == 404


@pytest.mark.parametrize(
    ("engine_version", "error", "failing"),
    [
        (1, None, set()),
        (7, None, {"version"}),
        (None, None, {"version"}),
        (1, EngineUnavailable("down"), {"engine", "version"}),
    ],
)
async def test_readyz_says_which_part_is_not_ready(
    world: World, engine_version: int | None, error: Exception | None, failing: set[str]
) -> None:
    world.engine.version, world.engine.error = engine_version, error
    answer = await world.client.get("/readyz", headers={"Authorization": ""})
    assert answer.status_code == (503 if failing else 200)
    assert {name for name, is_fine in answer.json()["checks"].items() if not is_fine} == failing


async def test_metrics_tell_what_the_database_knows(world: World) -> None:
    for _ in range(2):
        await world.episode()
    with world.db.transaction() as tx:
        for seconds in (0.5, 1.5):
            tx.events.add("swap", {"seconds": seconds, "held": 2, "failed": 0})
    commit_step(world, 2)
    sick = await world.episode()
    with world.db.transaction() as tx:
        tx.episodes.mark_untrainable(sick["id"], "engine a, version 7: the log-prob at position 1 is null")
    await world.client.get("/v1/nowhere")
    text = (await world.client.get("/metrics")).text
    values = dict(re.findall(r"^(online_agent_\w+(?:{.*})?) (\S+)$", text, re.MULTILINE))
    assert values['online_agent_episodes{status="trained"}'] == "2.0"
    assert values['online_agent_http_requests_total{method="POST",route="/v1/episodes",status="201"}'] == "3.0"
    assert values['online_agent_http_requests_total{method="GET",route="unknown",status="404"}'] == "1.0"
    null_reason = 'reason="engine a, version 7: the log-prob at position 1 is null"'
    assert values[f"online_agent_episodes_untrainable{{{null_reason}}}"] == "1.0", "C09: the alarm counts"
    assert (values["online_agent_swap_seconds_median"], values["online_agent_swap_seconds_max"]) == ("1.0", "1.5")
    assert values["online_agent_swap_requests_held"] == "4.0"
    assert values["online_agent_swap_requests_failed"] == "0.0"
    assert values["online_agent_serving_version"] == "1.0"
    assert values['online_agent_last_step{metric="tokens/kept"}'] == "5.0"
    assert values['online_agent_staleness_versions_bucket{le="0.0"}'] == "1.0"
    assert values['online_agent_staleness_versions_bucket{le="+Inf"}'] == "2.0"


async def test_the_dashboard_is_one_page_that_needs_no_key_and_loads_nothing_from_elsewhere(world: World) -> None:
    answer = await world.client.get("/dashboard", headers={"Authorization": ""})
    assert answer.status_code == 200
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    addresses = set(re.findall(r"https?://[^\s\"']+", answer.text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address that is fetched
    assert not re.search(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=", answer.text)
    assert "innerHTML" not in answer.text


async def test_the_root_leads_to_the_dashboard(world: World) -> None:
    answer = await world.client.get("/", headers={"Authorization": ""})
    assert (answer.status_code, answer.headers["location"]) == (307, "/dashboard")


async def test_the_dashboard_reads_only_routes_that_exist(world: World) -> None:
    page = (await world.client.get("/dashboard")).text
    paths = {path.split("?")[0] for path in re.findall(r"read\([\"`](/v1[^\"`]*)[\"`]\)", page)}
    assert len(paths) >= 5
    assert paths <= set((await world.client.get("/openapi.json")).json()["paths"])
