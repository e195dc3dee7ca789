"""Runs other people's agents as programs of their own, from the packages that ``make`` puts beside ours."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / ".clients"
"""What these agents need and this project does not; an own folder, as their versions are other ones than ours."""

MINI_CONFIG = Path(__file__).with_name("mini_swe_agent.yaml")
TIMEOUT_S = 110.0


async def agents_sdk(url: str, key: str, home: Path, *, api: str, streaming: str, episode: str, task: str) -> str:
    """What our script with the OpenAI Agents SDK printed."""
    script = Path(__file__).with_name("agents_sdk_agent.py")
    return await run_program([str(script), api, streaming, episode, task], url, key, home)


async def mini_swe_agent(url: str, key: str, home: Path, *, episode: str, task: str) -> str:
    """What mini-swe-agent's own command printed; its trajectory lies at ``home/trajectory.json``."""
    header = f"model.model_kwargs.extra_headers.X-Episode-Id={episode}"
    output = ["-o", str(home / "trajectory.json")]
    configured = ["-c", str(MINI_CONFIG), "-c", header, "--agent-class", "default", "-y", *output]
    return await run_program(["-m", "minisweagent.run.mini", *configured, "-t", task], url, key, home)


async def run_program(arguments: list[str], url: str, key: str, home: Path) -> str:
    """Its output, once it has ended well. It works in ``home`` and is told the address and the key, no more of us."""
    assert PACKAGES.is_dir(), f"{PACKAGES} is not there: `make clients` installs the agents"
    told = {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": key}
    quiet = {
        "OPENAI_AGENTS_DISABLE_TRACING": "1",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "MSWEA_CONFIGURED": "true",
        "MSWEA_SILENT_STARTUP": "1",
        "NO_PROXY": "127.0.0.1",
    }
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(PACKAGES), **told, **quiet}
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, cwd=home, env=environment, stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        async with asyncio.timeout(TIMEOUT_S):
            output, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    text = output.decode()
    assert process.returncode == 0, text
    return text
