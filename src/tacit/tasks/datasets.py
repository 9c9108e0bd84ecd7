"""Data sets as records (files, checksums, sources, licences), and how their files are found, read and downloaded.

A file is looked up in `$TACIT_DATA`, then in the cache folder (`$XDG_CACHE_HOME/tacit`, usually `~/.cache/tacit`), then
where Debian's package `dataset-fashion-mnist` installs. In each folder the layout is `<data set>/<file>`. Every read
verifies the checksum of the content; a file that differs is refused. Downloads go to a temporary folder and are moved
to their place only after they have been verified. A download comes over https only, and ends with an error as
soon as it is longer than the file can be.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http.client import HTTPException
from itertools import groupby
from pathlib import Path
from typing import Protocol

from tacit.errors import DataError, StorageError
from tacit.tasks.formats import max_packed, pack, packing_of, unpack

DEBIAN = Path("/usr/share/datasets")
CHUNK = 1 << 18  # bytes per read of a download


@dataclass(frozen=True)
class File:
    """One file of a data set.

    Args:
        path: place below a data folder, `<data set>/<file>`.
        sha256: checksum of the content, not of the compressed bytes (see `tacit.tasks.formats`).
        size: bytes of content.
        urls: public sources, tried in order; empty if the file is not published in this form.
        member: for an archive, the base name of the file inside.
    """

    path: str
    sha256: str
    size: int
    urls: tuple[str, ...] = ()
    member: str = ""

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    """Files that belong together, with licence and source.

    Args:
        name: the folder of its files, and its name on the command line.
        files: all files.
        licence: under which the data may be used.
        source: publication or publisher.
        records: number and kind of records.
        optional: paths of files that a task can do without.
    """

    name: str
    files: tuple[File, ...]
    licence: str
    source: str
    records: str
    optional: tuple[str, ...] = ()

    def file(self, name: str) -> File:
        return next(file for file in self.files if file.name == name)


class Progress(Protocol):
    """Called during a download."""

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of the file have arrived; `total` is None if the server does not declare it."""
        ...


def data_folders() -> list[Path]:
    """Where files are looked up, in this order."""
    configured = os.environ.get("TACIT_DATA")
    return [*([Path(configured).expanduser()] if configured else []), cache_folder(), DEBIAN]


def cache_folder() -> Path:
    """The user's cache folder for data."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit"


def download_folder() -> Path:
    """Where downloads are stored: `$TACIT_DATA` if it is set, else the cache folder."""
    configured = os.environ.get("TACIT_DATA")
    return Path(configured).expanduser() if configured else cache_folder()


def locate(file: File) -> Path | None:
    """Path of a file, or `None` if no data folder has it."""
    candidates = (folder / file.path for folder in data_folders())
    return next((path for path in candidates if path.is_file()), None)


def read(file: File) -> bytes:
    """The verified content of a file.

    Raises:
        DataError: the file is missing, cannot be decompressed, or has another checksum.
    """
    path = locate(file)
    if path is None:
        searched = ", ".join(map(str, data_folders()))
        raise DataError(f"{file.path} is missing: it is not in {searched}. {how_to_get(file)}")
    content = unpack(path, member=file.member, limit=file.size)
    verify(content, file, str(path))
    return content


def verify(content: bytes, file: File, origin: str) -> None:
    """Raise `DataError` unless the content has the file's checksum; `origin` is the path or URL it came from."""
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        size = f"{len(content)} bytes" if len(content) <= file.size else f"more than {file.size} bytes"
        raise DataError(
            f"{origin} has the wrong content: expected sha256 {file.sha256} ({file.size} bytes), "
            f"found {found} ({size}). Delete it and fetch it again."
        )


def how_to_get(file: File) -> str:
    """What a user can do about a missing file."""
    data_set = file.path.split("/", 1)[0]
    by_hand = f"put the file at $TACIT_DATA/{file.path}"
    if not file.urls:
        return f"It is not published in this form; see the source in `tacit data list`, and {by_hand}."
    return f"Run `tacit data fetch {data_set}`, or {by_hand}."


