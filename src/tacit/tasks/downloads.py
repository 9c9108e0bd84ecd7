"""Download the files of data sets.

Downloads go to a temporary folder and are moved to their place only after they have been verified. Downloads use
https only, and fail as soon as they are longer than the file can be.
"""

import contextlib
import shutil
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPException
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
from rich.progress import Progress as Bars

from tacit.core.files import storage_errors
from tacit.errors import DataError
from tacit.tasks.datasets import DataSet, File, data_folders, locate, verify
from tacit.tasks.formats import max_packed, pack, packing_of, unpack

_CHUNK = 1 << 18  # bytes per read
Progress = Callable[[str, int, int | None], None]  # a file's name, its bytes so far and, if declared, their total


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
    with _temporary_folder((data_folders()[0] / files[0].path).parent) as folder:
        download = folder / "download"
        url = _download_first(files, download, progress)
        return [_install(file, download, url) for file in files]


def _install(file: File, download: Path, url: str) -> Path:
    """Verify a download, compress it according to the file's name, and move it to its place atomically."""
    target, temporary = data_folders()[0] / file.path, download.parent / file.name
    packing = packing_of(url)
    content = unpack(download, member=file.member, limit=file.size, packing=packing)
    verify(content, file, url)
    with storage_errors(target):
        if packing == packing_of(file.path):
            shutil.copyfile(download, temporary)
        else:
            pack(content, temporary)
        temporary.replace(target)
    return target


@contextlib.contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A folder on the same file system as the final place, so that moving a file there is atomic."""
    with storage_errors(parent):
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent)
    with folder as path:
        yield Path(path)


def _download_first(files: list[File], target: Path, progress: Progress) -> str:
    """Download from the first source that works; returns its URL."""
    failures, size = [], max(file.size for file in files)
    for url in files[0].urls:
        try:
            _download(url, target, max_packed(size, packing_of(url)), partial(progress, files[0].name))
        except (OSError, HTTPException) as error:
            failures.append(f"{url} ({getattr(error, 'reason', None) or error})")
        else:
            return url
    raise DataError(
        f"{files[0].path} is missing and cannot be fetched from {' or '.join(failures)}. "
        f"Without a network connection, put the file at $TACIT_DATA/{files[0].path}."
    )


def _download(url: str, target: Path, most: int, progress: Callable[[int, int | None], None]) -> None:
    """Download at most this many bytes, over an encrypted connection."""
    _check_transport(url)
    with urllib.request.urlopen(url, timeout=30) as response, target.open("wb") as out:
        _check_transport(response.geturl())  # after redirects
        length, done = response.headers.get("Content-Length", ""), 0
        total = int(length) if length.isascii() and length.isdigit() else None
        if total is not None and total > most:
            raise OSError(f"expected at most {most} bytes, the server announces {total}")
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            if done > most:
                raise OSError(f"expected at most {most} bytes, got more")
            with storage_errors(target):
                out.write(chunk)
            progress(done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke after {done} of {total} bytes")


def _check_transport(url: str) -> None:
    """Raise `OSError` for a connection that can be tampered with; this machine itself is trusted."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and (parts.scheme, parts.hostname) not in (("http", "127.0.0.1"), ("http", "localhost")):
        raise OSError("expected an https address")


@contextlib.contextmanager
def _progress_bars() -> Iterator[Progress]:
    """One bar per file on standard error; silent if that is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars: dict[str, TaskID] = {}
    with Bars(*columns, console=console, disable=not console.is_terminal) as display:

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = display.add_task(name, total=total)
            display.update(bars[name], completed=done, total=total)

        yield progress
