"""What secrets look like. A form is told by shape alone: what has no shape of its own cannot be found.

Each pattern names substrings, one of which stands in every match: text without them is not searched. A group ``keep``
at the beginning of a match stays. A secret that was cut off is found as soon as its form shows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

SecretKind = Literal["api_key", "aws_key", "bearer_token", "email", "jwt", "private_key", "url_password"]
DEFAULT_KINDS: tuple[SecretKind, ...] = tuple(kind for kind in get_args(SecretKind) if kind != "email")
BLANK = "*"
"""What stands for each sampled token that held a secret."""

_ALONE = r"(?<![A-Za-z0-9_-])"
_HAS_DIGIT = r"(?=[A-Za-z_.~+/=-]*[0-9])"
_KEY_NAME = r"(?:PRIVATE KEY(?: BLOCK)?)"
_KEY_BODY = r"A-Za-z0-9+/=:,\-\s\\"


@dataclass(frozen=True, slots=True)
class SecretPattern:
    """``hints``: no match without one of them; none: every text is searched."""

    name: str
    regex: re.Pattern[str]
    hints: tuple[str, ...] = ()

    @property
    def mask(self) -> str:
        return f"[redacted:{self.name}]"

    def may_match(self, text: str) -> bool:
        for hint in self.hints:  # a plain loop: this runs for every text of every call
            if hint in text:
                return True
        return not self.hints


def own_pattern(name: str, expression: str) -> SecretPattern:
    """A pattern of the configuration. Raises ValueError where it is none, or would match what stands for a secret."""
    try:
        pattern = SecretPattern(name, re.compile(expression))
    except re.error as error:
        raise ValueError(f"{name}: {error}") from error
    if pattern.regex.search("") or pattern.regex.search(pattern.mask) or pattern.regex.search(BLANK * 64):
        raise ValueError(f"{name}: the pattern matches the empty text or what stands for a secret")
    return pattern


def _kind(name: SecretKind, expression: str, *hints: str) -> SecretPattern:
    return SecretPattern(name, re.compile(expression), hints)


KNOWN_FORMS: tuple[SecretPattern, ...] = (
    _kind(
        "private_key",
        rf"-----BEGIN (?:[A-Z0-9]+ ){{0,3}}{_KEY_NAME}-----[{_KEY_BODY}]{{16,}}?"
        rf"(?:-----END (?:[A-Z0-9]+ ){{0,3}}{_KEY_NAME}-----|(?=[^{_KEY_BODY}])|\Z)",
        "-----BEGIN ",
    ),
    _kind(
        "api_key",
        rf"{_ALONE}(?:sk-{_HAS_DIGIT}[A-Za-z0-9_-]{{20,}}|gh[pousr]_[A-Za-z0-9]{{20,}}|github_pat_[A-Za-z0-9_]{{20,}}"
        r"|glpat-[A-Za-z0-9_-]{16,}|xox[abeprs]-[A-Za-z0-9-]{10,}|AIza[A-Za-z0-9_-]{30,}"
        r"|[prs]k_(?:live|test)_[A-Za-z0-9]{16,}|hf_[A-Za-z0-9]{24,}|npm_[A-Za-z0-9]{30,}"
        r"|oa_[0-9a-f]{12}_[A-Za-z0-9_-]{20,})",
        *("sk-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "AIza", "k_live_", "k_test_"),
        *("hf_", "npm_", "oa_"),
    ),
    _kind("aws_key", rf"{_ALONE}(?:AKIA|ASIA)[A-Z0-9]{{16}}", "AKIA", "ASIA"),
    _kind(
        "aws_key",
        r"(?P<keep>(?i:secret_?access_?key)[\"']?\s{0,4}[=:]\s{0,4}[\"']?)[A-Za-z0-9/+=]{40}(?![A-Za-z0-9/+=])",
        *("secret_access_key", "SECRET_ACCESS_KEY", "SecretAccessKey", "secretAccessKey"),
    ),
    _kind("jwt", rf"{_ALONE}eyJ[A-Za-z0-9_-]{{8,}}\.[A-Za-z0-9_-]{{8,}}(?:\.[A-Za-z0-9_-]*)?", "eyJ"),
    _kind(
        "bearer_token",
        rf"(?P<keep>\b[Bb](?:earer|EARER)\s{{1,4}}){_HAS_DIGIT}[A-Za-z0-9._~+/=-]{{16,}}",
        *("earer", "EARER"),
    ),
    _kind(
        "url_password",
        r"(?P<keep>\b[a-z][a-z0-9+.-]{1,20}://[^\s/:@\"']{0,100}:)(?!\[redacted:|\*+@)[^\s@/\"']{3,200}(?=@)",
        "://",
    ),
    _kind("email", r"[A-Za-z0-9._%+-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}", "@"),
)
