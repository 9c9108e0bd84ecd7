"""A plan from a simulation: the same method, encoding and model, trained by four sites, and used where they trained."""

import csv
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from federation.consortium import Consortium, server, transport
from tacit import Task, cli
from tacit.data.encoding import ENCODING
from tacit.errors import UserError
from tacit.federation.plan.directory import Directory, read_directory
from tacit.federation.plan.from_run import plan_from_run
from tacit.federation.plan.plan import read_plan
from tacit.runs.training import follow

HEADER = ["hospital", "age", "admitted", "ward", "readmitted"]
HOSPITALS = ("hospital-1", "hospital-2", "hospital-3", "hospital-4")


def write_table(path: Path) -> Path:
    """Patients of four hospitals and more, with texts, dates and missing values."""
    numbers = random.Random(1)
    with path.open("w", newline="") as file:
        table = csv.writer(file, delimiter=";")
        table.writerow(HEADER)
        for hospital in range(12):
            for _ in range(20):
                age, ward = numbers.choice(["", "40,5", "61", "77,25"]), numbers.choice(["surgery", "medicine", ""])
                day = f"2020-{numbers.randint(1, 12):02}-{numbers.randint(1, 28):02}"
                table.writerow([f"hospital-{hospital + 1}", age, day, ward, numbers.choice(["no", "yes"])])
    return path


def rows_of(path: Path, hospital: str) -> str:
    header, *rows = path.read_text().splitlines()
    return "\n".join([header, *(row for row in rows if row.startswith(f"{hospital};"))])


def simulate(folder: Path, method: str, *options: str, out: str = "runs/private") -> Path:
    """A run of a simulation on the table in this folder."""
    table = folder / "patients.csv"
    if not table.exists():
        write_table(table)
    line = ["run", method, "--data", str(table), "--client", "hospital", "--target", "readmitted", "--workers", "1"]
    assert cli.main([*line, "--rounds", "2", "--out", str(folder / out), *options]) == 0
    return folder / out


def sites_at(folder: Path, **policy: Any) -> Consortium:
    """Four sites, each with the rows of a hospital."""
    given: dict[str, Any] = {
        "methods": ["dp-fedsgd"],
        "channels": ["secure-sum/active_server"],
        "epsilon": 4.0,
        "models": {},
        **policy,
    }
    consortium = Consortium.at(folder, 4, **given)
    for number, name in enumerate(consortium.names):
        (consortium.home(name) / "patients.csv").write_text(rows_of(folder / "patients.csv", HOSPITALS[number]))
        consortium.change(name, f'data = "acme:load_{number}"', 'data = "patients.csv"')
    return consortium


def test_a_simulated_table_is_deployed_to_four_sites_with_commands_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = simulate(tmp_path, "dp-fedsgd", "--set", "epsilon=2", "size=18", "--task-set", "model=mlp")
    consortium, file = sites_at(tmp_path), tmp_path / "plan.toml"
    line = ["federation", "plan", str(run), "--sites", str(tmp_path / "directory.toml"), "--out", str(file)]
    capsys.readouterr()
    assert cli.main(line) == 0
    out = capsys.readouterr().out
    assert "Channel and noise are those for 4 sites, of which a round needs 3" in out
    assert "Preprocessing used the clients' rows" in out
    assert "shows these constants to the server and to all sites" in out
    assert cli.main(["federation", "explain", str(file)]) == 0
    assert "ε = 2 at δ = 1e-05 for every record" in capsys.readouterr().out
    for name in consortium.names:
        assert cli.main(["site", "review", str(consortium.home(name) / "site.toml"), str(file), "--accept"]) == 0
    plan = read_plan(file)  # nothing has to be trusted
    here = server(plan, transport(consortium.sites()))
    *_, done = follow(here.run_spec, source=here, out=tmp_path / "deployed")
    assert [len(report.clients) for report in done.history] == [4, 4]
    assert (tmp_path / "deployed" / ENCODING).read_bytes() == (run / ENCODING).read_bytes()


