import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tacit.core import files
from tacit.errors import RunError, StorageError, UserError


def failing(number: int) -> Callable[..., None]:
    def fail(*args: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    file = tmp_path / "file"
    files.write(file, b"one")
    files.write(file, b"two")
    assert file.read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("call", "number", "advice"),
    [("fsync", errno.ENOSPC, "Free some space"), ("replace", errno.EROFS, "--out"), ("replace", errno.EIO, "disk")],
)
def test_a_failed_write_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, advice: str
) -> None:
    file = tmp_path / "file"
    files.write(file, b"one")
    monkeypatch.setattr(Path if call == "replace" else os, call, failing(number))
    with pytest.raises(StorageError, match=advice) as caught:
        files.write(file, b"two")
    assert str(file) in str(caught.value)
    assert file.read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_interrupt_leaves_the_file_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    file = tmp_path / "file"
    files.write(file, b"one")
    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        files.write(file, b"two")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"one"]


def test_folders_are_created_only_where_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "file"
    with pytest.raises(StorageError, match="No such file"):
        files.write(file, b"one")
    files.write(file, b"one", parents=True)
    assert file.read_bytes() == b"one"
    with pytest.raises(StorageError, match="File exists"):
        files.write(file / "below", b"two", parents=True)


def test_a_locked_folder_keeps_others_out(tmp_path: Path) -> None:
    """Sixteen threads that each add one, with a pause between reading and writing: none is lost."""
    count = tmp_path / "count"
    count.write_text("0")

    def add_one() -> None:
        with files.locked(tmp_path):
            number = int(count.read_text())
            time.sleep(0.01)
            files.write(count, str(number + 1).encode())

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(add_one) for _ in range(16)]:
            done.result()
    assert count.read_text() == "16"


def test_a_file_that_cannot_be_read_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one")
    assert files.read(tmp_path / "file") == b"one"
    with pytest.raises(UserError, match=rf"^Could not read the quote {tmp_path}/none: No such file or directory\.$"):
        files.read(tmp_path / "none", "the quote")
    with pytest.raises(RunError, match=rf"^Could not read {tmp_path}: Is a directory\.$"):
        files.read(tmp_path, error=RunError)


def test_without_locks_everything_can_be_imported_and_files_are_written(tmp_path: Path) -> None:
    """As on Windows, which has no `fcntl`."""
    code = (
        "import sys; sys.modules['fcntl'] = None\n"
        "from pathlib import Path\n"
        "import tacit.api, tacit.cli, tacit.runs.directory, tacit.federation.journal\n"
        "from tacit.core import files\n"
        "with files.locked(Path('.')):\n"
        "    files.write(Path('it'), b'content')\n"
        "journal = tacit.federation.journal.AuditLog(Path('log.jsonl'))\n"
        "journal.append('started')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / "it").read_bytes() == b"content"
