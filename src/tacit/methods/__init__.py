"""Methods by name: one file per paper, discovered.

A file in this package lists its factories in a tuple `METHODS`. A factory is a function that returns a
`Method`; its name with dashes is the method's name, its signature the schema of its arguments, and the first
line of its docstring what `tacit methods` says about it. Adding a method is adding a file. Methods that are at home on
another task than the embedded digits, or on a task set up in a way of their own, say so in a table `DEFAULT_TASKS`.
"""

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from tacit.core import Method
from tacit.core.schema import call, changed, choose, suggestion

Factory = Callable[..., Method]


@dataclass(frozen=True)
class DefaultTask:
    """The task that a method is run on if nothing else is said, and how it is set up for that method."""

    task: str = "digits"
    args: Mapping[str, object] = field(default_factory=dict)


def catalog() -> Mapping[str, Factory]:
    """Every method's factory by the method's name.

    Example:
        >>> "fl-std" in catalog()
        True
    """
    return _CATALOG


def find(name: str) -> Factory:
    """The factory of this name; an unknown one is an error that points to the nearest."""
    return choose(_CATALOG, name, "method")


def default_task(name: str) -> DefaultTask:
    """Where the method of this name is at home.

    Example:
        >>> home("fl-std").task, home("nbafl").task
        ('digits', 'mnist')
    """
    find(name)
    return _DEFAULT_TASKS.get(name, DefaultTask())


def make(name: str, args: Mapping[str, object] = MappingProxyType({})) -> Method:
    """The method of this name with arguments that come from outside, checked against the factory's signature.

    An argument with dots in its name is a field of one of the method's pieces.

    Example:
        >>> made = make("fl-std", {"rounds": "3", "server.rate": "1/2"})
        >>> made.rounds, made.server
        (3, Add(rate=0.5))
    """
    label = f"method {name}"
    method = call(find(name), label, {key: value for key, value in args.items() if "." not in key})
    return changed(method, {key: value for key, value in args.items() if "." in key}, label)


def _discover() -> tuple[Mapping[str, Factory], Mapping[str, DefaultTask]]:
    modules = [importlib.import_module(f"{__name__}.{found.name}") for found in pkgutil.iter_modules(__path__)]
    factories: list[Factory] = [factory for module in modules for factory in module.METHODS]
    homes = {name: DefaultTask(*at) for module in modules for name, at in getattr(module, "DEFAULT_TASKS", {}).items()}
    return MappingProxyType({_name(factory): factory for factory in factories}), MappingProxyType(homes)


def _name(factory: Factory) -> str:
    return factory.__name__.replace("_", "-")


def __getattr__(name: str) -> Factory:
    raise AttributeError(f"module {__name__!r} has no method {name!r}.{suggestion(name, _CATALOG)}")


_CATALOG, _DEFAULT_TASKS = _discover()
# A file may bear the name of its factory (fedavg.fedavg): `tacit.methods.fedavg` is the factory.
globals().update({factory.__name__: factory for factory in _CATALOG.values()})
