import gzip
import io
import re
import struct
import tarfile
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tacit.data.tables import parse_texts
from tacit.errors import DataError
from tacit.tasks.formats import image_records, pack, parse_idx, unpack

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
    assert parse_texts(b'a, b \n1,"x, y"\n 2,\n', "t") == {"a": ["1", "2"], "b": ["x, y", ""]}
    with pytest.raises(DataError, match="2 cells in line 3 of t, as in its header, got 1"):
        parse_texts(b"a,b\n1,2\n3\n", "t")
    with pytest.raises(DataError, match="a header and rows, got an empty file"):
        parse_texts(b"", "t")


def npz_bomb(path: Path, size: int) -> None:
    """An archive of few bytes whose arrays have `size` bytes."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in (("x", (size // 3072, 3, 32, 32)), ("y", (size // 3072,))):
            with archive.open(f"{name}.npy", "w") as member:
                np.lib.format.write_array_header_1_0(member, {"descr": "|u1", "fortran_order": False, "shape": shape})
                for _ in range(int(np.prod(shape)) // 3072):
                    member.write(bytes(3072))


def test_npz_stops_at_the_limit(tmp_path: Path):
    npz_bomb(tmp_path / "bomb.npz", 200 * 2**20)
    assert (tmp_path / "bomb.npz").stat().st_size < 2**20
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb.npz cannot be read"):
        unpack(tmp_path / "bomb.npz", limit=len(RECORDS))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 8 * 2**20


@pytest.mark.parametrize("shape", [(2**40,), (3, 3, 32, 2**50), (-1, 3, 32, 32)])
def test_an_npy_header_allocates_nothing(tmp_path: Path, shape):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        for name in "xy":
            header = io.BytesIO()
            np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": shape})
            archive.writestr(f"{name}.npy", header.getvalue() + bytes(3))
    with pytest.raises(DataError, match=r"bytes of data, got 3"):
        unpack(tmp_path / "a.npz", limit=len(RECORDS))


@pytest.mark.parametrize("name", ["a.zip", "a.npz"])
def test_encrypted_archives_are_refused(tmp_path: Path, name):
    pack(RECORDS, tmp_path / "a.npz")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("batch.bin", RECORDS)
    data = bytearray((tmp_path / name).read_bytes())
    for signature, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        for found in re.finditer(re.escape(signature), bytes(data)):
            data[found.start() + at] |= 1  # the flag of an encrypted member
    (tmp_path / name).write_bytes(data)
    with pytest.raises(DataError, match=r"cannot be read: .*(encrypted|password)"):
        unpack(tmp_path / name, member="batch.bin", limit=len(RECORDS))


def test_what_precedes_a_member_of_a_tar_archive_is_limited(tmp_path: Path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as tar:
        for name, size in (("first.bin", 64 * 2**20), ("batch.bin", 10)):
            entry = tarfile.TarInfo(name)
            entry.size = size
            tar.addfile(entry, io.BytesIO(bytes(size)))
    with pytest.raises(DataError, match="decompresses to far more than its content"):
        unpack(tmp_path / "a.tar.gz", member="batch.bin", limit=10)


def test_a_file_that_is_much_larger_than_its_content_is_not_opened(tmp_path: Path):
    with (tmp_path / "a.gz").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(DataError, match=r"expected at most \d+ bytes, got 1099511627776"):
        unpack(tmp_path / "a.gz", limit=10)


@pytest.mark.parametrize(
    ("content", "expected"),
    [(b"a,b\n1," + b"x" * 200_000 + b"\n", "to be a table with commas"), (b"a,b\n\xff,2\n", "in UTF-8")],
    ids=["a huge cell", "not UTF-8"],
)
def test_tables_that_python_cannot_read_are_refused(content, expected):
    with pytest.raises(DataError, match=expected):
        parse_texts(content, "table.csv")


def test_idx_of_many_dimensions_is_refused():
    with pytest.raises(DataError, match="at most 4 dimensions, got 200"):
        parse_idx(b"\0\0\x08\xc8" + struct.pack(">200I", *[0] * 200), "x")
