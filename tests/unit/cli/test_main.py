"""The command as a process: instant help, one line of error, the documented exit code."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from online_agent.cli.failures import ApiError, Unreachable, exit_code, one_line
from online_agent.cli.main import app
from online_agent.errors import (
    BadInput,
    Busy,
    ConfigError,
    Conflict,
    NotAllowed,
    NotFound,
    OnlineAgentError,
    SwapFailed,
)

HEAVY = ("torch", "deepspeed", "sglang", "transformers", "sqlalchemy", "celery", "numpy", "httpx", "pydantic")


def command(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "online_agent.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **env},
        check=False,
    )


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom typer.testing import CliRunner\nfrom online_agent.cli.main import app\n"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    "path",
    [
        (),
        ("episodes",),
        ("weights",),
        ("changes",),
        ("training",),
        ("keys",),
        ("up",),
        ("doctor",),
        ("demo",),
        ("drift",),
    ],
)
def test_every_help_page_reads(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(app, [*path, "--help"])
    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_the_first_page_gives_examples_and_exit_codes() -> None:
    output = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "100"}).output
    assert "online-agent weights rollback 12" in output
    assert "3 service not reachable" in output


def test_an_expected_failure_is_one_line_on_stderr_with_its_exit_code() -> None:
    done = command("weights", "list", ONLINE_AGENT_URL="http://127.0.0.1:9", ONLINE_AGENT_KEY="k")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith("error: no answer from http://127.0.0.1:9")
    assert done.stderr.count("\n") == 1


def test_a_bad_setting_is_named_with_its_value() -> None:
    done = command("down", ONLINE_AGENT_API__PORT="99999")
    assert done.returncode == 2
    assert "api.port" in done.stderr
    assert "99999" in done.stderr


def test_the_version_is_shown() -> None:
    assert command("--version").stdout.startswith("online-agent 0.")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OnlineAgentError("x"), 1),
        (SwapFailed("x"), 1),
        (BadInput("x"), 2),
        (ConfigError("x"), 2),
        (Unreachable("x"), 3),
        (NotAllowed("x"), 4),
        (NotFound("x"), 5),
        (Conflict("x"), 6),
        (Busy("x"), 6),
        (ApiError("x", status=401), 4),
        (ApiError("x", status=404), 5),
        (ApiError("x", status=409), 6),
        (ApiError("x", status=422), 2),
        (ApiError("x", status=500), 1),
        (ApiError("x", status=503), 6),
    ],
)
def test_exit_codes_are_as_documented(error: OnlineAgentError, code: int) -> None:
    assert exit_code(error) == code


def test_an_error_of_several_lines_becomes_one() -> None:
    assert one_line(OnlineAgentError("first\n   second")) == "first second"
