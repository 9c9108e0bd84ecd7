"""Tables at sites: read and encoded bitwise as in the simulation, by an encoding that cannot hurt the site."""

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.consortium import Consortium, server, transport
from tacit import Task, cli
from tacit.data.encoding import Encoding, TargetColumn
from tacit.data.table_task import MAX_WEIGHTS
from tacit.data.tables import read_table
from tacit.errors import DataError, TacitError, UserError
from tacit.federation.journal import read_journal
from tacit.federation.plan.explain import explain_plan
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.data import MAX_ENCODED, SiteSource, read_source
from tacit.federation.site.files import SiteFiles, read_site
from tacit.runs.training import follow

HEADER = "hospital;age;admitted;weight;ward;code;died"
ROWS = {  # decimal commas, dates, texts, missing values, codes that are numbers at one site and texts at another
    "rome": ["40,5;2020-01-31;81,2;surgery;01;no", ";2020-02-28;?;;02;yes", "61;;70,25;medicine;01;no"],
    "oslo": ["33;2021-12-01;90;medicine;x1;yes", "81,5;2022-01-01;n/a;surgery;;yes", "18;2020-07-07;55,5;ward 9;02;no"],
    "bern": ["50,25;2021-06-30;-;surgery;01;no", "NaN;2021-06-29;66;;01;yes", "44;2020-12-24;71;medicine;02;no"],
    "lima": ["29;2020-03-03;62,5;surgery;x1;yes", "77;2021-01-20;58;medicine;x1;no", "52;2020-11-11;NA;;02;yes"],
}
ARGS = {"rounds": 2, "noise": 2.0, "epsilon": "none", "size": 3}
MIXED = Encoding(
    numbers={"age": (18.0, 100.0), "admitted": ("2020-01-01", "2022-12-31"), "weight": (40.0, 120.0)},
    categories={"ward": ("medicine", "surgery")},
    indicators=(),
    target=TargetColumn("died", ("no", "yes")),
)


def write_whole(path: Path) -> Path:
    lines = [f"{name};{row}" for name, rows in ROWS.items() for row in rows]
    path.write_text("\n".join([HEADER, *lines]))
    return path


def write_part(path: Path, name: str) -> Path:
    """The rows of one client, as its hospital has them."""
    path.write_text("\n".join([HEADER.removeprefix("hospital;"), *ROWS[name]]))
    return path


def consortium_at(folder: Path, encoding: Encoding = MIXED, lines: str = "", **policy: Any) -> Consortium:
    """Four sites, each with the table of a hospital."""
    made = Consortium.at(folder, 4, methods=["dp-fedsgd"], channels=["secure-sum/active_server"], epsilon=9.0, **policy)
    for number, (site, name) in enumerate(zip(made.names, ROWS, strict=True)):
        write_part(made.home(site) / "patients.csv", name)
        made.change(site, f'data = "acme:load_{number}"', f'data = "patients.csv"\n{lines}')
    (folder / "encoding.json").write_bytes(encoding.to_bytes())
    return made


def plan_of(consortium: Consortium, **changes: Any) -> FederationPlan:
    given = {"model": "mlp", "model_args": {"hidden": 4}, "encoding": "encoding.json", "args": ARGS}
    return consortium.plan("dp-fedsgd", **{**given, **changes})


def site_files(consortium: Consortium, name: str = "site-0") -> SiteFiles:
    return read_site(consortium.home(name) / "site.toml")


@pytest.mark.parametrize("form", ["csv", "gz", "folder", "parquet"])
def test_a_site_encodes_bitwise_what_the_simulation_encodes_for_its_client(tmp_path: Path, form: str) -> None:
    task = Task.from_table(write_whole(tmp_path / "all.csv"), client="hospital", target="died", test=0)
    assert task.encoding is not None
    consortium = consortium_at(tmp_path, task.encoding)
    plan = plan_of(consortium)
    population = task.population
    for number, name in enumerate(population.names):
        path = write_part(tmp_path / f"{name}.csv", name)
        found = site_table(path, form)
        x, y = found.load(plan)[0].x, found.load(plan)[0].y
        rows = population.sample_indices[population.offsets[number] : population.offsets[number + 1]]
        assert not [*found.problems(plan)]
        assert torch.equal(x, population.x[rows])
        assert torch.equal(y, population.y[rows])


