import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tacit.core.schema import choose
from tacit.errors import UserError
from tacit.papers.comparison import Ranking
from tacit.papers.study import read_study
from tacit.papers.study_files import EXPECTED, results_file, studies_folder, study_files, summaries
from tacit.tasks import TASKS, find_model

STUDIES = [read_study(name) for name in study_files(studies_folder())]
ROWS = [pytest.param(row, id=f"{study.name}-{row.name}") for study in STUDIES for row in study.rows]
KNOWN = {"accuracy", "rounds", "cost", "epsilon", "delta"}
KNOWN |= {"best_accuracy", "best_round", "cost_down", "cost_up", "epsilon_classic", "bound"}
KNOWN |= {"best_balanced_accuracy", "auroc_at_best", "volume", "uploads", "leakage"}
PANEL = '[figure]\nkind = "histogram"\nbins = 5\n[[figure.panels]]\ntitle = "P"\nrows = ["one"]\nmask = "one"\n'
MAPS = '[figure]\nkind = "maps"\nclient = 2\nat = [1, 3]\nimportance = ["variance", "sensitivity"]\nnoise = 0.1\n'
ROW = '[[rows]]\nname = "one"\nmethod = "fedavg"\n'


def put(name: str, text: str) -> Mapping[str, Path]:
    """Write a file below ./experiments; returns all studies there."""
    file = Path("experiments") / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return study_files(Path("experiments"))


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.law
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("fast", [False, True], ids=["whole", "fast"])
def test_every_row_of_every_paper_can_be_built(row, fast):
    experiment = row.fast if fast else row.experiment
    method = experiment.build_method()
    assert method.rounds >= 1
    assert choose(TASKS, experiment.task, "task")
    if "model" in experiment.task_args:
        find_model(str(experiment.convert_task_args()["model"]))
    assert (experiment.seeds == (0,)) if fast else (len(experiment.seeds) >= 1)
    assert row.paper.keys() <= KNOWN
    if fast:
        assert method.rounds <= 3


def test_every_published_number_is_compared_with_a_row():
    for file in studies_folder().glob(f"*/{EXPECTED}"):
        rows = [row for study in STUDIES for row in study.rows if row.study.startswith(f"{file.parent.name}/")]
        for line in re.findall(r'^source = "(.*)"', file.read_text(), re.MULTILINE):
            assert any(row.source == line for row in rows), line


def test_summaries_are_those_of_the_studies():
    found = {summary.name: (summary.title, summary.rows) for summary in summaries()}
    assert found == {study.name: (study.title, tuple(row.name for row in study.rows)) for study in STUDIES}


def test_own_studies_are_added_and_replace_those_of_the_package():
    packaged = study_files()
    put("tiny/table-1.toml", 'title = "Tiny"\n' + ROW)
    put("geyer/table-1.toml", 'title = "Mine"\n' + ROW)
    assert study_files().keys() == packaged.keys() | {"tiny/table-1"}
    assert read_study("geyer/table-1").title == "Mine"
    assert results_file("tiny/table-1") == Path("experiments/tiny/results/table-1.json")


def test_fast_changes_what_it_names_and_takes_one_seed():
    fast = "seeds = [3, 4]\nargs = { rounds = 9, cohort = 7 }\nfast = { args = { rounds = 1 } }\n"
    (row,) = read_study("tiny/table-1", put("tiny/table-1.toml", 'title = "Tiny"\n' + ROW + fast)).rows
    assert (row.experiment.args, row.experiment.seeds) == ({"rounds": 9, "cohort": 7}, (3, 4))
    assert (row.fast.args, row.fast.seeds) == ({"rounds": 1, "cohort": 7}, (0,))


def test_a_row_is_evaluated_as_often_as_it_says_or_as_the_study_says():
    text = 'title = "Tiny"\nevaluate-every = 5\n' + ROW + ROW.replace("one", "two") + "evaluate-every = 2\n"
    files = put("tiny/table-1.toml", text)
    assert [row.evaluate_every for row in read_study("tiny/table-1", files).rows] == [5, 2]
    files = put("tiny/figure-1.toml", 'title = "Tiny"\n[[rows]]\nfrom = "table-1"\nname = "one"\n')
    (referenced,) = read_study("tiny/figure-1", files).rows
    assert referenced.evaluate_every == 5


