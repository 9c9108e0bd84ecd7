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
from tacit.tasks.datasets import DataSet, File, data_folders, locate, read
from tacit.tasks.downloads import fetch
from tacit.tasks.sources import DATA_SETS

CONTENT = b"some content"
FILE = File("tiny/tiny.gz", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), ("https://example.org/tiny.gz",))


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "configured"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    return {"configured": tmp_path / "configured", "cache": tmp_path / "cache" / "tacit", "debian": tmp_path / "debian"}


def put(folder: Path, content: bytes = CONTENT, level: int = 9) -> Path:
    target = folder / FILE.path
    target.parent.mkdir(parents=True)
    target.write_bytes(gzip.compress(content, level))
    return target


def test_lookup_order(folders):
    assert data_folders() == list(folders.values())
    for name in ("debian", "cache", "configured"):
        target = put(folders[name])
        assert locate(FILE) == target


def test_without_variables_the_home_folder_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_folders()[0] == tmp_path / ".cache" / "tacit"


@pytest.mark.parametrize("level", [1, 9])
def test_the_checksum_is_that_of_the_content(folders, level):
    put(folders["configured"], level=level)
    assert read(FILE) == CONTENT


def test_the_error_of_a_missing_file_gives_a_remedy():
    with pytest.raises(DataError, match=r"tiny/tiny.gz is missing.*data fetch tiny.*\$TACIT_DATA/tiny/tiny.gz"):
        read(FILE)
    with pytest.raises(DataError, match=r"not published in this form.*\$TACIT_DATA/tiny/tiny.gz"):
        read(File(FILE.path, FILE.sha256, FILE.size))


@pytest.mark.parametrize("content", [b"some cOntent", b"some", b"some content and more", b""])
def test_wrong_content_is_refused(folders, content):
    target = put(folders["configured"], content)
    with pytest.raises(DataError) as caught:
        read(FILE)
    found = hashlib.sha256(content[: FILE.size + 1]).hexdigest()
    assert all(word in str(caught.value) for word in (str(target), FILE.sha256, found))


def test_a_truncated_file_is_refused(folders):
    target = put(folders["configured"])
    target.write_bytes(target.read_bytes()[:-3])
    with pytest.raises(DataError, match="cannot be read"):
        read(FILE)


def test_the_table_of_data_sets_is_consistent():
    for name, data in DATA_SETS.items():
        assert data.name == name
        assert set(data.optional) <= {file.path for file in data.files}
        for file in data.files:
            assert file.path.startswith(f"{name}/")
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
            assert bool(file.member) == file.path.endswith((".zip", ".npz"))


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
    requested: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.requested.append(self.path)
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
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def url() -> Iterator[str]:
    Handler.requested.clear()
    with serving() as address:
        yield address


@pytest.fixture
def store(folders: dict[str, Path]) -> Path:
    return folders["configured"]


def tiny(*files: File) -> DataSet:
    return DataSet("tiny", files, licence="none", source="this test", records="few")


def table(*urls: str, content: bytes = CSV) -> File:
    return File("tiny/table.csv.gz", hashlib.sha256(content).hexdigest(), len(content), urls)


def remaining(store: Path) -> list[Path]:
    return [path for path in store.rglob("*") if path.is_file() or path.name.startswith(".")]


@pytest.mark.parametrize("page", ["/table.csv.gz", "/plain.csv"])
def test_a_download_is_compressed_as_its_name_says(url, store, page):
    file = table(url + page)
    assert fetch(tiny(file)) == [store / "tiny/table.csv.gz"]
    assert read(file) == CSV
    assert remaining(store) == [store / "tiny/table.csv.gz"]
    assert fetch(tiny(file)) == []  # nothing is missing now
    assert Handler.requested == [page]


def test_several_files_come_from_one_archive(url, store):
    files = [
        File(f"tiny/{n}.npz", hashlib.sha256(c).hexdigest(), len(c), (f"{url}/all.tar.gz",), f"{n}.bin")
        for n, c in BATCHES.items()
    ]
    assert len(fetch(tiny(*files))) == 2
    assert [read(file) for file in files] == list(BATCHES.values())
    assert Handler.requested == ["/all.tar.gz"]


def test_the_second_source_is_tried(url):
    assert fetch(tiny(table(f"{url}/nowhere", f"{url}/plain.csv")))


def test_wrong_content_is_not_stored(url, store):
    file = table(f"{url}/table.csv.gz", content=b"a,b\n1,3\n")
    with pytest.raises(DataError, match=rf"{url}/table.csv.gz has the wrong content.*{file.sha256}.*found"):
        fetch(tiny(file))
    assert remaining(store) == []


@pytest.mark.parametrize("page", ["/nowhere", "/short/table.csv.gz"])
def test_the_error_names_a_source_that_fails(url, store, page):
    with pytest.raises(DataError, match=rf"cannot be fetched from {url}{page}.*\$TACIT_DATA/tiny/table.csv.gz"):
        fetch(tiny(table(url + page)))
    assert remaining(store) == []


def test_without_a_network_connection(monkeypatch, store):
    def no_network(*_: object, **__: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    with pytest.raises(DataError) as caught:
        fetch(tiny(table("https://example.org/table.csv.gz")))
    message = str(caught.value)
    assert "tiny/table.csv.gz is missing" in message
    assert "https://example.org/table.csv.gz (Name or service not known)" in message
    assert "$TACIT_DATA/tiny/table.csv.gz" in message
    assert remaining(store) == []


def test_a_file_without_a_source(store):
    with pytest.raises(DataError, match=r"not published in this form. Source: this test. Put the file at"):
        fetch(tiny(table()))


def test_a_folder_that_cannot_be_written(url, store):
    store.write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="Could not write"):
        fetch(tiny(table(f"{url}/plain.csv")))


def test_every_source_is_encrypted():
    urls = [url for data in DATA_SETS.values() for file in data.files for url in file.urls]
    assert urls
    assert all(url.startswith("https://") for url in urls)


@pytest.mark.parametrize("address", ["http://example.org/table.csv.gz", "file:///etc/passwd", "ftp://example.org/a.gz"])
def test_a_source_that_others_can_change_is_refused(monkeypatch, store, address):
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: pytest.fail("a connection was made"))
    with pytest.raises(DataError, match="expected an https address"):
        fetch(tiny(table(address)))


def test_a_redirect_to_an_unencrypted_address_is_refused(monkeypatch, store):
    class Response(io.BytesIO):
        headers: dict[str, str] = {}  # noqa: RUF012

        def geturl(self) -> str:
            return "http://example.org/table.csv.gz"

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Response(CSV))
    with pytest.raises(DataError, match="expected an https address"):
        fetch(tiny(table("https://example.org/table.csv.gz")))
    assert remaining(store) == []


@pytest.mark.parametrize("length", ["", "9000000", "many"])
def test_a_download_ends_at_its_limit(monkeypatch, store, length):
    class Endless(io.BytesIO):
        headers = {"Content-Length": length} if length else {}
        sent = 0

        def geturl(self) -> str:
            return "https://example.org/table.csv.gz"

        def read(self, size: int | None = -1) -> bytes:
            self.sent += size or 0
            assert self.sent < 4 * 2**20, "it does not end"
            return bytes(size or 0)

    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: Endless())
    with pytest.raises(DataError, match=r"expected at most \d+ bytes"):
        fetch(tiny(table("https://example.org/table.csv.gz")))
    assert remaining(store) == []
