"""``online-agent episodes``: let the agent work, and read what it did."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from online_agent.cli.output import AsJson, age, field, show_json, show_rows
from online_agent.cli.transfer import export_episodes, import_episodes

app = typer.Typer(help="Give the agent tasks and read what it did.", no_args_is_help=True)
app.command("export")(export_episodes)
app.command("import")(import_episodes)

_RUN_TIMEOUT_S = 600.0
_COLUMNS = (
    field("id"),
    field("status"),
    field("env"),
    field("task_id"),
    ("version", lambda row: row.get("weight_version")),
    ("reward", lambda row: (row.get("verdict") or {}).get("reward")),
    ("turns", lambda row: row.get("num_turns")),
    age("created", "created_at"),
)


class Split(StrEnum):
    TRAIN = "train"
    HELDOUT = "heldout"


@app.command("list")
def list_episodes(
    status: Annotated[
        str | None, typer.Option(help="Only open, finished, graded, reserved, trained, dropped or failed ones.")
    ] = None,
    env: Annotated[str | None, typer.Option(help="Only episodes of this environment.")] = None,
    weight_version: Annotated[int | None, typer.Option(help="Only episodes that this version sampled in.")] = None,
    group: Annotated[str | None, typer.Option(help="Only the members of this group.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, newest first.")] = 20,
    as_json: AsJson = False,
) -> None:
    """List episodes, newest first."""
    from online_agent.cli.client import connect

    rows = connect().rows("/v1/episodes", limit, status=status, env=env, weight_version=weight_version, group_id=group)
    show_rows(rows, _COLUMNS, as_json=as_json, empty="no episodes")


@app.command()
def show(
    episode_id: Annotated[str, typer.Argument(help="As `episodes list` shows it.")],
    spans: Annotated[bool, typer.Option("--spans", help="Include token ids, log-probs and versions (JSON).")] = False,
    as_json: AsJson = False,
) -> None:
    """Show one episode turn by turn."""
    from online_agent.cli.client import connect

    row = connect().get(f"/v1/episodes/{episode_id}", include=["turns", "feedback", *(["spans"] if spans else [])])
    if as_json or spans:
        show_json(row)
    else:
        _print_episode(row)


@app.command()
def run(
    env: Annotated[str, typer.Argument(help="The environment, for example bug_repair.")],
    task_id: Annotated[
        str | None, typer.Argument(help="For example train-7; without it the next task is drawn.")
    ] = None,
    split: Annotated[Split, typer.Option(help="From which tasks to draw.")] = Split.TRAIN,
    task: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A task of your own, as JSON, instead of these.")
    ] = None,
    greedy: Annotated[bool, typer.Option("--greedy", help="Temperature 0: for looking, never trained on.")] = False,
    group_size: Annotated[
        int | None, typer.Option(min=1, max=64, help="Run the task this many times at once, as a group.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Let the agent work on one task, wait for the verdict and show what it did.

    Of a group, one line a member: `episodes show` says what each did.
    """
    from online_agent.cli.client import connect

    body: dict[str, Any] = {"env": env, **_chosen(task_id, split, task)}
    if greedy:
        body["sampling"] = {"temperature": 0.0}
    if group_size is not None:
        body["group_size"] = group_size
    api = connect(_RUN_TIMEOUT_S)
    answer = api.post("/v1/episodes", body, wait="true")
    if answer.get("members"):
        if not as_json:
            typer.echo(f"group {answer['group_id']}")
        show_rows(answer["members"], _COLUMNS, as_json=as_json)
        return
    row = api.get(f"/v1/episodes/{answer['id']}", include="turns")
    if as_json:
        show_json(row)
    else:
        _print_episode(row)


def _chosen(task_id: str | None, split: Split, task: Path | None) -> dict[str, Any]:
    """The fields of a request that say what to work on. Raises BadParameter."""
    if task is None:
        return {"split": split.value} if task_id is None else {"split": split.value, "task_id": task_id}
    if task_id is not None:
        raise typer.BadParameter("name a task or give one, not both", param_hint="--task")
    try:
        given = json.loads(task.read_bytes())
    except ValueError as error:
        raise typer.BadParameter(f"{task} is not JSON: {error}", param_hint="--task") from error
    return {"task": given}


@app.command()
def feedback(
    episode_id: Annotated[str, typer.Argument(help="As `episodes list` shows it.")],
    reward: Annotated[float | None, typer.Option(min=-1, max=1, help="From -1 (bad) to 1 (good).")] = None,
    text: Annotated[str | None, typer.Option(help="What was good or bad.")] = None,
    source: Annotated[str, typer.Option(help="Who says so; the latest reward of each source counts.")] = "cli",
) -> None:
    """Say what you think of an episode: a reward, a text, or both."""
    from online_agent.cli.client import connect

    if reward is None and text is None:
        raise typer.BadParameter("give --reward, --text or both")
    body: dict[str, Any] = {"source": source}
    if reward is not None:
        body["reward"] = reward
    if text is not None:
        body["text"] = text
    row = connect().post(f"/v1/episodes/{episode_id}/feedback", body)
    typer.echo(f"feedback {row.get('id')}: {row.get('fate')}")


def _answer(turn: dict[str, Any], env: str) -> list[str]:
    """Text and calls. The text of a client's turn is what the client got, without calls; elsewhere it holds them."""
    text = [turn["text"].strip()] if turn["text"].strip() else []
    if not _is_client(env):
        return text
    return text + [f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in turn["tool_calls"]]


def _result(verdict: dict[str, Any], env: str) -> str:
    """Only an environment knows whether its task is solved; of a client's episode there is a reward."""
    reward = f"reward {verdict['reward']:g}"
    if _is_client(env):
        return reward
    return f"{'solved' if verdict['is_success'] else 'not solved'}, {reward}"


def _is_client(env: str) -> bool:
    return env.removeprefix("imported:") == "client"


def _print_episode(row: dict[str, Any]) -> None:
    typer.echo(f"{row['id']}  {row['status']}  {row['env']}/{row['task_id']}  version {row['weight_version']}")
    for turn in row.get("turns") or []:
        typer.secho(f"\nturn {turn['number']}", bold=True)
        for line in _answer(turn, row["env"]):
            typer.echo(line)
        for observation in turn["observations"]:
            typer.secho(observation["text"].rstrip(), fg="red" if observation["is_error"] else "cyan")
    verdict = row.get("verdict")
    if verdict:
        colour = "green" if verdict["is_success"] else "yellow"
        typer.secho(f"\n{_result(verdict, row['env'])}, stopped by {row['stop_reason']}", fg=colour)
    elif row.get("failure_reason"):
        typer.secho(f"\nfailed: {row['failure_reason']}", fg="red")
