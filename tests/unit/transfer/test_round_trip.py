"""What is exported can be imported again, and is the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from api.auth import Caller
from api.transfer.imports import checked
from api.transfer.schemas import ImportBody
from online_agent.store.session import Database
from online_agent.transfer.native import StoredEpisode, native_rows
from tests.fakes.episodes import seed_version

_tenants = itertools.count()
_TEXT = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\x00"), max_size=8)
_NAME = st.text("abcdefgh-ü ", min_size=1, max_size=8)
_ID = st.integers(0, 2**31 - 1)
_LOGPROB = st.floats(-1e6, 0, width=32).map(lambda value: value + 0.0)


@st.composite
def _span(draw: st.DrawFn) -> dict[str, Any]:
    ids = draw(st.lists(_ID, max_size=4))
    span: dict[str, Any] = {"kind": "action", "token_ids": ids, "logprobs": None, "version_runs": []}
    if draw(st.booleans()):
        return {**span, "kind": draw(st.sampled_from(["prompt", "observation", "template"]))}
    if draw(st.booleans()):
        cut = draw(st.integers(0, len(ids)))
        span["logprobs"] = [draw(_LOGPROB) for _ in ids]
        span["version_runs"] = [[0, 0, cut], [0, cut, len(ids)]]
    return span


_CALL = st.fixed_dictionaries(
    {"name": _TEXT, "arguments": st.dictionaries(_TEXT, _ID, max_size=2), "error": st.none() | _TEXT}
)
_OBSERVATION = st.fixed_dictionaries({"text": _TEXT, "is_error": st.booleans(), "is_final": st.booleans()})
_TURN = st.fixed_dictionaries(
    {
        "text": _TEXT,
        "tool_calls": st.lists(_CALL, max_size=2),
        "observations": st.lists(_OBSERVATION, max_size=2),
        "finish_reason": st.sampled_from(["", "stop", "length"]),
        "spans": st.lists(_span(), min_size=1, max_size=3),
    }
)


@st.composite
def _item(draw: st.DrawFn, number: int) -> dict[str, Any]:
    reward = draw(st.none() | st.floats(-1, 1))
    return {
        "id": f"{number}-{draw(_NAME)}",
        "env": draw(_NAME),
        "task_id": draw(_NAME),
        "split": draw(st.sampled_from(["train", "heldout"])),
        "sampling": {"temperature": draw(st.floats(0, 2)), "top_p": 1.0, "max_new_tokens": draw(st.integers(1, 99))},
        "stop_reason": draw(st.sampled_from(["submitted", "max_turns", "closed"])),
        "reward": reward,
        "is_success": None if reward is None else draw(st.booleans()),
        "untrainable_reason": draw(st.none() | _NAME),
        "metadata": draw(st.dictionaries(_TEXT, _TEXT | st.floats(-5, 5) | st.none(), max_size=2)),
        "turns": draw(st.lists(_TURN, max_size=3)),
    }


@pytest.fixture
def known(sqlite_url: str) -> Iterator[Database]:
    database = Database(sqlite_url)
    seed_version(database)
    yield database
    database.close()


def _imported(db: Database, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, through the body's JSON into a tenant of their own, which takes part in training, and out again."""
    caller = Caller(f"tenant-{next(_tenants)}", "key", frozenset())
    body = ImportBody.model_validate({"episodes": orjson.loads(orjson.dumps(rows))})
    with db.transaction() as tx:
        tx.tenants.opt_in_once(caller.tenant_id)
        ids = [outcome.episode_id for outcome in tx.imports.add(caller.tenant_id, checked(body, caller, None))]
    with db.reading() as tx:
        return [
            row
            for episode_id in ids
            for row in native_rows(
                StoredEpisode(tx.episodes.get(caller.tenant_id, episode_id), tx.episodes.turns(episode_id))
            )
        ]


def _without_given_reasons(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "untrainable_reason": None} for row in rows]


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(1, 3).flatmap(lambda num: st.tuples(*(_item(number) for number in range(num)))))
def test_import_of_an_export_is_the_same(known: Database, items: tuple[dict[str, Any], ...]) -> None:
    exported = _imported(known, list(items))
    assert _without_given_reasons(exported) == _without_given_reasons(list(items))
    for row, item in zip(exported, items, strict=True):
        assert item["untrainable_reason"] in (None, row["untrainable_reason"])
    assert _imported(known, exported) == exported


def test_log_probs_keep_every_bit(known: Database) -> None:
    values = np.random.default_rng(0).normal(-3, 1, 500).clip(max=0).astype(np.float32)
    span = {"kind": "action", "token_ids": [1] * 500, "logprobs": values.tolist(), "version_runs": [[0, 0, 500]]}
    [row] = _imported(known, [{"id": "a", "turns": [{"spans": [span]}]}])
    assert np.array(row["turns"][0]["spans"][0]["logprobs"], np.float32).tobytes() == values.tobytes()
