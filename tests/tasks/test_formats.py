import gzip
import io
import struct
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import DataError
from tacit.tasks.formats import image_records, pack, parse_csv, parse_idx, unpack

RECORDS = np.random.default_rng(0).integers(0, 10, (3, 3073), dtype=np.uint8).tobytes()


def idx(dtype: int, *shape: int, body: bytes) -> bytes:
    return struct.pack(f">BBBB{len(shape)}I", 0, 0, dtype, len(shape), *shape) + body


def test_idx_of_bytes_and_of_integers():
    assert parse_idx(idx(8, 2, 3, body=bytes(range(6))), "x").tolist() == [[0, 1, 2], [3, 4, 5]]
    numbers = parse_idx(idx(12, 2, body=struct.pack(">2i", -1, 70_000)), "x")
    assert numbers.tolist() == [-1, 70_000]
    assert numbers.dtype == np.int32


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "nothing"),
        (b"\0\0", "IDX header"),
        (b"\x1f\x8b\x08\x00rest", "1f 8b 08 00"),
        (idx(9, 2, body=b"ab"), "IDX header"),
        (b"\0\0\x08\x03\0\0\0\1", "cut off"),
        (idx(8, 2, 3, body=bytes(5)), "6 bytes of data, got 5"),
        (idx(8, 2, 3, body=bytes(7)), "6 bytes of data, got 7"),
        (idx(8, 0xFFFFFFFF, 0xFFFFFFFF, body=bytes(7)), "bytes of data, got 7"),
    ],
)
def test_idx_is_strict(content, words):
    with pytest.raises(DataError, match=words):
        parse_idx(content, "labels.gz")


def test_every_packing_returns_its_content(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("folder/table.csv", "a,b")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        entry = tarfile.TarInfo("folder/batch.bin")
        entry.size = len(RECORDS)
        tar.addfile(entry, io.BytesIO(RECORDS))
    pack(b"text", tmp_path / "a.csv.gz")
    pack(RECORDS, tmp_path / "a.npz")
    pack(b"plain", tmp_path / "a.csv")
    assert unpack(tmp_path / "a.zip", member="table.csv", limit=3) == b"a,b"
    assert unpack(tmp_path / "a.tar.gz", member="batch.bin", limit=len(RECORDS)) == RECORDS
    assert unpack(tmp_path / "a.csv.gz", limit=4) == b"text"
    assert unpack(tmp_path / "a.npz", limit=len(RECORDS)) == RECORDS
    assert unpack(tmp_path / "a.csv", limit=5) == b"plain"


def test_decompression_stops_at_the_limit(tmp_path: Path):
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(10_000_000)))
    assert len(unpack(tmp_path / "bomb.gz", limit=10)) == 11


def test_damaged_files_are_refused(tmp_path: Path):
    (tmp_path / "cut.gz").write_bytes(gzip.compress(np.random.default_rng(0).bytes(1000))[:-20])
    (tmp_path / "not.gz").write_bytes(b"hello")
    (tmp_path / "not.zip").write_bytes(b"hello")
    (tmp_path / "not.npz").write_bytes(b"hello")
    np.savez(tmp_path / "other.npz", x=np.zeros(3), y=np.zeros(3))
    np.savez(tmp_path / "pickled.npz", x=np.array([{}]), y=np.zeros(1, np.uint8))
    with zipfile.ZipFile(tmp_path / "empty.zip", "w"):
        pass
    for name in ("cut.gz", "not.gz", "not.zip", "not.npz", "other.npz", "pickled.npz", "empty.zip"):
        with pytest.raises(DataError, match=rf"{name} cannot be read.*[Ff]etch it again"):
            unpack(tmp_path / name, member="x", limit=10_000)


def test_image_records():
    labels, images = image_records(RECORDS)
    assert labels.shape == (3,)
    assert images.shape == (3, 3, 32, 32)
    assert images[1, 0, 0, 0] == RECORDS[3073 + 1]
    with pytest.raises(DataError, match="records of 3073 bytes"):
        image_records(RECORDS[:-1])


def test_csv_is_stripped_and_strict():
    assert parse_csv(b'a, b \n1,"x, y"\n 2,\n', "t") == {"a": ["1", "2"], "b": ["x, y", ""]}
    with pytest.raises(DataError, match="2 cells in line 3 of t, got 1"):
        parse_csv(b"a,b\n1,2\n3\n", "t")
    with pytest.raises(DataError, match="header and rows"):
        parse_csv(b"", "t")
