import json
from pathlib import Path

import pytest

from tacit.errors import RunError, UserError
from tacit.papers.jobs import AttackJob, Choice, attack_jobs_of, jobs_of
from tacit.papers.study import Study, read_study
from tacit.report.pictures import Strip

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


def attack_job(folder: Path) -> AttackJob:
    tiny = study(folder, ROW + "[attack]\nimages = 2\n")
    ((job,),) = attack_jobs_of(jobs_of(tiny, Choice(out=folder)), fast=False)
    job.file.parent.mkdir(parents=True)
    return job


def test_a_finished_attack_is_read_from_its_file(tmp_path):
    job = attack_job(tmp_path)
    assert not job.is_finished()
    strip = {"name": "one", "shape": [0, 0, 0, 0], "pixels": "", "note": "nothing seen"}
    content = {"settings": job._settings(), "values": {"images": 0, "ssim": None}, "strips": [strip]}
    job.file.write_text(json.dumps(content))
    assert job.is_finished()
    assert job.trial().values == {"images": 0, "ssim": None}
    assert job.strips() == (Strip(name="one", note="nothing seen"),)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "to be JSON"),
        ('{"settings": {}, "values": {}}', "to have the key 'strips'"),
        ('{"settings": {}, "values": {"ssim": "x"}, "strips": []}', "Expected values.ssim of .* got 'x'"),
        ('{"settings": {"seed": 1}, "values": {}, "strips": []}', "is not the attack that .*/table-1 describes now"),
    ],
)
def test_other_files_are_refused_with_what_to_do(tmp_path, content, why):
    job = attack_job(tmp_path)
    job.file.write_text(content)
    with pytest.raises(RunError, match=rf"{why}.*Remove .* to attack again\."):
        job.is_finished()
