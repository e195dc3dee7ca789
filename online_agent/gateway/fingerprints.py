"""What a client's history is matched by. Its text is compared with what was stored and used for nothing else."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import orjson

from envs.types import ToolSpec
from online_agent.gateway.calls import ChatCall
from online_agent.rendering.messages import ChatMessage
from online_agent.rendering.tool_schemas import tool_schemas
from online_agent.types import Sampling

_LENGTH = 32


def conversation_root(template_hash: str, tools: Sequence[ToolSpec]) -> str:
    """Where every conversation under these tools begins: other tools are another prompt, so another conversation."""
    return _digest([template_hash, tool_schemas(tools)])


def message_fingerprint(message: ChatMessage) -> str:
    """The same for every way a client may hand the message back.

    White space around an assistant's text and the spelling of its arguments do not count; ids of calls are not part.
    """
    text = message.text.strip() if message.role == "assistant" else message.text
    return _digest([message.role, text, [[call.name, _plain(call.arguments)] for call in message.calls]])


def chain(root: str, messages: Sequence[ChatMessage]) -> list[str]:
    """One fingerprint per prefix of the conversation, from none of the messages to all of them."""
    links = [root]
    for message in messages:
        links.append(_digest([links[-1], message_fingerprint(message)]))
    return links


def extended(link: str, message: ChatMessage) -> str:
    """The fingerprint of the conversation ``link`` with one more message."""
    return _digest([link, message_fingerprint(message)])


def call_fingerprint(link: str, call: ChatCall, sampling: Sampling) -> str:
    """The same for calls that ask for the very same: the conversation, the choice of tools and the sampling."""
    choice, asked = call.tool_choice, call.sampling
    return _digest(
        [
            link,
            [choice.mode, choice.name, choice.max_calls],
            [sampling.temperature, sampling.top_p, sampling.max_new_tokens, call.num_choices],
            [list(asked.stop), sorted(asked.more.items())],
        ]
    )


def _plain(arguments: str) -> str:
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


def _digest(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value)).hexdigest()[:_LENGTH]
