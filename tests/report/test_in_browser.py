"""Pages in a real browser: read, clicked, printed, and checked by axe-core (MPL-2.0, github.com/dequelabs/axe-core).

Without Chromium these tests are skipped. TACIT_PICTURES=FOLDER keeps pictures of the pages, to be looked at.
"""

import gzip
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from report.browser import Browser, browser, chromium
from report.made import PROVED, TASK, add_round, made_run
from report.test_live import spoiled
from tacit.report.live import LiveServer
from tacit.report.page import comparison_page, run_page
from tacit.report.run_data import RunData
from tacit.report.watching import RunWatcher

AXE = Path(__file__).with_name("axe-4.14.0.min.js.gz")
HOSTILE = "<img src=x onerror=document.title='run'>"
LOOKS = [pytest.param(width, dark, id=f"{width}-{'dark' if dark else 'light'}")
         for width in (1280, 390) for dark in (False, True)]  # fmt: skip
pytestmark = pytest.mark.skipif(chromium() is None, reason="needs Chromium: apt-get install chromium")


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of a private run with a hostile name, and a comparison."""
    folder = tmp_path_factory.mktemp("pages")
    args = {"epsilon": 2.0, "delta": 1e-5, "cohort": 5, "noise": 2.0}
    task = replace(TASK, args={"clients": 20, "note": HOSTILE}, loss=HOSTILE)
    run = made_run(folder / "<script>", 40, method="geyer", args=args, guarantee=PROVED, caveat=HOSTILE, task=task)
    others = [made_run(folder / f"seed-{seed}", 40, seed=seed) for seed in range(3)]
    texts = {"run": run_page(RunData.read(run)), "comparison": comparison_page([*map(RunData.read, (run, *others))])}
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text)
    return {name: folder / f"{name}.html" for name in texts}


def violations(window: Browser) -> list[Any]:
    window.run(f"{gzip.decompress(AXE.read_bytes()).decode()};0")
    found = "r.violations.map(v => [v.id, v.nodes.map(n => n.html + n.failureSummary)])"
    return list(window.run(f"axe.run({{preload: false}}).then(r => {found})"))


def keep(window: Browser, name: str) -> None:
    folder = os.environ.get("TACIT_PICTURES")
    if folder:
        Path(folder, f"{name}.png").write_bytes(window.picture())


@pytest.mark.parametrize("name", ["run", "comparison"])
@pytest.mark.parametrize(("width", "dark"), LOOKS)
def test_a_report_is_drawn_accessible_and_alone(
    name: str, width: int, dark: bool, window: Browser, pages: dict[str, Path]
) -> None:
    """No complaint, no request, no hostile name that ran, nothing wider than the window, no objection of axe."""
    window.complaints.clear()
    window.requests.clear()
    window.show(width=width, dark=dark)
    window.open(pages[name].as_uri())
    window.wait_for("document.querySelectorAll('figure.chart canvas').length >= 3")
    assert window.run("document.documentElement.scrollWidth") == width
    assert window.run("document.title") != "run"
    assert violations(window) == []
    keep(window, f"{name}-{width}-{'dark' if dark else 'light'}")
    assert window.complaints == []
    assert window.requests == [pages[name].as_uri()]


def test_a_chart_follows_the_mouse_and_the_colours(window: Browser, pages: dict[str, Path]) -> None:
    window.show(width=1280)
    window.open(pages["run"].as_uri())
    last = window.wait_for("document.querySelector('.readout').textContent")
    assert last.startswith("Round 40: accuracy ")
    window.run("document.querySelector('figure.chart').scrollIntoView()")
    window.click("figure.chart .u-over")
    window.wait_for(f"document.querySelector('.readout').textContent !== {last!r}")
    pixels = "document.querySelector('canvas').toDataURL()"
    light = window.run(pixels)
    window.show(width=1280, dark=True)
    window.wait_for(f"{pixels} !== {light!r}")


def test_a_report_can_be_printed(window: Browser, pages: dict[str, Path]) -> None:
    window.show(width=1280, dark=True)
    window.open(pages["run"].as_uri())
    assert window.printed().startswith(b"%PDF")
    assert window.run("document.documentElement.dataset.theme") is None


def test_the_live_page_sorts_filters_draws_and_goes_on(window: Browser, tmp_path: Path) -> None:
    for seed in range(4):
        made_run(tmp_path / f"run-{seed}", 20 - seed, seed=seed, status="running", args={"rounds": 50})
    made_run(tmp_path / "<script>", 5, method="fl-std", seed=9)
    with LiveServer(RunWatcher(tmp_path)) as server:
        for target in (server.watcher.watch, server.serve_forever):
            threading.Thread(target=target, daemon=True).start()
        try:
            _use_live_page(window, server.address, tmp_path)
        finally:
            window.open("about:blank#closed")
            server.watcher.close()
            server.shutdown()


def _use_live_page(window: Browser, address: str, folder: Path) -> None:
    names = "[...document.querySelectorAll('#rows .open')].map(each => each.textContent).join(' ')"
    window.complaints.clear()
    window.requests.clear()
    window.show(width=1280)
    window.open(address)
    window.wait_for(f"{names} === '<script> run-0 run-1 run-2 run-3'")
    window.click("[data-key=rounds] button")
    window.wait_for(f"{names} === 'run-0 run-1 run-2 run-3 <script>'")
    window.click("[data-key=rounds] button")
    window.wait_for(f"{names} === '<script> run-3 run-2 run-1 run-0'")
    window.click("#rows tr:nth-child(2) .open")
    window.wait_for("document.querySelectorAll('#chosen canvas').length === 3")
    assert window.run("document.querySelector('#chosen h2').textContent") == "run-3"
    add_round(folder / "run-3", 18)
    window.wait_for("document.getElementById('rows').textContent.includes('18 of 50')")
    window.wait_for("document.querySelector('#chosen .readout').textContent.startsWith('Round 18: ')")
    window.type("#filter", "fedavg 2")
    window.wait_for(f"{names} === 'run-2'")
    for width, dark in ((1280, True), (390, False)):
        window.show(width=width, dark=dark)
        assert violations(window) == []
        keep(window, f"live-{width}-{'dark' if dark else 'light'}")
    assert window.run("document.documentElement.scrollWidth") == 390
    assert window.complaints == []
    assert all(each.startswith(address) for each in window.requests)


def test_a_run_with_strange_numbers_and_names_leaves_the_table_as_it_is(window: Browser, tmp_path: Path) -> None:
    """Infinite seconds, and metrics that are named as what every object of JavaScript has."""
    made_run(tmp_path / "good", 5)
    for seed, how in enumerate(("infinite", "names", "binary"), start=1):
        spoiled(made_run(tmp_path / how, 5, seed=seed), how)
    with LiveServer(RunWatcher(tmp_path)) as server:
        for target in (server.watcher.watch, server.serve_forever):
            threading.Thread(target=target, daemon=True).start()
        try:
            window.complaints.clear()
            window.open(server.address)
            window.wait_for("document.querySelectorAll('#rows .open').length === 4")
            window.wait_for("document.getElementById('rows').textContent.includes('unreadable')")
            assert window.complaints == []
        finally:
            window.open("about:blank#closed")
            server.watcher.close()
            server.shutdown()
