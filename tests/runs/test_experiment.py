import pytest

from tacit.errors import UserError
from tacit.runs.experiment import Experiment, parse, read

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


def test_an_experiment_is_read_from_a_file(tmp_path):
    (tmp_path / "mine.toml").write_text(FILE)
    mine = read(tmp_path / "mine.toml")
    assert mine == Experiment(
        method="fl-std", task="digits", args={"rounds": 2, "cohort": 5}, task_args={"clients": 20}, seeds=(3, 4)
    )
    assert mine.build_method().rounds == 2
    assert len(mine.build_task().population) == 20


USER_FILE = """
import torch
import tacit

def parts(count: int = 6, width: int = 4) -> tacit.Task:
    data = [(torch.ones(3, width), torch.zeros(3, dtype=torch.long)) for _ in range(count)]
    return tacit.Task(model=lambda: torch.nn.Linear(width, 2), clients=data, public=data[0])

def nothing():
    return 3
"""


def test_a_user_s_task(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(USER_FILE)
    mine = Experiment(method="fl-top", task=f"{file}:parts", task_args={"count": "8"})
    task = mine.build_task()
    assert len(task.population) == 8
    assert task.public is not None
    assert task.name == f"{file}:parts"
    assert mine.convert_task_args() == {"count": 8}


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ("mine.py:part", ["'part'", "Did you mean 'parts'?"]),
        ("other.py:parts", ["other.py, which does not exist"]),
        ("broken.py:parts", ["Could not run", "ZeroDivisionError"]),
        ("mine.py:nothing", ["to return a tacit.Task, got int"]),
    ],
)
def test_invalid_user_tasks_are_refused(tmp_path, task, expected):
    (tmp_path / "mine.py").write_text(USER_FILE)
    (tmp_path / "broken.py").write_text("1 / 0")
    with pytest.raises(UserError) as caught:
        Experiment(method="fl-top", task=str(tmp_path / task)).build_task()
    assert all(word in str(caught.value) for word in expected), str(caught.value)


def test_arguments_of_private_variants_are_typed():
    experiment = Experiment(method="fl-top-dp", args={"epsilon": "8", "clip": "none", "ratio": "1/10"})
    assert experiment.convert_args() == {"epsilon": 8.0, "clip": None, "ratio": 0.1}


def test_records_stay_texts_and_fields_have_their_types():
    args = {"channel": "Plain(wire=Compact())", "keep": [3, 4], "steps": "6", "updates": "2", "lr": "1/4"}
    experiment = Experiment(method="esmfl", args={**args, "descent": "Sgd(lr=1.0, epochs=2, sends='weights')"})
    assert experiment.convert_args() == {
        "channel": "Plain(wire=Compact())",
        "pruning.counts": (3, 4),
        "descent.steps": 6,
        "admm.updates": 2,
        "descent.lr": 0.25,
        "descent": "Sgd(lr=1.0, epochs=2, sends='weights')",
    }
    again = Experiment(method="esmfl", args=experiment.convert_args())
    assert again.build_method() == experiment.build_method()
    assert again.convert_args() == experiment.convert_args()


def test_strings_are_converted_to_the_declared_types():
    experiment = Experiment(method="fedavg", args={"lr": "1/4", "weighted": "no"}, task_args={"clients": "50"})
    assert experiment.convert_args() == {"lr": 0.25, "weighted": False}
    assert experiment.convert_task_args() == {"clients": 50}


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ({}, ["mine", "to have the key 'method'"]),
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
def test_invalid_tables_are_refused(table, expected):
    with pytest.raises(UserError) as caught:
        parse(table, "mine")
    assert all(word in str(caught.value) for word in expected), str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "Could not read"), (b"method = ", "to be TOML"), (b"\xff", "to be TOML")]
)
def test_files_that_cannot_be_read(tmp_path, content, message):
    if content is not None:
        (tmp_path / "mine.toml").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "mine.toml")


@pytest.mark.parametrize(
    ("mine", "expected"),
    [
        (Experiment(method="fedavg", task="digit"), ["'digit'", "Did you mean 'digits'?"]),
        (Experiment(method="fedavg", task_args={"client": 3}), ["task digits", "Did you mean 'clients'?"]),
        (Experiment(method="fedavg", task_args={"name": "x"}), ["task digits", "'name'"]),
    ],
)
def test_unknown_tasks_and_arguments_are_refused(mine, expected):
    with pytest.raises(UserError) as caught:
        mine.build_task()
    assert all(word in str(caught.value) for word in expected), str(caught.value)
