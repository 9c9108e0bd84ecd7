"""Methods by name: one file per paper or family.

A file in this package lists its factories in a tuple `METHODS`. A factory is a function that returns a `Method`: its
name with dashes is the method's name, its signature is the schema of the method's arguments, and the first line of its
docstring is the method's summary. Two tables may follow: `DEFAULT_TASKS` has the methods whose default task is not the
embedded digits, and `SHORT_NAMES` the fields of pieces that also have a short name as arguments
(`{"pruning.counts": "keep"}`). Adding a method is adding a file, and `make catalogue`.

Names, summaries and parameters are in `catalogue.json`, which is written from the files (`tacit.methods.cataloguing`),
so that they are available before PyTorch is imported. A file is imported when one of its methods is used.

Other packages register methods as entry points of the group `tacit.methods`, by name. A function in a user's file is
`FILE.py:FUNCTION`; the file is executed when the method is made, so that a caller of `make` needs the user's consent.
"""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, TypeGuard

from tacit.core.discovery import Definition, FileReference, file_reference, read_definitions
from tacit.core.schema import SETTINGS, SLOTS, call, change_fields, check_names, choose, suggestion
from tacit.errors import TacitError, UserError

if TYPE_CHECKING:
    from tacit.core import Method

Factory = Callable[..., "Method"]
DESCENT_FIELDS = ("lr", "steps", "epochs", "batch_size", "decay", "momentum", "weight_decay")  # with short names
CATALOGUE = Path(__file__).with_name("catalogue.json")
GROUP = "tacit.methods"  # of the entry points of other packages
_PIECE_TEXT = re.compile(r"[A-Z]\w*\(.*\)", re.DOTALL)


@dataclass(frozen=True)
class DefaultTask:
    """A method's default task, and that task's arguments for this method."""

    task: str = "digits"
    args: Mapping[str, object] = field(default_factory=dict)


@cache
def definitions() -> Mapping[str, Definition]:
    """The definition of every method in the catalogue, by the method's name. Imports none of them.

    Example:
        >>> definitions()["fedavg"].parameters["rounds"]
        '50'
    """
    own = {name: Definition(**entry) for name, entry in json.loads(CATALOGUE.read_bytes()).items()}
    return MappingProxyType({**_of_packages(), **own})


def find(name: str) -> Factory:
    """The factory of the method with this name.

    Raises:
        UserError: there is no such method; the message lists all names and suggests the nearest.
    """
    reference = file_reference(name, "method")
    if reference is not None and reference.file.is_file():
        status = reference.file.stat()
        return _of_file(reference, reference.file.absolute(), status.st_mtime_ns, status.st_size)
    factory: Factory = definition(name).load()
    return factory


@cache
def _of_file(reference: FileReference, *version: object) -> Factory:  # noqa: ARG001
    """The function in a file; the file is executed once, and again only if it changed."""
    factory: Factory = reference.load()
    return factory


def definition(name: str) -> Definition:
    """The factory of this name, or of `FILE.py:FUNCTION`. Imports nothing."""
    reference = file_reference(name, "method")
    return choose(definitions(), name, "method") if reference is None else reference.definition()


def check_registered(name: str) -> None:
    """Raise `UserError` unless this is a method of Tacit or one that an installed package registers. Imports nothing.

    Example:
        >>> check_registered("mine.py:fedprox")
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected the name of a registered method, got 'mine.py:fedprox', a function of a \
Python file. Register it as an entry point of the group tacit.methods, and install its package.
    """
    if name.endswith(".py") or file_reference(name, "method") is not None:
        raise UserError(
            f"Expected the name of a registered method, got {name!r}, a function of a Python file. Register it as an "
            f"entry point of the group {GROUP}, and install its package."
        )
    choose(definitions(), name, "method")


def is_ours(name: str) -> bool:
    """Whether a registered method is one of Tacit's own: making any other imports another package."""
    return choose(definitions(), name, "method").module.startswith(f"{__name__}.")


def validate(name: str, args: Mapping[str, object]) -> None:
    """Raise `UserError` if the method or one of its arguments does not exist. Imports no method.

    Arguments with dots are fields of pieces; `make` checks these.
    """
    check_names(plain_names(args), options(name), f"method {name}")


def options(name: str) -> Sequence[str]:
    """The options of the method with this name: its factory's parameters, pieces, settings, short names."""
    parameters = definition(name).parameters
    return list(dict.fromkeys([*parameters, *SLOTS, *SETTINGS, *short_names(name)]))


