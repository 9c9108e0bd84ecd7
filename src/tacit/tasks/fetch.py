"""Downloads: streamed to a temporary file, checked, and only then given their name."""

import contextlib
import os
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from itertools import groupby
from pathlib import Path
from typing import Protocol

from tacit.errors import DataError, StorageError
from tacit.tasks.datasets import DataSet, File, cache_folder, locate, verify
from tacit.tasks.formats import pack, unpack

CHUNK = 1 << 18


class Progress(Protocol):
    """What a download tells while it runs."""

    def __call__(self, name: str, done: int, total: int | None) -> None:
        """`done` of `total` bytes of this file are here."""
        ...


def fetch(data: DataSet) -> list[Path]:
    """Download the files of a data set that are missing, with a progress bar on standard error.

    Returns:
        The new files, below `$TACIT_DATA` if that is set, else below the cache folder.

    Raises:
        DataError: a source cannot be reached or holds something else; nothing is left behind.
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
    with _bar() as progress:
        for _, together in groupby(missing, key=lambda file: file.urls):
            new += _fetch_together(list(together), progress)
    return new


def store_folder() -> Path:
    """Where fetched files go."""
    said = os.environ.get("TACIT_DATA")
    return Path(said).expanduser() if said else cache_folder()


def _fetch_together(files: list[File], progress: Progress) -> list[Path]:
    """Files of one address: one download, then one file after the other."""
    with _workshop((store_folder() / files[0].path).parent) as folder:
        download = folder / "download"
        url = _download_first(files, download, progress)
        return [_install(file, download, url) for file in files]


def _install(file: File, download: Path, url: str) -> Path:
    """Check what was downloaded, pack it as the file asks, and move it to its place at once."""
    target, ready = store_folder() / file.path, download.parent / file.name
    suffix = _packing(url)
    content = unpack(download, member=file.member, limit=file.size, suffix=suffix)
    verify(content, file, url)
    with _writing(target):
        if suffix == _packing(file.path):
            shutil.copyfile(download, ready)
        else:
            pack(content, ready)
        ready.replace(target)
    return target


@contextlib.contextmanager
def _workshop(parent: Path) -> Iterator[Path]:
    """A folder beside the final place, gone afterwards whatever happens."""
    with _writing(parent):
        parent.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix=".fetch-", dir=parent)
    with folder as place:
        yield Path(place)


@contextlib.contextmanager
def _writing(target: Path) -> Iterator[None]:
    """Whatever the disk refuses is a `StorageError`."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{target} cannot be written: {error.strerror or error}.") from error


def _download_first(files: list[File], target: Path, progress: Progress) -> str:
    """Try the sources in order; the address that answered."""
    failures = []
    for url in files[0].urls:
        try:
            _download(url, target, files[0].name, progress)
        except (OSError, HTTPException) as error:
            failures.append(f"{url} ({getattr(error, 'reason', None) or error})")
        else:
            return url
    raise DataError(
        f"{files[0].path} is missing and cannot be fetched from {' or '.join(failures)}. "
        f"Off line, put the file at $TACIT_DATA/{files[0].path}."
    )


def _download(url: str, target: Path, name: str, progress: Progress) -> None:
    with urllib.request.urlopen(url, timeout=30) as answer, target.open("wb") as out:
        length = answer.headers.get("Content-Length")
        total, done = int(length) if length else None, 0
        while chunk := answer.read(CHUNK):
            with _writing(target):
                out.write(chunk)
            done += len(chunk)
            progress(name, done, total)
    if total is not None and done != total:
        raise OSError(f"the connection broke after {done} of {total} bytes")


def _packing(path: str) -> str:
    """How a file is packed, by its name."""
    return next((kind for kind in (".tar.gz", ".gz", ".zip", ".npz") if path.endswith(kind)), ".raw")


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    """A bar per file on standard error; silent where that is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TaskID, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bars: dict[str, TaskID] = {}
    with Bars(*columns, console=console, disable=not console.is_terminal) as shown:

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in bars:
                bars[name] = shown.add_task(name, total=total)
            shown.update(bars[name], completed=done, total=total)

        yield progress
