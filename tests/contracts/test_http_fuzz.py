"""Requests made from the OpenAPI document, valid and broken ones: never a 5xx, always what the document promises.

What is asked of every operation: the examples of the document, the borders of each value (lengths, numbers, types, what
is missing or too much), and then what Hypothesis comes up with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from api.app import create_app
from online_agent.config.settings import Settings
from tests.fakes.served import Served, serve_in_thread

EXAMPLES_PER_OPERATION = 6
MIN_REQUESTS = 2_000
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

MUST_BE_ASKED = {
    "DELETE /v1/keys/{key_id}",
    "DELETE /v1/people/{person}",
    "GET /v1/models",
    "GET /v1/receipts/{completion_id}",
    "POST /v1/chat/completions",
    "POST /v1/episodes/import",
    "POST /v1/episodes/{episode_id}/close",
    "POST /v1/keys",
    "POST /v1/messages",
    "POST /v1/responses",
}
num_requests: Counter[str] = Counter()

schema = schemathesis.openapi.from_dict(create_app(Settings(data_dir=Path("unused"))).openapi())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The application on a port, with scripted parts behind it."""
    with serve_in_thread(tmp_path_factory.mktemp("fuzz")) as running:
        yield running


@schema.parametrize()
@settings(
    max_examples=EXAMPLES_PER_OPERATION,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_no_generated_request_breaks_the_server_or_the_document(case: schemathesis.Case, served: Served) -> None:
    num_requests[case.operation.label] += 1
    response = case.call(base_url=served.url, headers=served.headers, timeout=10)
    case.validate_response(response, checks=CHECKS)


def test_every_operation_was_asked_two_thousand_times_in_all() -> None:
    """Of the requests of this file, which come first."""
    assert set(num_requests) == {operation.ok().label for operation in schema.get_all_operations()}
    assert set(num_requests) >= MUST_BE_ASKED
    assert num_requests.total() >= MIN_REQUESTS, f"{num_requests.total()} requests"
