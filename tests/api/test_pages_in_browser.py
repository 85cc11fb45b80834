"""The pages in a real browser, against a real service: submit, watch, open the plan, cancel; with keys, and without a
script."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_planner import problem
from running_service import HANG_S, RunningService, wait_until

from loadmaster.api.client import Client
from loadmaster.models.memory.presets import chain
from tests.api.cli.plans_by_hand import MEGABYTE
from tests.api.collective_by_hand import ring_document

playwright = pytest.importorskip("playwright.sync_api", reason="playwright drives the browser, and is not installed")
expect = playwright.expect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.slow,  # a browser, servers and workers are started
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here (Debian: apt-get install chromium)"),
]
PHONE = {"width": 360, "height": 800}


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        expect.set_options(timeout=HANG_S * 1000)
        # Its sandbox asks for rights that containers lack; the pages are our own.
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page that must not ask for what its policy forbids, nor fail in a script, nor reach for another server."""
    context = browser.new_context()
    context.set_default_timeout(HANG_S * 1000)
    page = context.new_page()
    wrong: list[str] = []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: None if "://127.0.0.1:" in asked.url else wrong.append(asked.url))
    yield page
    context.close()
    assert wrong == []


@pytest.fixture(scope="module")
def planner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A service that plans for real."""
    from tests.api.conftest import quick_settings

    folder = tmp_path_factory.mktemp("planner")
    service = RunningService(
        quick_settings(
            f"sqlite:///{folder / 'service.db'}", port=0, workers=1, planner="loadmaster.api.planning:FloorPlanner"
        )
    )
    yield service
    service.stop()


@pytest.fixture
def planning(planner: RunningService) -> Iterator[Client]:
    """A client of it."""
    with Client(planner.url) as client:
        yield client


def overflow(page: Any) -> int:
    """Pixels by which a page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))


def test_submit_watch_and_open_the_plan(page: Any, planner: RunningService, planning: Client) -> None:
    page.goto(planner.url)
    expect(page.get_by_text("No plans yet")).to_be_visible()
    handle = planning.submit(chain(8, MEGABYTE), {"limit": "60%", "time_limit_s": 20.0})
    page.get_by_role("link", name=chain(8, MEGABYTE)["name"]).click()  # the list brings itself up to date
    expect(page.get_by_role("heading", name="The search")).to_be_visible()
    page.get_by_role("link", name="Open the plan").click()
    page.wait_for_url(f"**/plans/{handle.id}")
    expect(page.get_by_role("heading", name="Memory over the step")).to_be_visible()
    expect(page.get_by_role("img", name="Resident bytes over one training step")).to_be_visible()


def test_every_page_fits_a_phone(page: Any, planner: RunningService, planning: Client) -> None:
    plans = [planning.submit(chain(8, MEGABYTE), {"limit": share, "time_limit_s": 20.0}) for share in ("70%", "80%")]
    frontier = planning.frontier(chain(8, MEGABYTE), ["70%", "80%"], options={"time_limit_s": 20.0})
    for plan in plans:
        plan.wait(HANG_S)
    wait_until(lambda: planning.get(frontier.links["self"])["state"] == "succeeded")
    compared = "&".join(f"plan={plan.id}" for plan in plans)
    addresses = ["/", f"/jobs/{plans[0].id}", f"/plans/{plans[0].id}", f"/v1/plans/{plans[0].id}/export/html"]
    addresses += [f"/compare?{compared}", f"/frontiers/{frontier.id}", "/hardware", "/docs"]
    page.set_viewport_size(PHONE)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for address in addresses:
            page.goto(planner.url + address)
            assert overflow(page) <= 0, address


def test_a_point_of_a_frontier_opens_its_plan(page: Any, planner: RunningService, planning: Client) -> None:
    frontier = planning.frontier(chain(8, MEGABYTE), ["65%", "75%"], options={"time_limit_s": 20.0})
    page.goto(f"{planner.url}/frontiers/{frontier.id}")
    expect(page.get_by_text("2 of 2 points are done")).to_be_visible()
    plan = planning.get(frontier.links["self"])["points"][0]["plan"]
    page.locator("a.point").first.click()
    page.wait_for_url(f"**/plans/{plan}")


