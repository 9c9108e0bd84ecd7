"""Whole commands on damaged and hostile files: a sentence and an exit code, never the exception of another library."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from federation.consortium import Consortium
from laws.mutations import Chance, change_bytes, change_tokens, nest
from report.made import PROVED, made_run
from scale import scaled
from tacit.cli import main
from tacit.federation.site.files import read_site

SEED = int(os.environ.get("TACIT_SEED", "0"))
TRIALS = scaled(25, campaign=5_000)
CHANGES: tuple[Callable[[Chance, bytes], bytes], ...] = (change_tokens, change_tokens, change_bytes, nest)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, and a site that has accepted a plan for its table."""
    folder = tmp_path_factory.mktemp("template")
    made_run(folder / "run", 3, guarantee=PROVED)
    here = Consortium.at(folder / "federation", 5)
    here.give_tables()
    plan = here.plan("fl-std", args={"cohort": 5, "rounds": 1}, encoding="encoding.json")
    here.accept(plan)
    for site in (read_site(here.home("site-0") / "site.toml"),):
        site.journal().append("started", reason="none")
    return folder


RUN = [["report", "run", "--out", "page.html"], ["compare", "run"], ["export", "run", "--to", "csv"]]
REVIEW = [["site", "review", "federation/site-0/site.toml", "federation/plan.toml"]]
CASES: dict[str, list[list[str]]] = {
    "run/manifest.json": RUN,
    "run/rounds.jsonl": RUN,
    "run/guarantee.json": RUN,
    "federation/plan.toml": [*REVIEW, ["federation", "explain", "federation/plan.toml"]],
    "federation/encoding.json": REVIEW,
    "federation/directory.toml": REVIEW,
    "federation/site-0/site.toml": [*REVIEW, ["site", "init", "federation/site-0/site.toml"]],
    "federation/site-0/directory.toml": REVIEW,
    "federation/site-0/identity.key": REVIEW,
    "federation/site-0/visits.csv": REVIEW,
    "federation/site-0/state/log.jsonl": [["site", "log", "federation/site-0/site.toml"]],
}


@pytest.mark.law
@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_a_command_refuses_a_damaged_file_with_a_sentence(
    name: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    chance, whole = Chance(f"{SEED} {name}"), Path(name).read_bytes()
    codes = set()
    for _ in range(TRIALS):
        change = chance.choice(CHANGES)
        Path(name).write_bytes(change(chance, whole))
        command = chance.choice(CASES[name])
        code = main(command)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.err, (command, Path(name).read_bytes()[:3000], printed.err[-3000:])
        assert code in (0, 1, 2)
        assert code != 2 or (printed.err.count("tacit: ") == 1 and printed.err.endswith("\n"))
        codes.add(code)
    assert codes & {1, 2}


@pytest.mark.law
@pytest.mark.parametrize("kind", ["folder", "missing", "empty", "unreadable", "link"])
@pytest.mark.parametrize("name", [*CASES, "federation/site-0/state/ledger.db"])
def test_a_command_refuses_what_is_no_file(
    kind: str, name: str, template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    shutil.copytree(template, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    Path(name).unlink(missing_ok=True)
    match kind:
        case "folder":
            Path(name).mkdir()
        case "empty":
            Path(name).touch()
        case "unreadable":
            Path(name).touch(0)
        case "link":
            Path(name).symlink_to(Path(name).absolute())
    for command in CASES.get(name, [*REVIEW, ["site", "ledger", "federation/site-0/site.toml"]]):
        assert main(command) in (0, 1, 2)
        assert "Traceback" not in capsys.readouterr().err
