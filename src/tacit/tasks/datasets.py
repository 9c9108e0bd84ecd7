"""Data sets as values (files, checksums, sources, licences), and functions that locate and read their files.

A file is looked up in `$TACIT_DATA`, then in the cache folder (`$XDG_CACHE_HOME/tacit`, usually `~/.cache/tacit`), then
where Debian's package `dataset-fashion-mnist` installs. In each folder the layout is `<data set>/<file>`. Every read
verifies the checksum of the content; a file that differs is refused.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from tacit.errors import DataError
from tacit.tasks.formats import unpack

DEBIAN = Path("/usr/share/datasets")


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
        optional: paths of files that tasks do not require.
    """

    name: str
    files: tuple[File, ...]
    licence: str
    source: str
    records: str
    optional: tuple[str, ...] = ()

    def file(self, name: str) -> File:
        return next(file for file in self.files if file.name == name)


def data_folders() -> list[Path]:
    """The folders in which files are looked up, in order; downloads are stored in the first."""
    configured, base = os.environ.get("TACIT_DATA"), os.environ.get("XDG_CACHE_HOME")
    cache = (Path(base) if base else Path.home() / ".cache") / "tacit"
    return [*([Path(configured).expanduser()] if configured else []), cache, DEBIAN]


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
    actual = hashlib.sha256(content).hexdigest()
    if actual != file.sha256:
        size = f"{len(content)} bytes" if len(content) <= file.size else f"more than {file.size} bytes"
        raise DataError(
            f"{origin} has the wrong content: expected sha256 {file.sha256} ({file.size} bytes), "
            f"found {actual} ({size}). Delete it and fetch it again."
        )


def how_to_get(file: File) -> str:
    """Advice on a missing file, as a sentence."""
    data_set = file.path.split("/", 1)[0]
    by_hand = f"put the file at $TACIT_DATA/{file.path}"
    if not file.urls:
        return f"It is not published in this form; see the source in `tacit data list`, and {by_hand}."
    return f"Run `tacit data fetch {data_set}`, or {by_hand}."
