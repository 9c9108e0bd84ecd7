"""An analysis of a table as a run: question, encoding, task and method, and its result, also from a run's directory."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from tacit.analyses.questions import Question, read_declared
from tacit.analyses.results import Result, result_of
from tacit.analyses.sums import SumRelease
from tacit.core import Method, State
from tacit.data import Task
from tacit.data.sum_task import SumModel, sum_task
from tacit.data.tables import read_table
from tacit.engine.layout import Layout
from tacit.errors import DataError, RunError
from tacit.runs.directory import read_encoding, read_manifest
from tacit.runs.run import Run, RunSpec
from tacit.runs.saved_model import read_tensors


@dataclass(frozen=True, kw_only=True)
class Setting:
    """How a question is asked of a table.

    Attributes:
        client: the column that names the client; None: each of the table's files is a client.
        person: the column of person ids; empty: each row is a person of its own.
        epsilon: the budget ε of every person; None: no noise, and no privacy.
        delta: the δ of ε.
        encoding: the file, or the value, that declares ranges and categories; None: those of the rows.
        dropouts: the fraction of the clients that may be lost.
        seed: decides what may be public.
        randomness: of the noise, as in `tacit.train`.
    """

    client: str | None = None
    person: str = ""
    epsilon: float | None = 1.0
    delta: float = 1e-5
    encoding: Any = None
    dropouts: float = 0.1
    seed: int = 0
    randomness: Any = "secret"


def spec_of(source: Any, question: Question, setting: Setting) -> RunSpec:
    """The run that answers a question about a table.

    Args:
        source: a table in any form that `Task.from_table` reads.
        question: what is asked.
        setting: how.
    """
    task, method = ask(source, question, setting)
    return RunSpec(method=method, task=task, seed=setting.seed, randomness=setting.randomness)


def ask(source: Any, question: Question, setting: Setting) -> tuple[Task, Method]:
    """The task and the method that answer a question about a table."""
    table = read_table(source)
    roles = {"client": setting.client, "person": setting.person}
    for role, column in roles.items():
        if column:
            table.check_known(column, role)
    given = tuple(filter(None, roles.values())) + ((table.client,) if table.client else ())
    asked = replace(table, columns={name: each for name, each in table.columns.items() if name not in given})
    if table.rows == 0:
        raise DataError(f"Expected {table.name} to have rows, got none.")
    if setting.epsilon is None:
        question = question.make_exact(asked)
    encoding = question.encode(asked, read_declared(setting.encoding))
    task = sum_task(table, encoding, 1, client=setting.client, person=setting.person, name=Path(table.name).name)
    notes = tuple(question.notes(encoding, asked))
    release = SumRelease(
        epsilon=setting.epsilon,
        delta=setting.delta,
        clients=len(task.population),
        units=int(task.population.unit_sizes.max()),
        dropouts=setting.dropouts,
        persons=float(task.population.unit_sizes.sum()),
    )
    method = question.method(encoding, release)
    length = method.trainer.state_length
    assert length is not None  # a query has one
    return replace(task, notes=notes, model=SumModel(length)), method


def result_of_run(run: Run) -> Result:
    """The result of a finished analysis."""
    encoding = run.spec.task.encoding
    result = None if encoding is None else result_of(run.spec.method, encoding, run.state)
    if result is None:
        raise RunError(f"Expected the run of an analysis, got one of {run.spec.method.name}.")
    return result


def read_result(path: Path, method: Method | None) -> Result | None:
    """The result in the directory of a finished run; None: it is no analysis, or not finished."""
    if method is None or method.trainer.sends != "terms":
        return None
    manifest = read_manifest(path)
    if manifest.status != "finished" or not manifest.task.encoding:
        return None
    tensors: Mapping[str, torch.Tensor] = read_tensors(path)
    module = SumModel(manifest.task.parameters)()
    sums = tensors.get("sums")
    if sums is None or sums.shape != module.sums.shape:
        raise RunError(f"Expected {manifest.task.parameters} sums in {path}, got another model.")
    weights = Layout.of(module).flatten(module).copy_(sums)
    return result_of(method, read_encoding(path, manifest), State(1, weights))
