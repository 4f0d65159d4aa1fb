"""The status page in Chromium: clicked through, on a phone, in the dark, by keyboard, with 500 tables."""

import math
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from playwright.sync_api import Browser, HttpCredentials, Page, expect

from tailer.daemon.control import Control
from tailer.daemon.http_server import HttpServer, Listener, WithToken, listen
from tailer.daemon.monitor import Monitor
from tailer.daemon.page import History, page_routes
from tailer.daemon.runs import Run, Runs, Stop
from tailer.errors import FileVacuumed, SinkUnavailable
from tailer.pipeline.backfill.command import BackfillCommand, BackfillPhase
from tailer.pipeline.status import Committed, PipelineStatus
from tailer.plan import Position

HOSTILE = "<img src=x onerror=alert(1)>"


def pipelines(count: int = 0) -> list[PipelineStatus]:
    """Return pipelines in several states, and `count` more that stream."""
    found = [
        PipelineStatus(name, table=f"s3://lake/{name}", sink_kind="kafka") for name in ("orders", "events", "users")
    ]
    found += [PipelineStatus(f"many_{i}", table=f"s3://lake/many/{i}", sink_kind="delta") for i in range(count)]
    for status in found:
        status.note_start()
        status.note_resume(Position.end(6))
        status.note_work(7, int(time.time() * 1000), 1000)
        status.note_commit(Committed(Position.end(7), {"insert": 12}))
        status.note_caught_up(7)
    found[1].note_error(SinkUnavailable("kafka", HOSTILE))
    lost = FileVacuumed("s3://lake/users", 8, "part-1.parquet")
    found[2].note_error(lost)
    found[2].note_stop(lost)
    return found


@contextmanager
def daemon(statuses: list[PipelineStatus], port: int = 0) -> Iterator[str]:
    """Serve the page of a daemon; yield its address."""
    past = History(statuses)
    opened = listen("127.0.0.1", port)
    server = HttpServer([Listener(Monitor(statuses).app(*page_routes(past)), opened)], [past.run])
    server.start()
    try:
        yield f"http://127.0.0.1:{opened.getsockname()[1]}"
    finally:
        server.stop()


@contextmanager
def page(browser: Browser, address: str, **options: Any) -> Iterator[Page]:
    """Open the page; its scripts must not fail, and nothing may be asked of another address."""
    context = browser.new_context(**options)
    opened = context.new_page()
    problems: list[str] = []
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    opened.on("dialog", lambda dialog: problems.append(dialog.message))
    opened.on("request", lambda asked: None if asked.url.startswith((address, "data:")) else problems.append(asked.url))
    opened.goto(address)
    opened.wait_for_selector("#rows tr")
    yield opened
    context.close()
    assert not problems


def names(opened: Page) -> list[str]:
    """Return the pipelines in the order shown."""
    return opened.locator(".name").all_text_contents()


def test_those_that_need_attention_come_first_with_their_next_step(browser: Browser) -> None:
    with daemon(pipelines()) as address, page(browser, address) as opened:
        assert names(opened) == ["users", "events", "orders"]
        expect(opened.locator("#summary")).to_contain_text("2 pipelines need attention")
        expect(opened).to_have_title("(2) lake-tailer")
        row = opened.locator("#rows tr").nth(0)
        expect(row).to_contain_text("stopped")
        expect(row).to_contain_text("FileVacuumed")
        expect(row).to_contain_text("Restore the file")
        expect(opened.locator("#rows tr").nth(1)).to_contain_text(HOSTILE)


def test_since_when_and_where_a_table_is_missing_is_shown_in_utc(browser: Browser) -> None:
    waiting = PipelineStatus("typo", table="/lake/ordrs", sink_kind="files", clock=lambda: 1_772_366_399.0)
    waiting.note_start()
    waiting.note_missing_table()
    zone = {"timezone_id": "America/New_York", "locale": "en-US"}
    with daemon([waiting]) as address, page(browser, address, **zone) as opened:
        row = opened.locator("#rows tr")
        expect(row).to_contain_text("there is no table at /lake/ordrs yet (since 2026-03-01 11:59:59 UTC, ")
        expect(row).to_contain_text("correct `table`")
        opened.get_by_role("button", name="typo").click()
        expect(opened.locator(".details")).to_contain_text("2026-03-01 11:59:59 UTC")
        assert not re.search(r"\b[AP]M\b", opened.locator("body").inner_text())


