"""Commands talk to the API and show what it says."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from online_agent.cli.failures import ApiError, Unreachable
from online_agent.cli.main import app
from online_agent.config.settings import load_settings
from online_agent.errors import BadInput, NotAuthenticated
from online_agent.store.session import Database
from online_agent.types import Scope
from tests.unit.cli.conftest import KEY, ScriptedApi

Run = Callable[..., Result]

LONG_ID = f"ep_{'0' * 34}"
EPISODE = {
    "id": "ep_1",
    "status": "graded",
    "env": "bug_repair",
    "task_id": "train-7",
    "weight_version": 3,
    "verdict": {"reward": 1.0, "is_success": True, "evidence": {}},
    "num_turns": 2,
    "created_at": 0.0,
    "stop_reason": "submitted",
    "failure_reason": None,
    "turns": [
        {
            "number": 0,
            "text": "<tool_call>...</tool_call>",
            "observations": [{"text": "error: no such tool", "is_error": True, "is_final": False}],
        }
    ],
}
VERSION = {
    "version": 3,
    "state": "serving",
    "origin": "step",
    "parent": 2,
    "step": 3,
    "is_pinned": True,
    "is_rolled_back": False,
    "created_at": 0.0,
    "reason": None,
}


def test_episodes_list_is_a_table_of_the_rows_asked_for(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/episodes"] = (200, {"data": [EPISODE], "next_cursor": None})
    result = run("episodes", "list", "--env", "bug_repair", "--status", "graded", "--limit", "5")
    assert result.exit_code == 0
    assert all(text in result.output for text in ("ep_1", "graded", "train-7", "reward"))
    assert api.calls[0][2] == {"limit": ["5"], "env": ["bug_repair"], "status": ["graded"]}
    assert api.keys == [f"Bearer {KEY}"]


def test_a_piped_list_is_a_line_a_row_however_narrow_the_terminal(api: ScriptedApi) -> None:
    api.answers["GET /v1/episodes"] = (200, {"data": [EPISODE | {"id": LONG_ID}], "next_cursor": None})
    lines = CliRunner().invoke(app, ["episodes", "list"], env={"COLUMNS": "40"}).output.splitlines()
    assert len(lines) == 2
    assert lines[1].split()[:4] == [LONG_ID, "graded", "bug_repair", "train-7"]


def test_an_id_is_whole_on_a_narrow_terminal_too(api: ScriptedApi) -> None:
    api.answers["GET /v1/episodes"] = (200, {"data": [EPISODE | {"id": LONG_ID}], "next_cursor": None})
    terminal = {"COLUMNS": "60", "FORCE_COLOR": "1", "TERM": "xterm", "NO_COLOR": "1"}
    assert LONG_ID in CliRunner().invoke(app, ["episodes", "list"], env=terminal).output


def test_keys_show_when_they_expire(api: ScriptedApi, run: Run) -> None:
    in_three_days = time.time() + 3 * 86_400 + 60
    rows = [{"id": "key_1", "name": "ci", "expires_at": in_three_days}, {"id": "key_2", "name": "old", "expires_at": 0}]
    api.answers["GET /v1/keys"] = (200, {"data": rows})
    lines = run("keys", "list").output.splitlines()
    assert "in 3 d" in lines[1]
    assert "d ago" in lines[2]


def test_lists_follow_pages_up_to_the_limit(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/episodes"] = (200, {"data": [EPISODE, EPISODE], "next_cursor": "c"})
    result = run("episodes", "list", "--limit", "3", "--json")
    assert len(json.loads(result.output)) == 3
    assert [call[2].get("cursor") for call in api.calls] == [None, ["c"]]


def test_an_empty_list_says_so(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/weights"] = (200, {"data": [], "next_cursor": None})
    assert run("weights", "list").output == "no versions\n"


def test_episodes_run_waits_and_shows_the_turns_and_the_verdict(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/episodes"] = (201, EPISODE)
    api.answers["GET /v1/episodes/ep_1"] = (200, EPISODE)
    result = run("episodes", "run", "bug_repair", "train-7", "--greedy")
    assert result.exit_code == 0
    assert "error: no such tool" in result.output
    assert "solved, reward 1, stopped by submitted" in result.output
    method, _, query, body = api.calls[0]
    assert (method, query) == ("POST", {"wait": ["true"]})
    assert body == {"env": "bug_repair", "split": "train", "task_id": "train-7", "sampling": {"temperature": 0.0}}


def test_of_a_clients_episode_the_reward_is_told_and_not_whether_it_is_solved(api: ScriptedApi, run: Run) -> None:
    verdict = {"reward": 0.3, "is_success": True, "evidence": {}}
    episode = {**EPISODE, "env": "client", "turns": [], "verdict": verdict, "stop_reason": "closed"}
    api.answers["GET /v1/episodes/ep_1"] = (200, episode)
    assert "\nreward 0.3, stopped by closed" in run("episodes", "show", "ep_1").output


def test_a_clients_turn_is_shown_with_the_calls_that_its_text_leaves_out(api: ScriptedApi, run: Run) -> None:
    call = {"name": "read_file", "arguments": {"path": "a.py"}, "error": None}
    turns = [{"number": 0, "text": text, "tool_calls": [call], "observations": []} for text in ("", "Let me look.")]
    api.answers["GET /v1/episodes/ep_1"] = (200, EPISODE | {"env": "client", "turns": turns})
    shown = run("episodes", "show", "ep_1").output
    assert 'turn 0\nread_file {"path": "a.py"}\n' in shown
    assert 'turn 0\nLet me look.\nread_file {"path": "a.py"}\n' in shown


def test_a_task_in_a_file_is_sent_as_it_is(api: ScriptedApi, run: Run, tmp_path: Path) -> None:
    api.answers["POST /v1/episodes"] = (201, EPISODE)
    api.answers["GET /v1/episodes/ep_1"] = (200, EPISODE)
    task = {"prompt": "fix it", "files": {"a.py": "x = 1\n"}}
    (tmp_path / "task.json").write_text(json.dumps(task))
    assert run("episodes", "run", "bug_repair", "--task", str(tmp_path / "task.json")).exit_code == 0
    assert api.calls[0][3] == {"env": "bug_repair", "task": task}


@pytest.mark.parametrize(("content", "named"), [("{", []), ("{}", ["train-7"])])
def test_a_task_that_is_no_json_or_not_the_only_one_is_not_sent(
    api: ScriptedApi, run: Run, tmp_path: Path, content: str, named: list[str]
) -> None:
    (tmp_path / "task.json").write_text(content)
    assert run("episodes", "run", "bug_repair", *named, "--task", str(tmp_path / "task.json")).exit_code == 2
    assert api.calls == []


def test_a_group_is_run_and_shown_one_line_a_member(api: ScriptedApi, run: Run) -> None:
    members = [{**EPISODE, "group_id": "grp_1"}, {**EPISODE, "id": "ep_2", "group_id": "grp_1"}]
    api.answers["POST /v1/episodes"] = (201, {**members[0], "episode_ids": ["ep_1", "ep_2"], "members": members})
    result = run("episodes", "run", "bug_repair", "--group-size", "2")
    assert result.exit_code == 0
    assert all(text in result.output for text in ("group grp_1\n", "ep_1", "ep_2"))
    assert api.calls[0][3] == {"env": "bug_repair", "split": "train", "group_size": 2}
    assert len(api.calls) == 1
    as_json = run("episodes", "run", "bug_repair", "--group-size", "2", "--json")
    assert [row["id"] for row in json.loads(as_json.output)] == ["ep_1", "ep_2"]


@pytest.mark.parametrize("size", ["0", "65"])
def test_a_group_of_another_size_than_1_to_64_is_not_sent(api: ScriptedApi, run: Run, size: str) -> None:
    assert run("episodes", "run", "bug_repair", "--group-size", size).exit_code == 2
    assert api.calls == []


def test_the_members_of_a_group_are_listed(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/episodes"] = (200, {"data": [EPISODE], "next_cursor": None})
    assert run("episodes", "list", "--group", "grp_1").exit_code == 0
    assert api.calls[0][2] == {"limit": ["20"], "group_id": ["grp_1"]}


def test_feedback_needs_something_to_say(api: ScriptedApi, run: Run) -> None:
    result = run("episodes", "feedback", "ep_1")
    assert result.exit_code == 2
    assert api.calls == []


def test_feedback_is_sent(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/episodes/ep_1/feedback"] = (201, {"id": 4, "fate": "accepted"})
    result = run("episodes", "feedback", "ep_1", "--reward", "-0.5", "--text", "wrong file")
    assert result.output == "feedback 4: accepted\n"
    assert api.calls[0][3] == {"source": "cli", "reward": -0.5, "text": "wrong file"}


def test_weights_list_marks_what_is_pinned(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/weights"] = (200, {"data": [VERSION], "next_cursor": None, "serving": 3})
    output = run("weights", "list").output
    assert "serving" in output
    assert "yes" in output


@pytest.mark.parametrize("word", ["pin", "unpin"])
def test_pinning(api: ScriptedApi, run: Run, word: str) -> None:
    api.answers[f"POST /v1/weights/3/{word}"] = (200, VERSION)
    assert run("weights", word, "3").exit_code == 0


def test_rollback_names_the_new_version(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/weights/2/rollback"] = (200, {"version": 4, "target": 2, "is_serving": True})
    assert run("weights", "rollback", "2").output == "version 4 serves, with the content of version 2\n"


def test_a_rollback_that_is_still_on_its_way_is_not_called_done(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/weights/2/rollback"] = (202, {"version": None, "target": 2, "is_serving": False})
    assert "does not serve yet" in run("weights", "rollback", "2").output


def test_a_change_is_injected_with_typed_parameters(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/changes"] = (201, {"id": "ch_1", "state": "active"})
    result = run(
        "changes", "inject", "bug_repair", "rename_tool", "-p", "tool=edit_file", "-p", "to=patch", "-p", "base=1",
        "--silent", "--ends-after", "9",
    )  # fmt: skip
    assert result.output == "change ch_1 is active\n"
    assert api.calls[0][3] == {
        "env": "bug_repair",
        "kind": "rename_tool",
        "params": {"tool": "edit_file", "to": "patch", "base": 1},
        "visibility": "silent",
        "starts": "now",
        "mid_episode": False,
        "ends": {"after_episodes": 9},
    }


def test_a_parameter_without_a_value_is_named(api: ScriptedApi, run: Run) -> None:
    result = run("changes", "inject", "bug_repair", "rename_tool", "-p", "tool")
    assert result.exit_code == 2
    assert "'tool' is not NAME=VALUE" in result.stderr
    assert api.calls == []


def test_change_kinds_show_what_must_be_given(api: ScriptedApi, run: Run) -> None:
    schema = {"properties": {"tool": {}, "to": {}}, "required": ["tool"], "description": "Another name.\n\nMore."}
    api.answers["GET /v1/envs"] = (200, {"data": [], "change_kinds": {"rename_tool": schema}})
    output = run("changes", "kinds").output
    assert "tool [to]" in output
    assert "Another name." in output
    assert "More." not in output


def test_a_change_is_reverted(api: ScriptedApi, run: Run) -> None:
    api.answers["DELETE /v1/changes/ch_1"] = (200, {})
    assert run("changes", "revert", "ch_1").output == "change ch_1 has ended\n"


def test_training_is_shown_paused_and_resumed(api: ScriptedApi, run: Run) -> None:
    api.answers["GET /v1/training"] = (200, {"state": "waiting", "steps": [], "queue": {"graded": 3}})
    api.answers["POST /v1/training/pause"] = (200, {"is_paused": True})
    api.answers["POST /v1/training/resume"] = (200, {"is_paused": False})
    assert "waiting" in run("training", "status").output
    assert run("training", "pause").output == "training is paused\n"
    assert run("training", "resume").output == "training goes on\n"


def test_the_secret_of_a_new_key_stands_alone_on_stdout(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/keys"] = (201, {"id": "key_1", "secret": "s3cret"})
    result = run("keys", "create", "ci", "--scope", "agent", "--scope", "operator")
    assert result.stdout == "s3cret\n"
    assert api.calls[0][3] == {"name": "ci", "scopes": ["agent", "operator"]}


def test_the_api_and_key_are_found_where_up_wrote_them(
    api: ScriptedApi, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("ONLINE_AGENT_URL")
    monkeypatch.delenv("ONLINE_AGENT_KEY")
    (tmp_path / "run").mkdir()
    (tmp_path / "k").write_text("file-key\n")
    facts = {"url": api.url, "key_file": str(tmp_path / "k"), "pids": {}}
    (tmp_path / "run" / "api.json").write_text(json.dumps(facts))
    monkeypatch.setenv("ONLINE_AGENT_DATA_DIR", str(tmp_path))
    api.answers["GET /v1/keys"] = (200, {"data": []})
    assert run("keys", "list").exit_code == 0
    assert api.keys == ["Bearer file-key"]


def test_without_a_key_nothing_is_asked(api: ScriptedApi, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ONLINE_AGENT_KEY")
    monkeypatch.setenv("ONLINE_AGENT_DATA_DIR", "/nowhere")
    assert isinstance(run("keys", "list").exception, NotAuthenticated)
    assert api.calls == []


def test_an_error_of_the_api_carries_its_message_and_field(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/changes"] = (400, {"error": {"message": "no tool named 'x'", "param": "params.tool"}})
    error = run("changes", "inject", "bug_repair", "remove_tool", "-p", "tool=x").exception
    assert isinstance(error, ApiError)
    assert str(error) == "no tool named 'x' (params.tool)"


def test_a_field_that_the_message_begins_with_is_named_once(api: ScriptedApi, run: Run) -> None:
    api.answers["POST /v1/keys"] = (400, {"error": {"message": "name: too long", "param": "name"}})
    assert str(run("keys", "create", "x", "--scope", "agent").exception) == "name: too long"


def test_a_service_that_is_not_there_is_unreachable(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONLINE_AGENT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("ONLINE_AGENT_KEY", KEY)
    assert isinstance(run("weights", "list").exception, Unreachable)


def test_a_key_is_made_with_limits_and_rotated(run: Run, api: ScriptedApi) -> None:
    api.answers["POST /v1/keys"] = (201, {"id": "key_1", "secret": "s3cret"})
    api.answers["POST /v1/keys/key_1/rotate"] = (200, {"id": "key_1", "secret": "n3w"})
    options = ("--expires-in-days", "2", "--requests-per-minute", "60", "--tokens-per-day", "1000")
    assert run("keys", "create", "ci", "--scope", "agent", *options).exit_code == 0
    result = run("keys", "rotate", "key_1", "--overlap-hours", "0.5")
    assert result.stdout == "n3w\n"
    assert [call[3] for call in api.calls] == [
        {"name": "ci", "scopes": ["agent"], "expires_in_s": 172_800, "requests_per_minute": 60, "tokens_per_day": 1000},
        {"overlap_s": 1800},
    ]


def test_a_key_of_another_tenant_is_made_in_the_database_and_opens_it(
    run: Run, api: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLINE_AGENT_DATA_DIR", str(tmp_path))
    options = ("--scope", "admin", "--scope", "agent", "--tenant", "acme", "--requests-per-minute", "60")
    made = run("keys", "create", "first", *options)
    secret = made.stdout.strip()
    assert api.calls == []
    assert f"written to sqlite+pysqlite:///{tmp_path}/online_agent.db" in made.stderr
    db = Database(load_settings(data_dir=tmp_path).database_url)
    with db.reading() as tx:
        key = tx.keys.authenticate(secret)
    db.close()
    assert key is not None
    assert (key.tenant_id, key.name, key.scopes) == ("acme", "first", {Scope.ADMIN, Scope.AGENT})
    assert key.requests_per_minute == 60


@pytest.mark.parametrize("days", ["nan", "inf", "-1", "1e9"])
def test_a_life_that_is_none_makes_no_key(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: str) -> None:
    monkeypatch.setenv("ONLINE_AGENT_DATA_DIR", str(tmp_path))
    result = run("keys", "create", "first", "--scope", "agent", "--tenant", "acme", "--expires-in-days", days)
    assert isinstance(result.exception, BadInput)
    assert "expires_in_s must be above 0 and at most" in str(result.exception)


def test_an_unknown_scope_is_refused_before_anything_is_made(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONLINE_AGENT_DATA_DIR", str(tmp_path / "none"))
    result = run("keys", "create", "first", "--scope", "root", "--tenant", "acme")
    assert result.exit_code == 2
    assert "'root' is none of agent, operator, admin" in result.output
    assert not (tmp_path / "none").exists()
