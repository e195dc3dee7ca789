"""The client that fits the engine of a configuration: one that names adapters where the policy is made of them."""

from __future__ import annotations

from online_agent.config.settings import Settings
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.client import EngineClient
from online_agent.weights.experts import ExpertShape

_NO_LIMIT = 0
"""Callers limit their calls. At a limit here they would wait for each other, and aborts for what they are to end."""


def connect(
    settings: Settings, *, vocab_size: int = 0, context_length: int = 0, experts: ExpertShape | None = None
) -> EngineClient:
    """A client of ``engine.url``; both numbers are needed to generate, not to administer.

    ``experts``: those that it asks for with every generation (``serving/experts.py: recorded_experts``).
    """
    engine = settings.engine
    kind = EngineClient if settings.learner.adapter is None else AdapterClient
    return kind(
        engine.url,
        engine.api_key.get_secret_value(),
        engine.request_timeout_s,
        vocab_size=vocab_size,
        context_length=context_length,
        experts=experts,
        max_connections=_NO_LIMIT,
    )
