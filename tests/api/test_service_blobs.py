"""Blobs: sent once as a stream, checked by their hash, named by requests, and let go when there is no room."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from fake_planner import problem
from fastapi import FastAPI
from private_postgresql import each_database_url
from running_service import RunningService

from loadmaster.api.client import AsyncClient, Blob, Client
from loadmaster.api.server.app import create_app
from loadmaster.api.settings import Settings
from loadmaster.api.store import schema
from loadmaster.api.store.blobs import BlobPacker, Blobs, PackedBlob
from loadmaster.api.store.database import Database
from loadmaster.errors import InputError
from loadmaster.models.canonical import canonical_json

url = each_database_url
TEXT = json.dumps(problem(name="of a blob"), indent=4).encode()
SHA256 = hashlib.sha256(TEXT).hexdigest()
PATH = f"/v1/blobs/{SHA256}"


def packed(content: bytes) -> PackedBlob:
    packer = BlobPacker()
    packer.add(content, 0)
    return packer.packed()


async def in_pieces(content: bytes, size: int = 10) -> AsyncIterator[bytes]:
    for begin in range(0, len(content), size):
        yield content[begin : begin + size]


async def test_a_blob_comes_back_as_it_was_sent(http: httpx.AsyncClient) -> None:
    assert (await http.head(PATH)).status_code == 404
    missing = await http.get(PATH)
    assert (missing.status_code, missing.json()["type"]) == (404, "urn:loadmaster:problem:not-found")
    sent = await http.put(PATH, content=in_pieces(TEXT))
    assert (sent.status_code, sent.headers["location"]) == (201, PATH)
    assert (await http.put(PATH, content=TEXT)).status_code == 200
    there = await http.head(PATH)
    assert (there.status_code, there.headers["content-length"], there.content) == (200, str(len(TEXT)), b"")
    got = await http.get(PATH)
    assert (got.content, got.headers["content-type"]) == (TEXT, "application/octet-stream")
    assert got.headers["x-content-type-options"] == "nosniff"


async def test_a_large_blob_and_an_empty_one(http: httpx.AsyncClient) -> None:
    for content in (random.Random(0).randbytes(190_000), b"0" * 200_000, b""):
        path = f"/v1/blobs/{hashlib.sha256(content).hexdigest()}"
        assert (await http.put(path, content=in_pieces(content, 7000))).status_code == 201
        assert (await http.get(path)).content == content


async def test_refusals(http: httpx.AsyncClient) -> None:
    wrong = await http.put(PATH, content=TEXT + b" ")
    assert wrong.status_code == 422
    (error,) = wrong.json()["errors"]
    assert error["field"] == "path.sha256"
    assert hashlib.sha256(TEXT + b" ").hexdigest() in error["problem"]
    assert (await http.put("/v1/blobs/" + SHA256.upper(), content=TEXT)).status_code == 422
    assert (await http.put("/v1/blobs/nothing", content=TEXT)).status_code == 422
    encoded = await http.put(PATH, content=TEXT, headers={"Content-Encoding": "gzip"})
    assert encoded.status_code == 415
    assert (await http.put(PATH, content=in_pieces(b" " * 200_001, 10_000))).status_code == 413
    assert (await http.head(PATH)).status_code == 404


async def test_a_request_names_a_blob(http: httpx.AsyncClient) -> None:
    body = {"problem": {"blob_sha256": SHA256}}
    before = await http.post("/v1/plans", json=body)
    assert before.status_code == 422
    (error,) = before.json()["errors"]
    assert (error["pointer"], error["problem"]) == ("/problem/blob_sha256", "is no blob that is here")
    await http.put(PATH, content=TEXT)
    sized = await http.post("/v1/plans", params={"dry_run": True}, json=body)
    assert (sized.status_code, sized.json()["name"]) == (200, "of a blob")
    plan = await http.post("/v1/plans", json=body)
    assert (plan.status_code, plan.json()["name"]) == (202, "of a blob")
    # What is planned does not depend on the blob any more.
    kept = await http.get(plan.headers["location"] + "/problem")
    assert kept.content == canonical_json(problem(name="of a blob"))
    sweep = await http.post("/v1/frontiers", json={**body, "budgets_bytes": [1, 2]})
    assert (sweep.status_code, len(sweep.json()["points"])) == (202, 2)


@pytest.mark.parametrize("name", [None, 3, ["x"], "", "x" * 10_000, "\x00"])
async def test_names_that_are_none(http: httpx.AsyncClient, name: Any) -> None:
    answer = await http.post("/v1/plans", json={"problem": {"blob_sha256": name}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "problem.blob_sha256"


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b'{"a": 1e999}', b"[" * 100_000, b'{"kind":"fake"}'])
async def test_a_blob_that_is_no_problem(http: httpx.AsyncClient, content: bytes) -> None:
    sha256 = hashlib.sha256(content).hexdigest()
    assert (await http.put(f"/v1/blobs/{sha256}", content=content)).status_code == 201
    answer = await http.post("/v1/plans", json={"problem": {"blob_sha256": sha256}})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"].startswith("problem.")


async def test_a_blob_that_is_read_takes_of_the_memory_for_bodies(make_settings: Callable[..., Settings]) -> None:
    """A small request may name a large blob."""
    content = json.dumps(problem(name="n", data=[1] * 20_000)).encode()
    path = f"/v1/blobs/{hashlib.sha256(content).hexdigest()}"
    body = json.dumps({"problem": {"blob_sha256": path.rpartition("/")[2]}}).encode()
    half_sent, go_on = asyncio.Event(), asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield body[:-1]
        half_sent.set()
        await go_on.wait()
        yield body[-1:]

    app = create_app(make_settings(max_bodies_memory_bytes=500_000))
    transport, json_type = httpx.ASGITransport(app), {"Content-Type": "application/json"}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.put(path, content=content)).status_code == 201
        other = asyncio.create_task(http.post("/v1/plans", content=slowly(), headers=json_type))
        await half_sent.wait()
        beside = await http.post("/v1/plans", content=body, headers=json_type)
        assert (beside.status_code, beside.json()["type"]) == (503, "urn:loadmaster:problem:busy")
        go_on.set()
        # It is alone now, and has given back what the other one could not get.
        assert (await other).status_code == 202
        assert (await http.post("/v1/plans", content=body, headers=json_type)).status_code == 202


def test_blobs_used_longest_ago_make_room(url: str) -> None:
    database = Database(url)
    contents = [random.Random(seed).randbytes(1000) for seed in range(4)]
    sizes = [len(packed(content).body) for content in contents]
    blobs = Blobs(database, max_bytes=sum(sizes[:3]) + 2)
    names = [packed(content).sha256 for content in contents]
    for content in contents[:3]:
        assert blobs.put(packed(content))
    blobs.use(names[0])
    assert not blobs.put(packed(contents[1]))
    assert blobs.put(packed(contents[3]))
    assert [name in names[:2] + names[3:] for name in names] == [blobs.head(name) is not None for name in names]
    # One that is larger than all the room is kept, alone.
    large = packed(random.Random(9).randbytes(5000))
    assert blobs.put(large)
    assert [blobs.head(name) for name in names] == [None] * 4
    found = blobs.get(large.sha256)
    assert found == large
    database.close()


def test_the_client_sends_a_problem_once(start_service: Callable[..., RunningService], tmp_path: Path) -> None:
    service, path = start_service(), tmp_path / "problem.json"
    path.write_text(json.dumps(problem(name="large")))
    methods: list[str] = []

    class Noting(httpx.HTTPTransport):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            methods.append(request.method)
            return super().handle_request(request)

    with Client(service.url, transport=Noting()) as client:
        blob = client.upload(path)
        assert client.upload(problem(name="large")) == blob
        assert methods == ["HEAD", "PUT", "HEAD"]
        assert client.submit(blob).state().name == "large"
        assert client.dry_run(blob).name == "large"
        with pytest.raises(InputError, match="is no blob"):
            client.submit(Blob("0" * 64))


async def test_the_asyncio_client_does_the_same(app: FastAPI) -> None:
    async with AsyncClient("http://localhost", transport=httpx.ASGITransport(app)) as client:
        blob = await client.upload(problem(name="large"))
        assert await client.upload(problem(name="large")) == blob
        handle = await client.submit(blob)
        assert (await handle.state()).name == "large"


@pytest.mark.parametrize("body", [b"nonsense", packed(TEXT).body[:-9], b""])
async def test_a_damaged_blob_is_none_and_is_sent_again(http: httpx.AsyncClient, app: FastAPI, body: bytes) -> None:
    assert (await http.put(PATH, content=TEXT)).status_code == 201
    with app.state.service.database.write() as connection:
        connection.execute(sa.update(schema.blob).values(body=body))
    named = {"problem": {"blob_sha256": SHA256}}
    refused = await http.post("/v1/plans", json=named)
    assert (refused.status_code, refused.json()["errors"][0]["problem"]) == (422, "is no blob that is here")
    assert (await http.put(PATH, content=TEXT)).status_code == 201
    assert (await http.post("/v1/plans", json=named)).status_code == 202
