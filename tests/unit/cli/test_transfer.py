"""Files of episodes through the command line, against the real application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from click.testing import Result
from typer.testing import CliRunner

from online_agent.cli import transfer
from online_agent.cli.failures import ApiError, Unreachable
from online_agent.cli.main import app
from online_agent.errors import BadInput
from tests.fakes.api import World, on_a_port, open_world


@pytest.fixture
async def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world, on_a_port(world) as client:
        monkeypatch.setenv("ONLINE_AGENT_URL", str(client.base_url))
        monkeypatch.setenv("ONLINE_AGENT_KEY", world.secrets["all"])
        yield world


async def _run(*args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, app, ["episodes", *args])


def _file(path: Path, num: int) -> Path:
    spans = [{"kind": "action", "token_ids": [7], "logprobs": [-0.5], "version_runs": [[1, 0, 1]]}]
    lines = [json.dumps({"id": f"log-{number}", "reward": 1.0, "turns": [{"spans": spans}]}) for number in range(num)]
    path.write_text("\n".join(lines) + "\n\n")
    return path


async def test_a_file_goes_in_by_parts_and_comes_out_whole(
    served: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_MAX_BATCH_EPISODES", 2)
    file = _file(tmp_path / "in.jsonl", 5)
    result = await _run("import", str(file))
    assert (result.exit_code, result.stdout) == (0, "5 episodes, 5 of them new\n"), result.output
    assert (await _run("import", str(file))).stdout == "5 episodes, 0 of them new\n"
    out = tmp_path / "out.jsonl"
    result = await _run("export", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == [f"log-{n}" for n in (4, 3, 2, 1, 0)]


async def test_a_line_that_is_not_json_is_named_by_its_place(served: World, tmp_path: Path) -> None:
    file = _file(tmp_path / "in.jsonl", 2)
    file.write_text(file.read_text() + "{half a line\n")
    result = await _run("import", str(file))
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith(f"{file}:4: not JSON: ")


async def test_parquet_is_read_by_pyarrow(served: World, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    await _run("import", str(_file(tmp_path / "in.jsonl", 3)))
    out = tmp_path / "out.parquet"
    result = await _run("export", "--format", "parquet", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert parquet.read_table(out)["id"].to_pylist() == ["log-2", "log-1", "log-0"]


async def test_an_export_into_a_directory_that_is_not_there_is_a_wrong_input(served: World, tmp_path: Path) -> None:
    result = await _run("export", "--out", str(tmp_path / "nowhere" / "out.jsonl"))
    assert result.exit_code == 2
    assert "there is no directory" in result.output


async def test_a_refused_export_leaves_the_file_that_was_there(served: World, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    out.write_text("before")
    result = await _run("export", "--out", str(out), "--status", "open")
    assert isinstance(result.exception, ApiError)
    assert result.exception.param == "status"
    assert out.read_text() == "before"
    assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]


async def test_a_stream_that_breaks_off_is_no_file(
    served: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: httpx.Response) -> object:
        yield b"half"
        raise httpx.RemoteProtocolError("peer closed connection")

    monkeypatch.setattr(httpx.Response, "iter_bytes", broken)
    result = await _run("export", "--out", str(tmp_path / "out.jsonl"))
    assert isinstance(result.exception, Unreachable)
    assert list(tmp_path.glob("out*")) == []
