"""The page in a browser, on snapshots of real jobs: a loop, a slow operator, checkpoints that fail, a killed worker."""

from __future__ import annotations

import copy
import json
import random
import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.coordinator.view.job_snapshot import JobSnapshot
from tailrace.ui.export import as_html
from tests.ui.browser import needs_browser, running_browser
from tests.ui.pageserver import TOKEN, PageServer, page_server

pytestmark = needs_browser

HERE = Path(__file__).parent
AXE = HERE / "vendor" / "axe-4.14.1.min.js"
SNAPSHOTS = {file.stem: json.loads(file.read_text()) for file in sorted((HERE / "snapshots").glob("*.json"))}
for name, snapshot in SNAPSHOTS.items():
    snapshot["job"]["id"] = name  # some are of one job at two times
HOLES = re.compile(r"\b(NaN|undefined|null|Infinity)\b|\[object")


class Site:
    """A server with all snapshots, and one page of the browser that goes from job to job."""

    def __init__(self, server: PageServer, page: Any) -> None:
        self.server, self.page = server, page
        self.errors: list[str] = []
        self.outside: list[str] = []
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: self.errors.append(line.text) if line.type in ("error", "warning") else None)
        page.on(
            "request", lambda one: None if one.url.startswith((server.url, "data:")) else self.outside.append(one.url)
        )

    def open(self, name: str, token: bool = True) -> Any:
        """The page of a job, when its graph is there."""
        snapshot = SNAPSHOTS[name]
        self.server.show(*SNAPSHOTS.values())
        self.page.goto(self.server.link(snapshot, token))
        self.page.locator(f"main[data-job='{snapshot['job']['id']}']").wait_for()
        self.page.wait_for_function(
            "count => document.querySelectorAll('.chain').length === count", arg=chains(snapshot)
        )
        return self.page

    def show(self, snapshot: dict[str, Any]) -> None:
        """Sends another snapshot of a job to the page."""
        others = [one for one in self.server.shown.values() if one["job"]["id"] != snapshot["job"]["id"]]
        self.server.show(*others, snapshot)


def chains(snapshot: dict[str, Any]) -> int:
    return len({one["chain"] for one in snapshot["graph"]["operators"]})


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with running_browser() as found:
        yield found


@pytest.fixture(scope="module")
def shared(browser: Any) -> Iterator[Site]:
    with page_server() as server:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, timezone_id="Asia/Tokyo", locale="de-DE")
        yield Site(server, context.new_page())
        context.close()


@pytest.fixture
def site(shared: Site) -> Iterator[Site]:
    """The shared page. Nothing may fail in it, and nothing may be loaded from elsewhere."""
    shared.errors.clear()
    shared.server.requests.clear()
    shared.server.orders.clear()
    yield shared
    assert shared.errors == []
    assert shared.outside == []


def text(page: Any, selector: str) -> str:
    return str(page.locator(selector).inner_text())


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_every_job_is_shown_without_holes(site: Site, name: str) -> None:
    page = site.open(name)
    snapshot = SNAPSHOTS[name]
    shown = text(page, "main")
    assert not HOLES.search(shown), HOLES.search(shown)
    assert snapshot["sentence"].replace("`", "") in text(page, ".sentence")
    assert snapshot["job"]["status"] in text(page, ".status .state")
    for one in snapshot["graph"]["operators"]:
        assert page.locator("#operators tbody th", has_text=one["name"]).count() >= 1
    for figures, box in zip(
        page.locator(".chain .state").all_text_contents(), page.locator(".chain").all(), strict=True
    ):
        kinds = set((box.get_attribute("class") or "").split()) & {
            "busy",
            "waiting",
            "backpressured",
            "finished",
            "unknown",
        }
        words = {"unknown": "no report yet|not measured yet", "backpressured": "back-pressured"}
        assert [bool(re.search(words.get(kind, kind), figures)) for kind in kinds] == [True], "each color has its word"


