"""Folders named COLUMN=VALUE are read as one table with these columns."""

from pathlib import Path

import numpy as np
import pytest

from tacit import DataError, Task
from tacit.data.tables import read_table

ROWS = "age,died\n40,0\n50,1\n"


def write(folder: Path, **files: str) -> None:
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def test_columns_of_folders(tmp_path: Path) -> None:
    write(tmp_path, **{"city=New%20York/year=2023/a.csv": ROWS, "city=Rome/year=2024/b.csv": ROWS, "_SUCCESS": ""})
    write(tmp_path, **{"city=__HIVE_DEFAULT_PARTITION__/year=2024/c.csv": ROWS, ".hidden=1/c.csv": "x"})
    found = read_table(tmp_path).columns
    assert found["city"].tolist() == ["New York"] * 2 + ["Rome"] * 2 + [None] * 2 or found["city"][0] is None
    assert np.nansum(found["year"]) == 2 * (2023 + 2024 + 2024)
    assert found["age"].tolist() == [40, 50] * 3
    with pytest.raises(DataError, match="the client 'city' in every row"):
        Task.from_table(tmp_path, client="city", target="died")
    assert Task.from_table(tmp_path, client="year", target="died").population.names == ("2023", "2024")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"h=1/a.csv": ROWS, "b.csv": ROWS}, r"folders of the same names .*b\.csv has none and h=1.a\.csv has h"),
        ({"age=1/a.csv": ROWS}, r"no column 'age' in .*a\.csv: a folder's name says it"),
        (
            {"h=1/a.csv": ROWS, "h=2/b.csv": "age\n1\n"},
            r"same columns in all files of .*, but died is not in b\.csv",
        ),
        ({"h=1/readme.md": ROWS}, "files in the folders of .*got none"),
        ({"rome/a.csv": ROWS}, "Folders in it are read if they are named COLUMN=VALUE, such as hospital=3"),
    ],
)
def test_refused(files: dict[str, str], words: str, tmp_path: Path) -> None:
    write(tmp_path, **files)
    with pytest.raises(DataError, match=words):
        read_table(tmp_path)
