"""Requests made from the OpenAPI document, valid and broken ones: never a 5xx, always what the document promises."""

from __future__ import annotations

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
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]

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
    response = case.call(base_url=served.url, headers=served.headers, timeout=10)
    case.validate_response(response, checks=CHECKS)