def test_a_slow_operator_is_the_one_that_stands_out(site: Site) -> None:
    page = site.open("slow")
    assert "busy 91 %" in page.locator(".chain.named").text_content()
    assert page.locator(".chain.busy").count() == page.locator(".chain.named").count() == 1
    assert "event time is" in text(page, "#keeping-up") and "behind the clock" in text(page, "#keeping-up")
    assert "score, subtask 0" in text(page, "#event-time")
    assert not [path for path in site.server.requests if "subtasks" in path], "subtasks on request only"
    page.locator(".chain.busy").focus()
    page.keyboard.press("Enter")
    rows = page.locator("#subtasks tbody tr")
    rows.first.wait_for()
    assert rows.count() == 4 and [path for path in site.server.requests if path.endswith("?subtasks=1")]
    assert "1 min" in text(page, "#event-time") and "s" in text(page, "#subtasks")


def test_times_are_those_of_the_reader_and_utc_in_the_tooltip(site: Site) -> None:
    page = site.open("restarted")
    time = page.locator("#failures summary time").first
    assert (time.inner_text(), time.get_attribute("title")) == ("02:19:42", "2026-11-26 17:19:42 UTC") or re.fullmatch(
        r"2026-11-26 1\d:\d\d:\d\d UTC", time.get_attribute("title")
    )
    hours = int(time.inner_text()[:2]), int(time.get_attribute("title")[11:13])
    assert (hours[0] - hours[1]) % 24 == 9, "nine hours ahead in Tokyo"


def test_a_loop_is_a_box_around_its_operators_with_feedback_drawn_as_such(site: Site) -> None:
    page = site.open("loop")
    assert "loop halving" in page.locator(".loop text").text_content()
    loop = page.locator(".loop rect").bounding_box()
    inside = [
        box.bounding_box()
        for box in page.locator(".chain").all()
        if "halving" in box.text_content() and "leave" not in box.text_content()
    ]
    assert len(inside) == 2
    for box in inside:
        assert loop["x"] < box["x"] and box["x"] + box["width"] < loop["x"] + loop["width"]
        assert loop["y"] < box["y"] and box["y"] + box["height"] < loop["y"] + loop["height"]
    back = page.locator(".edge.feedback path").bounding_box()
    assert back["x"] >= loop["x"] and back["x"] + back["width"] <= loop["x"] + loop["width"] + 1
    assert back["width"] > inside[1]["width"], "it goes around the boxes"
    assert "going around" in text(page, "#loops") and "69,862" in text(page, "#loops")


def test_a_checkpoint_that_is_opened_stays_as_it_is(site: Site) -> None:
    page = site.open("failed-checkpoint")
    assert "2 failures in a row" in text(page, "#checkpoints")
    assert "it took longer than its timeout of 1 s" in text(page, "#checkpoints table >> nth=-1")
    newest = SNAPSHOTS["failed-checkpoint"]["checkpoints"]["history"][-1]
    page.locator("#checkpoints button.name").first.click()
    opened = text(page, "#checkpoints .details")
    assert f"Checkpoint {newest['id']}" in opened and newest["path"] in opened and "aligned" in opened
    later = copy.deepcopy(SNAPSHOTS["failed-checkpoint"])
    later["at"] += 1
    later["checkpoints"]["history"] = [{**newest, "id": newest["id"] + 7, "path": "/another"}]
    site.show(later)
    page.locator("#checkpoints button.name", has_text=str(newest["id"] + 7)).wait_for()
    assert text(page, "#checkpoints .details") == opened


def test_a_killed_worker_is_shown_with_the_parts_of_its_replacement(site: Site) -> None:
    page = site.open("failover")
    last = next(one["last_failover"] for one in SNAPSHOTS["failover"]["slices"] if one["last_failover"])
    shown = text(page, "#slices")
    assert (
        f"{last['total_ms']:.0f} ms" in shown
        and f"{last['restore_ms']:.0f} ms until its state was there" in shown.replace("\n", " ")
    )
    assert "worker 1 is replaced alone" in text(page, "#status")
    assert page.locator(".strip .mark.replaced").count() == 1 and page.locator(".strip .attempt").count() == 1


