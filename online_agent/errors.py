"""The exception tree: one class per decision a caller can take.

    OnlineAgentError
    ├── ConfigError                 the configuration is wrong; nothing was started
    ├── BadInput                    the caller sent something unusable (HTTP 400/413/422)
    │   ├── UnknownName             an env, task, tool, model or change kind that does not exist (404)
    │   └── TooLarge                over a documented limit (413)
    ├── NotFound                    no such row for this tenant (404)
    ├── Conflict                    the row is in another state, or the key was used with another body (409)
    ├── NotAuthenticated            no key, or one that is unknown or revoked (401)
    ├── NotAllowed                  the key lacks the scope (403)
    ├── Busy                        a bounded queue is full, or weights are being swapped (429/503 + Retry-After)
    │   └── DatabaseBusy            no lock or no connection in time: the service's own, not the caller's rate (503)
    ├── EngineError                 the engine call failed: an outage, never a reward
    │   ├── EngineUnavailable       not reachable or not ready; worth a retry
    │   ├── EngineRejected          the engine answered 4xx: the request itself is wrong
    │   └── EngineProtocolError     the answer does not line up (counts, nulls); not trainable
    ├── MisalignedEpisode           ids, log-probs, masks or version runs do not line up
    ├── WeightsError                a version directory cannot be used
    │   ├── CorruptVersion          missing, truncated or changed file; non-finite tensor
    │   └── ForeignVersion          tensors do not fit the served architecture
    ├── SwapFailed                  the engine did not take the version; the last good one serves
    │   └── EngineLost              nor could the last good one be restored: it serves nothing, restart it
    ├── JudgeFailed                 the judge gave no verdict that can be read: no feedback comes of it
    ├── JudgeUnavailable            the judge is not there: ask again later
    ├── BrokerUnavailable           Redis is not reachable; the work stays in the database
    ├── StorageFull                 not enough free space for the next version
    └── Fenced                      a rollback overtook this work; drop it

What goes wrong below the agent (sandbox, changes) is in ``envs.errors``.
Errors carry the offending value in the message. ``param`` names the request field, where there is one.
"""

from __future__ import annotations


class OnlineAgentError(Exception):
    """Base of every error this package raises on purpose."""

    code: str = "internal_error"
    http_status: int = 500

    def __init__(self, message: str, *, param: str | None = None, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s


class ConfigError(OnlineAgentError):
    code = "config_error"


class BadInput(OnlineAgentError):
    code, http_status = "bad_input", 400


class UnknownName(BadInput):
    code, http_status = "unknown_name", 404


class TooLarge(BadInput):
    code, http_status = "too_large", 413


class NotFound(OnlineAgentError):
    code, http_status = "not_found", 404


class Conflict(OnlineAgentError):
    code, http_status = "conflict", 409


class NotAuthenticated(OnlineAgentError):
    code, http_status = "not_authenticated", 401


class NotAllowed(OnlineAgentError):
    code, http_status = "not_allowed", 403


class Busy(OnlineAgentError):
    code, http_status = "busy", 429


class DatabaseBusy(Busy):
    http_status = 503


class EngineError(OnlineAgentError):
    code, http_status = "engine_error", 502


class EngineUnavailable(EngineError):
    code, http_status = "engine_unavailable", 503


class EngineRejected(EngineError):
    code, http_status = "engine_rejected", 400


class EngineProtocolError(EngineError):
    code = "engine_protocol_error"


class MisalignedEpisode(OnlineAgentError):
    code, http_status = "misaligned_episode", 422


class WeightsError(OnlineAgentError):
    code, http_status = "weights_error", 409


class CorruptVersion(WeightsError):
    code = "corrupt_version"


class ForeignVersion(WeightsError):
    code = "foreign_version"


class SwapFailed(OnlineAgentError):
    code, http_status = "swap_failed", 503


class EngineLost(SwapFailed):
    code = "engine_lost"


class JudgeFailed(OnlineAgentError):
    code, http_status = "judge_failed", 502


class JudgeUnavailable(OnlineAgentError):
    code, http_status = "judge_unavailable", 503


class BrokerUnavailable(OnlineAgentError):
    code, http_status = "broker_unavailable", 503


class StorageFull(OnlineAgentError):
    code, http_status = "storage_full", 507


class Fenced(OnlineAgentError):
    code, http_status = "fenced", 409


def reason_of(error: BaseException) -> str:
    """What an error says, or its kind where it says nothing (a time-out, a cancellation)."""
    return str(error) or type(error).__name__
