"""The description at /openapi.json: valid, complete, and true to what the service answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fake_planner import problem

PATHS = {
    "/v1/plans": {"get", "post"},
    "/v1/plans/{plan_id}": {"get", "delete"},
    "/v1/plans/{plan_id}:cancel": {"post"},
    "/v1/plans/{plan_id}/events": {"get"},
    "/v1/plans/{plan_id}/export/{name}": {"get"},
    "/v1/plans/{plan_id}/result": {"get"},
    "/v1/plans/{plan_id}/problem": {"get"},
    "/v1/plans/{plan_id}/measurement": {"get", "put"},
    "/v1/plans/{plan_id}/log": {"get"},
    "/v1/blobs/{sha256}": {"get", "head", "put"},
    "/v1/frontiers": {"post"},
    "/v1/frontiers/{frontier_id}": {"get"},
    "/v1/frontiers/{frontier_id}:cancel": {"post"},
    "/v1/solvers": {"get"},
    "/v1/hardware": {"get"},
    "/livez": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


@pytest.fixture
async def description(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.get("/openapi.json")
    assert answer.status_code == 200
    return dict(answer.json())


def references(node: Any) -> Iterator[str]:
    """All $ref in a document."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from references(value)
    elif isinstance(node, list):
        for value in node:
            yield from references(value)


def test_every_path_is_listed(description: dict[str, Any]) -> None:
    assert {path: set(methods) for path, methods in description["paths"].items()} == PATHS


def test_it_is_sound(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1")
    assert set(description) >= {"info", "paths", "components"}
    for reference in references(description):
        node: Any = description
        assert reference.startswith("#/")
        for part in reference[2:].split("/"):
            node = node[part.replace("~1", "/").replace("~0", "~")]
    operations = [op for methods in description["paths"].values() for op in methods.values()]
    assert len({op["operationId"] for op in operations}) == len(operations)
    for path, methods in description["paths"].items():
        for operation in methods.values():
            named = {p["name"] for p in operation.get("parameters", []) if p["in"] == "path"}
            assert named == {part.split("}")[0] for part in path.split("{")[1:]}
            assert operation["responses"]
            assert all(response["description"] for response in operation["responses"].values())


def test_the_best_plan_so_far_is_described(description: dict[str, Any]) -> None:
    for path in ("result", "export/{name}"):
        read = description["paths"][f"/v1/plans/{{plan_id}}/{path}"]["get"]
        (asked,) = [parameter for parameter in read["parameters"] if parameter["name"] == "incumbent"]
        assert "latest" in str(asked["schema"]) and "best plan so far" in asked["description"]
        assert {"200", "404", "409", "422"} <= set(read["responses"])


def test_bodies_and_refusals_are_described(description: dict[str, Any]) -> None:
    submit = description["paths"]["/v1/plans"]["post"]
    body = submit["requestBody"]["content"]["application/json"]["schema"]
    assert body == {"$ref": "#/components/schemas/PlanRequest"}
    assert description["components"]["schemas"]["PlanRequest"]["required"] == ["problem"]
    assert {"200", "202", "413", "415", "422"} <= set(submit["responses"])
    assert "application/problem+json" in submit["responses"]["422"]["content"]


async def test_answers_have_the_described_fields(http: httpx.AsyncClient, description: dict[str, Any]) -> None:
    plan = (await http.post("/v1/plans", json={"problem": problem()})).json()
    assert set(plan) == set(description["components"]["schemas"]["PlanResource"]["properties"])
    assert json.dumps(plan)
