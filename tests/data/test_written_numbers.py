"""Numbers with marks for thousands, decimal commas and percent signs are read where that is certain, or refused."""

from pathlib import Path

import pytest

import tacit
from tacit.data.tables import Table, parse_table


def table(separator: str = ",", **columns: list[str]) -> Table:
    lines = [list(columns), *zip(*columns.values(), strict=True)]
    quoted = [separator.join(f'"{cell}"' for cell in line) for line in lines]
    return parse_table("\n".join(quoted).encode(), "t.csv")


@pytest.mark.parametrize(
    ("texts", "numbers"),
    [
        (["1,234,567", "1,003", "7"], [1234567, 1003, 7]),  # two marks: thousands
        (["1,003.5", "-2,000", "40"], [1003.5, -2000, 40]),
        (["0,5", "1,003"], [0.5, 1.003]),  # no thousands begin with 0
        (["36,6", "1,003"], [36.6, 1.003]),
        (["1.234.567,5", "1.003"], [1234567.5, 1003]),
        (["1 003", "12\u00a0500", "900"], [1003, 12500, 900]),
        (["1'003", "2’500.25"], [1003, 2500.25]),
        (["12%", "7.5 %", "100%"], [12, 7.5, 100]),
        (["12,5 %", "7 %"], [12.5, 7]),
        (["1e3", "2,000.5"], [1000, 2000.5]),
    ],
)
def test_what_can_be_read_in_one_way_is(texts: list[str], numbers: list[float]) -> None:
    for separator in ",;\t":
        assert table(separator, a=texts, b=["x"] * len(texts)).columns["a"].tolist() == numbers


@pytest.mark.parametrize(
    "texts", [["1,003", "abc"], ["1,2,3", "4"], ["12.345.6", "7"], ["120/80", "90/60"], ["%", "1%"]]
)
def test_other_texts_are_categories(texts: list[str]) -> None:
    found = table(a=texts, b=["1", "2"])
    assert found.columns["a"].tolist() == texts
    assert found.ambiguous_columns == {}


@pytest.mark.parametrize(
    ("separator", "columns", "words"),
    [
        (",", {"a": ["1,003", "900"]}, r"column 'a' of t\.csv, but '1,003' may be 1003 or 1\.003\. .*decimal point"),
        (",", {"a": ["5", "1,003"], "b": ["1.5", "2"], "c": ["2,5", "1"]}, "'1,003' may be 1003 or 1.003"),
        (";", {"a": ["1,003", "900"], "b": ["1.5", "2"]}, "'1,003' may be 1003 or 1.003"),
        (";", {"a": ["1.003", "900"], "b": ["1,5", "2"]}, "'1.003' may be 1.003 or 1003"),
        (",", {"a": ["1,003", "2.500"]}, "'1,003' may be 1003 or 1.003"),
        (",", {"a": ["36,6", "37.1"]}, "one decimal mark in column 'a' of t.csv, got '36,6' and '37.1'"),
        (",", {"a": ["12%", "0.12"]}, "in column 'a' of t.csv with % or none, got '12%' and '0.12'"),
        (",", {"a": ["36,6 %", "37.1%"]}, "one decimal mark .*got '36,6 %' and '37.1%'"),
    ],
)
def test_what_cannot_is_refused(separator: str, columns: dict[str, list[str]], words: str) -> None:
    found = table(separator, **columns, sex=["f", "m"], ward=["1", "2"], died=["0", "1"])
    assert found.columns["a"].tolist() == columns["a"]
    rest = [name for name in columns if name != "a"]
    with pytest.raises(tacit.DataError, match=words):
        tacit.Task.from_table(found, client="ward", target="died", drop=rest)
    with pytest.raises(tacit.DataError, match=words):
        tacit.Task.from_table(found, client="ward", target="a")
    for way_out in ({"categories": ["a"]}, {"drop": ["a"]}):
        assert len(tacit.Task.from_table(found, client="ward", target="died", **way_out).population) == 2
    classes = tacit.Task.from_table(found, client="ward", target="a", kind="classes", drop=[*rest, "died"])
    assert {*classes.encoding.known_target.classes} == {*columns["a"]}  # type: ignore[union-attr]


def test_the_other_columns_of_the_file_decide() -> None:
    assert table(a=["1,003", "900"], b=["36.6", "37"]).columns["a"].tolist() == [1003, 900]
    assert table(a=["1,003", "900"], b=["36,6", "37"]).columns["a"].tolist() == [1.003, 900]
    assert table(";", a=["1,003", "900"], b=["36,6", "37"]).columns["a"].tolist() == [1.003, 900]
    assert table(";", a=["1,003", "900"], b=["x", "y"]).columns["a"].tolist() == [1.003, 900]
    assert table(";", a=["1.003", "900"], b=["x", "y"]).columns["a"].tolist() == [1.003, 900]
    assert table(a=["1.003", "900"], b=["1,234,567", "1"]).columns["a"].tolist() == [1.003, 900]


def test_files_of_clients_and_new_rows_are_refused_alike(tmp_path: Path) -> None:
    for name, dose in (("Rome", "1003"), ("Oslo", '"1,003"')):
        (tmp_path / f"{name}.csv").write_text(f"dose,died\n{dose},0\n{dose},1\n")
    with pytest.raises(tacit.DataError, match=r"column 'dose' of .*Oslo\.csv, but '1,003' may be"):
        tacit.Task.from_table(tmp_path, target="died")
    (tmp_path / "Oslo.csv").write_text("dose,died\n1003,0\n2000,1\n")
    task = tacit.Task.from_table(tmp_path, target="died")
    assert task.encoding is not None
    new = tmp_path / "new.csv.txt"
    new.write_text('dose,died\n"1,003",0\n')
    with pytest.raises(tacit.DataError, match="'1,003' may be 1003"):
        task.encoding.inputs(new)
