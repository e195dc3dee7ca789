"""Episodes that clients run: joined by header, closed, idle, rewarded, and who may see them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from online_agent.config.serving import GatewaySettings
from online_agent.store.records import StepNew
from online_agent.store.repositories.steps import step_identity
from online_agent.types import EpisodeStatus
from tests.fakes.episodes import commit_step
from tests.fakes.gateway import MODEL, ClientDesk, open_desk, row_text
from tests.waiting import until

USER = {"role": "user", "content": "fix it"}


async def feedback(desk: ClientDesk, name: str, status: int = 201, **body: Any) -> dict[str, Any]:
    answer = await desk.post(f"/v1/episodes/{name}/feedback", {"source": "ann", **body})
    assert answer.status_code == status, answer.text
    content: dict[str, Any] = answer.json()
    return content


async def close(desk: ClientDesk, name: str, status: int = 200, **body: Any) -> dict[str, Any]:
    answer = await desk.post(f"/v1/episodes/{name}/close", body)
    assert answer.status_code == status, answer.text
    content: dict[str, Any] = answer.json()
    return content


def train_all(desk: ClientDesk) -> tuple[int, list[str]]:
    """A learner step over everything that waits: its number and the ids of its rows."""
    with desk.world.db.transaction() as tx:
        step = tx.steps.next_step()
        rows = [row.id for row in tx.episodes.reserve(step, 1, 1, max_staleness=8)]
        identity = step_identity(rows, "sao", 0)
        tx.steps.reserve(StepNew(step, rows, identity, 1, tx.control.get().fence, "learner", 60.0))
    commit_step(desk.world.db, step, parent=1)
    return step, rows


async def test_calls_with_one_id_are_one_episode_and_an_id_is_made_when_there_is_none(desk: ClientDesk) -> None:
    desk.say("a", "b", "c")
    first = await desk.chat([USER])
    episode = first.headers["X-Episode-Id"]
    second = await desk.chat([USER, {"role": "user", "content": "x"}], episode)
    assert second.headers["X-Episode-Id"] == episode
    other = await desk.chat([USER])
    assert other.headers["X-Episode-Id"] != episode
    assert desk.record(episode).num_turns == 2


async def test_a_name_that_no_path_could_hold_is_refused_before_anything_is_sampled(desk: ClientDesk) -> None:
    refused = await desk.chat([USER], "owner/repository")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "X-Episode-Id"
    desk.say("a")
    assert (await desk.chat([USER], "my ticket #5?")).status_code == 200
    assert (await close(desk, "my%20ticket%20%235%3F"))["name"] == "my ticket #5?"


async def test_a_name_of_the_clients_own_joins_too_and_is_its_tenants(desk: ClientDesk) -> None:
    desk.say("a", "b", "c")
    assert (await desk.chat([USER], "task 7")).headers["X-Episode-Id"] == "task 7"
    await desk.chat([USER, USER], "task 7")
    assert desk.record("task 7").num_turns == 2
    body = {"model": MODEL, "messages": [USER]}
    headers = {**desk.world.headers("other"), "X-Episode-Id": "task 7"}
    assert (await desk.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    assert desk.record("task 7").num_turns == 2


async def test_an_episode_is_read_and_erased_by_the_clients_name_for_it(desk: ClientDesk) -> None:
    desk.say("a")
    answer = await desk.answer([USER], "task 7")
    read = (await desk.http.get("/v1/episodes/task 7", params={"include": "spans"})).json()
    assert (read["id"], read["env"]) == (answer["receipt"]["episode_id"], "client")
    assert read["turns"][0]["spans"][-1]["kind"] == "action"
    assert (await desk.http.delete("/v1/episodes/task 7", headers=desk.world.headers("other"))).status_code == 404
    assert (await desk.http.delete(f"/v1/episodes/{answer['id']}")).status_code == 404
    assert (await desk.http.delete("/v1/episodes/task 7")).status_code == 204
    assert (await desk.http.get(f"/v1/receipts/{answer['id']}")).status_code == 404


@pytest.mark.parametrize("header", ["X-Episode-Id", "X-Parent-Episode-Id"])
async def test_an_id_of_ours_that_is_unknown_or_anothers_is_404(desk: ClientDesk, header: str) -> None:
    desk.say("a")
    body = {"model": MODEL, "messages": [USER]}
    theirs = await desk.http.post("/v1/chat/completions", json=body, headers=desk.world.headers("other"))
    for name in (theirs.headers["X-Episode-Id"], "ep_" + "0" * 34):
        response = await desk.post("/v1/chat/completions", body, **{header: name})
        assert (response.status_code, response.json()["error"]["param"]) == (404, header)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/episodes/{id}/close"),
        ("POST", "/v1/episodes/{id}/feedback"),
        ("GET", "/v1/episodes/{id}/feedback"),
        ("GET", "/v1/episodes/{id}/completions"),
        ("GET", "/v1/receipts/{id}"),
    ],
)
@pytest.mark.parametrize("named_by", ["episode", "completion", "name"])
async def test_another_tenant_meets_404_everywhere(desk: ClientDesk, method: str, path: str, named_by: str) -> None:
    desk.say("a")
    answer = await desk.answer([USER], "task")
    names = {"episode": answer["receipt"]["episode_id"], "completion": answer["id"], "name": "task"}
    body = {"reward": 1.0, "source": "x"} if path.endswith("feedback") else {"reward": 1.0}
    response = await desk.http.request(
        method, path.format(id=names[named_by]), json=body if method == "POST" else None,
        headers=desk.world.headers("other"),
    )  # fmt: skip
    assert response.status_code == 404
    assert desk.record("task").status is EpisodeStatus.OPEN


async def test_an_episode_closed_with_a_reward_can_be_trained_on(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task")
    closed = await close(desk, "task", reward=0.5, outcome="merged")
    assert (closed["status"], closed["reward"], closed["num_kept_tokens"]) == ("graded", 0.5, 2)
    step, rows = train_all(desk)
    assert rows == [desk.client_episode("task").id]
    assert (desk.record("task").status, desk.record("task").step) == (EpisodeStatus.TRAINED, step)


async def test_without_a_reward_it_waits_for_one_and_no_grader_takes_it(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task")
    assert (await close(desk, "task"))["status"] == "finished"
    with desk.world.db.transaction() as tx:
        assert tx.episodes.claim_ungraded("worker", 60.0, 10) == []
        assert tx.episodes.claim_ungraded("worker", 60.0, 1, desk.client_episode("task").id) == []
        assert tx.episodes.queue().num_ungraded == 0
    await feedback(desk, "task", reward=-1.0)
    record = desk.record("task")
    assert record.status is EpisodeStatus.GRADED
    assert record.verdict is not None
    assert (record.verdict.reward, record.verdict.is_success) == (-1.0, False)


async def test_feedback_before_the_end_counts_at_the_end(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task")
    await feedback(desk, "task", reward=1.0)
    assert desk.record("task").status is EpisodeStatus.OPEN
    assert (await close(desk, "task"))["reward"] == 1.0


async def test_the_reward_follows_feedback_until_a_step_takes_the_episode(desk: ClientDesk) -> None:
    """Latest of each source on each set of turns, mean within a source, then over the sources."""
    desk.say("a", "b")
    first = await desk.answer([USER], "task")
    second = await desk.answer([USER, first["choices"][0]["message"], USER], "task")
    await close(desk, "task")
    await feedback(desk, "task", reward=1.0, source="ann", turns=[first["id"]])
    await feedback(desk, "task", reward=0.0, source="ann", turns=[second["id"]])
    await feedback(desk, "task", reward=-1.0, source="ci")
    await feedback(desk, "task", reward=-0.5, source="ci")
    record = desk.record("task")
    assert record.verdict is not None
    assert record.verdict.reward == 0.0  # mean of 0.5 and -0.5
    with desk.world.db.reading() as tx:
        assert tx.clients.reward_of(desk.client_episode("task").id) == 0.0
    step, _ = train_all(desk)
    late = await feedback(desk, "task", reward=1.0, source="bob")
    assert late["fate"] == "late"
    listed = (await desk.http.get("/v1/episodes/task/feedback")).json()["data"]
    assert [(f["fate"], f["step"]) for f in listed][:4] == [("used", step)] * 4


async def test_feedback_can_name_the_completion_alone(desk: ClientDesk) -> None:
    desk.say("a", "b")
    first = await desk.answer([USER], "task")
    second = await desk.answer([USER, first["choices"][0]["message"], USER], "task")
    given = await feedback(desk, second["id"], reward=1.0)
    assert (given["episode_id"], given["turns"]) == (desk.client_episode("task").id, [1])
    await feedback(desk, "task", status=400, reward=1.0, turns=["chatcmpl-unknown"])


async def test_a_receipt_tells_what_became_of_its_answer(desk: ClientDesk) -> None:
    desk.say("a", "b")
    first = await desk.answer([USER], "task")
    second = await desk.answer([USER], "task")
    await feedback(desk, second["id"], reward=1.0)
    await close(desk, "task")
    step, _ = train_all(desk)
    receipt = (await desk.http.get(f"/v1/receipts/{second['id']}")).json()
    assert (receipt["turns"], receipt["is_replaced"]) == ([0], False)
    assert (receipt["episode"]["status"], receipt["episode"]["step"]) == ("trained", step)
    assert [(f["fate"], f["step"]) for f in receipt["feedback"]] == [("used", step)]
    replaced = (await desk.http.get(f"/v1/receipts/{first['id']}")).json()
    assert (replaced["turns"], replaced["is_replaced"]) == ([0], True)
    listed = (await desk.http.get("/v1/episodes/task/completions")).json()
    assert [c["completion_id"] for c in listed["data"]] == [second["id"]]
    assert [(d["completion_id"], d["num_tokens"]) for d in listed["discarded"]] == [(first["id"], 2)]


async def test_a_closed_episode_takes_no_more_answers(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task")
    await close(desk, "task")
    response = await desk.chat([USER], "task")
    assert (response.status_code, response.json()["error"]["code"]) == (409, "conflict")
    assert len(desk.prompts()) == 1
    await close(desk, "task", status=409)


async def test_an_episode_is_closed_without_a_body(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task")
    answer = await desk.http.post("/v1/episodes/task/close")
    assert (answer.status_code, answer.json()["status"]) == (200, "finished")


async def test_an_episode_of_this_service_cannot_be_closed_by_a_client(desk: ClientDesk) -> None:
    episode = await desk.world.episode()
    assert (await desk.post(f"/v1/episodes/{episode['id']}/close", {})).status_code == 409


async def test_all_segments_are_trained_in_one_step_as_one_episode(desk: ClientDesk) -> None:
    desk.say("one", "two")
    await desk.answer([USER], "task")
    await desk.answer([{"role": "user", "content": "summary"}], "task")
    await close(desk, "task", reward=1.0)
    step, rows = train_all(desk)
    episode_id = desk.client_episode("task").id
    assert rows == [episode_id, f"{episode_id}#1"]
    with desk.world.db.reading() as tx:
        assert tx.steps.get(step).num_episodes == 1
        assert tx.episodes.trained_twice() == 0
    assert desk.record("task").status is EpisodeStatus.TRAINED


async def test_a_sub_agents_episode_takes_the_reward_of_the_one_that_started_it(desk: ClientDesk) -> None:
    desk.say("main", "helper", "late helper")
    await desk.answer([USER], "main")
    body = {"model": MODEL, "messages": [USER]}
    headers = {"X-Episode-Id": "helper", "X-Parent-Episode-Id": "main"}
    assert (await desk.post("/v1/chat/completions", body, **headers)).status_code == 200
    assert desk.client_episode("helper").parent_id == desk.client_episode("main").id
    await close(desk, "helper")
    assert desk.record("helper").status is EpisodeStatus.FINISHED
    await desk.post("/v1/chat/completions", body, **{**headers, "X-Episode-Id": "late"})
    await close(desk, "main", reward=0.75)
    for name in ("helper", "late"):
        if name == "late":
            await close(desk, name)
        record = desk.record(name)
        assert record.verdict is not None
        assert (record.status, record.verdict.reward) == (EpisodeStatus.GRADED, 0.75)
    assert [row.reward for row in desk.training_rows("helper", 0.75)] == [0.75]


async def test_an_episode_with_nothing_to_train_is_rewarded_and_stays_out_of_the_queue(desk: ClientDesk) -> None:
    desk.say("a")
    await desk.answer([USER], "task", temperature=0)
    closed = await close(desk, "task", reward=1.0)
    assert closed["untrainable_reason"] == "sampled greedily (temperature 0)"
    with desk.world.db.reading() as tx:
        assert tx.episodes.queue().num_ready == 0


@pytest.fixture
async def hasty(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    settings = GatewaySettings(idle_timeout_s=0.001, reward_wait_s=0.001)
    async with open_desk(tmp_path, model_dirs[1], gateway=settings) as opened:
        yield opened


async def test_an_idle_episode_is_closed_and_open_again_when_its_client_comes_back(
    tmp_path: Path, model_dirs: dict[int, Path]
) -> None:
    settings = GatewaySettings(idle_timeout_s=0.001)
    async with open_desk(tmp_path, model_dirs[1], gateway=settings) as desk:
        desk.say("a", "b")
        first = await desk.answer([USER], "task")
        assert await desk.sweep.once() == [desk.client_episode("task").id]
        assert desk.record("task").stop_reason == "idle"
        await desk.answer([USER, first["choices"][0]["message"], USER], "task")
        record = desk.record("task")
        assert (record.status, record.num_turns) == (EpisodeStatus.OPEN, 2)
        await desk.sweep.once()
        await feedback(desk, "task", reward=1.0)
        assert desk.record("task").status is EpisodeStatus.GRADED
        assert (await desk.chat([USER], "task")).status_code == 409


async def test_an_episode_that_nobody_rewards_in_time_is_dropped(hasty: ClientDesk) -> None:
    hasty.say("a")
    await hasty.answer([USER], "task")
    await hasty.sweep.once()
    await hasty.sweep.once()
    assert (hasty.record("task").status, hasty.record("task").drop_reason) == (EpisodeStatus.DROPPED, "no reward")
    assert (await feedback(hasty, "task", reward=1.0))["fate"] == "late"


async def test_nearly_all_sampled_tokens_are_kept_through_compaction_retries_side_calls_and_sub_agents(
    desk: ClientDesk,
) -> None:
    """kept / total of one transcript: only the retried answer is lost."""
    long = "hello world of tests passed and failed " * 3
    desk.say(long, long, "lost", long, long, long)
    first = (await desk.answer([USER], "task"))["choices"][0]["message"]
    history = [USER, first, {"role": "user", "content": "next"}]
    await desk.answer(history, "task")
    await desk.answer([{"role": "user", "content": "a title for this"}], "task")
    await desk.answer([{"role": "user", "content": "a title for this"}], "task")
    await desk.answer([{"role": "user", "content": "summary"}, first, {"role": "user", "content": "go"}], "task")
    body = {"model": MODEL, "messages": [USER], "max_tokens": 64}
    await desk.post("/v1/chat/completions", body, **{"X-Episode-Id": "sub", "X-Parent-Episode-Id": "task"})
    kept = total = 0
    for name in ("task", "sub"):
        episode = desk.client_episode(name)
        rows = desk.training_rows(name)
        assert episode.num_kept_tokens == sum(row.num_action_tokens for row in rows)
        kept, total = kept + episode.num_kept_tokens, total + episode.num_sampled_tokens
    assert total - kept == len(desk.ids("lost<|im_end|>"))
    assert kept / total >= 0.95
    metrics = (await desk.http.get("/metrics")).text
    assert f"online_agent_client_tokens_sampled {total:.1f}" in metrics
    assert f"online_agent_client_tokens_kept {kept:.1f}" in metrics
    share = float(next(li for li in metrics.splitlines() if li.startswith("online_agent_client_kept_share")).split()[1])
    assert 0.95 <= share < 1.0
    assert all(row_text(desk.renderer, row) for row in desk.training_rows("task"))


async def test_the_sweep_runs_by_itself_until_it_is_closed(tmp_path: Path, model_dirs: dict[int, Path]) -> None:
    settings = GatewaySettings(idle_timeout_s=0.01, sweep_s=0.02)
    async with open_desk(tmp_path, model_dirs[1], gateway=settings) as desk:
        desk.say("a")
        await desk.answer([USER], "task")
        desk.sweep.start()

        async def is_closed() -> bool:
            return desk.record("task").status is EpisodeStatus.FINISHED

        await until(is_closed)
        await desk.sweep.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "idle episodes"]
