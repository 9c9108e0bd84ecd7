"""`tacit describe`, `tacit survival` and `tacit regress`: their output, their page, and what they refuse."""

import json
from pathlib import Path

import pytest

from tacit.cli import main

ROWS = [f"{'ABC'[i % 3]},{i},{i % 2},{'xy'[i % 2]}" for i in range(60)]


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "patients.csv"
    file.write_text("\n".join(["hospital,days,died,arm", *ROWS]) + "\n")
    return file


def test_survival_prints_curves_guarantee_and_page(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--client", "hospital", "--time", "days", "--event", "died", "--by", "arm", "--horizon", "60"]
    assert main(["survival", str(table), *options, "--epsilon", "2", "--out", "kept"]) == 0
    printed = capsys.readouterr().out
    assert "log-rank test" in printed
    assert "(ε = 2, δ = 1e-05)-differential privacy for every record" in printed
    page = Path("kept/report.html").read_text()
    assert "Survival by days" in page
    assert "<svg xmlns" in page
    assert "log-rank" in page.lower()
    assert main(["report", "kept"]) == 0
    assert Path("kept/report.html").read_text() == page


def test_describe_as_json(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", str(table), "--client", "hospital", "--epsilon", "none", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["analysis"] == "describe"
    columns = document["tables"]["columns"]
    assert columns["what"][:3] == ["count", "missing", "mean"]
    assert columns["estimate"][2] == pytest.approx(29.5, abs=1e-4)
    assert Path(document["page"]).is_file()
    assert Path(document["directory"]).parent == Path("runs")


def test_regress_prints_coefficients_and_what_chose_the_rounds(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["regress", str(table), "--client", "hospital", "--target", "died", "--columns", "days"]
    assert main([*asked, "--epsilon", "none", "--out", "exact"]) == 0
    printed = capsys.readouterr().out
    assert "odds ratio" in printed
    assert "AUROC" in printed
    assert "<svg xmlns" in Path("exact/report.html").read_text()
    assert main([*asked, "--epsilon", "2"]) == 0
    printed = capsys.readouterr().out
    assert "The rule chose" in printed
    assert "(ε = 2, δ = 1e-05)-differential privacy for every record" in printed
    assert main([*asked, "--family", "poisson", "--target", "arm"]) == 2
    assert "Expected numbers" in capsys.readouterr().err


def test_a_ledger_refuses_the_second_analysis(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["describe", str(table), "--client", "hospital", "--columns", "days", "--ledger", "ledger.db"]
    assert main(asked) == 0
    assert main(asked) == 2
    assert "budget" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--epsilon", "much"], "a number or none"),
        (["--client", "town"], "town"),
        (["--columns", "height"], "height"),
        (["--bins", "1"], "bins=1"),
    ],
)
def test_mistakes_are_a_sentence(
    options: list[str], sentence: str, table: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(["describe", str(table), "--client", "hospital", *options])
    except SystemExit as end:
        code = int(end.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert "Traceback" not in error
