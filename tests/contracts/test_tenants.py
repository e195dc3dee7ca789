"""Every operation of the document is tried across the border of a tenant. A new one without a case fails here.

The victim has an episode of the served agent that a step trained on, an episode of its own agent, feedback, a change
and a key. The stranger has a key with every scope of another tenant, and knows all the victim's ids. Environments are
shared: what a change in force does shows to everyone, whose it is does not.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from online_agent.config.signal import FeedbackSettings
from online_agent.store.session import Transaction
from tests.contracts.test_http_contract import operations
from tests.fakes.episodes import commit_step, reserve_step
from tests.fakes.gateway import MODEL, ClientDesk, open_desk

SECRET_WORD = "zanzibar"
LOG_ID = "log-1"
UNKNOWN = {
    "episode_id": "ep_" + "0" * 34,
    "completion_id": "chatcmpl-none",
    "change_id": "chg_none",
    "key_id": "key_x",
    "feedback_id": "987654",
}
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TURNS = [{"spans": [{"kind": "prompt", "token_ids": [1, 2]}]}]
CALL = {"model": MODEL, "messages": MESSAGES, "max_tokens": 8}

# Another tenant's id in the path: 404, word for word the answer for an id that does not exist.
BY_ID: dict[str, dict[str, Any] | None] = {
    "POST /v1/episodes/{episode_id}/close": {"reward": -1.0},
    "GET /v1/episodes/{episode_id}/completions": None,
    "GET /v1/receipts/{completion_id}": None,
    "GET /v1/episodes/{episode_id}": None,
    "DELETE /v1/episodes/{episode_id}": None,
    "POST /v1/episodes/{episode_id}/feedback": {"reward": -1.0, "source": "stranger"},
    "GET /v1/episodes/{episode_id}/feedback": None,
    "POST /v1/feedback/{feedback_id}/release": None,
    "POST /v1/feedback/{feedback_id}/discard": None,
    "DELETE /v1/changes/{change_id}": None,
    "POST /v1/keys/{key_id}/rotate": {},
    "DELETE /v1/keys/{key_id}": None,
}
# Another tenant's episode named in a header: 404.
BY_HEADER: dict[str, dict[str, Any]] = {
    "POST /v1/chat/completions": CALL,
    "POST /v1/messages": CALL,
    "POST /v1/messages/count_tokens": {"model": MODEL, "messages": MESSAGES},
    "POST /v1/responses": {"model": MODEL, "input": "hi"},
}
# What is listed or read shows nothing of another tenant; the queries name what is its own.
READS: dict[str, str] = {
    "GET /v1/episodes": "?limit=100",
    "GET /v1/episodes/export": "",
    "GET /v1/feedback": "?limit=100",
    "GET /v1/changes": "",
    "GET /v1/events": "?limit=100",
    "GET /v1/keys": "",
    "GET /v1/tenant": "",
    "GET /v1/adaptation": "?env=add_one",
    "GET /v1/envs": "",
    "GET /v1/envs/{env}/tasks": "?split=train",
    "GET /v1/weights": "",
    "GET /v1/weights/{version}": "",
    "GET /v1/weights/{version}/episodes": "",
    "GET /v1/training": "",
    "GET /v1/training/steps": "",
    "GET /v1/drift": "",
    "GET /v1/models": "",
    "GET /v1/models/{model}": "",
    "GET /healthz": "",
    "GET /readyz": "",
    "GET /metrics": "",
    "GET /dashboard": "",
}
# What acts on the whole service, or makes something for the caller: its answer shows nothing of another tenant.
ACTS: dict[str, dict[str, Any]] = {
    "POST /v1/episodes": {"env": "add_one"},
    "POST /v1/episodes/import": {"episodes": [{"id": LOG_ID, "turns": TURNS}]},
    "POST /v1/changes": {"env": "add_one", "kind": "rename_tool", "params": {"tool": "patch_file", "to": "edit"}},
    "POST /v1/keys": {"name": "own", "scopes": ["agent"]},
    "DELETE /v1/people/{person}": {},
    "PUT /v1/tenant": {"trains_shared_weights": False},
    "POST /v1/training/pause": {},
    "POST /v1/training/resume": {},
    "POST /v1/weights/{version}/rollback": {},
    "POST /v1/weights/{version}/promote": {},
    "POST /v1/weights/{version}/pin": {},
    "POST /v1/weights/{version}/unpin": {},
}
UNKNOWN_VERSION = "999"


@dataclass
class Border:
    """``marks``: what must never appear in an answer to the stranger."""

    desk: ClientDesk
    ids: dict[str, str]
    marks: set[str]

    async def cross(self, operation: str, ids: dict[str, str], body: Any = None, **headers: str) -> httpx.Response:
        method, path = operation.split()
        filled = re.sub(r"{(\w+)}", lambda match: ids[match[1]], path)
        stranger = {**self.desk.world.headers("other"), **headers}
        return await self.desk.http.request(method, filled, json=body, headers=stranger)

    def rows(self) -> list[Any]:
        """All the victim's rows that a stranger could have changed."""

        def of(tx: Transaction, table: str) -> Any:
            return tx.connection.exec_driver_sql(f"SELECT * FROM {table} WHERE tenant_id = 'acme' ORDER BY 1").all()

        with self.desk.world.db.reading() as tx:
            columns = "id, revoked_at, secret_hash, expires_at, old_until"
            keys = tx.connection.exec_driver_sql(f"SELECT {columns} FROM api_keys ORDER BY id").all()
            tables = ("episodes", "client_episodes", "completions", "feedback", "env_changes")
            return [keys, *(of(tx, table) for table in tables)]


