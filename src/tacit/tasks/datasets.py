"""Data sets as records: files, the checksum of what each holds, where they come from.

A file is looked for in `$TACIT_DATA`, then in the cache folder (`$XDG_CACHE_HOME/tacit`, usually
`~/.cache/tacit`), then where Debian's package `dataset-fashion-mnist` installs. In each the layout is
`<data set>/<file>`. Every read recomputes the checksum of the bytes that are used; a file that differs is refused.
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
        sha256: of the content, not of the packed bytes (see `tacit.tasks.formats`).
        size: bytes of content.
        urls: public sources, tried in order; none if it is not published in this form.
        member: for an archive, the base name of the file inside.
    """

    path: str
    sha256: str
    size: int
    urls: tuple[str, ...] = ()
    member: str = ""

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    """Files that belong together, with what a user must know before using them."""

    name: str
    files: tuple[File, ...]
    licence: str
    source: str
    records: str
    optional: tuple[str, ...] = ()  # paths of files that a task can do without

    def file(self, name: str) -> File:
        """The file of this name."""
        return next(file for file in self.files if file.name == name)


def folders() -> list[Path]:
    """Where files are looked for, first to last."""
    said = os.environ.get("TACIT_DATA")
    return [*([Path(said).expanduser()] if said else []), cache_folder(), DEBIAN]


def cache_folder() -> Path:
    """The user's cache folder for data."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tacit"


def locate(file: File) -> Path | None:
    """Where a file is, or `None`."""
    places = (folder / file.path for folder in folders())
    return next((place for place in places if place.is_file()), None)


def read(file: File) -> bytes:
    """The content of a file, checked.

    Raises:
        DataError: the file is missing, broken, or not what it should be.
    """
    place = locate(file)
    if place is None:
        raise DataError(f"{file.path} is missing: it is not in {_listed_folders()}. {how_to_provide(file)}")
    content = unpack(place, member=file.member, limit=file.size)
    verify(content, file, str(place))
    return content


def verify(content: bytes, file: File, place: str) -> None:
    """Raise `DataError` unless this is what the file should hold."""
    found = hashlib.sha256(content).hexdigest()
    if found != file.sha256:
        size = f"{len(content)} bytes" if len(content) <= file.size else f"more than {file.size} bytes"
        raise DataError(
            f"{place} has the wrong content: expected sha256 {file.sha256} ({file.size} bytes), "
            f"found {found} ({size}). Delete it and fetch it again."
        )


def how_to_provide(file: File) -> str:
    """What to do about a missing file."""
    name = file.path.split("/", 1)[0]
    by_hand = f"put the file at $TACIT_DATA/{file.path}"
    if not file.urls:
        return f"It is not published in this form; see the source in `tacit data list`, and {by_hand}."
    return f"Run `tacit data fetch {name}`, or {by_hand}."


def _listed_folders() -> str:
    return ", ".join(str(folder) for folder in folders())
