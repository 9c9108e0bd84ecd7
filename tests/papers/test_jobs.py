from pathlib import Path

import pytest

from tacit.errors import UserError
from tacit.papers.jobs import Choice, jobs_of
from tacit.papers.study import Study, read_study

ROW = '[[rows]]\nname = "one"\nmethod = "fedavg"\n'
PANEL = '[figure]\nkind = "histogram"\n[[figure.panels]]\ntitle = "P"\nrows = ["one", "two"]\nmask = "one"\n'


def study(folder: Path, text: str) -> Study:
    file = folder / "table-1.toml"
    file.write_text('title = "T"\n' + text)
    return read_study("tiny/table-1", {"tiny/table-1": file})


def test_there_is_a_directory_per_row_and_seed(tmp_path):
    (folder := tmp_path / "tiny").mkdir()
    tiny = study(folder, ROW.replace("one", "K=1, one"))
    ((one, two),) = jobs_of(tiny, Choice(seeds=(0, 7)))
    assert (str(one.directory), two.seed) == ("runs/reproduce/tiny/table-1/K=1-one/seed-0", 7)
    ((short,),) = jobs_of(tiny, Choice(fast=True, out=Path("here")))
    assert str(short.directory) == "here/tiny/table-1/fast/K=1-one/seed-0"


def test_a_histogram_is_not_begun_without_the_row_that_has_the_mask(tmp_path):
    tiny = study(tmp_path, ROW + ROW.replace("one", "two") + PANEL)
    assert len(jobs_of(tiny, Choice(rows=["one"]))) == 1
    with pytest.raises(UserError, match="Expected row 'one' too: the histogram of 'two' uses its mask"):
        jobs_of(tiny, Choice(rows=["two"]))