def test_restarts_are_a_strip_of_time_and_each_has_its_exception(site: Site) -> None:
    page = site.open("restarted")
    assert page.locator(".strip .attempt").count() == 3 and page.locator(".strip .mark").count() == 2
    page.locator("#failures summary").first.click()
    assert "ZeroDivisionError: division by zero" in text(page, "#failures pre >> nth=0")
    assert "return [1 / (value - 900)]" in text(page, "#status .line"), "the user's own line"
    assert "restart 2 followed" in text(page, "#status")


def test_what_no_worker_has_reported_has_words(site: Site) -> None:
    page = site.open("starting")
    assert "no report yet" in page.locator(".chain").first.text_content() and "no report yet" in text(
        page, "#keeping-up"
    )


def test_an_order_shows_first_what_it_will_do(site: Site) -> None:
    page = site.open("slow")
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert "Ends the job at once" in text(page, "dialog") and site.server.orders == []
    page.keyboard.press("Escape")
    page.locator("dialog").wait_for(state="detached")
    assert site.server.orders == []
    page.get_by_role("button", name="Savepoint", exact=True).click()
    page.locator("dialog button.primary").click()
    page.locator(".actions [role=status]", has_text="/data/savepoint/1").wait_for()
    assert site.server.orders == [(SNAPSHOTS["slow"]["job"]["id"], "savepoint")]


def test_without_the_token_the_page_is_read_only(site: Site) -> None:
    page = site.open("slow", token=False)
    assert page.locator(".actions button:enabled").count() == 0 and "Read only" in text(page, ".actions")
    assert TOKEN not in text(page, "body")


def test_a_finished_job_takes_no_orders(site: Site) -> None:
    page = site.open("failed")
    assert page.locator(".actions button:enabled").count() == 0
    assert "10 // (700 - v)" in text(page, "#status .line")


def test_the_page_rests_while_it_is_hidden(site: Site) -> None:
    page = site.open("slow")
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', { value: hidden, configurable: true });
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    later = copy.deepcopy(SNAPSHOTS["slow"])
    later["at"] += 5
    later["sentence"] = "Another sentence."
    site.show(later)
    site.server.requests.clear()
    page.evaluate("() => fetch('api/jobs')")  # the server has answered something since
    assert "Another sentence." not in text(page, ".sentence")
    assert not [path for path in site.server.requests if path.endswith("/events")]
    page.evaluate(hide, False)
    page.locator(".sentence", has_text="Another sentence.").wait_for()


def test_a_job_of_another_size_has_that_many_subtasks_in_its_graph(site: Site) -> None:
    page = site.open("slow")
    made = copy.deepcopy(SNAPSHOTS["slow"])
    made["at"] += 5
    for one in made["graph"]["operators"]:
        one["parallelism"] = 7
    site.show(made)
    page.locator(".chain .times", has_text="×7").first.wait_for()
    assert page.locator(".chain .times", has_text="×7").count() == chains(made)


def test_jobs_of_one_name_are_told_apart(site: Site) -> None:
    page, made = site.page, [copy.deepcopy(SNAPSHOTS["loop"]) for _ in range(3)]
    for number, one in enumerate(made):
        one["job"] |= {"id": f"{number}2345678-aaaa", "name": "twin" if number else "other"}
    site.server.show(*made)
    page.goto("about:blank")
    page.goto(site.server.url)
    page.locator("main td").first.wait_for()
    assert page.locator("main a").all_inner_texts() == ["other", "twin (12345678)", "twin (22345678)"]


