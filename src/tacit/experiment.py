"""An experiment as data: a method and a task by name, their arguments, and seeds.

::

    method = "fl-std"
    task = "fashion-mnist"
    seeds = [0, 1, 2]         # or seed = 0

    [args]                    # of the method's factory
    rounds = 50

    [task-args]               # of the task's
    clients = 6000
"""

import inspect
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tacit import methods
from tacit.core import Method, Task, UserError
from tacit.core.schema import call, choose, convert, listed, suggestion
from tacit.tasks import TASKS

Options = Mapping[str, object]
T = TypeVar("T")
_KEYS = ("method", "task", "seed", "seeds", "args", "task-args")


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A method and a task by name, the arguments of their factories, and the seeds to run them with.

    The factories' signatures are the schema: `build_method` and `build_task` raise a `UserError` that names the
    factory, the key and the nearest right one.
    """

    method: str
    task: str = "digits"
    args: Options = field(default_factory=dict)
    task_args: Options = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)

    def build_method(self) -> Method:
        """The method, from its factory."""
        return methods.make(self.method, self.args)

    def build_task(self) -> Task:
        """The task, from its factory."""
        return call(self._task_factory(), f"task {self.task}", self.task_args)

    def typed_args(self) -> dict[str, object]:
        """The method's arguments, brought to the types its factory declares."""
        return _typed(methods.find(self.method), self.args)

    def typed_task_args(self) -> dict[str, object]:
        """The task's arguments, brought to the types its factory declares."""
        return _typed(self._task_factory(), self.task_args)

    def _task_factory(self) -> Callable[..., Task]:
        return choose(TASKS, self.task, "task").factory


def shared_out(args: Options, names: Sequence[str]) -> list[dict[str, object]]:
    """For each method those of the arguments that its factory has; one that no factory has is an error.

    Example:
        >>> shared_out({"rounds": 3, "ratio": 0.1}, ["fl-std", "fl-top"])
        [{'rounds': 3}, {'rounds': 3, 'ratio': 0.1}]
    """
    known = [inspect.signature(methods.find(name)).parameters for name in names]
    nobody = [key for key in args if not any(key in parameters for parameters in known)]
    own = [{key: value for key, value in args.items() if key in parameters} for parameters in known]
    return [{**mine, **{key: args[key] for key in nobody}} for mine in own]  # what nobody has, each factory refuses


def read(path: Path) -> Experiment:
    """The experiment a TOML file describes."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Could not read the experiment {path}: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"Expected {path} to be TOML: {error}.") from error
    return parse(table, str(path))


def parse(table: Mapping[str, Any], label: str) -> Experiment:
    """The experiment a table describes; `label` is what messages call it.

    Example:
        >>> parse({"method": "fedavg", "seed": 3, "args": {"lr": 0.1}}, "mine.toml").seeds
        (3,)
    """
    for key in table:
        if key not in _KEYS:
            raise UserError(f"Expected keys of {label} in {listed(_KEYS)}, got {key!r}.{suggestion(key, _KEYS)}")
    if "method" not in table:
        raise UserError(f"Expected {label} to say which method, for example method = 'fedavg'.")
    return Experiment(
        method=_expect(table["method"], str, "method", label),
        task=_expect(table.get("task", "digits"), str, "task", label),
        args=_expect(table.get("args", {}), dict, "args", label),
        task_args=_expect(table.get("task-args", {}), dict, "task-args", label),
        seeds=_seeds(table, label),
    )


def _seeds(table: Mapping[str, Any], label: str) -> tuple[int, ...]:
    if "seed" in table and "seeds" in table:
        raise UserError(f"Expected {label} to have either seed or seeds, and not both.")
    seeds = _expect(table.get("seeds", [table.get("seed", 0)]), list, "seeds", label)
    if not seeds or len(set(map(str, seeds))) < len(seeds):
        raise UserError(f"Expected seeds of {label} to be different numbers, at least one, got {seeds}.")
    return tuple(_expect(seed, int, "seed", label) for seed in seeds)


def _expect(value: object, kind: type[T], key: str, label: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        words = {str: "a string", int: "a whole number", list: "a list", dict: "a table"}
        raise UserError(f"Expected {key} of {label} to be {words[kind]}, got {value!r}.")
    return value


def _typed(factory: Callable[..., object], options: Options) -> dict[str, object]:
    hints = typing.get_type_hints(factory)
    return {key: convert(value, hints.get(key, Any), key, factory.__name__) for key, value in options.items()}