def test_few_rows_are_no_zero(browser: Browser) -> None:
    statuses = pipelines()
    with daemon(statuses) as address, page(browser, address) as opened:
        rate = opened.locator("#rows tr", has=opened.get_by_role("button", name="orders")).locator("td").nth(3)
        expect(rate).to_have_text("0", timeout=15_000)
        statuses[0].rows["insert"] += 1
        expect(rate).to_have_text(re.compile(r"0\.\d+"), timeout=15_000)
        opened.wait_for_timeout(14_000)  # longer than six answers
        expect(rate).to_have_text(re.compile(r"0\.0\d"))


def test_a_backfill_is_shown(browser: Browser) -> None:
    statuses = pipelines()
    backfills = statuses[0].backfills
    backfills.restore(BackfillCommand("20260301T120005-1f3a5c7e", 7, "id < 9"), lambda _order: None)
    backfills.phase, backfills.files, backfills.files_done = BackfillPhase.RUNNING, 12, 3
    with daemon(statuses) as address, page(browser, address) as opened:
        opened.get_by_role("button", name="orders").click()
        expect(opened.locator(".details")).to_contain_text("running of version 7 where id < 9, 3 of 12 files")


def test_find_filter_and_sort(browser: Browser) -> None:
    with daemon(pipelines(20)) as address, page(browser, address) as opened:
        opened.get_by_label("Find").fill("lake/many/1")
        assert len(names(opened)) == 11
        expect(opened.locator("#count")).to_have_text("11 of 23 pipelines")
        opened.get_by_role("button", name="Pipeline").click()
        assert names(opened)[:3] == ["many_1", "many_10", "many_11"]
        opened.get_by_role("button", name="Pipeline").click()
        assert names(opened)[0] == "many_19"
        expect(opened.locator("th[aria-sort=descending]")).to_have_text("Pipeline")
        opened.reload()  # the address remembers
        opened.wait_for_selector("#rows tr")
        assert names(opened)[0] == "many_19"
        opened.get_by_label("Find").fill("nothing like it")
        opened.get_by_role("button", name="Show all").click()
        opened.get_by_role("button", name="retrying 1").click()
        assert names(opened) == ["events"]
        opened.get_by_role("button", name="stopped 1").click()
        assert sorted(names(opened)) == ["events", "users"]


def test_details(browser: Browser) -> None:
    with daemon(pipelines()) as address, page(browser, address) as opened:
        opened.get_by_role("button", name="orders").click()
        expect(opened.get_by_role("button", name="orders")).to_have_attribute("aria-expanded", "true")
        details = opened.locator(".details")
        expect(details).to_contain_text("the end of version 7")
        expect(details).to_contain_text("12 insert")
        opened.get_by_role("button", name="orders").click()
        expect(details).to_have_count(0)


def test_it_follows_the_daemon_and_says_when_that_is_gone(browser: Browser) -> None:
    statuses = pipelines()
    with daemon(statuses) as address, page(browser, address) as opened:
        expect(opened.locator("#connection")).to_have_text("Live")
        statuses[0].note_pause()
        expect(opened.get_by_role("button", name="paused 1")).to_be_visible()
        expect(opened.locator("#rows tr").nth(2)).to_contain_text("tailer resume")
    port = int(address.rpartition(":")[2])
    context = browser.new_context()
    opened = context.new_page()
    with daemon(statuses, port):
        opened.goto(address)
        opened.wait_for_selector("#rows tr")
    expect(opened.locator("#connection")).to_contain_text("has not answered since", timeout=15_000)
    with daemon(statuses, port):
        expect(opened.locator("#connection")).to_have_text("Live", timeout=15_000)
    context.close()


def test_events(browser: Browser) -> None:
    statuses = pipelines()
    with daemon(statuses) as address:
        time.sleep(1.5)
        statuses[0].note_pause()
        time.sleep(1.5)
        with page(browser, address) as opened:
            expect(opened.locator("#events li").nth(0)).to_contain_text("paused after streaming: an operator paused it")
            opened.get_by_label("Find").fill("users")
            expect(opened.locator("#events li")).to_have_text("None of these pipelines.")
            opened.get_by_label("Find").fill("orders")
            expect(opened.locator("#events li")).to_have_count(1)
            address_before = opened.url
            opened.get_by_role("link", name="Latest events").click()
            expect(opened.locator("#events-title")).to_be_focused()
            assert opened.url == address_before


def test_by_keyboard(browser: Browser) -> None:
    with daemon(pipelines()) as address, page(browser, address) as opened:
        opened.keyboard.press("/")
        expect(opened.get_by_label("Find")).to_be_focused()
        opened.keyboard.type("orders")
        assert names(opened) == ["orders"]
        opened.keyboard.press("Escape")
        assert len(names(opened)) == 3
        button = opened.get_by_role("button", name="orders")
        button.focus()
        opened.keyboard.press("Enter")
        expect(button).to_have_attribute("aria-expanded", "true")
        opened.wait_for_timeout(2500)  # the next answer must not take the focus away
        expect(button).to_be_focused()


