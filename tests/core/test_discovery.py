import inspect
from pathlib import Path
from typing import Any

import pytest

from tacit import methods, tasks
from tacit.core.discovery import Definition, read_definitions

SOURCE = '''
"""A module that cannot be imported."""

import nothing

LR = 0.5


def train(rounds: int, lr: float = LR, *, steps: int = 3) -> Method:
    """Train for some rounds.

    More about it.
    """


def train_dp(rounds: int, descent: Sgd = Sgd(lr=LR), noise: float = 1.0) -> Method:
    """Train with noise."""


METHODS = (train, train_dp)
SHORT_NAMES = {"descent.lr": "lr"}
OTHER = {"train": LR}
'''


def test_definitions_are_read_without_importing(tmp_path: Path) -> None:
    file = tmp_path / "source.py"
    file.write_text(SOURCE)
    short_names = {"descent.lr": "lr"}
    own = {"rounds": "", "lr": "LR", "steps": "3"}
    noisy = {"rounds": "", "descent": "Sgd(lr=LR)", "noise": "1.0"}
    assert read_definitions(file, "source") == {
        "train": Definition(
            "source", "train", "Train for some rounds.", own, returns="Method", short_names=short_names
        ),
        "train_dp": Definition(
            "source", "train_dp", "Train with noise.", noisy, returns="Method", short_names=short_names
        ),
    }


FACTORIES = {**methods.definitions(), **{name: entry.definition for name, entry in tasks.TASKS.items()}}


@pytest.mark.parametrize("name", FACTORIES)
def test_source_and_imported_factory_agree(name: str) -> None:
    definition = FACTORIES[name]
    factory = definition.load()
    assert factory.__name__ == definition.name == name.replace("-", "_")
    assert list(inspect.signature(factory).parameters) == list(definition.parameters)
    assert (inspect.getdoc(factory) or "").partition("\n")[0] == definition.summary
    assert definition.summary.endswith(".")


def test_every_method_of_every_file_is_found() -> None:
    folder = Path(str(methods.__file__)).parent
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "cataloguing"}
    assert {definition.module.rpartition(".")[2] for definition in methods.definitions().values()} == modules


def test_a_method_is_an_attribute_even_if_a_file_has_its_name() -> None:
    import tacit.methods.fedavg
    from tacit.methods.geyer import geyer

    attributes: Any = tacit.methods
    assert attributes.fedavg is methods.find("fedavg")
    assert attributes.geyer is geyer
    with pytest.raises(AttributeError, match="Did you mean 'fedavg'"):
        _ = attributes.fedvag
