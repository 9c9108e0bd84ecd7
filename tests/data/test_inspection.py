"""What is seen before a table is used: one table, all problems together, and a draft that says where it is from."""

from pathlib import Path

import numpy as np
import pytest

import tacit
from tacit import cli
from tacit.data.encoding import Encoding
from tacit.data.inspection import look
from tacit.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two hospitals: one writes marks, dates with points and codes, the other lacks a column."""
    ill = np.random.default_rng(0).integers(2, size=300)
    rows = [
        f"{n},{20 + n % 60},{'>1000' if n == 7 else n % 9}.5,{1 + n % 28:02}.03.2020,C{n % 150},"
        f"{'F' if n % 2 else 'f'},{ill[n]},{ill[n]}"
        for n in range(300)
    ]
    rows = [row.replace(">1000.5", ">1000") for row in rows]
    (tmp_path / "oslo.csv").write_text("id,age,crp,admitted,code,sex,after,died\n" + "\n".join(rows))
    short = [
        f"{1000 + n},{30 + n % 40},{n % 7}.5,{1 + n % 28:02}.04.2020,C{n % 150},{'mf'[n % 2]},{ill[n]}"
        for n in range(200)
    ]
    (tmp_path / "rome.csv").write_text("id,age,crp,admitted,code,sex,died\n" + "\n".join(short))
    return tmp_path


def test_all_doubts_are_said_at_once(folder: Path) -> None:
    found = look([folder], target="died")
    columns = {each.name: each for each in found.columns}
    assert (found.rows, found.files) == (500, 2)
    assert columns["id"].doubts[0].startswith("an id: nearly every row")
    assert columns["crp"].doubts == (
        "99.8 % are numbers; these are not: '>1000' (1). Write numbers, or leave them empty",
    )
    assert columns["admitted"].doubts == ("dates such as '01.03.2020': write them as YYYY-MM-DD",)
    assert columns["code"].doubts[0].startswith("150 categories, 0 of them in at least 10 rows: declare those that")
    assert columns["sex"].doubts == ("values that differ in case only: 'F', 'f'",)
    assert columns["age"].doubts == ()
    assert (columns["age"].kind, columns["age"].range, columns["age"].missing) == ("number", "20 to 79", 0)
    assert columns["after"].missing == 200
    assert "'after' is not a column of 1 of 2 files: rome.csv." in found.problems
    assert "'crp' is not the same in all files: texts in oslo.csv, numbers in rome.csv." in found.problems
    assert set(found.unusable) == {"id", "crp", "admitted", "code"}


def test_a_column_that_is_the_outcome_is_named(folder: Path) -> None:
    found = look([folder / "oslo.csv"], target="died")
    after = next(each for each in found.columns if each.name == "after")
    assert "alone predicts the target (AUROC 1.000)" in after.doubts[-1]
    assert not any("alone predicts" in text for each in found.columns for text in each.doubts if each.name != "after")


def test_the_draft_trains_and_the_guarantee_lists_what_is_from_the_data(folder: Path) -> None:
    found = look([folder / "rome.csv"], target="died")
    file = folder / "encoding.toml"
    file.write_text(found.draft())
    assert "# from the data" in found.draft()
    encoding = Encoding.read(file)
    assert list(encoding.numbers["age"]) == [30, 69]
    assert "admitted" in encoding.dropped
    task = tacit.Task.from_table({"rome": folder / "rome.csv"}, target="died", encoding=file)
    sentence = task.not_covered[0]
    assert sentence.startswith("Preprocessing used the clients' rows: minima, maxima and categories of")


def test_unreadable_files_are_named_beside_the_others(folder: Path) -> None:
    (folder / "bern.csv").write_bytes(b"age,died\n40\n")
    found = look([folder])
    assert any("Expected 2 cells in line 2 of" in problem for problem in found.problems)
    with pytest.raises(DataError, match="Expected at least one table that can be read"):
        look([folder / "bern.csv"])


def test_the_command_prints_a_table_and_writes_a_draft(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft = folder.parent / f"{folder.name}.toml"
    assert cli.main(["data", "look", str(folder), "--target", "died", "--draft", str(draft)]) == 0
    printed = capsys.readouterr()
    assert printed.out.startswith("500 rows in 2 files, 8 columns.")
    assert "Not usable as they are" in printed.out
    assert "No guarantee covers constants from the data until you declare them" in printed.err
    assert Encoding.read(draft).target is not None
