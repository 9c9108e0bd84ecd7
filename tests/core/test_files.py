import errno
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
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
        with files.lock_folder(tmp_path):
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
        "with files.lock_folder(Path('.')):\n"
        "    files.write(Path('it'), b'content')\n"
        "journal = tacit.federation.journal.AuditLog(Path('log.jsonl'))\n"
        "journal.append('started')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, timeout=120)
    assert (tmp_path / "it").read_bytes() == b"content"


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_private_files_and_their_folders_are_private_whatever_the_umask(tmp_path: Path) -> None:
    with umask(0):
        files.write(tmp_path / "new" / "folder" / "file", b"one", parents=True, private=True)
        files.touch_private(tmp_path / "touched")
    assert [mode(tmp_path / "new"), mode(tmp_path / "new" / "folder")] == [0o700, 0o700]
    assert [mode(tmp_path / "new" / "folder" / "file"), mode(tmp_path / "touched")] == [0o600, 0o600]


def test_a_prepared_temporary_file_receives_nothing(tmp_path: Path) -> None:
    """Another user who may write in the folder makes a file or a link of every name that can be guessed."""
    (tmp_path / "theirs").touch()
    (tmp_path / ".secret.partial").symlink_to(tmp_path / "theirs")
    (tmp_path / ".other.partial").touch(0o666)
    for name in ("secret", "other"):
        files.write(tmp_path / name, b"content", private=True)
        assert (mode(tmp_path / name), (tmp_path / name).read_bytes()) == (0o600, b"content")
    assert not (tmp_path / "secret").is_symlink()
    assert (tmp_path / "theirs").read_bytes() == (tmp_path / ".other.partial").read_bytes() == b""


def test_a_guessed_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda _: "guessed")
    (tmp_path / "theirs").touch()
    (tmp_path / ".file.guessed.partial").symlink_to(tmp_path / "theirs")
    with pytest.raises(StorageError):
        files.write(tmp_path / "file", b"content", private=True)
    assert (tmp_path / "theirs").read_bytes() == b""
    assert not (tmp_path / "file").exists()


def test_what_killed_writes_left_is_removed(tmp_path: Path) -> None:
    """It may be the copy of a key that was to be erased; what another process writes now stays."""
    for name, age in ((".key.0011.partial", 3600), (".key.0022.partial", 0), (".keys.0033.partial", 3600)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - age, time.time() - age))
    files.write(tmp_path / "key", b"new", private=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".key.0022.partial", ".keys.0033.partial", "key"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_a_file_of_another_user_is_not_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").touch(0o666)
    os.chown(tmp_path / "log", 4321, 4321)
    (tmp_path / "link").symlink_to(tmp_path / "mine")
    (tmp_path / "mine").touch()
    os.chown(tmp_path / "link", 4321, 4321, follow_symlinks=False)
    monkeypatch.setattr(os, "geteuid", lambda: 77)
    for name in ("log", "link"):
        with pytest.raises(StorageError, match="another user made it"):
            files.touch_private(tmp_path / name)
    monkeypatch.undo()
    files.touch_private(tmp_path / "mine")
