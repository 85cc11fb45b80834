"""Additions to ``/openapi.json`` beyond what endpoints say of themselves: bodies, refusals, keys."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI

from loadmaster.api.documents import FrontierRequest, PlanRequest, ProblemDetails
from loadmaster.api.server.keys import OPEN
from loadmaster.api.server.problems import MEDIA_TYPE

__all__ = ["describe", "problem_answers"]

_SCHEME = "key"


def problem_answers(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals of an endpoint, for its description."""
    content = {MEDIA_TYPE: {"schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def describe(app: FastAPI, *, asks_for_keys: bool) -> None:
    """Add to the app's description the models of bodies that endpoints read by themselves, refusals, and keys."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            description = generate()
            for model in (PlanRequest, FrontierRequest, ProblemDetails):
                described = model.model_json_schema(ref_template="#/components/schemas/{model}")
                description["components"]["schemas"].update(described.pop("$defs", {}))
                description["components"]["schemas"][model.__name__] = described
            if asks_for_keys:
                _add_keys(description)
        assert app.openapi_schema is not None, "set by the first call"
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _add_keys(description: dict[str, Any]) -> None:
    described = "A key of the service: the scope read reads, submit submits and changes its own plans, admin all plans."
    scheme = {"type": "http", "scheme": "bearer", "description": described}
    description["components"]["securitySchemes"] = {_SCHEME: scheme}
    description["security"] = [{_SCHEME: []}]
    for path, operations in description["paths"].items():
        for operation in operations.values():
            if path in OPEN:
                operation["security"] = []
            else:
                refusals = problem_answers(401, 403)
                operation["responses"].update({str(status): answer for status, answer in refusals.items()})
