"""Names of span attributes: OpenTelemetry's GenAI semantic conventions, and our own where these have none.

The conventions' package keeps the GenAI names in a module that may change with every release, so they are written down
here and compared with it by a test. Attributes that would hold messages are left out on purpose.
"""

from __future__ import annotations

from typing import Final

OPERATION: Final = "gen_ai.operation.name"
PROVIDER: Final = "gen_ai.provider.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
AGENT_NAME: Final = "gen_ai.agent.name"
OUTPUT_TYPE: Final = "gen_ai.output.type"
REQUEST_MODEL: Final = "gen_ai.request.model"
REQUEST_TEMPERATURE: Final = "gen_ai.request.temperature"
REQUEST_TOP_P: Final = "gen_ai.request.top_p"
REQUEST_MAX_TOKENS: Final = "gen_ai.request.max_tokens"
REQUEST_CHOICES: Final = "gen_ai.request.choice.count"
REQUEST_SEED: Final = "gen_ai.request.seed"
REQUEST_FREQUENCY_PENALTY: Final = "gen_ai.request.frequency_penalty"
REQUEST_PRESENCE_PENALTY: Final = "gen_ai.request.presence_penalty"
REQUEST_STREAM: Final = "gen_ai.request.stream"
RESPONSE_ID: Final = "gen_ai.response.id"
RESPONSE_MODEL: Final = "gen_ai.response.model"
FINISH_REASONS: Final = "gen_ai.response.finish_reasons"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHED_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_TYPE: Final = "gen_ai.tool.type"
SCORE: Final = "gen_ai.evaluation.score.value"
ERROR_TYPE: Final = "error.type"

EPISODE: Final = "online_agent.episode.id"
ENV: Final = "online_agent.env"
TASK: Final = "online_agent.task.id"
STOP_REASON: Final = "online_agent.stop_reason"
STEP: Final = "online_agent.step"
STEP_OUTCOME: Final = "online_agent.step.outcome"
STEP_REASON: Final = "online_agent.step.reason"
NUM_EPISODES: Final = "online_agent.step.num_episodes"
WEIGHT_VERSION: Final = "online_agent.weight_version"
PARENT_VERSION: Final = "online_agent.parent_version"
WEIGHT_VERSIONS: Final = "online_agent.weight_versions"

SGLANG: Final = "sglang"
"""No well-known provider fits weights of one's own: the convention then takes the name of the server."""