@pytest.fixture
async def border(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[Border]:
    async with open_desk(tmp_path, model_dirs[1], feedback=FeedbackSettings(max_per_minute=1)) as desk:
        world = desk.world
        trained = await world.episode(metadata={"person": SECRET_WORD})
        step = reserve_step(world.db, 1, current_version=1)
        assert step is not None
        version = commit_step(world.db, step, parent=1)
        desk.say(SECRET_WORD)
        answer = await desk.answer([{"role": "user", "content": SECRET_WORD}], f"{SECRET_WORD}-task")
        episode_id = answer["receipt"]["episode_id"]
        feedback = {"reward": 0.5, "text": SECRET_WORD, "source": SECRET_WORD}
        given = [
            (await desk.post(f"/v1/episodes/{episode_id}/feedback", feedback | {"reward": reward})).json()
            for reward in (0.5, 0.25)
        ]
        assert [row["fate"] for row in given] == ["accepted", "quarantined"]
        log = {"id": LOG_ID, "turns": TURNS, "metadata": {"note": SECRET_WORD}}
        assert (await desk.post("/v1/episodes/import", {"episodes": [log]})).status_code == 201
        change = {"env": "add_one", "kind": "rename_tool", "params": {"tool": "edit_file", "to": "patch_file"}}
        change_id = (await desk.post("/v1/changes", change)).json()["id"]
        key_id = (await desk.post("/v1/keys", {"name": SECRET_WORD, "scopes": ["agent"]})).json()["id"]
        ids = {"episode_id": episode_id, "completion_id": answer["id"], "change_id": change_id, "key_id": key_id}
        marks = {*ids.values(), trained["id"], SECRET_WORD, "acme"}
        ids |= {
            "feedback_id": str(given[1]["id"]),
            "version": str(version),
            "env": "add_one",
            "model": MODEL,
            "person": SECRET_WORD,
        }
        yield Border(desk, ids, marks)


def test_every_operation_of_the_document_has_a_case(tmp_path: Path) -> None:
    from api.app import create_app
    from online_agent.config.settings import Settings

    documented = {f"{method} {path}" for method, path, _ in operations(create_app(Settings(data_dir=tmp_path)))}
    cases = [*BY_ID, *BY_HEADER, *READS, *ACTS]
    assert len(cases) == len(set(cases))
    assert set(cases) == documented


async def test_an_id_of_another_tenant_is_answered_as_one_that_does_not_exist(border: Border) -> None:
    before = border.rows()
    for operation, body in BY_ID.items():
        theirs = await border.cross(operation, border.ids, body)
        unknown = await border.cross(operation, UNKNOWN, body)
        assert (theirs.status_code, unknown.status_code) == (404, 404), f"{operation}: {theirs.text}"
        assert _without(theirs.text, border.ids) == _without(unknown.text, UNKNOWN), operation
    assert border.rows() == before


@pytest.mark.parametrize("header", ["X-Episode-Id", "X-Parent-Episode-Id"])
async def test_an_episode_of_another_tenant_cannot_be_joined_or_claimed_as_parent(border: Border, header: str) -> None:
    before = border.rows()
    for operation, body in BY_HEADER.items():
        answer = await border.cross(operation, {}, body, **{header: border.ids["episode_id"]})
        if operation.endswith("count_tokens") and header == "X-Parent-Episode-Id":
            assert answer.status_code in (200, 404)
        else:
            assert answer.status_code == 404, f"{operation}: {answer.text}"
        assert border.marks.isdisjoint(_marks_in(answer.text.replace(border.ids["episode_id"], ""), border.marks))
    assert border.rows() == before


async def test_another_tenants_name_for_an_episode_names_nothing_here(border: Border) -> None:
    before = border.rows()
    border.desk.say("fine")
    answer = await border.cross("POST /v1/chat/completions", {}, CALL, **{"X-Episode-Id": f"{SECRET_WORD}-task"})
    assert answer.status_code == 200
    assert answer.json()["receipt"]["episode_id"] != border.ids["episode_id"]
    assert border.rows() == before


async def test_an_answer_of_another_tenant_cannot_be_continued(border: Border) -> None:
    body = {"model": MODEL, "input": "and then?", "previous_response_id": border.ids["completion_id"]}
    assert (await border.cross("POST /v1/responses", {}, body)).status_code == 404


async def test_another_tenants_id_of_a_log_is_free_here(border: Border) -> None:
    answer = await border.cross("POST /v1/episodes/import", {}, ACTS["POST /v1/episodes/import"])
    assert [row["result"] for row in answer.json()["data"]] == ["created"]


async def test_what_is_read_shows_nothing_of_another_tenant(border: Border) -> None:
    for operation, query in READS.items():
        answer = await border.cross(f"{operation}{query}", border.ids)
        assert answer.status_code in (200, 503), f"{operation}: {answer.text}"
        assert _marks_in(answer.text, border.marks) == set(), operation


async def test_the_victim_sees_what_the_stranger_was_not_shown(border: Border) -> None:
    """Without this the marks above could be words that no answer ever holds."""
    seen: set[str] = set()
    for operation, query in READS.items():
        path = re.sub(r"{(\w+)}", lambda match: border.ids[match[1]], operation.split()[1])
        seen |= _marks_in((await border.desk.http.get(f"{path}{query}")).text, border.marks)
    assert seen >= border.marks - {border.ids["completion_id"], "acme"}


async def test_what_a_stranger_starts_or_moves_touches_and_shows_nothing_of_another_tenant(border: Border) -> None:
    before = border.rows()
    keys = before.pop(0)
    for operation, body in ACTS.items():
        answer = await border.cross(operation, {**border.ids, "version": UNKNOWN_VERSION}, body)
        assert answer.status_code in (200, 201, 404), f"{operation}: {answer.text}"
        assert _marks_in(answer.text, border.marks) == set(), operation
    after = border.rows()
    assert set(keys) <= set(after.pop(0))
    assert after == before


def _marks_in(text: str, marks: set[str]) -> set[str]:
    return {mark for mark in marks if mark in text}


def _without(text: str, ids: dict[str, str]) -> str:
    for name in UNKNOWN:
        text = text.replace(ids[name], "<id>")
    return text