def test_a_screen_reader_finds_names_and_roles(browser: Browser) -> None:
    with daemon(pipelines()) as address, page(browser, address) as opened:
        expect(opened.get_by_role("heading", name="lake-tailer")).to_be_visible()
        expect(opened.get_by_role("table", name="Pipelines")).to_be_visible()
        expect(opened.get_by_role("columnheader")).to_have_count(5)
        expect(opened.get_by_role("group", name="Show states")).to_be_visible()
        expect(opened.get_by_role("region", name="Latest events")).to_be_visible()
        expect(opened.get_by_role("combobox", name="Sort by")).to_be_visible()
        opened.get_by_role("button", name="orders", exact=True).click()
        expect(opened.get_by_role("table", name="The way of the last versions")).to_be_visible()
        opened.get_by_role("button", name="Pipeline", exact=True).click()
        tree = opened.locator("body").aria_snapshot()
        assert [mark for mark in "●○■▲▼❚▸▾" if mark in tree] == []  # signs for the eye are not read out


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_are_readable(browser: Browser, scheme: Any) -> None:
    """Every text has a contrast of at least 4.5 to its ground (WCAG AA)."""
    with daemon(pipelines()) as address, page(browser, address, color_scheme=scheme) as opened:
        opened.get_by_role("button", name="users").click()
        faint = opened.evaluate(CONTRAST)
        assert faint == []


