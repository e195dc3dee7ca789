"""The OpenAPI document says what the server does: the error shape of each path, keys on every call that needs one."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from api.auth import needs_key
from api.errors import ANTHROPIC_PATHS, AnthropicErrorAnswer, ErrorAnswer


def _error_of(path: str) -> dict[str, Any]:
    shape = AnthropicErrorAnswer if path.startswith(ANTHROPIC_PATHS) else ErrorAnswer
    return {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{shape.__name__}"}}}}


_SECURITY: list[dict[str, list[str]]] = [{"bearer": []}, {"api_key": []}]
_METHODS = ("get", "post", "put", "patch", "delete")


def describe(app: FastAPI) -> None:
    """``app.openapi()`` and ``/openapi.json`` give the corrected document, built once."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _corrected(
                get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            )
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]


def _corrected(document: dict[str, Any]) -> dict[str, Any]:
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    for shape in (ErrorAnswer, AnthropicErrorAnswer):
        error = shape.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas.update(error.pop("$defs"))
        schemas[shape.__name__] = error
    components["securitySchemes"] = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "api_key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                _correct_operation(path, operations[method])
    return document


def _correct_operation(path: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    responses.pop("422", None)  # what does not validate is answered 400, in our shape
    responses["default"] = {"description": "An error", **_error_of(path)}
    if needs_key(path):
        operation["security"] = _SECURITY
