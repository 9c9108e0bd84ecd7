import gzip
import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest

from tacit import cli
from tacit.errors import DataError, UserError
from tacit.tasks import datasets, downloads, sources


def run(*words: str) -> int:
    return cli.call(cli.make_parser().parse_args(["data", *words]))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TACIT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(datasets, "DEBIAN", tmp_path / "debian")
    return tmp_path


def write_wrong_file(folder: Path) -> None:
    (folder / "ist").mkdir()
    (folder / "ist" / "ist.csv.gz").write_bytes(gzip.compress(b"other"))


def test_list_as_a_table(capsys):
    assert run("list") == 0
    out, err = capsys.readouterr()
    assert "digits            yes" in out
    assert "0 of 4" in out
    assert out.endswith("tacit data fetch TASK\n")
    assert "\x1b" not in out
    assert err == ""


def test_list_as_json(capsys):
    assert run("list", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["task"] for row in document["tasks"]} >= {"digits", "mnist", "covid-mx"}
    mnist = next(row for row in document["data"] if row["data"] == "mnist")
    assert len(mnist["missing"]) == 4
    assert mnist["urls"]


def test_check_reports_wrong_content(folder, capsys):
    write_wrong_file(folder)
    with pytest.raises(DataError, match=r"1 of 1 files are invalid: .*ist.csv.gz has the wrong content: expected"):
        run("verify", "ist", "--json")
    document = json.loads(capsys.readouterr().out)
    assert "wrong content" in document["checked"][0]["status"]


def test_missing_files_are_an_error_only_if_they_are_named(capsys):
    assert run("verify") == 0
    assert "missing" in capsys.readouterr().out
    with pytest.raises(DataError, match="2 of 2 files are missing: cms-ipps-fy2011/"):
        run("verify", "hospital-charges")


def test_check_of_real_files(data_folder, capsys):
    assert run("verify", "gusto", "ist", "qmnist-writers", "--json") == 0
    statuses = {row["status"] for row in json.loads(capsys.readouterr().out)["checked"]}
    assert statuses == {"ok"}


def test_fetch_of_unpublished_data():
    with pytest.raises(DataError, match="not published in this form"):
        run("fetch", "ist")


def test_fetch_reports_new_files(folder, monkeypatch, capsys):
    source = folder / "somewhere.csv.gz"
    content = b"a\n1\n"
    source.write_bytes(gzip.compress(content))
    sha256 = hashlib.sha256(content).hexdigest()
    monkeypatch.setattr(downloads, "_check_transport", lambda _: None)  # which permits https only
    file = replace(sources.IST.files[0], urls=(source.as_uri(),), size=len(content), sha256=sha256)
    monkeypatch.setitem(sources.DATA_SETS, "ist", replace(sources.IST, files=(file,)))
    assert run("fetch", "ist", "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["fetched"] == [{"data": "ist", "path": str(folder / "ist/ist.csv.gz")}]
    assert "ist: downloaded 1 of 1 files" in err
    assert run("fetch", "ist") == 0
    assert "all files are present" in capsys.readouterr().err


def test_an_unknown_name_suggests_the_nearest():
    with pytest.raises(UserError, match="Did you mean 'fashion-mnist'"):
        run("fetch", "fashion-mnst")


def test_convert(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"hospital": ["b", "a", "b", "a"], "age": [40, 50, None, 60], "died": [0, 1, 1, 0]}
    pandas.DataFrame(rows).to_parquet(folder / "t.parquet")
    line = ["convert", str(folder / "t.parquet"), "--client", "hospital", "--target", "died"]
    assert run(*line, "--out", str(folder / "one")) == 0
    shown = capsys.readouterr().out
    assert "one: 2 clients, 4 rows, 2 inputs." in shown
    assert "Not covered by any guarantee: Preprocessing used the clients' rows" in shown
    assert f"tacit run fedavg --data {folder / 'one'} --target died" in shown
    assert run(*line, "--out", str(folder / "two"), "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["clients"], found["classes"], found["preprocessing"]) == (2, ["0", "1"], "private")
    words = ["run", "fedavg", "--data", str(folder / "two"), "--target", "died", "--rounds", "1", "--workers", "1"]
    assert cli.main([*words, "--set", "cohort=2", "--out", str(folder / "run")]) == 0
