"""Tables for papers and spreadsheets, with the texts of others as texts."""

import csv
import io
from pathlib import Path

import pytest

from report.made import made_run
from tacit.cli import main
from tacit.report.table_formats import FORMATS, to_csv, to_latex, to_markdown


@pytest.mark.parametrize("form", FORMATS)
def test_runs_are_compared_in_every_format(form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for seed in (0, 1):
        made_run(tmp_path / f"seed-{seed}", 3, seed=seed)
    assert main(["compare", str(tmp_path), "--to", form]) == 0
    printed = capsys.readouterr().out
    assert "fedavg" in printed
    assert "accuracy" in printed
    if form == "csv":
        header, row = csv.reader(io.StringIO(printed))
        assert dict(zip(header, row, strict=True))["runs"] == "2"


def test_texts_of_others_do_not_leave_their_cell() -> None:
    hostile = ["=1+1", "a|b", "x\ny", r"\input{secret} & 50 %"]
    header = ["a", "b", "c", "d"]
    (_, row) = csv.reader(io.StringIO(to_csv(header, [hostile])))
    assert row[0] != "=1+1"
    assert len(to_markdown(header, [hostile]).splitlines()) == 3
    latex = to_latex(header, [hostile])
    assert r"\input" not in latex
    assert r"\& 50 \%" in latex