def fetch(data: DataSet) -> list[Path]:
    """Download the missing files of a data set, with a progress bar on standard error.

    Returns:
        Paths of the new files.

    Raises:
        DataError: no source can be reached, or the content has another checksum; no partial file is kept.
        StorageError: the folder cannot be written.
    """
    missing = [file for file in data.files if locate(file) is None]
    for file in missing:
        if not file.urls:
            raise DataError(
                f"{file.path} is missing, and it is not published in this form. "
                f"Source: {data.source}. Put the file at $TACIT_DATA/{file.path}."
            )
    new: list[Path] = []
    with _progress_bars() as progress:
        for _, same_source in groupby(missing, key=lambda file: file.urls):
            new += _fetch_from_one_source(list(same_source), progress)
    return new


def _fetch_from_one_source(files: list[File], progress: Progress) -> list[Path]:
    """One download; several files if it is an archive."""
    with _temporary_folder((download_folder() / files[0].path).parent) as folder:
        download = folder / "download"
        url = _download_first(files, download, progress)
        return [_install(file, download, url) for file in files]


def _install(file: File, download: Path, url: str) -> Path:
    """Verify a download, compress it as the file's name says, and move it to its place atomically."""
    target, temporary = download_folder() / file.path, download.parent / file.name
    packing = packing_of(url)
    content = unpack(download, member=file.member, limit=file.size, packing=packing)
    verify(content, file, url)
    with _storage_errors(target):
        if packing == packing_of(file.path):
            shutil.copyfile(download, temporary)
        else:
            pack(content, temporary)
        temporary.replace(target)
    return target


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """On the same file system as the final place, so that moving a file there is atomic."""
    with _storage_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent)
    with folder as path:
        yield Path(path)


@contextlib.contextmanager
def _storage_errors(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}.") from error


def _download_first(files: list[File], target: Path, progress: Progress) -> str:
    """Download from the first source that works; returns its URL."""
    failures = []
    for url in files[0].urls:
        try:
            _download(url, target, _most_bytes(files, url), partial(progress, files[0].name))
        except (OSError, HTTPException) as error:
            failures.append(f"{url} ({getattr(error, 'reason', None) or error})")
        else:
            return url
    raise DataError(
        f"{files[0].path} is missing and cannot be fetched from {' or '.join(failures)}. "
        f"Without a network connection, put the file at $TACIT_DATA/{files[0].path}."
    )


def _most_bytes(files: list[File], url: str) -> int:
    """The most bytes that a download of these files may have."""
    return max_packed(max(file.size for file in files), packing_of(url))


def _download(url: str, target: Path, most: int, progress: Callable[[int, int | None], None]) -> None:
    """Download at most this many bytes, over an encrypted connection."""
    _check_transport(url)
    with urllib.request.urlopen(url, timeout=30) as response, target.open("wb") as out:
        _check_transport(response.geturl())  # after redirects
        length, done = response.headers.get("Content-Length", ""), 0
        total = int(length) if length.isascii() and length.isdigit() else None
        if total is not None and total > most:
            raise OSError(f"expected at most {most} bytes, the server announces {total}")
        while chunk := response.read(CHUNK):
            done += len(chunk)
            if done > most:
                raise OSError(f"expected at most {most} bytes, got more")
            with _storage_errors(target):
                out.write(chunk)
            progress(done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke after {done} of {total} bytes")


def _check_transport(url: str) -> None:
    """Raise `OSError` for a connection that others on the way can change; this machine itself is trusted."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
        raise OSError("expected an https address")


@contextlib.contextmanager
def _progress_bars() -> Iterator[Progress]:
    """One bar per file on standard error; silent if that is not a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars: dict[str, TaskID] = {}
    with Bars(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = display.add_task(name, total=total)
            display.update(bars[name], completed=done, total=total)

        yield progress