def site_table(path: Path, form: str) -> SiteSource:
    """The same rows in another form."""
    if form == "gz":
        path.with_suffix(".csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        return read_source(f"{path.stem}.csv.gz", path.parent, "")
    if form == "folder":
        folder = path.parent / path.stem
        folder.mkdir()
        lines = path.read_text().splitlines()
        for part in range(3):
            (folder / f"{part}.csv").write_text("\n".join([lines[0], lines[part + 1]]))
        return read_source(path.stem, path.parent, "")
    if form == "parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        arrow = pytest.importorskip("pyarrow")
        columns = read_table(path).columns
        parquet.write_table(
            arrow.table({key: arrow.array(column) for key, column in columns.items()}), path.with_suffix(".parquet")
        )
        return read_source(f"{path.stem}.parquet", path.parent, "")
    return read_source(path.name, path.parent, "")


def test_four_sites_train_a_mixed_table_by_name_without_a_package(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path)
    plan = plan_of(consortium)
    assert plan.functions == {}
    assert not plan.refused_code
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here, out=tmp_path / "run")
    assert [len(report.clients) for report in run.history] == [4, 4]
    assert run.spec.task.encoding == plan.encoding


def test_the_digest_covers_the_encoding_and_the_order_of_its_columns(tmp_path: Path) -> None:
    plan = plan_of(consortium_at(tmp_path))
    numbers = dict(MIXED.numbers)
    others = [
        replace(MIXED, numbers={**numbers, "age": (18.0, 99.0)}),
        replace(MIXED, numbers={name: numbers[name] for name in reversed(numbers)}),
        replace(MIXED, categories={"ward": ("surgery", "medicine")}),
        replace(MIXED, target=TargetColumn("died", ("yes", "no"))),
    ]
    digests = {plan.digest, *(replace(plan, encoding=other).digest for other in others)}
    digests |= {replace(plan, model_args={"hidden": 5}).digest, replace(plan, model="logistic", model_args={}).digest}
    assert len(digests) == 3 + len(others)
    again = FederationPlan.with_digest(plan.digest, json.loads(plan.canonical))
    assert again is not None
    assert again.encoding is not None
    assert [*again.encoding.numbers] == [*numbers]


HOSTILE = {
    "no target": ({"target": None}, "names the target"),
    "infinite": ({"numbers": {"age": [0, 1e999]}}, "finite"),
    "no number": ({"numbers": {"age": [0, float("nan")]}}, "finite"),
    "reversed": ({"numbers": {"age": [9, 1]}}, "minimum <= maximum"),
    "a target without a width": ({"target": {"name": "age2", "limits": [1, 1]}}, "minimum < maximum of the target"),
    "the target as an input": ({"target": {"name": "ward", "classes": ["a", "b"]}}, "different columns"),
    "the same category twice": ({"categories": {"ward": ["a", "a"]}}, "different categories"),
    "too many inputs": ({"categories": {"ward": [str(n) for n in range(140_000)]}}, "at most 131072 inputs"),
    "an escape sequence": ({"categories": {"ward": ["\x1b[2J"]}}, "printable characters"),
    "a hidden direction": ({"numbers": {"age\u202e": [0, 1]}}, "printable characters"),
    "a long name": ({"numbers": {"a" * 300: [0, 1]}}, "at most 200 printable"),
    "another format": ({"format": 7}, "format"),
    "an unknown key": ({"code": "import os"}, "code"),
}


