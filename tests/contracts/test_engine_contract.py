"""What any engine behind EngineClient does. The scripted fake and the real SGLang server pass the same tests."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from online_agent.errors import EngineRejected, EngineUnavailable
from online_agent.serving.checksums import verify_checksums
from online_agent.serving.client import EngineClient, new_rid
from online_agent.types import Sampling, Span, SpanKind
from tests.engine_fixtures import RealEngine, free_port, serve_first_version
from tests.fakes.engine import ScriptedEngine
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE
from tests.waiting import until

PROMPT = np.arange(20, 60, dtype=np.int32)
GREEDY = Sampling(temperature=0.0, max_new_tokens=6)
NO_STOPS: tuple[int, ...] = ()


@dataclass
class Engine:
    client: EngineClient
    url: str
    model_dirs: dict[int, Path]


@pytest.fixture(params=["scripted", pytest.param("sglang", marks=pytest.mark.engine)])
def real(request: pytest.FixtureRequest) -> RealEngine | None:
    """The real server, or None for the fake."""
    return request.getfixturevalue("real_engine_process") if request.param == "sglang" else None


@pytest.fixture
async def engine(real: RealEngine | None, model_dirs: dict[int, Path]) -> AsyncIterator[Engine]:
    if real is not None:
        async with real.client() as client:
            yield Engine(client, real.url, model_dirs)
        await serve_first_version(real)
        return
    fake = ScriptedEngine(model_dirs[1], api_key="key", vocab_size=VOCAB_SIZE)
    fake.token_delay_s = 0.001
    async with fake.running(), _client(fake.url, "key") as client:
        yield Engine(client, fake.url, model_dirs)


def _client(url: str, key: str) -> EngineClient:
    return EngineClient(url, key, 60.0, vocab_size=VOCAB_SIZE, context_length=CONTEXT_LENGTH)


async def test_calls_are_read_with_their_arguments_by_the_servers_parser(engine: Engine) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
    text = '<|python_tag|>{"name": "f", "parameters": {"x": [1, "a"]}};{"name": "g", "parameters": {"y": 2}}'
    calls = await engine.client.parse_calls(text, "llama3", tools)
    assert [(call.name, dict(call.arguments), call.error) for call in calls] == [
        ("f", {"x": [1, "a"]}, None),
        ("g", {"y": 2}, None),  # no tool of that name is there: whoever runs the calls says so
    ]


async def start_long(engine: Engine, rid: str, num_tokens: int = 400) -> asyncio.Task:  # type: ignore[type-arg]
    task = asyncio.create_task(
        engine.client.generate(PROMPT, Sampling(1.0, 1.0, num_tokens), NO_STOPS, rid, more={"ignore_eos": True}),
        name="long generation",
    )

    async def is_running() -> bool:
        return (await engine.client.loads()).num_running == 1

    await until(is_running)
    return task


async def test_a_generation_has_one_log_prob_and_one_version_per_sampled_id(engine: Engine) -> None:
    generation = await engine.client.generate(PROMPT, Sampling(1.0, 1.0, 8), NO_STOPS, new_rid())
    assert len(generation.token_ids) == 8
    assert (generation.finish_reason, generation.num_prompt_tokens) == ("length", 40)
    assert {run.version for run in generation.version_runs} == {1}
    assert generation.misalignment is None
    Span(SpanKind.ACTION, 0, generation.token_ids, generation.logprobs, generation.version_runs).check()


async def test_greedy_answers_repeat_and_the_sampled_stop_id_is_part_of_them(engine: Engine) -> None:
    first = await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())
    again = await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())
    assert first.token_ids.tolist() == again.token_ids.tolist()
    stop = int(first.token_ids[2])
    stopped = await engine.client.generate(PROMPT, GREEDY, [stop], new_rid())
    assert stopped.finish_reason == "stop"
    assert stopped.token_ids.tolist() == first.token_ids[: first.token_ids.tolist().index(stop) + 1].tolist()
    assert len(stopped.logprobs) == len(stopped.token_ids)


async def test_c10_a_prompt_that_continues_another_reports_cached_tokens(engine: Engine) -> None:
    first = await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())
    longer = np.concatenate([PROMPT, first.token_ids, np.array([7, 8, 9], np.int32)])
    second = await engine.client.generate(longer, GREEDY, NO_STOPS, new_rid())
    assert second.num_cached_tokens >= len(PROMPT)
    assert np.isfinite(second.logprobs).all()


async def test_a_request_under_way_ends_when_aborted_and_keeps_what_it_sampled(engine: Engine) -> None:
    rid = new_rid()
    task = await start_long(engine, rid)
    await engine.client.abort(rid)
    generation = await task
    assert generation.finish_reason == "abort"
    assert len(generation.token_ids) < 400
    assert generation.misalignment is None
    await engine.client.abort(new_rid())  # unknown: no error


async def test_c19_a_cancelled_call_stops_the_engine_too(engine: Engine) -> None:
    tasks = [asyncio.create_task(engine.client.generate(PROMPT + i, Sampling(1.0, 1.0, 900), NO_STOPS, new_rid()))
             for i in range(20)]  # fmt: skip

    async def all_run() -> bool:
        return (await engine.client.loads()).num_running >= 15

    await until(all_run)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)

    async def is_idle() -> bool:
        loads = await engine.client.loads()
        return loads.num_running + loads.num_waiting == 0

    await until(is_idle, timeout_s=3.0)


async def test_while_paused_calls_wait_and_the_administration_answers(engine: Engine) -> None:
    await engine.client.pause()
    task = asyncio.create_task(engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid()))
    started_at = time.monotonic()
    assert (await engine.client.model_info()).weight_version == 1
    await engine.client.loads()
    assert time.monotonic() - started_at < 2.0
    done, _ = await asyncio.wait([task], timeout=0.3)
    assert not done
    await engine.client.resume()
    assert len((await task).token_ids) == 6


async def test_a_pause_with_abort_ends_what_is_under_way_and_holds_what_comes(engine: Engine) -> None:
    under_way = await start_long(engine, new_rid())
    await engine.client.pause("abort")
    generation = await under_way
    assert generation.finish_reason == "abort"
    assert 0 < len(generation.token_ids) < 400
    assert generation.misalignment is None
    assert [run.version for run in generation.version_runs] == [1]
    held = asyncio.create_task(engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid()))
    done, _ = await asyncio.wait([held], timeout=0.3)
    assert not done
    await engine.client.resume()
    assert len((await held).token_ids) == 6


async def test_a_swap_under_a_pause_with_abort_lets_the_held_calls_sample_the_new_version(engine: Engine) -> None:
    await engine.client.pause("abort")
    held = asyncio.create_task(engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid()))
    await asyncio.sleep(0.1)
    await engine.client.pause("retract")
    await engine.client.update_weights(engine.model_dirs[2], 2)
    await engine.client.resume()
    assert [run.version for run in (await held).version_runs] == [2]


async def test_aborting_first_makes_a_pause_with_abort_immediate(engine: Engine) -> None:
    """SGLang looks once a second whether what it aborted has ended, and at once may be too soon."""
    seconds = []
    for _ in range(4):
        rid = new_rid()
        under_way = await start_long(engine, rid)
        await engine.client.abort(rid)
        await under_way
        started_at = time.monotonic()
        await engine.client.pause("abort")
        seconds.append(time.monotonic() - started_at)
        await engine.client.resume()
    assert min(seconds) < 0.9


async def test_a_request_under_way_at_a_swap_goes_on_with_exact_version_runs(engine: Engine) -> None:
    task = await start_long(engine, new_rid())
    await asyncio.sleep(0.1)
    await engine.client.pause()
    await engine.client.update_weights(engine.model_dirs[2], 2)
    await engine.client.resume()
    generation = await task
    assert (generation.finish_reason, len(generation.token_ids)) == ("length", 400)
    assert [run.version for run in generation.version_runs] == [1, 2]
    assert generation.num_retractions == 1
    Span(SpanKind.ACTION, 0, generation.token_ids, generation.logprobs, generation.version_runs).check()
    assert (await engine.client.model_info()).weight_version == 2


async def test_c13_tokens_keep_the_version_that_sampled_them_when_the_update_waits_for_the_request(
    engine: Engine,
) -> None:
    task = await start_long(engine, new_rid())
    with contextlib.suppress(EngineRejected):
        # SGLang may let the update in before it counts itself idle: it then refuses, with the new weights in place.
        await engine.client.update_weights(engine.model_dirs[2], 2)
    await engine.client.pause()
    await engine.client.update_weights(engine.model_dirs[2], 2)
    await engine.client.resume()
    generation = await task
    assert [run.version for run in generation.version_runs] == [1]
    after = await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())
    assert [run.version for run in after.version_runs] == [2]


@pytest.mark.parametrize("is_busy", [False, True], ids=["idle", "with a long request under way"])
async def test_c12_the_prefix_cache_of_the_old_weights_is_gone_after_a_swap(engine: Engine, is_busy: bool) -> None:
    prompt = (np.arange(800, dtype=np.int32) * 7) % 400 + 70
    cold = await engine.client.generate(prompt, GREEDY, NO_STOPS, new_rid())
    warm = await engine.client.generate(prompt, GREEDY, NO_STOPS, new_rid())
    assert warm.num_cached_tokens > 700
    under_way = await start_long(engine, new_rid()) if is_busy else None
    await engine.client.pause()
    await engine.client.update_weights(engine.model_dirs[2], 2)
    await engine.client.resume()
    swapped = await engine.client.generate(prompt, GREEDY, NO_STOPS, new_rid())
    if under_way is not None:
        await under_way
    assert swapped.num_cached_tokens == 0
    assert swapped.token_ids.tolist() != cold.token_ids.tolist()
    await engine.client.pause()
    await engine.client.update_weights(engine.model_dirs[1], 3)
    await engine.client.resume()
    back = await engine.client.generate(prompt, GREEDY, NO_STOPS, new_rid())
    assert back.token_ids.tolist() == cold.token_ids.tolist()


async def test_checksums_are_those_computed_from_the_files_alone(engine: Engine) -> None:
    verify_checksums(engine.model_dirs[1], await engine.client.checksums())
    await engine.client.pause()
    await engine.client.update_weights(engine.model_dirs[3], 2)
    await engine.client.resume()
    verify_checksums(engine.model_dirs[3], await engine.client.checksums())


async def test_a_directory_that_does_not_exist_is_refused_and_changes_nothing(engine: Engine) -> None:
    with pytest.raises(EngineRejected):
        await engine.client.update_weights(engine.model_dirs[1] / "absent", 9)
    assert (await engine.client.model_info()).weight_version == 1
    assert len((await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())).token_ids) == 6


@pytest.mark.parametrize("bad_id", [VOCAB_SIZE, VOCAB_SIZE + 1000, -1])
async def test_an_id_outside_the_vocabulary_never_reaches_the_engine(engine: Engine, bad_id: int) -> None:
    with pytest.raises(EngineRejected, match=f"token id {bad_id} at position 1"):
        await engine.client.generate(np.array([5, bad_id], np.int32), GREEDY, NO_STOPS, new_rid())
    assert len((await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid())).token_ids) == 6


async def test_a_prompt_that_leaves_no_room_for_the_answer_is_refused(engine: Engine) -> None:
    room = engine.client.max_sequence_tokens - GREEDY.max_new_tokens
    just_fits, too_long = np.full(room, 30, np.int32), np.full(room + 1, 30, np.int32)
    assert len((await engine.client.generate(just_fits, GREEDY, NO_STOPS, new_rid())).token_ids) == 6
    with pytest.raises(EngineRejected, match="exceed the context"):
        await engine.client.generate(too_long, GREEDY, NO_STOPS, new_rid())
    longest = Sampling(0.0, 1.0, engine.client.max_sequence_tokens - len(PROMPT))
    assert len((await engine.client.generate(PROMPT, longest, NO_STOPS, new_rid())).token_ids) == longest.max_new_tokens


async def test_no_route_answers_without_the_key(engine: Engine) -> None:
    async with _client(engine.url, "wrong") as stranger:
        calls = [stranger.pause, stranger.resume, stranger.checksums, stranger.model_info]
        for call in calls:
            with pytest.raises(EngineRejected, match="401"):
                await call()
        with pytest.raises(EngineRejected, match="401"):
            await stranger.generate(PROMPT, GREEDY, NO_STOPS, new_rid())
        with pytest.raises(EngineRejected, match="401"):
            await stranger.update_weights(engine.model_dirs[2], 2)


async def test_a_healthy_engine_says_so_and_an_absent_one_is_unavailable(engine: Engine) -> None:
    assert await engine.client.is_healthy()
    async with _client(f"http://127.0.0.1:{free_port()}", "key") as nowhere:
        assert not await nowhere.is_healthy()
        with pytest.raises(EngineUnavailable):
            await nowhere.generate(PROMPT, GREEDY, NO_STOPS, new_rid())


async def test_request_ids_of_another_length_are_refused_since_aborts_match_by_prefix(engine: Engine) -> None:
    with pytest.raises(EngineRejected, match="prefix"):
        await engine.client.generate(PROMPT, GREEDY, NO_STOPS, "job-1")
    with pytest.raises(EngineRejected, match="prefix"):
        await engine.client.abort("job-1")


async def test_a_stream_ends_with_the_generation_that_its_parts_make(engine: Engine) -> None:
    plain = await engine.client.generate(PROMPT, GREEDY, NO_STOPS, new_rid(), num_top_logprobs=2)
    parts = [
        part async for part in engine.client.generate_stream(PROMPT, GREEDY, NO_STOPS, new_rid(), num_top_logprobs=2)
    ]
    whole = parts[-1].generation
    assert whole is not None
    assert [part.generation for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert [token for part in parts for token in part.token_ids] == whole.token_ids.tolist() == plain.token_ids.tolist()
    assert [triple[1] for part in parts for triple in part.logprobs] == whole.token_ids.tolist()
    np.testing.assert_allclose(whole.logprobs, plain.logprobs, atol=1e-4)
    assert (whole.version_runs, whole.misalignment) == (plain.version_runs, None)
    assert [len(tops) for part in parts for tops in part.top_logprobs] == [2] * len(whole.token_ids)
    assert [len(tops) for tops in plain.top_logprobs] == [2] * len(plain.token_ids)


async def test_an_aborted_stream_hands_over_what_it_had_and_a_left_one_is_aborted(engine: Engine) -> None:
    rid, long = new_rid(), Sampling(1.0, 1.0, 400)
    ids: list[int] = []
    async for part in engine.client.generate_stream(PROMPT, long, NO_STOPS, rid):
        if not ids:
            await engine.client.abort(rid)
        ids += part.token_ids
        if part.generation is not None:
            assert part.generation.finish_reason == "abort"
            assert part.generation.token_ids.tolist() == ids
            assert part.generation.misalignment is None
    assert 0 < len(ids) < 400
    stream = engine.client.generate_stream(PROMPT, long, NO_STOPS, new_rid())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]

    async def is_idle() -> bool:
        return (await engine.client.loads()).num_running == 0

    await until(is_idle)
