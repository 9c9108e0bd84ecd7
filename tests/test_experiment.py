import pytest

from tacit.core import UserError
from tacit.experiment import Experiment, parse, read

FILE = """
method = "fl-std"
task = "digits"
seeds = [3, 4]
[args]
rounds = 2
cohort = 5
[task-args]
clients = 20
"""


def test_a_file_becomes_method_and_task(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    mine = read(tmp_path / "mine.toml")
    assert mine == Experiment(
        method="fl-std", task="digits", args={"rounds": 2, "cohort": 5}, task_args={"clients": 20}, seeds=(3, 4)
    )
    assert mine.build_method().rounds == 2
    assert len(mine.build_task().population) == 20


def test_strings_are_brought_to_the_declared_types():
    said = Experiment(method="fedavg", args={"lr": "1/4", "weighted": "no"}, task_args={"clients": "50"})
    assert said.typed_args() == {"lr": 0.25, "weighted": False}
    assert said.typed_task_args() == {"clients": 50}


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({}, ["mine", "which method"]),
        ({"method": 3}, ["method of mine", "a string", "3"]),
        ({"method": "fedavg", "taks": "digits"}, ["'taks'", "Did you mean 'task'?"]),
        ({"method": "fedavg", "seed": 1, "seeds": [2]}, ["seed or seeds"]),
        ({"method": "fedavg", "seeds": []}, ["at least one"]),
        ({"method": "fedavg", "seeds": [1, 1]}, ["different"]),
        ({"method": "fedavg", "seed": "one"}, ["seed of mine", "a whole number"]),
        ({"method": "fedavg", "seed": True}, ["seed of mine", "a whole number"]),
        ({"method": "fedavg", "args": [1]}, ["args of mine", "a table"]),
    ],
)
def test_wrong_tables_are_refused(table, words):
    with pytest.raises(UserError) as caught:
        parse(table, "mine")
    assert all(word in str(caught.value) for word in words), str(caught.value)


@pytest.mark.parametrize(
    ("content", "words"), [(None, "Could not read"), (b"method = ", "to be TOML"), (b"\xff", "to be TOML")]
)
def test_files_that_cannot_be_read(tmp_path, content, words):
    if content is not None:
        (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(UserError, match=words):
        read(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("mine", "words"),
    [
        (Experiment(method="fedavg", task="digit"), ["'digit'", "Did you mean 'digits'?"]),
        (Experiment(method="fedavg", task_args={"client": 3}), ["task digits", "Did you mean 'clients'?"]),
        (Experiment(method="fedavg", task_args={"name": "x"}), ["task digits", "'name'"]),
    ],
)
def test_wrong_tasks_are_refused(mine, words):
    with pytest.raises(UserError) as caught:
        mine.build_task()
    assert all(word in str(caught.value) for word in words), str(caught.value)