# Compares the colour of every element that has a text of its own with the first ground behind it that is not clear.
CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (c) => c <= .03928 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4;
  const light = (color) => [.2126, .7152, .0722].reduce((sum, part, i) => sum + part * linear(color[i] / 255), 0);
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const contrast = (e) => {
    const [a, b] = [light(parse(getComputedStyle(e).color)), light(ground(e))];
    return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
  };
  const hasText = (e) => [...e.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  const silent = ["SCRIPT", "STYLE", "NOSCRIPT", "OPTION"];
  return [...document.body.querySelectorAll("*")]
    .filter((e) => hasText(e) && e.checkVisibility() && !silent.includes(e.tagName))
    .map((e) => [e.textContent.slice(0, 30), contrast(e)]).filter(([, found]) => found < 4.5);
}"""


def test_on_a_phone(browser: Browser) -> None:
    size = {"width": 360, "height": 740}
    with (
        daemon(pipelines()) as address,
        page(browser, address, viewport=size, is_mobile=True, has_touch=True) as opened,
    ):
        assert opened.evaluate("document.documentElement.scrollWidth") == 360
        opened.get_by_role("button", name="orders").tap()
        expect(opened.locator(".details")).to_contain_text("the end of version 7")
        assert opened.evaluate("document.documentElement.scrollWidth") == 360
        way = opened.get_by_role("region", name="The way of the last versions")
        assert way.evaluate("(way) => way.scrollWidth - way.clientWidth") == 0  # no column is cut off


def test_with_500_tables(browser: Browser) -> None:
    with daemon(pipelines(497)) as address, page(browser, address) as opened:
        assert len(names(opened)) == 500
        opened.get_by_label("Find").fill("many_49")
        assert re.fullmatch(r"8 of 500 pipelines", opened.locator("#count").text_content() or "")


TOKEN = "hush-hush"


async def idle(stop: Stop) -> None:
    """Wait until the work has to end."""
    await stop.wait(math.inf)


@contextmanager
def obedient(reads: str | None = None) -> Iterator[tuple[str, PipelineStatus]]:
    """Serve the page of a daemon that takes commands; yield its address and a pipeline. `reads`: a token."""
    status = pipelines()[0]
    with start_blocking_portal() as portal:
        control, run = portal.call(Control), portal.call(partial(Run, status, lambda: idle, revives=False))
        control.runs = portal.call(Runs, [run], 1.0)
        portal.start_task_soon(run.run, lambda _: None)
        app: Any = Monitor([status]).app(control.route(TOKEN, needs_token=True), *page_routes(History([status]), True))
        opened = listen("127.0.0.1", 0)
        server = HttpServer([Listener(app if reads is None else WithToken(app, reads), opened)])
        server.start()
        try:
            yield f"http://127.0.0.1:{opened.getsockname()[1]}", status
        finally:
            server.stop()
            portal.call(run.end, "the test ends")


def test_commands_with_a_token(browser: Browser) -> None:
    """A wrong token is refused. The right one is in a header alone, and is asked for once."""
    with obedient() as (address, _), browser.new_context() as context:
        opened = context.new_page()
        requests: list[Any] = []
        opened.on("request", lambda asked: requests.append(asked) if asked.method == "POST" else None)
        opened.goto(address)
        opened.get_by_role("button", name="orders").click()
        opened.get_by_role("button", name="Pause …").click()
        dialog = opened.get_by_role("dialog", name="Pause: orders")
        dialog.get_by_label("Token").fill("wrong")
        dialog.get_by_role("button", name="Pause").click()
        expect(dialog.get_by_role("status")).to_contain_text("The token is wrong")
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_role("button", name="Pause").click()
        expect(dialog.get_by_role("status")).to_have_text("orders pauses after its transaction")
        dialog.get_by_role("button", name="Close").click()
        expect(opened.locator("#rows tr").nth(0)).to_contain_text("paused")
        opened.get_by_role("button", name="Resume …").click()
        dialog = opened.get_by_role("dialog", name="Resume: orders")
        dialog.get_by_role("button", name="Resume").click()
        expect(dialog.get_by_role("status")).to_contain_text("begins again")
        assert [asked.url for asked in requests] == [
            f"{address}/pipelines/orders/{verb}" for verb in ("pause", "pause", "resume")
        ]
        assert requests[-1].headers["authorization"] == f"Bearer {TOKEN}"
        kept = opened.evaluate(
            "document.documentElement.outerHTML + location + JSON.stringify([localStorage, sessionStorage])"
        )
        assert TOKEN not in kept
        assert context.cookies() == []


def test_a_backfill_is_asked_for_with_its_condition(browser: Browser) -> None:
    with obedient() as (address, _), browser.new_context() as context:
        opened = context.new_page()
        bodies: list[Any] = []
        opened.on("request", lambda asked: bodies.append(asked.post_data_json) if asked.method == "POST" else None)
        opened.goto(address)
        opened.get_by_role("button", name="orders").click()
        opened.get_by_role("button", name="Backfill …").click()
        dialog = opened.get_by_role("dialog")
        dialog.get_by_label("Version").fill("5")
        dialog.get_by_label("Condition").fill("id < 9")
        dialog.get_by_label("Token").fill(TOKEN)
        dialog.get_by_role("button", name="Backfill").click()
        expect(dialog.get_by_role("status")).not_to_have_text("Waiting for the daemon …")
        assert bodies == [{"version": 5, "where": "id < 9"}]


def test_another_site_cannot_give_commands(browser: Browser) -> None:
    """The browser knows a password for readers that is the token of commands, too, and sends it along: not enough."""
    with obedient(reads=TOKEN) as (address, status):
        known: HttpCredentials = {"username": "x", "password": TOKEN}
        with browser.new_context(http_credentials=known) as context:
            opened = context.new_page()
            opened.goto(address)
            opened.wait_for_selector("#rows tr")
            opened.goto("data:text/html,<form method=post></form>")
            opened.evaluate(f"document.forms[0].action = '{address}/pipelines/orders/pause'")
            with opened.expect_navigation() as found:
                opened.evaluate("document.forms[0].submit()")
            assert found.value.status == 401
        time.sleep(0.3)
        assert status.state != "paused"


def test_without_a_token_file_the_page_says_how_to_give_commands(browser: Browser) -> None:
    with daemon(pipelines()) as address, page(browser, address) as opened:
        opened.get_by_role("button", name="orders").click()
        expect(opened.locator(".details")).to_contain_text("set control_token")
        expect(opened.get_by_role("button", name="Pause …")).to_have_count(0)


def test_the_way_of_the_last_versions(browser: Browser) -> None:
    statuses = pipelines()
    now_s = time.time()
    for version in range(8, 20):
        statuses[0].note_work(version, int(now_s * 1000), 1000)
        statuses[0].note_commit(Committed(Position.end(version), {"insert": 1}))
    statuses[0].backlog.plan_s = 0.25
    statuses[0].note_work(21, int((now_s - 1.5) * 1000), 1000, first=20)
    statuses[0].backlog.read_s += 75
    statuses[0].note_commit(Committed(Position.end(21), {"insert": 1}))
    with daemon(statuses) as address, page(browser, address) as opened:
        opened.get_by_role("button", name="orders").click()
        table = opened.get_by_role("table", name="The way of the last versions")
        expect(table.get_by_role("row").nth(1)).to_contain_text(re.compile("^20 . 21"))
        expect(table.get_by_role("row").nth(1)).to_contain_text("0.250 s75 s")
        expect(table.get_by_role("columnheader")).to_have_count(6)
        expect(table.get_by_role("row")).to_have_count(1 + 12)
