"""Secrets never reach a log: by the name of the field, and by their shape inside any text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from online_agent.redaction import Redactor

MASK = "***"

_FORMS = Redactor.of()

_SECRET_FIELDS = frozenset(
    {
        "authorization",
        "cookie",
        "password",
        "passwd",
        "secret",
        "token",
        "api_key",
        "apikey",
        "requirepass",
        "x-api-key",
    }
)
_SECRET_SUFFIXES = ("_secret", "_password", "_api_key", "_auth_token", "_access_token")

# user:password@ in any URL; "Bearer ..." headers; key=value pairs as command lines and queries carry them.
_URL_PASSWORD = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s@/]+(?=@)", re.IGNORECASE)
_BEARER = re.compile(r"\b(?P<word>bearer)\s+[A-Za-z0-9._~+/=-]{6,}", re.IGNORECASE)
_KEY_VALUE = re.compile(
    r"\b(?P<name>api[-_]key|x-api-key|password|passwd|requirepass|secret)(?P<sep>\"?\s*[=:]\s*\"?|\s+)[^\s\"',;&]+",
    re.IGNORECASE,
)


def is_secret_field(name: str) -> bool:
    """Whether a field of that name holds a secret. Counts and ids (``max_tokens``, ``key_id``) do not."""
    lowered = name.lower()
    return lowered in _SECRET_FIELDS or lowered.endswith(_SECRET_SUFFIXES)


def redact_text(text: str, forms: Redactor = _FORMS) -> str:
    """The text with passwords in URLs, bearer tokens, ``key=value`` secrets and all known forms of keys masked."""
    text = _URL_PASSWORD.sub(rf"\g<scheme>{MASK}", text)
    text = _BEARER.sub(rf"\g<word> {MASK}", text)
    return forms.text(_KEY_VALUE.sub(rf"\g<name>\g<sep>{MASK}", text))


def redact(value: Any, forms: Redactor = _FORMS) -> Any:
    """The same value with every secret masked, at any depth; what JSON cannot write becomes text."""
    if isinstance(value, str):
        return redact_text(value, forms)
    if isinstance(value, Mapping):
        return {k: MASK if is_secret_field(str(k)) and v else redact(v, forms) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [redact(item, forms) for item in value]
    return value if value is None or isinstance(value, int | float) else redact_text(str(value), forms)
