"""Files that an earlier release wrote: a run directory is read, and a ledger is refused rather than misread.

`before/` was written by the release before rounds.jsonl and the pieces got their present names: two runs that were
interrupted after two of three rounds, and a ledger that two runs share.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from tacit import methods
from tacit.errors import RunError, UserError
from tacit.privacy.ledger import Ledger
from tacit.runs.directory import LEDGER, MANIFEST, RunDirectory, read_manifest, read_rounds
from tacit.runs.manifest import versions

BEFORE = Path(__file__).parent / "before"


def task() -> tacit.Task:
    parts = [((torch.arange(6.0).view(2, 3) + client) % 5, torch.tensor([client % 2, 1])) for client in range(8)]
    return tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts, test=parts[0], test_overlap="intended")


def geyer() -> tacit.Method:
    return methods.geyer(cohort=4, noise=2.0, rounds=3, epsilon=30.0, delta=1e-3)


def copy(name: str, to: Path) -> Path:
    """A copy of a run directory, as if it had been written with the present versions of Tacit and PyTorch."""
    path = Path(shutil.copytree(BEFORE / name, to / name))
    table = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**table, "versions": versions()}))
    return path


def test_a_ledger_whose_charges_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Its charges must not be forgotten, so that nothing is charged beside them."""
    shutil.copy(BEFORE / "shared.db", tmp_path)
    with pytest.raises(UserError, match="Use the version of Tacit that wrote it"):
        Ledger.open(tmp_path / "shared.db")


def test_a_run_directory_is_read() -> None:
    reports = read_rounds(BEFORE / "fl-std-dp")
    assert [report.round for report in reports] == [1, 2]
    first = reports[0]
    assert (first.clients, first.rejected, first.up) == ((1, 4, 5), (), (851, 851, 851))
    assert first.grid_step is not None
    assert (first.grid_step.size, first.grid_step.inflation) == (2.0**-13, 0.000122152258879904)
    assert (first.overhead["share"].up, first.overhead["share"].down) == (828, 1380)
    assert first.epsilon == 0.7961921507653146
    assert read_manifest(BEFORE / "fl-std-dp").status == "interrupted"


def test_a_run_with_other_noise_is_not_resumed(tmp_path: Path) -> None:
    """It drew real-valued noise: a round repeated with exact noise would be a second release for one charge."""
    path = copy("geyer", tmp_path)
    with pytest.raises(RunError, match=r"has another method: .* Give the same, or start a new run"):
        tacit.train(geyer(), task(), workers=1, out=path, resume=True, noise="seeded")
    with pytest.raises(UserError, match="Use the version of Tacit that wrote it"):
        Ledger.open(path / LEDGER)


def test_a_method_with_other_fields_gets_a_sentence(tmp_path: Path) -> None:
    method = methods.fl_std_dp(cohort=4, clip=0.5, noise=2.0, rounds=3, epsilon=30.0, delta=1e-3)
    path = copy("fl-std-dp", tmp_path)
    with pytest.raises(RunError, match=r"was written by another version\. Use that version, or start a new run"):
        tacit.train(method, task(), workers=1, out=path, resume=True, noise="seeded")
    RunDirectory.open(path).close()