def test_state_grows_expires_and_records_are_set_aside_by_operator(site: Site) -> None:
    page = site.open("slow")
    made = copy.deepcopy(SNAPSHOTS["slow"])
    made["at"] += 30
    one, before = made["operators"]["score"], made["operators"]["score"]["state_entries"]
    expired = {"total": 17.0, "least": 17.0, "most": 17.0}
    one |= {"state_entries": before + 1_000, "late": 3, "failed": None, "metrics": {"expired": expired}}
    site.show(made)
    row = page.locator("#state tr", has_text="+2,000 a minute")
    row.wait_for()
    assert row.locator("th, td").all_inner_texts()[2:3] + row.locator("td").all_inner_texts()[-1:] == [
        f"{before + 1_000:,}",
        "17",
    ]
    assert page.locator("#aside tr.holds").locator("th, td").all_inner_texts() == ["score", "3", "–"]


def test_where_a_proxy_holds_events_back_the_page_polls(site: Site) -> None:
    page = site.page
    page.route("**/events", lambda route: None)
    try:
        page.clock.install()
        site.server.show(*SNAPSHOTS.values())
        page.goto("about:blank")
        page.goto(site.server.link(SNAPSHOTS["loop"]))
        page.locator("main .empty").wait_for()
        page.clock.run_for(6_000)
        page.locator("main[data-job='loop'] .chain").first.wait_for()
    finally:
        page.unroute("**/events")
        page.goto("about:blank")


def test_the_charts_begin_anew_where_the_clock_is_set_back(site: Site) -> None:
    site.page.goto(site.server.url)
    seen = site.page.evaluate(
        """async snapshot => {
          const { History } = await import("./static/feed.js"), history = new History(), seen = [];
          for (const by of [0, 1, 0.5, -3600, -3599]) {
            history.add({ ...snapshot, at: snapshot.at + by });
            seen.push(history.at.length);
          }
          return seen;
        }""",
        SNAPSHOTS["slow"],
    )
    assert seen == [1, 2, 2, 1, 2]


def test_a_time_in_the_sentence_is_that_of_the_reader(site: Site) -> None:
    page = site.open("slow")
    made = copy.deepcopy(SNAPSHOTS["slow"])
    made["at"] += 5
    made["sentence"] = "`match` is held back: it stands at 2026-11-26T17:19:42.884Z, 11 s behind."
    site.show(made)
    time = page.locator(".sentence time")
    time.wait_for()
    assert (time.inner_text()[-8:], time.get_attribute("title")) == ("02:19:42", "2026-11-26 17:19:42 UTC")


def test_where_no_events_come_the_page_polls(site: Site) -> None:
    site.server.events = False
    try:
        page = site.open("loop")
        assert [path for path in site.server.requests if path.endswith(SNAPSHOTS["loop"]["job"]["id"])]
        assert "Nothing holds the job." in text(page, ".sentence")
    finally:
        site.server.events = True
        site.errors = [error for error in site.errors if "404" not in error]


def test_figures_are_words_for_people(site: Site) -> None:
    page = site.open("slow")
    found = page.evaluate(
        """async () => {
          const w = await import("./static/words.js");
          return [[0, 0.342, 9.81, 59.99, 192, 7500, 273600, null, NaN, -3].map((one) => w.duration(one)),
            [0, 1023, 3504231, 1e13, null].map((one) => w.size(one)),
            [0, 2.44, 21475.6, 123456789, undefined].map((one) => w.rate(one)),
            w.many(1, "restart"), w.many(2, "restart")];
        }"""
    )
    durations = [
        "0 ms",
        "342 ms",
        "9.8 s",
        "1 min",
        "3 min 12 s",
        "2 h 5 min",
        "3 d 4 h",
        *["no report yet"] * 2,
        "−3 s",
    ]
    sizes = ["0 B", "1,023 B", "3.3 MiB", "9.1 TiB", "no report yet"]
    rates = ["0/s", "2.4/s", "21,476/s", "123.5 M/s", "not measured yet"]
    assert found == [durations, sizes, rates, "1 restart", "2 restarts"]