def test_a_row_of_another_study_has_its_own_name_and_the_same_runs():
    put("tiny/expected.toml", '["table-1".one]\naccuracy = 0.9\nsource = "Table 1"\n')
    put("tiny/table-1.toml", 'title = "Tiny"\n' + ROW)
    files = put("tiny/figure-1.toml", 'title = "Tiny"\n[[rows]]\nfrom = "table-1"\nname = "uno"\nrow = "one"\n')
    (theirs,), (mine,) = (read_study(f"tiny/{what}", files).rows for what in ("table-1", "figure-1"))
    assert replace(mine, name="one") == theirs
    assert mine.paper == {"accuracy": 0.9}


BAD = [
    ("", ["tiny/table-1.toml", "[[rows]]"]),
    (ROW, ["table-1.toml", "title"]),
    ('title = "T"\nrow = 1\n' + ROW, ["'row'", "Did you mean 'rows'?"]),
    ('title = "T"\n[[rows]]\nmethod = "fedavg"\n', ["row 1", "name"]),
    ('title = "T"\n[[rows]]\nname = "one"\n', ["row 'one'", "to have the key 'method'"]),
    ('title = "T"\n' + ROW + "arg = 1\n", ["row 'one'", "'arg'", "Did you mean 'args'?"]),
    ('title = "T"\n' + ROW + "fast = 1\n", ["fast of row 'one'", "a table"]),
    ('title = "T"\n' + ROW + "fast = { arg = 1 }\n", ["fast of row 'one'", "Did you mean 'args'?"]),
    ('title = "T"\n' + ROW + 'expected = "three"\n', ["expected of row 'one'", "'three'", "Did you mean 'there'?"]),
    ('title = "T"\n' + ROW + ROW, ["different names", "'one' twice"]),
    ('title = "T"\n' + ROW + ROW.replace('"one"', '"one "'), ["different names", "'one' twice"]),
    ('title = "T"\n' + ROW.replace("one", "fast"), ["'fast'"]),
    ('title = "T"\n[[rows]]\nfrom = "tabel-1"\nname = "one"\n', ["from of row 'one'", "Did you mean 'tiny/table-1'?"]),
    ('title = "T"\n[[rows]]\nfrom = "table-1"\nname = "one"\n', ["row of row 'one'", "none"]),
    ('title = "T"\n' + ROW + "[figure]\nx = 1\n", ["figure of", "'x'"]),
    ('title = "T"\n' + ROW + "[figure]\ny = 1\n", ["figure.y of", "list of quantities"]),
    ('title = "T"\n' + ROW + "figure = 1\n", ["row 'one'", "'figure'"]),
    ('title = "T"\nfigure = 1\n' + ROW, ["figure of", "a table"]),
    ('title = "T"\n' + ROW + '[figure]\nkind = "histogramm"\n', ["figure.kind of", "Did you mean 'histogram'?"]),
    ('title = "T"\n' + ROW + '[figure]\nkind = "histogram"\ny = ["accuracy"]\n', ["figure of", "'y'"]),
    ('title = "T"\n' + ROW + '[figure]\nkind = "histogram"\n', ["figure of", "[[figure.panels]]"]),
    ('title = "T"\n' + ROW + PANEL.replace('["one"]', "[]"), ["figure.panels.1.rows of", "a list of rows"]),
    (
        'title = "T"\n' + ROW + PANEL.replace('["one"]', '["won"]'),
        ["rows of panel 'P'", "Did you mean 'one'?"],
    ),
    ('title = "T"\n' + ROW + PANEL.replace('mask = "one"', 'mask = "own"'), ["mask of panel 'P'", "'own'"]),
    ('title = "T"\n' + ROW + PANEL.replace('mask = "one"', ""), ["figure.panels.1 of", "the key 'mask'"]),
    ('title = "T"\n' + ROW + PANEL.replace("bins = 5", "bins = 0"), ["figure.bins of", "at least 1"]),
    ('title = "T"\n' + ROW + MAPS.replace("variance", "varience"), ["importance of", "Did you mean 'variance'?"]),
    ('title = "T"\n' + ROW + MAPS.replace("[1, 3]", "[0]"), ["figure.at.1 of", "at least 1, got 0"]),
    ('title = "T"\n' + ROW + MAPS.replace("[1, 3]", "[]"), ["figure.at of", "a list of rounds"]),
    ('title = "T"\n' + ROW + MAPS.replace("0.1", "0"), ["figure.noise of", "a number > 0, got 0"]),
    (
        'title = "T"\n' + ROW + MAPS.replace("client = 2", "client = -1"),
        ["figure.client of", "a client's index, got -1"],
    ),
    ('title = "T"\n' + ROW + MAPS + "bins = 3\n", ["figure of", "'bins'"]),
    ('title = "T"\ncolumns = 1\n' + ROW, ["columns of", "list of quantities"]),
    ('title = "T"\ncolumns = ["cost_pu"]\n' + ROW, ["columns of", "'cost_pu'", "Did you mean 'cost_up'?"]),
    ('title = "T"\ncolumns = ["cost_up", "cost_up"]\n' + ROW, ["columns of", "'cost_up' twice"]),
    ('title = "T"\nstand-in = true\n' + ROW, ["stand-in"]),
    ('title = "T"\nevaluate-every = 0\n' + ROW, ["evaluate-every of", "table-1.toml", "at least 1, got 0"]),
    ('title = "T"\n' + ROW + "evaluate-every = true\n", ["evaluate-every of row 'one'", "whole number"]),
    ("title", ["TOML"]),
]


