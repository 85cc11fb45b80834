"""A kind from elsewhere: one registration, and planner, command line, service, client, pages and frontier serve it."""

from __future__ import annotations

import io
import itertools
import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loadmaster
from loadmaster.api.cli import app
from loadmaster.api.client import AsyncClient, Client
from loadmaster.api.errors import NoPlanError, UnknownPlanError
from loadmaster.api.settings import Settings
from loadmaster.api.worker.worker import Worker
from loadmaster.errors import InputError
from loadmaster.models.kinds import ENTRY_POINTS, all_kinds, check_plan, find_kind, installed_kinds, read_plan
from tests.api.running_service import RunningService

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACKAGE = ROOT / "loadmaster"

# The whole registration, as a package that is installed brings it.
REGISTRATION = f"[{ENTRY_POINTS}]\nbuckets = buckets:KIND\n"


@pytest.fixture(scope="module", autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The kind is there, in this process and in those that it starts."""
    site = tmp_path_factory.mktemp("site")
    installed = site / "buckets-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: buckets\nVersion: 1.0\n")
    (installed / "entry_points.txt").write_text(REGISTRATION)
    with pytest.MonkeyPatch.context() as patch:
        for folder in (site, HERE):
            patch.syspath_prepend(str(folder))
        patch.setenv("PYTHONPATH", os.pathsep.join(map(str, (ROOT, HERE, site))))
        installed_kinds.cache_clear()
        yield
    installed_kinds.cache_clear()


def run(*arguments: str | Path) -> int:
    """Exit status of a command; argparse ends a process where main returns."""
    try:
        return app.main([str(a) for a in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def made(ready_us: list[float], sizes_bytes: list[int], latency_us: float = 20.0, **changes: Any) -> Any:
    """A problem; 1 GB/s is 1,000 bytes a microsecond."""
    from buckets.problem import BucketsProblem, Gradient

    gradients = tuple(Gradient(*pair) for pair in zip(ready_us, sizes_bytes, strict=True))
    return BucketsProblem("a net", gradients, latency_us=latency_us, gbps=1.0, **changes)


def three(**changes: Any) -> Any:
    """Ready after 10, 20 and 30 us; each is 5 us on the link, and every message 20 more."""
    return made([10.0, 20.0, 30.0], [5000] * 3, **changes)


def by_hand(problem: Any, ends: tuple[int, ...]) -> float:
    """When messages with these ends have all arrived."""
    clock_us, first = 0.0, 0
    for end in ends:
        part = problem.gradients[first:end]
        clock_us = max(clock_us, part[-1].ready_us) + problem.latency_us + sum(g.size_bytes for g in part) / 1e3
        first = end
    return clock_us


def best(problem: Any, messages: int) -> float:
    """The best of all choices of up to so many messages."""
    count = len(problem.gradients)
    cuts = (cut for n in range(messages) for cut in itertools.combinations(range(1, count), n))
    return min(by_hand(problem, (*cut, count)) for cut in cuts)


def test_one_line_makes_it_known() -> None:
    assert REGISTRATION.count("\n") == 2
    assert "buckets" in all_kinds()
    assert find_kind("buckets") is all_kinds()["buckets"]
    mentions = [path for path in PACKAGE.rglob("*.py") if '"buckets"' in path.read_text("utf-8")]
    assert mentions == [], "nothing in the house knows of it"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("broken = buckets:NOTHING", "cannot be loaded: module 'buckets' has no attribute 'NOTHING'"),
        ("broken = no_such_package:KIND", "cannot be loaded: No module named 'no_such_package'"),
        ("broken = buckets:KIND", "is no kind of that name"),
        ("memory = memory_again:KIND", "takes the name of a kind of Loadmaster's own"),
    ],
)
def test_a_wrong_registration_is_named(line: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wrong-1.0.dist-info").mkdir()
    (tmp_path / "wrong-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: wrong\nVersion: 1.0\n")
    (tmp_path / "wrong-1.0.dist-info" / "entry_points.txt").write_text(f"[{ENTRY_POINTS}]\n{line}\n")
    (tmp_path / "memory_again.py").write_text("from loadmaster.models.kinds import KINDS\nKIND = KINDS['memory']\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    installed_kinds.cache_clear()
    try:
        assert find_kind("memory") is not None, "what is here needs nothing of others"
        with pytest.raises(InputError, match="Mend or uninstall the package") as caught:
            all_kinds()
        assert says in caught.value.problem
        assert caught.value.field == f"{ENTRY_POINTS}.{line.split()[0]}"
    finally:
        installed_kinds.cache_clear()


LISTS = """
import sys
from loadmaster.api.cli.app import parser
from loadmaster.models.kinds import all_kinds
assert {"memory", "collective", "buckets"} <= set(all_kinds())
parser().format_help()
loaded = {"buckets.problem", "buckets.planner", "buckets.views", "buckets.new"} & set(sys.modules)
assert not loaded, loaded
"""


def test_to_list_it_loads_none_of_its_rooms() -> None:
    subprocess.run([sys.executable, "-c", LISTS], check=True, timeout=60)


def test_the_best_by_hand() -> None:
    """One message waits for the last gradient: 30 + 20 + 15. Two, the first alone: 10 + 25, then 20 + 10."""
    found = [loadmaster.plan(three(), limit=messages) for messages in (1, 2, 3)]
    assert [plan.objective for plan in found] == [65.0, 65.0, 65.0]
    slow = made([10.0, 100.0], [50_000, 5000], latency_us=1.0)
    assert [loadmaster.plan(slow, limit=messages).objective for messages in (1, 2)] == [156.0, 106.0]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40_000)), min_size=1, max_size=6),
    st.integers(1, 6),
    st.sampled_from([0.0, 3.0, 25.0]),
)
def test_plans_are_the_best_of_all_choices(layers: list[tuple[int, int]], messages: int, latency_us: float) -> None:
    problem = made([float(r) for r in sorted(r for r, _ in layers)], [s for _, s in layers], latency_us)
    plan = loadmaster.plan(problem, limit=messages)
    assert plan.objective == pytest.approx(best(problem, messages))
    assert check_plan(problem, plan).ok
    assert plan.status == "optimal"


@pytest.mark.parametrize(
    ("ends", "says"), [((1, 2, 3), "more than the 2"), ((2,), "leave gradients"), ((0, 3), "or send")]
)
def test_the_checker_refuses_what_is_wrong(ends: tuple[int, ...], says: str) -> None:
    plan = replace(loadmaster.plan(three(), limit=2), ends=ends)  # type: ignore[type-var]
    assert says in check_plan(three(), plan).violations[0]


def test_a_plan_is_held_to_the_limit_of_its_problem() -> None:
    slow = made([10.0, 100.0], [50_000, 5000], latency_us=1.0)
    plan = loadmaster.plan(slow, limit=2)
    assert check_plan(replace(slow, messages=2), plan).ok
    assert "more than the 1 allowed" in check_plan(replace(slow, messages=1), plan).violations[0]


def test_its_limit_is_settled_as_any() -> None:
    assert loadmaster.plan(three(messages=3)).messages == 3  # type: ignore[attr-defined]
    assert loadmaster.plan(three(messages=3), limit=1).messages == 1  # type: ignore[attr-defined]
    with pytest.raises(InputError, match="3 messages is more than the 2 messages that the problem states"):
        loadmaster.plan(three(messages=2), limit=3)
    assert [point.limit for point in loadmaster.frontier(three(messages=2), count=3).points] == [1, 2]
    for wrong, field in (({}, "problem.messages"), ({"budget_bytes": 3}, "options.budget_bytes")):
        with pytest.raises(InputError) as caught:
            loadmaster.plan(three(), **wrong)
        assert caught.value.field == field
        assert caught.value.remedy
    with pytest.raises(InputError, match="is no method for buckets"):
        loadmaster.plan(three(), limit=1, method="chen")


def test_it_is_saved_summed_up_and_shown_as_any(tmp_path: Path) -> None:
    problem = three(messages=2)
    plan = loadmaster.plan(problem)
    problem.save(tmp_path / "problem.json")
    plan.save(tmp_path / "plan.json")
    assert loadmaster.load_problem(tmp_path / "problem.json") == problem
    assert loadmaster.load_plan(tmp_path / "plan.json") == plan
    assert problem.summary().figures == {"gradients": 3, "messages": 2}
    assert repr(problem) == "<BucketsProblem a net: gradients 3, messages 2 messages>"
    assert repr(plan).startswith("<BucketsPlan a net: optimal, objective 65.00 us")
    assert "<td>65.00 us</td>" in plan._repr_html_()
    assert repr(loadmaster.show(problem, plan)).startswith(plan.summary())


def test_its_frontier_is_monotone() -> None:
    """With the method ``one`` every limit is answered by one message; the frontier of all points is in order."""
    problem = made([10.0, 100.0, 101.0], [50_000, 5000, 5000], latency_us=1.0)
    frontier = loadmaster.frontier(problem, count=3)
    assert [point.limit for point in frontier.points] == [1, 2, 3]
    objectives = [point.plan.objective for point in frontier.points]
    assert objectives == [best(problem, messages) for messages in (1, 2, 3)]
    assert objectives == sorted(objectives, reverse=True)
    zero = loadmaster.frontier(problem, limits=[0, 2])
    assert [point.plan.status for point in zero.points] == ["infeasible", "optimal"]
    with pytest.raises(InputError, match="budgets_bytes: mean nothing to buckets"):
        loadmaster.frontier(problem, budgets_bytes=[1])


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a problem of four gradients and its plan in two messages."""
    monkeypatch.chdir(tmp_path)
    assert run("new", "buckets", "--gradients", "4", "--every-us", "100", "-o", "problem.json") == 0
    assert run("plan", "problem.json", "--messages", "2", "-o", "plan.json") == 0
    return tmp_path


def test_the_command_line(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By hand: 10 us and 20 of latency for each; the last gradient is there after 400 us, and goes alone."""
    assert run("check", "problem.json", "plan.json") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "passed: 2 of 2 messages, 430.0 us"
    flags = ["--html", "report.html", "--csv", "rows.csv", "--ranks", "ranks", "--world", "3"]
    assert run("show", "plan.json", *flags) == 0
    assert "rows.csv (times in us)" in capsys.readouterr().err
    assert Path("rows.csv").read_text().splitlines()[0] == "gradients,bytes,start_us,end_us"
    assert Path("report.html").read_text().startswith("<!doctype html>")
    assert sorted(path.name for path in Path("ranks").iterdir()) == ["rank-0.txt", "rank-1.txt", "rank-2.txt"]
    assert run("frontier", "problem.json", "--messages", "1,50%,4", "--json") == 0
    points = json.loads(capsys.readouterr().out)
    assert [point["messages"] for point in points] == [1, 2, 4]
    assert [point["objective"] for point in points] == [460.0, 430.0, 430.0]
    assert Path("buckets-4-frontier.png").read_bytes().startswith(b"\x89PNG")
    assert "The best objective under 3 messages" in Path("buckets-4-frontier.html").read_text()
    assert run("plan", "problem.json", "--messages", "0") == 3
    assert "allow one" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "problem.json"], "--messages"),
        (["plan", "problem.json", "--budget", "5GiB"], "--budget: means nothing to buckets"),
        (["plan", "problem.json", "--messages", "2", "--budget", "5GiB"], "--budget: means nothing to buckets"),
        (["plan", "problem.json", "--messages", "5GiB"], "is no number of messages"),
        (["plan", "problem.json", "--messages", "0%"], "a message for every gradient"),
        (["frontier", "problem.json", "--budgets", "5GiB"], "--budgets: means nothing to buckets"),
        (["frontier", "problem.json", "--messages", "1,x"], "is no number of messages"),
        (["show", "plan.json", "--snapshot", "s.pickle"], "is of no buckets plan"),
        (["show", "plan.json", "--ranks", "ranks", "--world", "0"], "--world: is less than 1"),
        (["new", "buckets", "--gradients", "0"], "--gradients"),
        (["new", "buckets", "--gradients", "2", "--list"], "--list"),
    ],
)
def test_what_is_wrong_on_the_command_line(
    arguments: list[str], says: str, files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert run(*arguments) == 2
    assert says in capsys.readouterr().err


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    database = tmp_path_factory.mktemp("service") / "service.db"
    return Settings(database_url=f"sqlite:///{database}", workers=0, port=0, poll_s=0.05)


@pytest.fixture(scope="module")
def service(stored: Settings) -> Iterator[str]:
    """A service without workers: each test does their work."""
    running = RunningService(stored)
    yield running.url
    running.stop()


def work(stored: Settings) -> None:
    """What waits in the queue, in processes of its own."""
    worker = Worker(stored)
    while worker.work_once():
        pass


@pytest.mark.slow
def test_the_service_its_pages_and_its_client(service: str, stored: Settings) -> None:
    problem = made([10.0, 100.0, 101.0], [50_000, 5000, 5000], latency_us=1.0)
    with Client(service) as client:
        sizing = client.dry_run(problem, {"limit": 2})
        assert sizing.sizes == {"gradients": 3}
        assert sizing.limit is not None and (sizing.limit.name, sizing.limit.value) == ("messages", 2)
        assert sizing.budget_bytes is None
        share = client.dry_run(problem, {"limit": "67%"})
        assert share.limit is not None and share.limit.value == 2
        with pytest.raises(InputError, match="is no number of messages"):
            client.frontier(problem, ["100%", "2 or so"])
        handle = client.submit(problem, {"limit": 2})
        with pytest.raises(InputError, match="mean nothing to buckets"):
            client.frontier(problem, budgets_bytes=[1, 2])
        work(stored)
        plan = handle.result(timeout_s=60)
        assert plan == read_plan(handle.document())
        assert plan.objective == best(problem, 2)
        assert check_plan(problem, plan).ok
        state = handle.state()
        assert state.limit is not None and state.limit.unit == "messages"

        rows = handle.export("csv").decode().splitlines()
        assert rows[0] == "gradients,bytes,start_us,end_us" and len(rows) == 3
        archive = zipfile.ZipFile(io.BytesIO(handle.export("ranks", world=3)))
        assert archive.namelist() == ["rank-0.txt", "rank-1.txt", "rank-2.txt"]
        assert len(zipfile.ZipFile(io.BytesIO(handle.export("ranks"))).namelist()) == 2

        report = httpx.get(service + state.links["export/html"])
        assert report.content == handle.export("html")
        assert report.headers["content-type"].startswith("text/html")
        assert report.headers["content-security-policy"].startswith("default-src 'none'")
        assert httpx.get(service + state.links["export/csv"]).headers["content-disposition"] == (
            'attachment; filename="a-net.csv"'
        )
        front = httpx.get(service).text
        assert ">buckets</td>" in front and ">2 messages</td>" in front
        assert f"/plans/{handle.id}" in front
        page = httpx.get(f"{service}/plans/{handle.id}").text
        # A kind that offers no pieces of a report is shown in its own words.
        assert "2 messages, all there at" in page
        assert all(state.links[f"export/{name}"] in page for name in ("html", "csv", "ranks"))


async def test_its_client_for_asyncio(service: str, stored: Settings) -> None:
    problem = made([10.0, 100.0], [50_000, 5000], latency_us=1.0)
    async with AsyncClient(service) as client:
        handle = await client.submit(problem, {"limit": 1})
        work(stored)
        await handle.wait(60)
        assert (await handle.export("csv")).decode().splitlines()[1] == "0..1,55000,100,156"


@pytest.mark.slow
def test_its_frontier_on_the_service(service: str, stored: Settings) -> None:
    problem = made([10.0, 100.0, 102.0], [50_000, 5000, 5000], latency_us=1.0)
    body = {"problem": {**loadmaster.write_problem(problem)}, "limits": [2, 1, 2]}
    answer = httpx.post(f"{service}/v1/frontiers", json=body).json()
    work(stored)
    with Client(service) as client:
        points = client.get(answer["links"]["self"])["points"]
        again = client.frontier(problem, [1, 2], timeout_s=60)
    assert [(p["limit"], p["budget_bytes"]) for p in points] == [(1, None), (2, None)]
    assert [p["objective"] for p in points] == [best(problem, 1), best(problem, 2)]
    assert [p.objective for p in again.points] == [best(problem, 1), best(problem, 2)]


@pytest.mark.slow
def test_what_cannot_be_exported(service: str, stored: Settings) -> None:
    with Client(service) as client:
        none = client.submit(three(), {"limit": 0})
        some = client.submit(three(), {"limit": 1})
        work(stored)
        assert none.result(60).status == "infeasible"
        some.wait(60)
        with pytest.raises(NoPlanError, match="nothing to export"):
            none.export("csv")
        with pytest.raises(UnknownPlanError, match="no export 'png'"):
            some.export("png")
        for wrong, says in (({"world": 0}, "less than 1"), ({"word": 1}, "nothing that ranks takes")):
            with pytest.raises(InputError, match=says):
                some.export("ranks", **wrong)
        with pytest.raises(InputError, match="is no whole number"):
            some.export("ranks", world="two")  # type: ignore[arg-type]
        with pytest.raises(InputError, match="is no name of an export"):
            some.export("../result")


PAGE = (ROOT / "docs" / "add-a-kind.md").read_text("utf-8")


@pytest.mark.parametrize(
    "block", re.findall(r"```python\n(.*?)```", PAGE, re.S), ids=lambda block: block.split("\n")[0]
)
def test_the_page_shows_the_code_as_it_is(block: str) -> None:
    sources = [path.read_text("utf-8") for path in (HERE / "buckets").glob("*.py")]
    assert any(block in source for source in sources)


def test_the_page_registers_what_is_registered_here() -> None:
    (block,) = re.findall(r"```toml\n(.*?)```", PAGE, re.S)
    group, entry = block.strip().splitlines()
    assert group == f'[project.entry-points."{ENTRY_POINTS}"]'
    assert entry.replace('"', "") == REGISTRATION.splitlines()[1]


def test_the_commands_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```shell\n(.*?)```", PAGE, re.S)
    for line in block.strip().splitlines():
        program, *arguments = shlex.split(line)
        assert (program, run(*arguments)) == ("loadmaster", 0), line