def test_sites_have_the_tensors_of_the_clients_that_were_simulated(tmp_path: Path) -> None:
    run = simulate(tmp_path, "dp-fedsgd", "--set", "epsilon=2")
    consortium = sites_at(tmp_path)
    plan = plan_from_run(run, read_directory(tmp_path / "directory.toml")).plan
    assert plan.args["size"] == 16  # rows of a hospital that are not held out, on average
    task = Task.from_table(
        tmp_path / "patients.csv", client="hospital", target="readmitted", test=0, encoding=run / ENCODING
    )
    for name, hospital in zip(consortium.names, HOSPITALS, strict=True):
        number = task.population.names.index(hospital)
        first, last = task.population.offsets[number : number + 2].tolist()
        rows = task.population.sample_indices[first:last]
        x, y = consortium.site(name).files.load_data(plan).train
        assert torch.equal(x, task.population.x[rows])
        assert torch.equal(y, task.population.y[rows])


def test_the_written_plan_is_the_plan_and_keeps_other_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = simulate(tmp_path, "dp-fedsgd", "--set", "epsilon=2")
    sites_at(tmp_path)
    line = ["federation", "plan", str(run), "--sites", str(tmp_path / "directory.toml")]
    (tmp_path / "study").mkdir()
    capsys.readouterr()
    assert cli.main([*line, "--out", str(tmp_path / "study" / "plan.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert read_plan(tmp_path / "study" / "plan.toml").digest.hex() == found["plan"]
    assert found["changes"]
    assert cli.main([*line, "--out", str(tmp_path / "study" / "plan.toml")]) == 2
    assert "plan.toml yet" in capsys.readouterr().err
    assert cli.main([*line, "--out", str(tmp_path / "study" / "other.toml")]) == 2
    assert "encoding.json yet" in capsys.readouterr().err


def test_arguments_that_do_not_fit_the_sites_are_changed_and_said(tmp_path: Path) -> None:
    run = simulate(tmp_path, "fl-std", "--set", "cohort=9")
    sites_at(tmp_path)
    made = plan_from_run(run, read_directory(tmp_path / "directory.toml"))
    assert made.plan.args["cohort"] == 4
    assert made.changes[0].startswith("cohort = 4: the run sampled more clients in a round than there are sites")
    assert made.plan.method.sampler.sampling(4, 0).rate == 1


def test_records_that_noise_depends_on_are_those_of_the_smallest_client(tmp_path: Path) -> None:
    run = simulate(tmp_path, "dp-sgd", "--set", "noise=1", "epsilon=none")
    sites_at(tmp_path)
    made = plan_from_run(run, read_directory(tmp_path / "directory.toml"))
    assert made.plan.records == 16
    assert any("records = 16 is the smallest client of the simulation" in each for each in made.warnings)


def test_runs_that_no_plan_can_name_are_refused_with_a_sentence(tmp_path: Path) -> None:
    simulate(tmp_path, "fedavg")
    directory = read_directory(sites_at(tmp_path).folder / "directory.toml")
    assert cli.main(["run", "fedavg", "--rounds", "1", "--workers", "1", "--out", str(tmp_path / "digits")]) == 0
    with pytest.raises(UserError, match="trained on a table"):
        plan_from_run(tmp_path / "digits", directory)
    manifest = json.loads((tmp_path / "runs/private/manifest.json").read_text())
    own = {**manifest, "task": {**manifest["task"], "model": None}}
    for changed, words in (
        ({**manifest, "status": "interrupted"}, "Expected a finished run"),
        (own, "with a model of its own"),
        ({**manifest, "method": {**manifest["method"], "args": None}}, "a method by name"),
        ({**manifest, "method": {**manifest["method"], "name": "mine.py:f"}}, "mine.py"),
    ):
        (tmp_path / "runs/private/manifest.json").write_text(json.dumps(changed))
        with pytest.raises(UserError, match=words):
            plan_from_run(tmp_path / "runs/private", directory)


def test_too_few_sites_for_the_channel(tmp_path: Path) -> None:
    run = simulate(tmp_path, "dp-fedsgd", "--set", "epsilon=2")
    sites_at(tmp_path)
    found = read_directory(tmp_path / "directory.toml")
    two = Directory({name: found.identities[name] for name in found.names[:2]}, found.server)
    with pytest.raises(UserError, match="sites"):
        plan_from_run(run, two)
