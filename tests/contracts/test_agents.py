"""Public agents, unchanged, against this service: only the address, the key and their own settings are ours.

What the model says is scripted here, so that their loops run to their end; ``tests/integration/test_agents.py`` runs
them on the real engine.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest

from online_agent.types import SpanKind
from tests.fakes.api import on_a_port
from tests.fakes.gateway import ClientDesk, call_text, open_desk, row_text
from tests.sdk_agents.programs import agents_sdk, mini_swe_agent

TASK = "add(1, 2) must be 3"
NOTES = "nothing else calls it"
BROKEN, WHOLE = "def add(a, b):\n    return a - b\n", "def add(a, b):\n    return a + b\n"


@pytest.fixture
async def desk(tmp_path: Path, model_dirs: dict[int, Path]) -> AsyncIterator[ClientDesk]:
    async with open_desk(tmp_path, model_dirs[1]) as opened:
        yield opened


@pytest.fixture
async def url(desk: ClientDesk) -> AsyncIterator[str]:
    async with on_a_port(desk.world) as client:
        yield str(client.base_url)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where the agent works: a module that subtracts where it should add."""
    directory = tmp_path / "home"
    directory.mkdir()
    (directory / "calc.py").write_text(BROKEN)
    (directory / "notes.txt").write_text(NOTES)
    return directory


async def closed_with_reward(desk: ClientDesk, episode: str) -> None:
    given = await desk.post(f"/v1/episodes/{episode}/feedback", {"reward": 1.0, "source": "tests"})
    assert given.json()["fate"] == "accepted"
    assert (await desk.post(f"/v1/episodes/{episode}/close", {})).status_code == 200


def assert_each_prompt_continues_the_last(desk: ClientDesk, episode: str) -> None:
    prompts, actions = desk.prompts(), desk.actions(episode)
    for prompt, action, following in zip(prompts, actions, prompts[1:], strict=False):
        assert following[: len(prompt) + len(action)] == prompt + action


@pytest.mark.parametrize(("api", "streaming"), [("responses", "streamed"), ("chat_completions", "plain")])
async def test_an_agent_of_the_agents_sdk_repairs_a_file_in_one_segment(
    desk: ClientDesk, url: str, home: Path, api: str, streaming: str
) -> None:
    said = [
        "I look. " + call_text("read_file", path="calc.py"),
        call_text("replace_text", path="calc.py", old="a - b", new="a + b"),
        call_text("read_file", path="calc.py") + call_text("read_file", path="notes.txt"),
        "It adds now.",
    ]
    desk.say(*said)
    key = desk.world.secrets["agent"]
    printed = await agents_sdk(url, key, home, api=api, streaming=streaming, episode="task", task=TASK)
    assert printed.strip() == "It adds now."
    assert (home / "calc.py").read_text() == WHOLE
    assert_each_prompt_continues_the_last(desk, "task")
    await closed_with_reward(desk, "task")
    [row] = desk.training_rows("task")
    assert row_text(desk.renderer, row, actions_only=True) == "".join(f"{text}<|im_end|>" for text in said)
    for observed in (BROKEN, "replaced", WHOLE, NOTES):
        assert f"<tool_response>\n{observed}" in row_text(desk.renderer, row)


async def test_mini_swe_agent_repairs_a_file_with_bash_and_submits(desk: ClientDesk, url: str, home: Path) -> None:
    commands = [
        "cat calc.py",
        "sed -i 's/a - b/a + b/' calc.py",
        'python3 -c "import calc; print(calc.add(1, 2))"',
        "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",
    ]
    said = [f"Step {n}. " + call_text("bash", command=command) for n, command in enumerate(commands)]
    desk.say(*said)
    await mini_swe_agent(url, desk.world.secrets["agent"], home, episode="task", task=TASK)
    trajectory = orjson.loads((home / "trajectory.json").read_bytes())
    assert trajectory["info"]["exit_status"] == "Submitted"
    assert trajectory["info"]["model_stats"]["api_calls"] == 4
    assert (home / "calc.py").read_text() == WHOLE
    assert_each_prompt_continues_the_last(desk, "task")
    await closed_with_reward(desk, "task")
    [row] = desk.training_rows("task")
    assert row_text(desk.renderer, row, actions_only=True) == "".join(f"{text}<|im_end|>" for text in said)
    assert "<returncode>0</returncode>\n<output>\n3\n</output>" in row_text(desk.renderer, row)


async def test_an_answer_that_mini_swe_agent_drops_is_trained_in_a_segment_of_its_own(
    desk: ClientDesk, url: str, home: Path
) -> None:
    """Without a call its answer leaves the history, and only the complaint about it stays."""
    desk.say("I only talk.", call_text("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"))
    await mini_swe_agent(url, desk.world.secrets["agent"], home, episode="task", task=TASK)
    await closed_with_reward(desk, "task")
    rows = desk.training_rows("task")
    trained = [row_text(desk.renderer, row, actions_only=True) for row in rows]
    assert sum("I only talk." in text for text in trained) == 1
    assert sum("COMPLETE_TASK" in text for text in trained) == 1
    episode = desk.client_episode("task")
    assert episode.num_kept_tokens == episode.num_sampled_tokens == sum(map(len, desk.actions("task")))
    spans = [span for turn in desk.spans("task").values() for span in turn]
    assert any("No tool calls found" in desk.renderer.decode(s.token_ids) for s in spans if s.kind != SpanKind.ACTION)
