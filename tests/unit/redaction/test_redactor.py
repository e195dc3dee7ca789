"""Which texts hold a secret, and what is left of them."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from online_agent.config.settings import load_settings
from online_agent.errors import ConfigError
from online_agent.redaction import Redactor
from online_agent.redaction.redactor import Found
from tests.fakes.secrets import KEY_BLOCK, PARTS, SECRETS

redactor = Redactor.of()
AWS_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_replaced_by_the_name_of_its_form(name: str) -> None:
    text = f"take {SECRETS[name]} and go"
    redacted = redactor.text(text)
    assert f"[redacted:{name}]" in redacted
    assert PARTS[name] not in redacted
    assert redacted.startswith("take ")
    assert redacted.endswith(" and go")


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("ghp_16C7e42F292c6912E7710c838347Ae178B4a", "[redacted:api_key]"),
        ("hf_abcdefghijklmnopqrstuvwxyz0123456789", "[redacted:api_key]"),
        ("xoxb-17653672481-19874698323", "[redacted:api_key]"),
        ("AIzaSyD-9tSrke72PouQMnMX-a7eZSW0jkFMBWY", "[redacted:api_key]"),
        ("oa_0123456789ab_Zm9vYmFyYmF6cXV4Zm9vYmFy", "[redacted:api_key]"),
        (f"aws_secret_access_key = {AWS_SECRET}", "aws_secret_access_key = [redacted:aws_key]"),
        (f'"SecretAccessKey": "{AWS_SECRET}"', '"SecretAccessKey": "[redacted:aws_key]"'),
        ("https://u:p4ss@host/x", "https://u:[redacted:url_password]@host/x"),
        ("Authorization: Bearer abc123def456ghi789", "Authorization: Bearer [redacted:bearer_token]"),
        (KEY_BLOCK[:60], "[redacted:private_key]"),
        (KEY_BLOCK.replace("\n", "\\n") + '"}', '[redacted:private_key]"}'),
    ],
)
def test_what_is_left_of_a_text(text: str, redacted: str) -> None:
    assert redactor.text(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "the task-list of a risk-averse-but-otherwise-fine team",
        "sk-learn-compatible-estimators-everywhere",
        'if line == "-----BEGIN PRIVATE KEY-----": break',
        "Bearer authentication is described below",
        "AKIA is a prefix; AKIASHORT is not a key",
        "https://host:8080/path and ssh://user@host",
        "x@y.example writes mail",
        "eyJ is how base64 of an object begins",
    ],
)
def test_text_that_only_looks_alike_stays(text: str) -> None:
    assert redactor.text(text) == text


@given(before=st.text(max_size=20), name=st.sampled_from(sorted(SECRETS)), after=st.text(max_size=20))
def test_a_text_that_was_redacted_once_stays_as_it_is(before: str, name: str, after: str) -> None:
    once = redactor.text(f"{before} {SECRETS[name]} {after}")
    assert redactor.text(once) == once
    assert redactor.find(once) == []


def test_only_the_secret_of_a_match_is_found() -> None:
    assert redactor.find("a Bearer abc123def456ghi789") == [Found("bearer_token", 9, 27)]


def test_every_text_of_a_json_value_is_redacted_whatever_its_spelling() -> None:
    value = {"a": ["x", {SECRETS["aws_key"]: SECRETS["jwt"]}], "n": 1.5, "b": None}
    expected = {"a": ["x", {"[redacted:aws_key]": "[redacted:jwt]"}], "n": 1.5, "b": None}
    assert redactor.json(value) == expected
    hidden = '{"k": "\\u0041KIAQ3EGTR7XW5LMNP2Z"}'
    assert redactor.json_text(hidden) == '{"k":"[redacted:aws_key]"}'
    assert redactor.json_text('{"k":  "fine"}') == '{"k":  "fine"}'
    assert redactor.json_text(f"not json {SECRETS['aws_key']}") == "not json [redacted:aws_key]"


def test_a_text_is_found_clean_or_not_however_often_it_comes() -> None:
    fresh = Redactor.of()
    for _ in range(3):
        assert fresh.text("fine") == "fine"
        assert fresh.find(SECRETS["aws_key"]) == [Found("aws_key", 0, 20)]
        assert fresh.text(SECRETS["aws_key"]) == "[redacted:aws_key]"


def test_each_replacement_is_told_by_name_and_never_by_content() -> None:
    told: Counter[str] = Counter()
    counting = Redactor.of(tell=lambda name: told.update([name]))
    counting.text(f"{SECRETS['jwt']} {SECRETS['aws_key']} {SECRETS['jwt']}")
    assert told == {"jwt": 2, "aws_key": 1}


def test_kinds_and_own_patterns_are_configuration() -> None:
    settings = load_settings(redaction={"kinds": ["email"], "patterns": {"ticket": r"TICKET-\d+"}})
    own = settings.redaction.redactor()
    assert own.text(f"mail x@y.example about TICKET-12 {SECRETS['aws_key']}") == (
        f"mail [redacted:email] about [redacted:ticket] {SECRETS['aws_key']}"
    )


@pytest.mark.parametrize("expression", ["(", "x*", r"redacted:\w+", r"\*+"])
def test_a_pattern_that_cannot_be_used_is_refused_by_name(expression: str) -> None:
    with pytest.raises(ConfigError, match="mine"):
        load_settings(redaction={"patterns": {"mine": expression}})
