"""Predictions for rows of a table, from a run or from its directory alone.

The run's encoding turns rows into inputs as in training: missing values and unknown categories are treated alike, and
other columns are not used. No target is needed. A class gets the probability of each value; a number, or a date, is in
the units of the table.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tacit.core.texts import cell
from tacit.data import Encoding
from tacit.data.tables import Table, original_texts, read_table
from tacit.engine.layout import make_model
from tacit.errors import DataError, RunError
from tacit.runs.directory import read_encoding, read_manifest
from tacit.runs.model_export import choose_model
from tacit.runs.saved_model import load, read_tensors, rebuild_task, tensors_of

_BATCH = 1 << 14  # rows that a model is given at a time
NO_TABLE = "Its inputs are not the rows of a table: apply run.model to tensors, or tacit export the model."
_Columns = dict[str, list[Any]]


@dataclass(frozen=True)
class Predictions:
    """The predictions for a table.

    Attributes:
        others: the columns of the table that are not inputs, such as ids, as they are written.
        predicted: by column, the predictions for each row.
        remarks: information that encoding removed from the table, as sentences.
    """

    others: Mapping[str, Sequence[str]]
    predicted: _Columns
    remarks: tuple[str, ...]

    @property
    def columns(self) -> _Columns:
        """All columns, those of the table first."""
        return {name: list(values) for name, values in self.others.items()} | self.predicted

    @property
    def rows(self) -> int:
        return len(next(iter(self.predicted.values())))

    def to_csv(self) -> str:
        """The columns as CSV, with a header; an apostrophe stands before a text that a spreadsheet would compute."""
        text, columns = io.StringIO(), self.columns
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(map(cell, columns))
        shown = ([cell(each) if isinstance(each, str) else each for each in column] for column in columns.values())
        writer.writerows(zip(*shown, strict=True))
        return text.getvalue()


def predict_rows(encoding: Encoding | None, module: nn.Module, source: Any) -> _Columns:
    """A trained module's predictions for the rows of a table, by column.

    Raises:
        DataError: a column is missing or has other values than in training; or the model's task was no table.
    """
    if encoding is None:
        raise DataError(f"Expected a run that was trained on a table. {NO_TABLE}")
    table = read_table(source)
    problems = encoding.problems(table, training=False)
    if problems:
        rest = f" And {len(problems) - 1} more columns do not fit." if len(problems) > 1 else ""
        raise DataError(problems[0] + rest)
    return encoding.known_target.read(_outputs(module, encoding.inputs(table)))


@torch.no_grad()
def _outputs(module: nn.Module, x: Tensor) -> Tensor:
    training = module.training
    try:
        module.eval()
        return torch.cat([module(part) for part in torch.split(x, _BATCH)])
    finally:
        module.train(training)


def predict_from(run: Path, source: Any, number: int | None = None, *, trusted: bool = False) -> Predictions:
    """Predictions of the model in the directory of a finished run.

    Args:
        run: the directory.
        source: a table.
        number: which model, from 0, if the run trained several.
        trusted: whether a Python file that the manifest names may be run, where the model is the user's own.
    """
    manifest = read_manifest(run)
    if not manifest.task.encoding:
        raise RunError(f"The run in {run} was not trained on a table. {NO_TABLE}")
    encoding, tensors, table = read_encoding(run, manifest), read_tensors(run), read_table(source)
    if manifest.task.model is None:
        instead = "Predict there, with run.predict(rows)."
        module = make_model(rebuild_task(run, manifest, instead, trusted=trusted), manifest.seed)
    else:
        module = manifest.task.model()
    models = max(len(tensors) // max(len(module.state_dict()), 1), 1)
    load(module, tensors_of(tensors, choose_model(models, number, "--model"), models), run)
    predicted = predict_rows(encoding, module, table)
    return Predictions(_others(source, table, encoding), predicted, tuple(encoding.remarks(table)))


def _others(source: Any, table: Table, encoding: Encoding) -> dict[str, Sequence[str]]:
    """The columns that are not inputs, as they are written: an id may begin with zeros."""
    names = [name for name in table.columns if name not in encoding.columns]
    texts = original_texts(source) if names else {}
    return {name: texts.get(name) or table.texts(name) for name in names}