@pytest.mark.parametrize(("changes", "words"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_encoding_is_refused_when_the_plan_is_read(tmp_path: Path, changes: Any, words: str) -> None:
    consortium = consortium_at(tmp_path)
    content = {key: value for key, value in {**MIXED.to_plain(), **changes}.items() if value is not None}
    (tmp_path / "encoding.json").write_text(json.dumps(content))
    with pytest.raises(TacitError, match=words) as error:
        plan_of(consortium)
    assert "\x1b" not in str(error.value)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_args": {"hidden": 1 << 40}}, "1 to 131072"),
        ({"model_args": {"hidden": 0}}, "1 to 131072"),
        ({"model_args": {"width": 3}}, "model_args of mlp to be hidden, got width"),
        ({"model": "acme:net", "model_args": {"hidden": 3}}, "model_args only of a built-in model"),
        ({"model": "transformer"}, "the model as one of logistic, mlp"),
    ],
)
def test_a_wrong_model_is_refused_when_the_plan_is_read(tmp_path: Path, changes: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_of(consortium_at(tmp_path), **changes)
    with pytest.raises(UserError, match="Expected encoding"):
        Consortium.at(tmp_path / "other", 3).plan(model="mlp")


def test_a_model_that_does_not_fit_into_memory_is_refused(tmp_path: Path) -> None:
    wide = replace(MIXED, categories={"ward": tuple(map(str, range(100_000)))})
    with pytest.raises(UserError, match=f"at most {MAX_WEIGHTS} weights"):
        plan_of(consortium_at(tmp_path, wide), model_args={"hidden": 100_000})


def test_an_encoding_that_blows_up_the_rows_of_a_site_is_refused_before_it_is_computed(tmp_path: Path) -> None:
    wide = replace(MIXED, categories={"ward": tuple(map(str, range(130_000)))})
    consortium = consortium_at(tmp_path, wide)
    rows = 1 + MAX_ENCODED // 130_000
    line = ROWS["rome"][0]
    (consortium.home("site-0") / "patients.csv").write_text("\n".join([HEADER.partition(";")[2], *[line] * rows]))
    found = site_files(consortium).review(plan_of(consortium))
    assert f"at most {MAX_ENCODED} are computed" in found.problems[0]


def test_inputs_are_bounded_however_narrow_a_range_is(tmp_path: Path) -> None:
    narrow = replace(MIXED, numbers={"age": (40.0, 40.0), "weight": (70.0, 70.0 + 1e-300)})
    consortium = consortium_at(tmp_path, narrow)
    x, _ = site_files(consortium).load_data(plan_of(consortium)).train
    assert bool(((x >= 0) & (x <= 1)).all())


def test_the_review_names_columns_ranges_and_categories_and_what_stands_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    consortium = consortium_at(tmp_path, replace(MIXED, numbers={"age": (18.0, 50.0)}))
    plan_of(consortium)
    assert cli.main(["site", "review", str(consortium.home("site-0") / "site.toml"), str(tmp_path / "plan.toml")]) == 0
    out = capsys.readouterr().out
    assert "'age': 18 to 50 as 0 to 1" in out
    assert "'ward': an input for each of 'medicine', 'surgery'" in out
    assert "'died': predicted, one of 'no', 'yes'" in out
    assert "age: 1 of 3 values are outside" in out
    assert "ward: 1 of 3 values are none of those that the encoding has (missing)" in out
    assert "ward: fewer than 10 rows have 'medicine', 'surgery'" in out


def test_only_columns_that_the_policy_names_may_be_read(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path, columns=["age", "admitted", "weight", "died"])
    found = site_files(consortium).review(plan_of(consortium))
    assert found.objections == ("The plan reads the columns 'ward', which this site does not allow (columns).",)
    consortium.change("site-0", '"died"]', '"died", "ward"]')
    assert site_files(consortium).review(plan_of(consortium)).accepted


@pytest.mark.parametrize(
    "encoding",
    [
        replace(MIXED, target=TargetColumn("code", ("01", "02"))),
        replace(MIXED, categories={"code": ("01", "02", "x1")}),
        replace(MIXED, numbers={"code": (0.0, 9.0)}),
    ],
    ids=["target", "category", "number"],
)
def test_the_id_of_a_person_is_neither_input_nor_target(tmp_path: Path, encoding: Encoding) -> None:
    consortium = consortium_at(tmp_path, encoding, lines='person = "code"')
    found = site_files(consortium).review(plan_of(consortium, unit="person"))
    assert "which says whose rows are whose here (person)" in found.problems[0]


def test_a_plan_cannot_say_which_column_names_persons(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path, replace(MIXED, person="admitted", numbers={"age": (18.0, 100.0)}))
    found = site_files(consortium).review(plan_of(consortium, unit="person"))
    assert "do not say which records are one person's" in found.objections[0]


MISFITS = {
    "a column is missing": ("age;", "years;", "'age', given as input"),
    "texts": ("40,5;", "forty;", "Expected numbers in column 'age'"),
    "another class": (";no", ";perhaps", "Expected 'died' of"),
    "no target": (";yes", ";", "Expected the target 'died' in every row"),
    "numbers for dates": ("2020-01-31", "7", "column 'admitted'"),
}


@pytest.mark.parametrize(("old", "new", "words"), MISFITS.values(), ids=MISFITS)
def test_what_does_not_fit_is_listed_before_anything_is_charged(
    tmp_path: Path, old: str, new: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    consortium = consortium_at(tmp_path)
    plan = plan_of(consortium)
    consortium.accept(plan)
    path = consortium.home("site-0") / "patients.csv"
    path.write_text(path.read_text().replace(old, new))  # after it was accepted
    site, file = str(consortium.home("site-0") / "site.toml"), str(tmp_path / "plan.toml")
    assert cli.main(["site", "review", site, file]) == 1
    assert words in capsys.readouterr().out
    assert cli.main(["site", "review", site, file, "--accept"]) == 2
    assert "This site's data do not fit the plan" in capsys.readouterr().err
    assert words in " ".join(site_files(consortium).problems())


def test_a_site_whose_data_have_changed_does_not_train_and_reveals_nothing_of_them(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path)
    plan = plan_of(consortium)
    consortium.accept(plan)
    path = consortium.home("site-2") / "patients.csv"
    path.write_text(path.read_text().replace("44;", "forty-four;"))
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert [len(report.clients) for report in run.history] == [3, 3]
    state = consortium.home("site-2") / "state"
    refused = [entry for entry in read_journal(state / "log.jsonl") if entry["event"] == "refused"]
    assert {(entry["code"], entry["reason"]) for entry in refused} == {
        ("data", "This site's data do not fit the plan. Its operator has to look.")
    }
    assert not (state / "ledger.db").exists()
    assert "got texts such as '50,25'" in (state / "last-error.txt").read_text()


def test_tables_and_samples_are_not_taken_for_each_other(tmp_path: Path) -> None:
    consortium = consortium_at(tmp_path)
    found = site_files(consortium).review(consortium.plan("dp-fedsgd", args=ARGS))
    assert "the plan does not say how its columns become numbers" in found.problems[0]
    consortium.change("site-1", 'data = "patients.csv"', 'data = "acme:load_1"')
    found = site_files(consortium, "site-1").review(plan_of(consortium))
    assert "this site's function returns samples" in found.problems[0]


def test_a_function_may_return_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "registry.py").write_text("def load():\n    return {'age': [40.5, None], 'ward': ['surgery', 'x']}\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = read_source("registry:load", tmp_path, "")
    assert found.summary == "2 rows with the columns age, ward"
    with pytest.raises(DataError, match="which does not exist"):
        read_source("nowhere.csv", tmp_path, "")


def test_constants_of_clients_rows_are_said_to_become_public(tmp_path: Path) -> None:
    task = Task.from_table(write_whole(tmp_path / "all.csv"), client="hospital", target="died", test=0)
    assert task.encoding is not None
    notes = explain_plan(plan_of(consortium_at(tmp_path, task.encoding))).notes
    assert any("The plan shows these constants to the server and to all sites." in note for note in notes)
    (tmp_path / "encoding.json").write_bytes(MIXED.to_bytes())
    assert not any("constants" in note for note in explain_plan(plan_of(Consortium(tmp_path, 4))).notes)
