import gzip
import hashlib
from pathlib import Path

import pytest

from tacit.errors import DataError
from tacit.tasks import datasets
from tacit.tasks.datasets import File, folders, locate, read
from tacit.tasks.sources import DATA_SETS

CONTENT = b"some content"
FILE = File("tiny/tiny.gz", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), ("https://example.org/tiny.gz",))


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "said"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    return {"said": tmp_path / "said", "cache": tmp_path / "cache" / "tacit", "debian": tmp_path / "debian"}


def put(folder: Path, content: bytes = CONTENT, level: int = 9) -> Path:
    target = folder / FILE.path
    target.parent.mkdir(parents=True)
    target.write_bytes(gzip.compress(content, level))
    return target


def test_lookup_order(places):
    assert folders() == list(places.values())
    for name in ("debian", "cache", "said"):
        target = put(places[name])
        assert locate(FILE) == target


def test_without_variables_the_home_folder_is_used(monkeypatch, tmp_path):
    monkeypatch.delenv("TACIT_DATA")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert folders()[0] == tmp_path / ".cache" / "tacit"


@pytest.mark.parametrize("level", [1, 9])
def test_content_counts_not_packing(places, level):
    put(places["said"], level=level)
    assert read(FILE) == CONTENT


def test_a_missing_file_says_what_to_do():
    with pytest.raises(DataError, match=r"tiny/tiny.gz is missing.*data fetch tiny.*\$TACIT_DATA/tiny/tiny.gz"):
        read(FILE)
    with pytest.raises(DataError, match=r"not published in this form.*\$TACIT_DATA/tiny/tiny.gz"):
        read(File(FILE.path, FILE.sha256, FILE.size))


@pytest.mark.parametrize("content", [b"some cOntent", b"some", b"some content and more", b""])
def test_wrong_content_is_refused(places, content):
    target = put(places["said"], content)
    with pytest.raises(DataError) as caught:
        read(FILE)
    found = hashlib.sha256(content[: FILE.size + 1]).hexdigest()
    assert all(word in str(caught.value) for word in (str(target), FILE.sha256, found))


def test_a_truncated_file_is_refused(places):
    target = put(places["said"])
    target.write_bytes(target.read_bytes()[:-3])
    with pytest.raises(DataError, match="cannot be read"):
        read(FILE)


def test_the_table_of_data_sets_is_sound():
    for name, known in DATA_SETS.items():
        assert known.name == name
        assert set(known.optional) <= {file.path for file in known.files}
        for file in known.files:
            assert file.path.startswith(f"{name}/")
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
            assert bool(file.member) == file.path.endswith((".zip", ".npz"))