def violations(page: Any) -> list[str]:
    """What axe-core finds on a page, each with its first element."""
    page.evaluate(AXE.read_text() + "; undefined")
    found = page.evaluate("() => axe.run(document)")["violations"]
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:200]}" for one in found]


@pytest.mark.parametrize(
    ("name", "scheme", "opened"),
    [
        ("slow", "light", "#operators button.name"),
        ("failed-checkpoint", "dark", "#checkpoints button.name"),
        ("failed", "light", "#failures summary"),
    ],
)
def test_axe_finds_nothing(site: Site, name: str, scheme: str, opened: str) -> None:
    page = site.open(name)
    page.emulate_media(color_scheme=scheme)
    page.locator(opened).first.click()
    page.locator("#subtasks select").select_option(index=1)
    page.locator("#subtasks tbody tr").first.wait_for()
    assert violations(page) == []


def test_on_a_phone_the_page_is_as_wide_as_the_screen(site: Site) -> None:
    page = site.open("slow")
    try:
        page.set_viewport_size({"width": 390, "height": 800})
        page.locator("#subtasks select").select_option("score")
        page.locator("#subtasks tbody tr").first.wait_for()
        assert page.evaluate("() => document.documentElement.scrollWidth") <= 390
    finally:
        page.set_viewport_size({"width": 1280, "height": 900})


def large(operators: int, subtasks: int) -> dict[str, Any]:
    """A snapshot of a job of many operators, by the figures of a real one: rows of three with a link across."""
    made = copy.deepcopy(SNAPSHOTS["slow"])
    kind, figures = made["graph"]["operators"][3], made["operators"]["score"]
    uids = [f"operator-{number}" for number in range(operators)]
    made["job"] |= {"id": "large", "name": "large"}
    made["graph"] = {
        "operators": [
            {**kind, "uid": uid, "name": uid, "chain": place, "parallelism": subtasks} for place, uid in enumerate(uids)
        ],
        "edges": [
            {**SNAPSHOTS["slow"]["graph"]["edges"][2], "from": uids[place - step], "to": uids[place]}
            for place in range(operators)
            for step in (3, 7)
            if place >= step and (step == 3 or place % 5 == 0)
        ],
        "scopes": [],
    }
    made["operators"] = dict.fromkeys(uids, figures)
    one = made["subtasks"][1]
    made["subtasks"] = [{**one, "chain": 5, "subtask": number} for number in range(subtasks)]
    made["inputs"], made["sources"], made["sentence"] = [], [], "`operator-5` is busy."
    return made


def test_a_hundred_operators_of_64_subtasks(site: Site) -> None:
    """Laid out once; a later snapshot only colors what is there. The figures are printed (`-s`)."""
    page, made = site.open("slow"), large(100, 64)
    site.show(made)
    page.goto(site.server.link(made))
    page.wait_for_function("() => document.querySelectorAll('.chain').length === 100", timeout=60_000)
    took = float(page.locator(".drawing").get_attribute("data-took"))
    page.locator("#subtasks select").select_option("operator-5")
    page.locator("#subtasks tbody tr").nth(63).wait_for()
    later = {**made, "at": made["at"] + 1, "sentence": "`operator-6` is busy.", "subtasks": None}
    update = page.evaluate(
        """async (later) => {
          const times = [];
          for (let turn = 0; turn < 5; turn++) {
            const start = performance.now();
            window.tailraceShow({ ...later, at: later.at + turn });
            await new Promise((done) => setTimeout(done));
            times.push(performance.now() - start);
          }
          return Math.min(...times);
        }""",
        later,
    )
    print(f"layout {took:.0f} ms, update {update:.0f} ms")
    assert "operator-6" in page.locator(".chain.named").text_content()
    assert float(page.locator(".drawing").get_attribute("data-took")) == took, "laid out once"


