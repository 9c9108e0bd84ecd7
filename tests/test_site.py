"""The site of the documents: built once, without a warning, from disk alone, and looked at in a real browser.

TACIT_PICTURES=FOLDER keeps pictures of its pages.
"""

import ast
import fcntl
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import pytest

import tacit
from report.browser import Browser, browser, chromium
from report.test_in_browser import keep, violations
from tacit import methods, pieces
from tacit.core import interfaces

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MAIN = ("index", "tutorial", "concepts/federated-learning", "concepts/threat-model", "recipes", "reference/privacy")
LOOKS = {1280: False, 390: True}  # by width, whether the colours are dark


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, worker_folder: Path) -> Path:
    """The site, built by whichever process of the test run needs it first; the others wait."""
    folder = worker_folder / "site"
    with (worker_folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
            environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
            done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
            (worker_folder / "site.log").write_text(f"{done.returncode}\n{done.stdout}{done.stderr}")
    assert (worker_folder / "site.log").read_text() == "0\n"
    return folder


@pytest.fixture(scope="session")
def worker_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@cache
def text_of(page: Path) -> str:
    return page.read_text()


@cache
def places_on(page: Path) -> frozenset[str]:
    return frozenset(re.findall(r'\s(?:id|name)="([^"]*)"', text_of(page)))


def test_every_link_leads_to_a_page_and_to_a_place_on_it(site: Path) -> None:
    for page in site.rglob("*.html"):
        for link in set(re.findall(r'\shref="([^":]*)"', text_of(page))):
            parts = urlsplit(link)
            target = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
            assert page.name == "404.html" or target.is_file(), f"{page.relative_to(site)}: {link}"
            if parts.fragment and target.suffix == ".html":
                assert unquote(parts.fragment) in places_on(target), f"{page.relative_to(site)}: {link}"


def test_nothing_is_loaded_from_another_host(site: Path) -> None:
    loaded = re.compile(r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//')
    assert [page.name for page in site.rglob("*.html") if loaded.search(text_of(page))] == []
    assert [sheet.name for sheet in site.rglob("*.css") if re.search(r"url\(['\"]?(https?:)?//", text_of(sheet))] == []


def test_no_markdown_is_left_on_a_page(site: Path) -> None:
    """What Markdown on disk means, and the builder does not understand, would be shown as it is written."""
    for page in site.rglob("*.html"):
        article = re.sub(r"<(pre|code|script).*?</\1>", "", text_of(page), flags=re.DOTALL)
        found = re.search(r"```|\|---|\]\([\w./#-]+\)|^:::|^[-*] \S", article, re.MULTILINE)
        assert found is None, f"{page.relative_to(site)}: {found}"


def test_every_page_is_in_the_navigation() -> None:
    listed = (ROOT / "mkdocs.yml").read_text()
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert [page for page in pages if f" {page}\n" not in listed] == []


def test_every_public_name_is_in_the_reference(site: Path) -> None:
    reference = text_of(site / "reference" / "index.html") + text_of(site / "reference" / "errors.html")
    modules = {"methods", "pieces", "tasks"}
    assert [n for n in dir(tacit) if n not in modules and f'id="{path_of(n)}"' not in reference] == []
    shown = text_of(site / "reference" / "pieces.html")
    assert [name for name in pieces.__all__ if not re.search(rf'id="tacit\.[\w.]+\.{name}"', shown)] == []


def test_every_type_of_an_interface_is_in_the_reference(site: Path) -> None:
    """What a signature or a member of the interfaces mentions, and Tacit defines."""
    source = ast.parse(Path(interfaces.__file__).read_text())
    imported = [
        (node.module, name.name)
        for node in ast.walk(source)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit.")
        for name in node.names
    ]
    shown = "".join(text_of(page) for page in (site / "reference").glob("*.html"))
    assert len(imported) > 20
    assert [path for path in (".".join(map(str, each)) for each in imported) if f'id="{path}"' not in shown] == []


def path_of(name: str) -> str:
    value = getattr(tacit, name)
    return f"{value.__module__}.{name}"


def script(name: str) -> ModuleType:
    """A script of docs/site."""
    found = importlib.util.spec_from_file_location(f"docs_{name}", DOCS / "site" / f"{name}.py")
    assert found
    assert found.loader
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_pictures_are_those_that_the_script_draws() -> None:
    drawn = {name: draw() for name, draw in script("pictures").PICTURES.items()}
    assert {path.stem: path.read_text() for path in (DOCS / "pictures").glob("*.svg")} == drawn


def test_who_learns_what_follows_from_the_catalogue() -> None:
    parties = script("parties")
    _, shown, _ = parties.split(parties.PAGE.read_text())
    assert shown == parties.table()
    assert {name for name in methods.definitions() if f"`{name}`" in shown} == set(methods.definitions())


@pytest.mark.parametrize("name", MAIN)
def test_a_page_is_drawn_accessible_and_alone(name: str, site: Path, window: Browser) -> None:
    """No complaint, no request, nothing wider than the window, the chosen colours, no objection of axe."""
    for width, dark in LOOKS.items():
        window.complaints.clear()
        window.requests.clear()
        window.show(width=width, dark=dark)
        window.open((site / f"{name}.html").as_uri())
        scheme = "slate" if dark else "default"
        window.wait_for(f"document.body.dataset.mdColorScheme === '{scheme}'")
        window.wait_for("[...document.querySelectorAll('pre > code')].every(each => each.tabIndex === 0)")
        assert window.run("document.documentElement.scrollWidth") == width
        assert window.complaints == []
        assert [each for each in window.requests if not each.startswith(("file:", "data:"))] == []
        assert violations(window) == []
        keep(window, f"site-{name.replace('/', '-')}-{width}-{'dark' if dark else 'light'}")


def test_the_site_can_be_searched_from_disk(site: Path, window: Browser) -> None:
    window.show(width=1280)
    window.open((site / "index.html").as_uri())
    window.click("[data-md-component=search-query]")
    window.type("[data-md-component=search-query]", "zero-out")
    field = "document.querySelector('[data-md-component=search-query]')"
    again = f"{field}.dispatchEvent(new Event('keyup'))"  # what is typed before the index is read finds nothing
    links = "[...document.querySelectorAll('.md-search-result__link')].map(a => a.href).join()"
    found = window.wait_for(f"({again}, {links})")
    assert "glossary.html" in found
