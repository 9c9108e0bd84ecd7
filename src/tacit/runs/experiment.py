"""An experiment as data: a method and a task by name, their arguments, and seeds.

If the task is left out, the method's default task is used with its default arguments; further arguments are added to
these. A task is one of the catalog, or `FILE.py:FUNCTION`: a user's function that returns a `Task`, whose parameters
are then the task's arguments. A method may be named in the same way, by a function that returns a `Method`. Such a
function runs only if the user named it or trusts the file that names it.

::

    method = "fl-std"
    task = "fashion-mnist"
    seeds = [0, 1, 2]         # or seed = 0
    randomness = "seeded"          # reproducible, for simulations; by default secret

    [args]                    # of the method's factory
    rounds = 50

    [task-args]               # of the task's factory
    clients = 6000
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from tacit import methods, tasks
from tacit.core import serialization
from tacit.core.discovery import file_reference
from tacit.core.schema import Options, annotation_of, call, check_names, choose, convert, list_names
from tacit.core.serialization import Source, load_toml
from tacit.errors import CompositionError, UserError

if TYPE_CHECKING:
    from tacit.core import Method
    from tacit.data import Task


class ExperimentTable(Struct, frozen=True, kw_only=True, rename="kebab"):
    """An experiment as it is written in TOML."""

    method: str
    task: str | UnsetType = UNSET
    seed: int | UnsetType = UNSET
    seeds: tuple[int, ...] | UnsetType = UNSET
    randomness: Literal["secret", "seeded"] = "secret"
    args: Mapping[str, object] = msgspec.field(default_factory=dict)
    task_args: Mapping[str, object] = msgspec.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A method and a task by name, the arguments of their factories, seeds, and the source of randomness.

    The factories' signatures are the schema: `build_method` and `build_task` raise a `UserError` that names the
    factory, the wrong key and the most similar valid one.

    `named_in` is the file that names the task, if it is `FILE.py:FUNCTION`, and `method_named_in` the same for the
    method: code that only a file names is not run. Empty: the user named it, or trusts the file.
    """

    method: str
    task: str = "digits"
    args: Options = field(default_factory=dict)
    task_args: Options = field(default_factory=dict)
    seeds: tuple[int, ...] = (0,)
    randomness: Literal["secret", "seeded"] = "secret"
    named_in: str = ""
    method_named_in: str = ""

    def with_trust(self, trust: bool) -> "Experiment":
        """The experiment of a user who trusts the file that names its code; without trust, that code is refused."""
        return replace(self, named_in="", method_named_in="") if trust else self

    def check_trust(self) -> None:
        """Raise `UserError` if the method is code that only a file names."""
        reference = file_reference(self.method, "method")
        if reference is not None and self.method_named_in:
            reference.refuse(self.method_named_in)

    def check_names(self) -> None:
        """Raise `UserError` if method, task or one of their arguments does not exist. Imports none of them."""
        methods.validate(self.method, self.args)
        if file_reference(self.task, "task") is None:
            tasks.validate(self.task, self.task_args)

    def build_method(self) -> "Method":
        self.check_trust()
        return methods.make(self.method, self.args)

    def build_task(self) -> "Task":
        from tacit.data import Task

        task = call(self._task_factory(), f"task {self.task}", self.task_args)
        if not isinstance(task, Task):
            raise UserError(f"Expected {self.task} to return a tacit.Task, got {type(task).__name__}.")
        return replace(task, name=self.task) if file_reference(self.task, "task") else task

    def convert_args(self) -> dict[str, object]:
        """The method's arguments, short names written out, converted to the types that its factory declares."""
        self.check_trust()
        return _convert_options(methods.find(self.method), methods.expand(self.method, self.args))

    def convert_task_args(self) -> dict[str, object]:
        """The task's arguments, converted to the types that its factory declares."""
        return _convert_options(self._task_factory(), self.task_args)

    def _task_factory(self) -> "Callable[..., Task]":
        reference = file_reference(self.task, "task")
        if reference is None:
            return choose(tasks.TASKS, self.task, "task").factory
        if self.named_in:
            reference.refuse(self.named_in)
        factory: Callable[..., Task] = reference.load()
        return factory


def split_args(args: Options, names: Sequence[str]) -> list[dict[str, object]]:
    """For each method the arguments that it has; an argument that none of them has is a `UserError`.

    Example:
        >>> split_args({"rounds": 3, "ratio": 0.1}, ["fl-std", "fl-top"])
        [{'rounds': 3}, {'rounds': 3, 'ratio': 0.1}]
    """
    options = [methods.options(name) for name in names]
    label = f"method{'s' * (len(names) > 1)} {list_names(names)}"
    check_names(methods.plain_names(args), dict.fromkeys(key for keys in options for key in keys), label)
    accepted = [{key: value for key, value in args.items() if _has_argument(name, key, value)} for name in names]
    unknown = {key: value for key, value in args.items() if not any(key in some for some in accepted)}
    return [{**some, **unknown} for some in accepted]  # unknown are fields of pieces only: `make` rejects them


def _has_argument(name: str, key: str, value: object) -> bool:
    """Whether a method's factory has this argument or, for a key with dots, its pieces have this field."""
    if "." not in key:
        return key in methods.options(name)
    try:
        methods.make(name, {key: value})
    except CompositionError:  # it has the field, which fits only together with others
        return True
    except UserError:
        return False
    return True


def read(path: Path) -> Experiment:
    """The experiment that a TOML file describes."""
    return parse(load_toml(path), str(path))


def parse(table: Mapping[str, Any], label: str) -> Experiment:
    """The experiment that a table describes; `label` names it in error messages.

    Example:
        >>> parse({"method": "fedavg", "seed": 3, "args": {"lr": 0.1}}, "mine.toml").seeds
        (3,)
    """
    return experiment_of(serialization.convert(table, ExperimentTable, Source(label=label)), label)


def experiment_of(given: ExperimentTable, label: str) -> Experiment:
    """The experiment that a table describes, with the default task of its method."""
    default_task = methods.default_task(given.method)
    task = default_task.task if given.task is UNSET else given.task
    return Experiment(
        method=given.method,
        task=task,
        args=flat_args(given.args),
        task_args={**default_task_args(default_task, task), **given.task_args},
        seeds=_seeds(given, label),
        randomness=given.randomness,
        named_in=label if file_reference(task, "task") else "",
        method_named_in=label if file_reference(given.method, "method") else "",
    )


def default_task_args(default_task: methods.DefaultTask, task: str) -> dict[str, object]:
    """The arguments of a method's default task; none for any other task."""
    return dict(default_task.args) if task == default_task.task else {}


def flat_args(table: Options, prefix: str = "") -> dict[str, object]:
    """Nested tables as keys with dots, which name the fields of pieces."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        flat |= flat_args(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _seeds(given: ExperimentTable, label: str) -> tuple[int, ...]:
    if given.seeds is UNSET:
        return (0,) if given.seed is UNSET else (given.seed,)
    if given.seed is not UNSET:
        raise UserError(f"Expected {label} to have either seed or seeds, not both.")
    if not given.seeds or len(set(given.seeds)) < len(given.seeds):
        raise UserError(f"Expected seeds of {label} to be different numbers, at least one, got {[*given.seeds]}.")
    return given.seeds


def _convert_options(factory: Callable[..., object], options: Options) -> dict[str, object]:
    """Each option in the type that the factory declares; pieces stay texts, as files hold them."""
    label = factory.__name__
    return {
        key: value if methods.is_piece_text(value) else convert(value, annotation_of(factory, key), key, label)
        for key, value in options.items()
    }
