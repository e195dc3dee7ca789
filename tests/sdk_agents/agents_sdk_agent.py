"""An agent as its owner would write it with the OpenAI Agents SDK. It knows nothing of this service.

    agents_sdk_agent.py API STREAMING EPISODE TASK

``API`` is ``responses`` or ``chat_completions``, ``STREAMING`` is ``plain`` or ``streamed``. Address and key come from
``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``, as that library reads them. Prints the final
output, or how the run ended without one.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from agents import Agent, AgentsException, ModelSettings, Runner, function_tool, set_default_openai_api


@function_tool
def read_file(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


@function_tool
def replace_text(path: str, old: str, new: str) -> str:
    """Replace text in a file."""
    file = Path(path)
    file.write_text(file.read_text().replace(old, new))
    return "replaced"


async def solve(api: str, streaming: str, episode: str, task: str) -> str:
    set_default_openai_api(api)
    settings = ModelSettings(max_tokens=200, extra_headers={"X-Episode-Id": episode})
    tools = [read_file, replace_text]
    agent = Agent("coder", instructions="Repair code.", model="online-agent", model_settings=settings, tools=tools)
    try:
        if streaming == "plain":
            return str((await Runner.run(agent, task, max_turns=6)).final_output)
        run = Runner.run_streamed(agent, task, max_turns=6)
        async for _ in run.stream_events():
            pass
    except AgentsException as error:  # too many turns, or an answer that was cut off
        return f"{type(error).__name__}: {error}"
    return str(run.final_output)


if __name__ == "__main__":
    print(asyncio.run(solve(*sys.argv[1:])))