@pytest.mark.parametrize(("text", "words"), BAD, ids=range(len(BAD)))
def test_bad_files_get_one_clear_sentence(text, words):
    put("tiny/expected.toml", '["table-1".there]\naccuracy = 0.9\nsource = "Table 1"\n')
    files = put("tiny/table-1.toml", text)
    with pytest.raises(UserError) as raised:
        read_study("tiny/table-1", files)
    assert all(word in str(raised.value) for word in words), str(raised.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [("accuracy = '0.9'", "accuracy of 'one' in .* a number, got '0.9'"), ("accuracy = 0.9", "source")],
)
def test_published_numbers_are_numbers_and_have_a_place(line, words):
    put("tiny/expected.toml", f'["table-1".one]\n{line}\n')
    with pytest.raises(UserError, match=words):
        read_study("tiny/table-1", put("tiny/table-1.toml", 'title = "T"\n' + ROW))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('rows = ["one", "tow"]\nplace = "P"', "Did you mean 'two'"),
        ('rows = ["one"]\nplace = "P"', "two rows"),
        ('rows = ["one", "two"]', "the key 'place'"),
        ('rows = ["one", "two"]\nplace = "P"\nwithin = "x"', "a number"),
        ('rows = ["one", "two"]\nplace = "P"\nwitin = 1', "Did you mean 'within'"),
    ],
)
def test_bad_rankings_get_one_clear_sentence(line, words):
    put("tiny/expected.toml", f'[["table-1".rankings]]\n{line}\n')
    with pytest.raises(UserError, match=words):
        read_study("tiny/table-1", put("tiny/table-1.toml", 'title = "T"\n' + ROW + ROW.replace("one", "two")))


def test_rankings_are_read_apart_from_the_numbers():
    put("tiny/expected.toml", '[["table-1".rankings]]\nrows = ["one", "two"]\nplace = "P"\nwithin = 0.1\n')
    study = read_study("tiny/table-1", put("tiny/table-1.toml", 'title = "T"\n' + ROW + ROW.replace("one", "two")))
    assert study.rankings == (Ranking(rows=("one", "two"), place="P", within=0.1),)
    assert study.rows[0].paper == {}
