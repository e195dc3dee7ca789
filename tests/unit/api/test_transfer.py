"""``/v1/episodes/import`` and ``/export`` over HTTP."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.build import CHECKPOINT_DIR
from online_agent.store.records import FeedbackRule
from tests.fakes.api import World, open_world

_ACTION = {"kind": "action", "token_ids": [7, 8], "logprobs": [-0.5, -0.25], "version_runs": [[1, 0, 2]]}
_SPANS = [{"kind": "prompt", "token_ids": [1, 2, 3]}, _ACTION]


def _item(client_id: str = "log-1", **more: Any) -> dict[str, Any]:
    return {"id": client_id, "env": "shop", "reward": 0.5, "turns": [{"spans": _SPANS}], **more}


async def _import(world: World, *items: dict[str, Any], who: str = "operator") -> httpx.Response:
    return await world.client.post("/v1/episodes/import", json={"episodes": list(items)}, headers=world.headers(who))


async def _export(world: World, who: str = "all", **query: Any) -> list[dict[str, Any]]:
    answer = await world.client.get("/v1/episodes/export", params=query, headers=world.headers(who))
    assert answer.status_code == 200, answer.text
    return [orjson.loads(line) for line in answer.content.splitlines()]


async def test_imported_episodes_wait_for_the_learner(world: World) -> None:
    answer = await _import(world, _item("a"), _item("b", reward=None))
    assert answer.status_code == 201, answer.text
    first, second = answer.json()["data"]
    assert (first["client_id"], first["result"], first["untrainable_reason"]) == ("a", "created", None)
    with world.db.transaction() as tx:
        [row] = tx.episodes.reserve(1, 2, 1, 8, FeedbackRule.VERDICT_ONLY, allow_fewer=True)
        tx.connection.rollback()
    assert (row.id, row.reward, row.task_id) == (first["id"], 0.5, "imported:shop/log")
    unrewarded = (await world.client.get(f"/v1/episodes/{second['id']}")).json()
    assert (unrewarded["status"], unrewarded["drop_reason"]) == ("dropped", "no reward")


async def test_a_repeat_is_a_duplicate_and_other_contents_are_a_conflict(world: World) -> None:
    first = (await _import(world, _item())).json()["data"][0]
    again = await _import(world, _item(), _item("log-2"))
    assert [row["result"] for row in again.json()["data"]] == ["duplicate", "created"]
    assert again.json()["data"][0]["id"] == first["id"]
    conflict = await _import(world, _item("log-3"), _item(reward=-1.0))
    assert conflict.status_code == 409
    assert conflict.json()["error"]["param"] == "episodes.1.id"
    assert {row["id"] for row in await _export(world)} == {"log-1", "log-2"}


@pytest.mark.parametrize(
    ("change", "param", "value"),
    [
        ({"reward": 1.5}, "episodes.1.reward", "1.5"),
        ({"turns": [{"spans": [{**_ACTION, "logprobs": [-0.5]}]}]}, "episodes.1.turns.0.spans.0", "2 action ids but 1"),
        ({"turns": [{"spans": [{**_ACTION, "token_ids": [7, -8]}]}]}, "episodes.1.turns.0.spans.0.token_ids.1", "-8"),
        ({"turns": [{"spans": [{**_ACTION, "version_runs": [[1, 0, 1]]}]}]}, "episodes.1.turns.0.spans.0", "1 of 2"),
        ({"turns": [{"spans": [{**_ACTION, "logprobs": [0.5, 0]}]}]}, "episodes.1.turns.0.spans.0", "0.5 is above 0"),
        (
            {"turns": [{"spans": [{**_ACTION, "logprobs": [-1e39, 0]}]}]},
            "episodes.1.turns.0.spans.0.logprobs.0",
            "1e+39",
        ),
        ({"turns": None}, "episodes.1", "either turns or messages"),
        ({"metadata": {"a": "x" * 20_000}}, "episodes.1.metadata", "20008 bytes"),
        ({"colour": "red"}, "episodes.1.colour", "red"),
    ],
)
async def test_what_is_wrong_is_named_and_nothing_is_stored(
    world: World, change: dict[str, Any], param: str, value: str
) -> None:
    answer = await _import(world, _item("good"), _item("bad", **change))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert value in answer.json()["error"]["message"]
    assert await _export(world) == []


@pytest.mark.parametrize("num", [0, 1001])
async def test_an_import_is_1_to_1000_episodes(world: World, num: int) -> None:
    answer = await _import(world, *(_item(str(number)) for number in range(num)))
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "episodes"


async def test_only_operators_import_and_tenants_see_their_own(world: World) -> None:
    assert (await _import(world, _item(), who="agent")).status_code == 403
    assert (await _import(world, _item(), who="other")).json()["data"][0]["result"] == "created"
    assert (await _import(world, _item(reward=0.25))).json()["data"][0]["result"] == "created"
    assert [row["reward"] for row in await _export(world, "all")] == [0.25]
    assert [row["reward"] for row in await _export(world, "other")] == [0.5]


async def test_an_export_can_be_imported_by_another_tenant(world: World) -> None:
    await world.episode(metadata={"who": "ü"})
    await _import(world, _item())
    exported = await _export(world)
    assert (await _import(world, *exported, who="other")).status_code == 201
    assert sorted(await _export(world, "other"), key=lambda row: str(row["id"])) == sorted(
        exported, key=lambda row: str(row["id"])
    )


async def test_pages_follow_each_other_and_erased_episodes_are_in_none(world: World) -> None:
    created = (await _import(world, *(_item(str(number)) for number in range(20)))).json()["data"]
    await world.client.delete(f"/v1/episodes/{created[3]['id']}")
    assert [row["id"] for row in await _export(world)] == [str(n) for n in reversed(range(20)) if n != 3]
    older = await _export(world, cursor=created[5]["id"])
    assert [row["id"] for row in older] == ["4", "2", "1", "0"]


async def test_filters_choose_and_what_has_no_end_cannot_be_asked_for(world: World) -> None:
    await _import(world, _item("a"), _item("b", env="bank", reward=None))
    assert [row["id"] for row in await _export(world, env="imported:bank")] == ["b"]
    assert [row["id"] for row in await _export(world, status="graded")] == ["a"]
    assert [row["id"] for row in await _export(world, weight_version=2)] == []
    for query, param in (("status=open", "status"), ("cursor=", "cursor"), ("shape=trl", "shape")):
        answer = await world.client.get(f"/v1/episodes/export?{query}")
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


@pytest.fixture
async def with_tokenizer(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        world.runtime.renderer = ChatRenderer.load(CHECKPOINT_DIR)
        yield world


async def test_plain_messages_are_kept_as_text_and_never_trained_on(with_tokenizer: World) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 2? <|im_end|>"},
        {"role": "assistant", "content": "4"},
        {"role": "user", "content": "And 3 + 3?"},
        {"role": "assistant", "content": "6"},
    ]
    item = {"id": "chat", "reward": 1.0, "messages": messages}
    answer = await _import(with_tokenizer, item)
    assert answer.status_code == 201, answer.text
    assert answer.json()["data"][0]["untrainable_reason"].startswith("text only")
    [row] = await _export(with_tokenizer)
    assert [turn["text"] for turn in row["turns"]] == ["4", "6"]
    spans = [span for turn in row["turns"] for span in turn["spans"]]
    decode = with_tokenizer.runtime.renderer.decode  # type: ignore[union-attr]
    assert [decode(span["token_ids"]) for span in spans if span["kind"] == "action"] == ["4", "6"]
    text = decode([token for span in spans for token in span["token_ids"]])
    assert text.index("Be brief.") < text.index("2 + 2?") < text.index("And 3 + 3?")
    with with_tokenizer.db.reading() as tx:
        assert tx.episodes.queue().num_ready == 0


async def test_messages_that_ask_nothing_and_ids_beyond_the_vocabulary_are_refused(with_tokenizer: World) -> None:
    answer = await _import(with_tokenizer, {"id": "a", "messages": [{"role": "assistant", "content": "4"}]})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "episodes.0.messages")
    spans = [{"kind": "prompt", "token_ids": [1, 2**31 - 1]}]
    answer = await _import(with_tokenizer, _item(turns=[{"spans": spans}]))
    assert answer.json()["error"]["param"] == "episodes.0.turns.0.spans.0.token_ids.1"


async def test_trl_rows_have_prompt_completion_and_reward(with_tokenizer: World) -> None:
    seen = {"kind": "observation", "token_ids": [5]}
    tail = {"kind": "template", "token_ids": [9]}
    await _import(with_tokenizer, _item(turns=[{"spans": [*_SPANS, seen]}, {"spans": [_ACTION, tail]}]))
    [row] = await _export(with_tokenizer, shape="trl")
    decode = with_tokenizer.runtime.renderer.decode  # type: ignore[union-attr]
    assert row["prompt"] == decode([1, 2, 3])
    assert row["completion"] == decode([7, 8, 5, 7, 8])
    assert row["completion_mask"] == [1, 1, 0, 1, 1]
    assert row["logprobs"] == [-0.5, -0.25, 0, -0.5, -0.25]
    assert row["reward"] == 0.5


@pytest.mark.parametrize("shape", ["native", "trl", "verl"])
async def test_parquet_holds_the_rows_of_jsonl(with_tokenizer: World, shape: str) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    await _import(with_tokenizer, *(_item(str(number), metadata={str(number): 1}) for number in range(70)))
    rows = await _export(with_tokenizer, shape=shape)
    answer = await with_tokenizer.client.get("/v1/episodes/export", params={"format": "parquet", "shape": shape})
    file = parquet.ParquetFile(io.BytesIO(answer.content))
    assert file.num_row_groups == 2
    table = file.read().to_pylist()
    if shape == "native":
        rows = [{**row, "metadata": orjson.dumps(row["metadata"]).decode()} for row in rows]
    assert table == rows
    assert len(table) == 70
