"""Bugs repaired over the OpenAI library by the model of `online-agent up`, which learns from whether the tests pass."""

import asyncio
import json
import sys
from dataclasses import asdict
from uuid import uuid4

from openai import AsyncOpenAI

from envs.registry import build_environments
from envs.sandbox.nsjail import NsjailSandbox

service, run = AsyncOpenAI(), uuid4().hex[:8]  # OPENAI_BASE_URL and OPENAI_API_KEY; an episode's name is used once
env = build_environments(NsjailSandbox(first_uid=30_001))["bug_repair"]
tools = [{"type": "function", "function": asdict(tool)} for tool in env.tools()]


async def repair(task):
    episode, session = f"example-{run}-{task.id}", await env.start(task)
    client = service.with_options(default_headers={"X-Episode-Id": episode})
    history = [{"role": "system", "content": env.system_prompt()}, {"role": "user", "content": task.prompt}]
    while history[-1]["role"] != "assistant" and not session.artifact().is_submitted and len(history) < 14:
        reply = await client.chat.completions.create(model="online-agent", messages=history, tools=tools, max_tokens=64)
        history.append(reply.choices[0].message.model_dump(exclude_none=True))
        for call in reply.choices[0].message.tool_calls or []:
            observation = await session.call(call.function.name, json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": observation.text})
    passed = (await env.verify(task, session.artifact())).is_success
    await client.post(f"/episodes/{episode}/feedback", body={"reward": float(passed), "source": "ci"}, cast_to=object)
    await client.post(f"/episodes/{episode}/close", body={}, cast_to=object)
    return passed, reply.receipt["weight_version"]


async def main(num_rounds=12, size=16):
    for first in range(0, num_rounds * size, size):
        outcomes = await asyncio.gather(*(repair(task) for task in env.tasks("train", first, size)))
        print(f"version {max(v for _, v in outcomes)}: {sum(passed for passed, _ in outcomes)} of {size} repaired")


asyncio.run(main(*map(int, sys.argv[1:])))
