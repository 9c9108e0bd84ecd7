import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from tacit.data.task import Task
from tacit.errors import UserError
from tacit.tasks import TASKS, make_task
from tacit.tasks.datasets import DataSet
from tacit.tasks.sources import DATA_SETS


def test_every_task_is_described():
    for name, entry in TASKS.items():
        assert entry.name == name
        assert entry.summary.endswith(".")
        assert entry.clients != "None"
        assert all(isinstance(data, DataSet) and data.name in DATA_SETS for data in entry.data)
        parameters = inspect.signature(entry.factory).parameters
        assert all(parameter.default is not parameter.empty for parameter in parameters.values())
        documentation = inspect.getdoc(entry.factory) or ""
        assert all(f"{parameter}:" in documentation for parameter in parameters)
        assert documentation.startswith(entry.summary)
        assert entry.natural_clients or entry.clients == str(parameters["clients"].default)


def test_listing_tasks_does_not_import_torch():
    code = (
        "import sys; from tacit.tasks import TASKS; [(entry.summary, entry.clients) for entry in TASKS.values()]; "
        "print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"False\n"


def test_embedded_tasks_are_always_ready():
    assert TASKS["digits"].ready
    assert TASKS["synthetic"].ready


def test_make_task_converts_strings():
    task = make_task("digits", clients="30", partition="shards")
    assert isinstance(task, Task)
    assert len(task.population) == 30


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("digit", {}, ["Expected task in", "'digit'", "'digits'"]),
        ("digits", {"client": 3}, ["task digits", "'client'", "'clients'"]),
        ("digits", {"clients": "many"}, ["clients of task digits", "whole number", "'many'"]),
        ("digits", {"partition": "shard"}, ["partition of task digits", "'shards'"]),
        ("digits", {"clients": 1501}, ["got 1500"]),
    ],
)
def test_wrong_names_and_options(name, options, words):
    with pytest.raises(UserError) as caught:
        make_task(name, **options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize("name", ["digits", "synthetic", "gusto", "support2"])
def test_the_catalog_lists_the_preprocessing_of_a_task(data_folder: Path, name: str) -> None:
    assert TASKS[name].preprocessing == make_task(name).preprocessing.source