def expand(name: str, args: Mapping[str, object]) -> dict[str, object]:
    """The arguments with short names written out.

    Example:
        >>> expand("fl-std", {"lr": 0.1, "rounds": 3}), expand("fedavg", {"lr": 0.1})
        ({'descent.lr': 0.1, 'rounds': 3}, {'lr': 0.1})
    """
    paths = short_names(name)
    return {paths.get(key, key): value for key, value in args.items()}


def short_names(name: str) -> Mapping[str, str]:
    """The field that each short name of a method stands for: `lr` is `descent.lr`, where a factory has no `lr`."""
    entry = definition(name)
    names = {**{f"descent.{field}": field for field in DESCENT_FIELDS}, **entry.short_names}
    parameters = entry.parameters
    fields = {
        short: path for path, short in names.items() if path.partition(".")[0] in parameters and short not in parameters
    }
    return MappingProxyType(fields)


def plain_names(args: Mapping[str, object]) -> list[str]:
    """The names without dots."""
    return [key for key in args if "." not in key]


def default_task(name: str) -> DefaultTask:
    """The task that the method with this name runs on by default.

    Example:
        >>> default_task("fl-std").task, default_task("nbafl").task
        ('digits', 'mnist')
    """
    return DefaultTask(*definition(name).default_task)


def make(name: str, args: Mapping[str, object] = MappingProxyType({})) -> "Method":
    """Make the method with this name, with arguments from a file or a command line.

    Arguments are validated against the factory's signature; dots name fields of its defaults (`descent.lr`). Any other
    name is that of a piece or setting of the finished method or, with dots, of one of its fields; both are written as
    in Python. `budget="none"` leaves a budget out.

    Example:
        >>> made = make("fl-std", {"rounds": "3", "descent.lr": "0.1", "server.rate": "1/2", "sampler": "Everyone()"})
        >>> made.rounds, made.trainer.lr, made.server, made.sampler
        (3, 0.1, Add(rate=0.5), Everyone())
    """
    label = f"method {name}"
    validate(name, args)
    parameters = definition(name).parameters
    values = {key: _piece(value) for key, value in expand(name, args).items()}
    own = {key: value for key, value in values.items() if key.partition(".")[0] in parameters}
    try:
        method = call(find(name), label, own)
    except TacitError:
        raise
    except Exception as error:  # a user's function may fail in any way
        if file_reference(name, "method") is None:
            raise
        why = f"{type(error).__name__}: {error}".rstrip(".")
        raise UserError(f"{name} failed: {why}. Call the function in Python to see where.") from error
    if not hasattr(method, "trainer"):
        raise UserError(f"Expected {name} to return a tacit.Method, got {type(method).__name__}.")
    adjusted = change_fields(method, {key: values[key] for key in values if key not in own}, label)
    return adjusted if adjusted.name == name else replace(adjusted, name=name)


def __getattr__(name: str) -> Factory:
    if name.startswith("_") or _method_name(name) not in definitions():
        raise AttributeError(f"module {__name__!r} has no method {name!r}.{suggestion(name, definitions())}")
    return find(_method_name(name))


def __dir__() -> list[str]:
    return [*globals(), *(definition.name for definition in definitions().values())]


def _of_packages() -> dict[str, Definition]:
    """The methods that installed packages register; their source is read, and nothing is imported."""
    methods = {}
    for point in entry_points(group=GROUP):
        module, _, function = point.value.partition(":")
        path = _source(module)
        functions = {} if path is None else read_definitions(path, module)
        methods[point.name] = functions.get(function, Definition(module, function, f"A method of {module}.", {}))
    return methods


def _source(module: str) -> Path | None:
    """The source file of a module, located without importing its packages."""
    package, *rest = module.split(".")
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    folder, path = Path(spec.origin).parent, Path(spec.origin)
    candidates = [folder.joinpath(*rest).with_suffix(".py"), folder.joinpath(*rest, "__init__.py")] if rest else [path]
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def is_piece_text(value: object) -> TypeGuard[str]:
    """Whether a value is the text of a piece, such as `FixedSize(100)`."""
    return isinstance(value, str) and _PIECE_TEXT.fullmatch(value) is not None


def _piece(value: object) -> object:
    """The piece that a text describes; any other value is unchanged."""
    if not is_piece_text(value):
        return value
    from tacit import core, pieces  # imports all pieces
    from tacit.core.value_text import dataclasses_of, parse

    return parse(value, dataclasses_of(core, pieces), "a piece")


def _method_name(factory: str) -> str:
    return factory.replace("_", "-")


class _Package(ModuleType):
    """This package as a module: `tacit.methods.fedavg` is the factory, although a file has the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        value = getattr(value, name, value) if isinstance(value, ModuleType) else value
        ModuleType.__setattr__(self, name, value)


sys.modules[__name__].__class__ = _Package