def test_keys_and_fingers_are_told_of_every_bar(page: Any, planner: RunningService, planning: Client) -> None:
    """On the page of a plan, and in its report."""
    handle = planning.submit(ring_document(name="read out"), {"time_limit_s": 20.0})
    assert handle.wait(HANG_S).state == "succeeded"
    for address in (f"/plans/{handle.id}", f"/v1/plans/{handle.id}/export/html"):
        page.goto(planner.url + address)
        chart = page.locator("figure > .scroll[aria-label^='When each of']").first
        said = chart.locator("xpath=following-sibling::*[@role='status']")
        words, rows = chart.locator("title").all_text_contents(), chart.locator("text.row").all_text_contents()
        assert len(words) >= len(rows) > 1
        expect(said).to_contain_text("use the arrow keys")
        chart.focus()
        heard = []
        for _ in words:
            page.keyboard.press("ArrowRight")
            heard.append(said.inner_text())
        assert heard == [f"{text} ({n} of {len(words)})" for n, text in enumerate(words, 1)]
        for key, row in (("Home", 0), ("ArrowDown", 1), ("ArrowUp", 0), ("End", -1)):
            page.keyboard.press(key)
            assert said.inner_text().startswith(rows[row])
        chart.locator("rect[data-row]").nth(2).click()
        expect(said).to_have_text(f"{words[2]} (3 of {len(words)})")


def test_the_interface_is_described_offline(page: Any, planner: RunningService) -> None:
    page.goto(f"{planner.url}/docs")
    page.get_by_text("/v1/plans/{plan_id}/log").click()
    expect(page.get_by_text("bytes already read")).to_be_visible()


def test_watch_and_cancel_with_keys_alone(page: Any, live: RunningService, client: Client) -> None:
    handle = client.submit(problem("slow", name="by keys", seconds=HANG_S))
    page.goto(live.url)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.get_by_role("link", name="by keys").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_text("best plan so far")).to_be_visible()
    expect(page.get_by_text("two incumbents follow")).to_be_visible()
    page.get_by_role("link", name="Cancel...").focus()
    seen = page.get_by_text("running for").locator("xpath=..").inner_text()
    expect(page.get_by_text("running for").locator("xpath=..")).not_to_have_text(seen)
    # What was brought up to date has left the focus where it was.
    expect(page.get_by_role("link", name="Cancel...")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Cancel by keys?")).to_be_visible()
    page.get_by_role("button", name="Cancel the job").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("cancelled")
    assert handle.wait(HANG_S).state == "cancelled"
    page.get_by_role("link", name="Open the plan").click()
    expect(page.get_by_text("this is the best that it had found")).to_be_visible()


def test_without_a_script_too(browser: Any, live: RunningService, client: Client) -> None:
    handle = client.submit(problem("slow", name="no script", seconds=HANG_S))
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(HANG_S * 1000)
    page = context.new_page()
    page.goto(live.url)
    page.get_by_role("link", name="no script").click()
    expect(page.get_by_text("best plan so far")).to_be_visible()  # the page loads itself again
    page.get_by_role("link", name="Cancel...").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.get_by_role("status")).to_have_text("cancelled")
    assert handle.wait(HANG_S).state == "cancelled"
    context.close()


def test_ticks_stay_while_the_list_changes(page: Any, live: RunningService, client: Client) -> None:
    for n in range(2):
        client.submit(problem(name=f"ticked {n}")).wait(HANG_S)
    page.goto(live.url)
    for n in range(2):
        page.get_by_role("checkbox", name=f"compare ticked {n}").check()
    client.submit(problem(name="a newer one"))
    expect(page.get_by_role("link", name="a newer one")).to_be_visible()
    for n in range(2):
        expect(page.get_by_role("checkbox", name=f"compare ticked {n}")).to_be_checked()
    page.get_by_role("button", name="Compare the two").click()
    expect(page.get_by_role("heading", name="Two plans")).to_be_visible()


def test_a_phone_shows_the_words_of_a_drawing_at_a_size_that_can_be_read(
    browser: Any, planner: RunningService, planning: Client, tmp_path: Path
) -> None:
    """Of a report as a file, too."""
    handle = planning.submit(chain(8, MEGABYTE), {"limit": "60%", "time_limit_s": 20.0})
    wait_until(lambda: handle.state().state == "succeeded")
    (tmp_path / "report.html").write_bytes(handle.export("html"))
    context = browser.new_context(viewport=PHONE)
    page = context.new_page()
    page.goto((tmp_path / "report.html").as_uri())
    assert overflow(page) <= 0
    heights = page.evaluate("[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height)")
    assert heights and min(heights) > 8
    widths = page.evaluate(
        "[...document.querySelectorAll('.keys .item, figcaption, dd, h2')].map(e => e.getBoundingClientRect().right)"
    )
    assert max(widths) <= PHONE["width"]
    context.close()
