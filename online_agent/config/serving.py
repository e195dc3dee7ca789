"""Settings of what answers requests: engine, agent, sandbox, HTTP and the clients' protocols."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, SecretStr

from online_agent.config.section import PositiveFloat, PositiveInt, Section

DEFAULT_MODEL_NAME = "online-agent"
"""What clients call the served policy, whatever version of it serves."""


class EngineSettings(Section):
    """The SGLang server. ``url`` empty means the supervisor starts one on this machine.

    ``return_routed_experts``: whether it returns the experts that it used, so that they can be replayed in training;
    ``auto`` does for models that have some. ``grammar_backend``: what holds answers to a format that a client asks for
    (``response_format``); with one the server loads its own tokenizer and writes texts that nobody reads. An engine
    that answers nothing for ``request_timeout_s`` is unavailable: a stream has to say something in that time, a call
    without one has to be over.
    """

    url: str = ""
    api_key: SecretStr = SecretStr("")
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_length: PositiveInt = 1024
    max_total_tokens: PositiveInt = 65536
    max_running_requests: PositiveInt = 64
    start_timeout_s: PositiveFloat = 180.0
    request_timeout_s: PositiveFloat = 600.0
    swap_timeout_s: PositiveFloat = 60.0
    num_threads: PositiveInt = 1
    return_routed_experts: Literal["auto", "on", "off"] = "auto"
    grammar_backend: Literal["none", "xgrammar"] = "none"
    extra_args: tuple[str, ...] = ()


class AgentSettings(Section):
    """The loop: how an episode is sampled and when it is cut short.

    ``group_size``: how many episodes a request without one of its own runs of its task, so that a recipe which compares
    the rollouts of a group learns from every client. Only of the train split, unpinned, with trainable sampling and not
    streamed; held-out tasks never.
    """

    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_new_tokens: PositiveInt = 64
    max_turns: PositiveInt = 6
    max_tokens: PositiveInt = 512
    timeout_s: PositiveFloat = 120.0
    max_episodes_in_flight: PositiveInt = 64
    max_episodes_queued: PositiveInt = 256
    group_size: Annotated[int, Field(ge=2, le=64)] | None = None


class SandboxSettings(Section):
    kind: Literal["nsjail"] = "nsjail"
    max_jobs: PositiveInt = 8
    timeout_s: PositiveFloat = 5.0
    memory_mb: PositiveInt = 512
    max_output_bytes: PositiveInt = 65_536
    first_uid: PositiveInt = 20_001


class ApiSettings(Section):
    """A key that opened is not read from the database again for ``key_cache_s``: what another process revokes opens
    nothing after that; 0 reads it with every call.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    max_body_bytes: PositiveInt = 16_000_000
    drain_timeout_s: PositiveFloat = 30.0
    held_timeout_s: PositiveFloat = 60.0
    key_cache_s: Annotated[float, Field(ge=0, le=60)] = 1.0


ToolCallFamily = Literal[
    "hermes", "llama3", "mistral", "pythonic", "deepseekv3", "deepseekv31", "kimi_k2", "qwen3_coder", "glm45"
]


class GatewaySettings(Section):
    """Clients' own agents, served through the OpenAI and Anthropic protocols.

    An episode without a call for ``idle_timeout_s`` is over; one that nobody rewards within ``reward_wait_s`` of its
    end is dropped. An engine that is away is asked again for ``engine_wait_s``. ``tool_call_family``: how the served
    model writes tool calls; all but Hermes (Qwen 2.5 and 3, and the seed policy) is read by SGLang's own parsers.
    """

    tool_call_family: ToolCallFamily = "hermes"
    model_name: Annotated[str, Field(min_length=1, max_length=100)] = DEFAULT_MODEL_NAME
    max_new_tokens: PositiveInt = 1024
    max_choices: PositiveInt = 8
    max_messages: PositiveInt = 4096
    max_tools: PositiveInt = 256
    max_calls_in_flight: PositiveInt = 1024
    engine_wait_s: PositiveFloat = 10.0
    idle_timeout_s: PositiveFloat = 1800.0
    reward_wait_s: PositiveFloat = 604_800.0
    sweep_s: PositiveFloat = 15.0
