import contextlib
import gzip
import hashlib
import http.server
import io
import tarfile
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError

import numpy as np
import pytest

from tacit.errors import DataError, StorageError
from tacit.tasks import datasets
from tacit.tasks.datasets import DataSet, File, read
from tacit.tasks.fetch import fetch

CSV = b"a,b\n1,2\n"
BATCHES = {name: np.random.default_rng(i).bytes(3073 * 2) for i, name in enumerate(("one", "two"))}


def tarball() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in BATCHES.items():
            entry = tarfile.TarInfo(f"batches/{name}.bin")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()


PAGES = {"/plain.csv": CSV, "/table.csv.gz": gzip.compress(CSV), "/all.tar.gz": tarball()}


class Handler(http.server.BaseHTTPRequestHandler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(self.path)
        page = PAGES.get(self.path.replace("/short", ""))
        self.send_response(200 if page else 404)
        self.send_header("Content-Length", str(len(page or b"")))
        self.end_headers()
        self.wfile.write((page or b"")[: 3 if "/short" in self.path else None])

    def log_message(self, *_: object) -> None:
        pass


@contextlib.contextmanager
def serving() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def url() -> Iterator[str]:
    Handler.asked.clear()
    with serving() as address:
        yield address


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    return tmp_path / "data"


def tiny(*files: File) -> DataSet:
    return DataSet("tiny", files, licence="none", source="this test", records="few")


def table(*urls: str, content: bytes = CSV) -> File:
    return File("tiny/table.csv.gz", hashlib.sha256(content).hexdigest(), len(content), urls)


def left(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() or path.name.startswith(".")]


@pytest.mark.parametrize("page", ["/table.csv.gz", "/plain.csv"])
def test_a_file_arrives_in_its_packing(url, store, page):
    file = table(url + page)
    assert fetch(tiny(file)) == [store / "tiny/table.csv.gz"]
    assert read(file) == CSV
    assert left(store) == [store / "tiny/table.csv.gz"]
    assert fetch(tiny(file)) == []  # nothing is missing any more
    assert Handler.asked == [page]


def test_one_archive_gives_several_files(url, store):
    files = [
        File(f"tiny/{n}.npz", hashlib.sha256(c).hexdigest(), len(c), (f"{url}/all.tar.gz",), f"{n}.bin")
        for n, c in BATCHES.items()
    ]
    assert len(fetch(tiny(*files))) == 2
    assert [read(file) for file in files] == list(BATCHES.values())
    assert Handler.asked == ["/all.tar.gz"]


def test_the_second_source_is_tried(url):
    assert fetch(tiny(table(f"{url}/nowhere", f"{url}/plain.csv")))


def test_wrong_content_leaves_nothing_behind(url, store):
    file = table(f"{url}/table.csv.gz", content=b"a,b\n1,3\n")
    with pytest.raises(DataError, match=rf"{url}/table.csv.gz has the wrong content.*{file.sha256}.*found"):
        fetch(tiny(file))
    assert left(store) == []


@pytest.mark.parametrize("page", ["/nowhere", "/short/table.csv.gz"])
def test_a_source_that_fails_is_named(url, store, page):
    with pytest.raises(DataError, match=rf"cannot be fetched from {url}{page}.*\$TACIT_DATA/tiny/table.csv.gz"):
        fetch(tiny(table(url + page)))
    assert left(store) == []


def test_off_line(monkeypatch, store):
    def no_net(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", no_net)
    with pytest.raises(DataError) as caught:
        fetch(tiny(table("https://example.org/table.csv.gz")))
    said = str(caught.value)
    assert "tiny/table.csv.gz is missing" in said
    assert "https://example.org/table.csv.gz (Name or service not known)" in said
    assert "$TACIT_DATA/tiny/table.csv.gz" in said
    assert left(store) == []


def test_a_file_without_a_source(store):
    with pytest.raises(DataError, match=r"not published in this form. Source: this test. Put the file at"):
        fetch(tiny(table()))


def test_a_folder_that_cannot_be_written(url, store):
    store.write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="cannot be written"):
        fetch(tiny(table(f"{url}/plain.csv")))