def test_a_larger_graph_is_drawn_on_request(site: Site) -> None:
    page, made = site.open("slow"), large(151, 2)
    site.show(made)
    page.goto(site.server.link(made))
    page.get_by_role("button", name="Draw it").wait_for()
    assert page.locator(".chain").count() == 0 and page.locator("#operators tbody tr").count() == 151


def test_an_export_needs_no_server(browser: Any, tmp_path: Path) -> None:
    file = tmp_path / "job.html"
    file.write_text(as_html(SNAPSHOTS["loop"]), encoding="utf-8")
    page = browser.new_page()
    requests: list[str] = []
    page.on("request", lambda one: requests.append(one.url))
    page.goto(file.as_uri())
    page.locator(".chain").first.wait_for()
    assert page.locator(".chain").count() == chains(SNAPSHOTS["loop"]) and page.locator(".edge.feedback").count() == 1
    assert "exported" in page.inner_text("main") and page.locator(".actions").count() == 0
    page.locator("#subtasks select").select_option("numbers")
    page.locator("#subtasks tbody tr").first.wait_for()
    assert page.locator("#subtasks tbody tr").count() == 4
    assert not [url for url in requests if not url.startswith(("file:", "blob:"))]
    page.close()


def hollow(value: Any, chance: random.Random, share: float) -> Any:
    """A copy of a part of a snapshot in which some figures that may be unknown are so, and some lists are empty."""
    if isinstance(value, msgspec.Struct):
        hints = typing.get_type_hints(type(value))
        made = {name: hollow(getattr(value, name), chance, share) for name in value.__struct_fields__}
        for name, hint in hints.items():
            if type(None) in typing.get_args(hint) and chance.random() < share:
                made[name] = None
        return type(value)(**made)
    if isinstance(value, list):
        return [hollow(one, chance, share) for one in value if chance.random() > share / 4]
    if isinstance(value, dict):
        return {key: hollow(one, chance, share) for key, one in value.items()}
    return value


def test_whatever_is_not_known_the_page_has_words_for_it(site: Site) -> None:
    """Snapshots of real jobs with holes at random."""
    chance = random.Random(7)
    for name in SNAPSHOTS:
        page = site.open(name)
        page.locator("#subtasks select").select_option(index=1)
        whole = msgspec.convert(SNAPSHOTS[name], JobSnapshot)
        made = []
        for number in range(3):
            one = hollow(whole, chance, (0.1, 0.5, 1.0)[number % 3])
            one = msgspec.structs.replace(one, graph=whole.graph, at=whole.at + number)
            made.append(msgspec.to_builtins(one))
        texts = page.evaluate(
            """async (made) => {
              const texts = [];
              for (const one of made) {
                window.tailraceShow(one);
                await new Promise((done) => setTimeout(done));
                texts.push(document.querySelector("main").textContent);
              }
              return texts;
            }""",
            made,
        )
        found = [hole[0] for hole in map(HOLES.search, texts) if hole]
        assert found == [], (name, found)
        zeros = [zero[0] for zero in (re.search(r"\b0(/s| %).*", one) for one in texts[2::3]) if zero]
        assert zeros == [], f"{name}: unknown is not zero"


def test_names_are_text_whatever_is_in_them(site: Site) -> None:
    page = site.open("slow")
    made = copy.deepcopy(SNAPSHOTS["slow"])
    made["job"] |= {"id": "odd", "name": '<img src=x onerror="alert(1)">'}
    for one in made["graph"]["operators"]:
        one["name"] = f"<b>{one['name']}</b> &amp; " + "名" * 60
    made["sentence"] = "`<i>a</i>` holds the job."
    site.server.show(made)
    page.goto(site.server.link(made))
    page.locator("main[data-job='odd'] .chain").first.wait_for()
    assert page.locator("main img, main b:has-text('visits'), main i").count() == 0
    assert text(page, "h1") == made["job"]["name"] and "<i>a</i>" in text(page, ".sentence code")
