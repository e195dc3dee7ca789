"""Episodes in flight: admission, outages, cancellation, changes under way, and who listens."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import pytest

from envs.errors import SandboxFailed
from envs.types import Observation, Task, ToolSpec
from online_agent.agent.requests import EpisodeEvent
from online_agent.agent.runner import EpisodeRunner
from online_agent.errors import BadInput, Busy, Conflict, NotFound, UnknownName
from online_agent.serving.client import EngineClient
from online_agent.store.records import ChangeNew
from online_agent.types import EpisodeStatus, Limits, Sampling, SpanKind, StopReason, Visibility
from tests.engine_fixtures import free_port
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.environment import NotesEnvironment, NotesSession
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE
from tests.unit.agent.conftest import SETTINGS, TENANT, Desk, call_text, joined
from tests.waiting import until

READ, SUBMIT = call_text("read_file", path="notes.txt"), call_text("submit")
LIST = call_text("list_files")


def inject(desk: Desk, kind: str, *, silent: bool = True, mid: bool = False, **params: str) -> str:
    visibility = Visibility.SILENT if silent else Visibility.DOCUMENTED
    with desk.db.transaction() as tx:
        return tx.changes.add(ChangeNew(TENANT, "notes", kind, params, visibility, is_mid_episode=mid)).id


# --- outages -----------------------------------------------------------------------------------------------------


async def test_a_sandbox_that_fails_is_an_outage_not_a_reward(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: NotesSession, tool: str, arguments: object) -> Observation:
        raise SandboxFailed("no jail could be opened")

    monkeypatch.setattr(NotesSession, "call", fail)
    desk.say(READ)
    record = await desk.run()
    assert (record.status, record.stop_reason) == (EpisodeStatus.FAILED, StopReason.OUTAGE)
    assert record.failure_reason == "SandboxFailed: no jail could be opened"
    assert desk.finished == []


async def test_an_engine_that_fails_once_is_asked_for_the_same_turn_again(desk: Desk) -> None:
    desk.engine.faults.append("error_500")
    desk.say(READ, SUBMIT)
    record = await desk.run()
    assert (record.status, record.num_turns) == (EpisodeStatus.FINISHED, 2)
    first, again, _ = desk.engine.bodies("/generate")
    assert first["input_ids"] == again["input_ids"]
    assert first["rid"] != again["rid"]


async def test_an_episode_outlives_a_restart_of_the_engine(desk: Desk) -> None:
    port = free_port()
    async with EngineClient(f"http://127.0.0.1:{port}", vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH) as client:
        runner = EpisodeRunner(desk.db, client, desk.renderer, desk.environments, SETTINGS, desk.finished.append)
        try:
            first, second = Reply(desk.ids(f"{READ}<|im_end|>")), Reply(desk.ids(f"{SUBMIT}<|im_end|>"), delay_s=5)
            desk.runner = runner
            async with ScriptedEngine(version=11, vocab_size=VOCAB_SIZE).running(port) as dying:
                dying.replies.extend([first, second])
                episode_id = await desk.start()
                await until(lambda: len(dying.bodies("/generate")) == 2)
            async with ScriptedEngine(version=12, vocab_size=VOCAB_SIZE).running(port) as reborn:
                reborn.replies.append(Reply(desk.ids(f"{SUBMIT}<|im_end|>")))
                record = await desk.ended(episode_id)
        finally:
            await runner.drain(1.0)
    assert (record.status, record.stop_reason) == (EpisodeStatus.FINISHED, StopReason.SUBMITTED)
    assert (record.oldest_version, record.newest_version) == (11, 12)


def _is_listening(url: str) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", urlsplit(url).port)) == 0


async def test_an_engine_that_stays_away_past_the_deadline_fails_the_episode(desk: Desk) -> None:
    desk.engine.die()
    await until(lambda: not _is_listening(desk.engine.url))
    record = await desk.run(limits=Limits(max_turns=6, max_tokens=600, timeout_s=0.8))
    assert record.status is EpisodeStatus.FAILED
    assert record.failure_reason is not None
    assert record.failure_reason.startswith("EngineUnavailable")


async def test_an_answer_without_version_labels_bars_the_episode_from_training(desk: Desk) -> None:
    desk.say(SUBMIT, raw={"weight_versions": None})
    record = await desk.run()
    assert record.status is EpisodeStatus.FINISHED
    assert record.untrainable_reason is not None
    assert "weight versions cover 0 of" in record.untrainable_reason


# --- admission and shutdown --------------------------------------------------------------------------------------


async def test_beyond_the_bounded_queue_callers_are_told_when_to_come_back(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.01
    desk.say(*[SUBMIT] * 8)
    ids = [await desk.start() for _ in range(7)]
    with pytest.raises(Busy) as refused:
        await desk.start()
    assert refused.value.retry_after_s == 1.0
    await until(lambda: desk.engine.num_running == SETTINGS.max_episodes_in_flight)
    for episode_id in ids:
        assert (await desk.ended(episode_id)).stop_reason is StopReason.SUBMITTED
    assert (await desk.run()).stop_reason is StopReason.SUBMITTED


async def test_a_group_is_admitted_whole_or_not_at_all(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.01
    desk.say(*[SUBMIT] * 6)
    first = await desk.start_group(5)
    with pytest.raises(Busy, match="room for 2") as refused:
        await desk.start_group(3)
    assert refused.value.retry_after_s == 1.0
    last = await desk.start()
    for episode_id in (*first.episode_ids, last):
        assert (await desk.ended(episode_id)).stop_reason is StopReason.SUBMITTED
    with desk.db.reading() as tx:
        assert sum(tx.episodes.counts_by_status().values()) == 6


async def test_a_group_that_could_never_fit_is_refused_for_good(desk: Desk) -> None:
    with pytest.raises(BadInput, match="holds 7 episodes at most, got 8"):
        await desk.start_group(8)


@pytest.mark.parametrize("request_of", [{"task_id": "train-x"}, {"weight_version": 99}])
async def test_a_group_that_is_refused_takes_no_slot(desk: Desk, request_of: dict[str, Any]) -> None:
    for _ in range(3):
        with pytest.raises(BadInput if "task_id" in request_of else Conflict):
            await desk.start_group(5, **request_of)
    desk.say(*[SUBMIT] * 7)
    group = await desk.start_group(7)
    assert {(await desk.ended(episode_id)).group_id for episode_id in group.episode_ids} == {group.id}


async def test_members_that_wait_for_a_slot_share_the_environment_revision_of_the_first(desk: Desk) -> None:
    """The change comes while three members of seven wait: an episode alone would start under it, a member does not."""
    desk.engine.token_delay_s = 0.01
    desk.say(*[SUBMIT] * 7)
    group = await desk.start_group(7)
    await until(lambda: desk.engine.num_running == SETTINGS.max_episodes_in_flight)
    inject(desk, "rename_tool", silent=False, tool="edit_file", to="patch_file")
    records = [await desk.ended(episode_id) for episode_id in group.episode_ids]
    assert len({(record.task_id, record.env_revision, record.sampling) for record in records}) == 1
    prompts = {desk.renderer.decode(prompt) for prompt in desk.prompts()}
    assert len(prompts) == 1
    assert {t.env_revision for r in records for t in desk.turns(r.id)} == {records[0].env_revision}


async def test_a_cancelled_member_leaves_the_others_of_its_group_alone(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.01
    desk.say(*[SUBMIT] * 3)
    group = await desk.start_group(3)
    await until(lambda: desk.engine.num_running == 3)
    await desk.runner.cancel(group.episode_ids[1])
    reasons = [(await desk.ended(episode_id)).stop_reason for episode_id in group.episode_ids]
    assert reasons == [StopReason.SUBMITTED, StopReason.CANCELLED, StopReason.SUBMITTED]


async def test_what_does_not_exist_is_refused_by_name_and_takes_no_slot(desk: Desk) -> None:
    for _ in range(SETTINGS.max_episodes_in_flight + SETTINGS.max_episodes_queued + 1):
        with pytest.raises(UnknownName, match="train-x"):
            await desk.start(task_id="train-x")
    desk.environments.pop("notes")
    with pytest.raises(UnknownName, match="notes"):
        await desk.start()
    assert desk.runner.num_in_flight == 0


async def test_a_caller_that_leaves_while_the_episode_is_created_leaves_no_row_open(desk: Desk) -> None:
    desk.say(SUBMIT)
    caller = asyncio.create_task(desk.start())
    await asyncio.sleep(0)
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    await until(lambda: len(desk.finished) == 1)
    assert desk.record(desk.finished[0]).stop_reason is StopReason.SUBMITTED


async def test_draining_finishes_what_is_under_way_and_cancels_what_is_late(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.01
    desk.say(SUBMIT)
    quick = await desk.start()
    await until(lambda: desk.engine.num_running == 1)
    desk.engine.replies.append(Reply(desk.ids("word " * 190)))
    slow = await desk.start()
    await until(lambda: desk.engine.num_running == 2)
    await desk.runner.drain(1.0)
    assert desk.record(quick).stop_reason is StopReason.SUBMITTED
    assert desk.record(slow).stop_reason is StopReason.CANCELLED
    with pytest.raises(Busy):
        await desk.start()


async def test_c19_a_cancelled_episode_stops_the_engine_and_keeps_its_partial_tokens(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.01
    desk.engine.replies.extend(Reply(desk.ids("word " * 190)) for _ in range(4))
    ids = [await desk.start() for _ in range(4)]
    await until(lambda: desk.engine.num_running == 4)
    await asyncio.sleep(0.1)
    await asyncio.gather(*(desk.runner.cancel(episode_id) for episode_id in ids))
    assert desk.engine.num_running == 0
    assert desk.runner.num_in_flight == 0
    for episode_id in ids:
        record = desk.record(episode_id)
        assert record.stop_reason is StopReason.CANCELLED
        assert (record.untrainable_reason, record.verdict, record.artifact) == ("cancelled", None, None)
        assert 0 < record.num_action_tokens < 190
        [turn] = desk.turns(episode_id)
        assert turn.finish_reason == "abort"


async def test_an_episode_erased_under_way_ends_and_leaves_nothing(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.005
    desk.say(READ, READ, SUBMIT)
    episode_id = await desk.start()
    await until(lambda: desk.engine.num_running == 1)
    with desk.db.transaction() as tx:
        tx.episodes.erase(TENANT, episode_id)
    await desk.runner.landed(episode_id)
    with pytest.raises(NotFound):
        await desk.runner.wait(episode_id, 1.0)
    assert desk.finished == []


async def test_an_episode_pinned_to_a_version_that_does_not_serve_is_refused(desk: Desk) -> None:
    with pytest.raises(Conflict, match="pinned to version 3, but version none serves"):
        await desk.start(weight_version=3)
    assert desk.runner.num_in_flight == 0


# --- changes -----------------------------------------------------------------------------------------------------


async def test_a_change_takes_hold_at_the_episode_boundary(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.005
    desk.say(LIST, LIST, SUBMIT)
    first = await desk.start()
    await until(lambda: desk.engine.num_running == 1)
    inject(desk, "rename_tool", tool="list_files", to="show_files")
    record = await desk.ended(first)
    assert record.num_tool_errors == 0
    desk.say(LIST, call_text("show_files"), SUBMIT)
    second = await desk.run()
    turns = desk.turns(second.id)
    assert "unknown tool list_files; tools: show_files" in turns[0].observations[0].text
    assert not turns[1].observations[0].is_error
    assert {t.env_revision for t in desk.turns(first)} == {record.env_revision}
    assert {t.env_revision for t in turns} == {second.env_revision}
    assert record.env_revision != second.env_revision
    assert record.tools_hash == second.tools_hash  # the change is silent


async def test_a_documented_change_shows_in_the_prompt_of_the_next_episode(desk: Desk) -> None:
    inject(desk, "rename_tool", silent=False, tool="edit_file", to="patch_file")
    desk.say(SUBMIT)
    await desk.run()
    prompt = desk.renderer.decode(desk.prompts()[0])
    assert "patch_file(path, old, new)" in prompt
    assert "edit_file(" not in prompt


@pytest.mark.parametrize("silent", [True, False])
async def test_c34_a_tool_renamed_in_the_middle_of_an_episode(desk: Desk, silent: bool) -> None:
    desk.engine.token_delay_s = 0.003
    desk.say(LIST, LIST, LIST, call_text("show_files"), SUBMIT)
    episode_id = await desk.start()
    await until(lambda: len(desk.prompts()) == 2)
    before = joined([s for s in desk.spans(episode_id) if s.turn == 0])
    inject(desk, "rename_tool", silent=silent, mid=True, tool="list_files", to="show_files")
    record = await desk.ended(episode_id)
    turns = desk.turns(episode_id)
    refused = next(t for t in turns if t.observations[0].is_error)
    assert "unknown tool list_files; tools: show_files, read_file" in refused.observations[0].text
    assert ("tools are now: show_files(), read_file(path)" in refused.observations[0].text) is not silent
    assert not turns[-2].observations[0].is_error  # show_files works
    revisions = [t.env_revision for t in turns]
    assert len(set(revisions)) == 2
    assert revisions[0] == record.env_revision != revisions[-1]
    assert joined([s for s in desk.spans(episode_id) if s.turn == 0]) == before
    assert all(s.logprobs is None for s in desk.spans(episode_id) if s.kind is SpanKind.OBSERVATION)


class RunningTests(NotesEnvironment):
    """Two tools; whoever listens hears of each run of the tests."""

    def __init__(self, on_tests_run: Callable[[], None]) -> None:
        self._on_tests_run = on_tests_run

    def tools(self) -> Sequence[ToolSpec]:
        nothing = {"type": "object", "properties": {}, "required": []}
        return (*super().tools()[1:2], ToolSpec("run_tests", "Run the tests.", nothing))

    async def start(self, task: Task) -> NotesSession:
        environment = self

        class Session(NotesSession):
            async def call(self, tool: str, arguments: Mapping[str, Any]) -> Observation:
                if tool != "run_tests":
                    return await super().call(tool, arguments)
                environment._on_tests_run()
                return Observation("1 failed")

        return Session(task)


async def test_c34_a_call_of_the_old_name_after_the_second_step_names_the_tools_there_are(desk: Desk) -> None:
    """read_file, run_tests; the operator renames run_tests to execute_tests; step 3 still calls run_tests."""
    rename = {"tool": "run_tests", "to": "execute_tests"}
    desk.environments["notes"] = RunningTests(lambda: inject(desk, "rename_tool", silent=False, mid=True, **rename))
    desk.say(READ, call_text("run_tests"), call_text("run_tests"), "I give up")
    record = await desk.run()
    first, second, third, _ = desk.turns(record.id)
    assert second.observations == [Observation("1 failed")]
    assert third.observations == [
        Observation(
            "error: unknown tool run_tests; tools: read_file, execute_tests\n"
            "tools are now: read_file(path), execute_tests()",
            is_error=True,
        )
    ]
    assert first.env_revision == second.env_revision == record.env_revision != third.env_revision
    assert all(s.logprobs is None for s in third.spans if s.kind is SpanKind.OBSERVATION)
    earlier = joined([s for s in desk.spans(record.id) if s.turn < 2])
    assert desk.prompts()[2] == earlier


async def test_a_change_that_waits_for_episodes_starts_when_they_have_finished(desk: Desk) -> None:
    with desk.db.transaction() as tx:
        change = tx.changes.add(
            ChangeNew(TENANT, "notes", "remove_tool", {"tool": "list_files"}, Visibility.SILENT, 1, 2)
        )
    for expected_errors in (0, 1, 0):
        desk.say(LIST, SUBMIT)
        assert (await desk.run()).num_tool_errors == expected_errors
    with desk.db.reading() as tx:
        moves = [(e.kind, e.data["change_id"]) for e in tx.events.list(["change_started", "change_ended"])]
    assert moves == [("change_started", change.id), ("change_ended", change.id)]


# --- listeners ---------------------------------------------------------------------------------------------------


async def collect(events: AsyncIterator[EpisodeEvent]) -> list[EpisodeEvent]:
    return [event async for event in events]


async def test_every_listener_hears_the_whole_episode_whenever_it_comes(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.003
    desk.say(READ, SUBMIT)
    episode_id = await desk.start()
    early = asyncio.create_task(collect(desk.runner.events(episode_id)))
    await desk.runner.landed(episode_id)
    late = asyncio.create_task(collect(desk.runner.events(episode_id)))
    desk.grade(episode_id, 1.0)
    heard = await early
    assert [event.kind for event in heard] == [
        "turn", "tool_call", "observation", "turn", "tool_call", "observation", "verdict", "done",
    ]  # fmt: skip
    assert heard[1].data == {"turn": 0, "name": "read_file", "arguments": {"path": "notes.txt"}, "error": None}
    assert heard[2].data == {"turn": 0, "text": "todo\n", "is_error": False, "is_final": False}
    assert heard[-2].data == {"reward": 1.0, "is_success": True, "evidence": {}}
    assert heard[-1].data == {"status": "graded", "stop_reason": "submitted", "failure_reason": None}
    assert await late == heard


async def test_events_of_an_episode_of_another_process_come_from_the_store(desk: Desk) -> None:
    desk.say(READ, SUBMIT)
    record = await desk.run()
    desk.grade(record.id)
    heard = await collect(desk.runner.events(record.id))
    client = EngineClient(desk.engine.url, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH)
    other = EpisodeRunner(desk.db, client, desk.renderer, desk.environments, SETTINGS, desk.finished.append)
    try:
        assert await collect(other.events(record.id)) == heard
    finally:
        await other.drain(1.0)
        await client.aclose()


async def test_waiting_ends_with_the_verdict_or_with_the_time(desk: Desk) -> None:
    desk.say(SUBMIT)
    episode_id = await desk.start()
    assert (await desk.runner.wait(episode_id, 0.5)).status is EpisodeStatus.FINISHED
    waits = [asyncio.create_task(desk.runner.wait(episode_id, 10)) for _ in range(3)]
    await asyncio.sleep(0.2)
    desk.grade(episode_id, 0.0)
    for record in await asyncio.gather(*waits):
        assert (record.status, record.verdict.reward if record.verdict else None) == (EpisodeStatus.GRADED, 0.0)
    with pytest.raises(NotFound):
        await desk.runner.wait("ep_unknown", 1.0)


async def test_a_listener_that_leaves_does_not_end_the_episode(desk: Desk) -> None:
    desk.engine.token_delay_s = 0.003
    desk.say(READ, SUBMIT)
    episode_id = await desk.start()
    listener = asyncio.create_task(collect(desk.runner.events(episode_id)))
    await until(lambda: desk.engine.num_running == 1)
    listener.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await listener
    assert (await desk.ended(episode_id)).stop_reason is StopReason.SUBMITTED


async def test_requests_of_one_episode_never_share_an_id(desk: Desk) -> None:
    desk.say(READ, READ, SUBMIT)
    await desk.run(sampling=Sampling(max_new_tokens=200))
    rids = [body["rid"] for body in desk.engine.bodies("/generate")]
    assert len(set(rids)) == 3
    assert {len(rid) for rid in rids} == {32}
