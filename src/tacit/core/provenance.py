"""The parts of a method that are not Tacit's own, and therefore not proved.

A part that declares its `sensitivity` can be tested (`tacit.probe`). A test finds violations and proves nothing, so the
guarantee then states that the sensitivity was declared and tested.
"""

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from tacit.core.interfaces import Bounded, Codec, Mechanism
from tacit.core.prices import Leakage, Price, Release, Unit, Unproved
from tacit.core.schema import SLOTS
from tacit.wire.frames import Part

if TYPE_CHECKING:
    from tacit.core.method import Method

DECLARED = "sensitivity"  # the attribute by which a part declares it
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the flag of classes that Python code made
_PLAIN = ("builtins", "enum", "torch")  # modules of arguments that are values, not parts


@dataclass(frozen=True)
class CustomPart:
    """A part of a method that its user wrote.

    Attributes:
        slot: the piece that it is, or is part of.
        name: its class.
        sensitivity: by how many times its bound one client can change the sum, as declared; None: not declared.
    """

    slot: str
    name: str
    sensitivity: float | None

    def __str__(self) -> str:
        return f"your {self.slot} `{self.name}`"


def own_parts(method: "Method") -> tuple[CustomPart, ...]:
    """The parts of a method that are not Tacit's own, subclasses of Tacit's included."""
    return tuple(part for slot in SLOTS for part in _own_parts(slot, getattr(method, slot)))


def is_ours(part: object) -> bool:
    """Whether the class of a value is one of Tacit's own."""
    return _is_our_class(type(part))


def declares(part: object, name: str) -> bool:
    """Whether a part itself declares this: what a user's subclass inherits from Tacit's class does not count.

    Example:
        >>> from tacit.core.neutral import Identity
        >>> class Signs(Identity): ...
        >>> declares(Identity(), "bounded_for"), declares(Signs(), "bounded_for")
        (True, False)
    """
    owners = (kind for kind in type(part).__mro__ if name in vars(kind))
    owner = type(part) if name in getattr(part, "__dict__", {}) else next(owners, None)
    return owner is not None and (is_ours(part) or not _is_our_class(owner))


def is_bounded_for(part: Bounded, unit: Unit) -> bool:
    """Whether a part itself declares that it enlarges no influence of such units; for clients all parts do."""
    return unit is Unit.CLIENT or (declares(part, "bounded_for") and unit in part.bounded_for)


def read_parts(piece: Codec | Mechanism) -> tuple[Part, ...]:
    """The parts of a broadcast that a piece itself declares to read; any, if it declares none."""
    return piece.reads if declares(piece, "reads") else tuple(Part)


def rests_on(price: Price, parts: tuple[CustomPart, ...]) -> Price:
    """The price of a method with these parts: nothing is proved unless all of them declare their sensitivity."""
    undeclared = [part for part in parts if part.sensitivity is None or part.slot == "channel"]
    if undeclared and not isinstance(price, Unproved):
        nominal = price if isinstance(price, Release | Leakage) else None
        return Unproved(f"rests on {_join_names(undeclared)}, whose sensitivity nobody has proved", nominal)
    for part in parts:
        if isinstance(price, Release) and part.sensitivity is not None:
            price = replace(price, loss=price.loss.scaled(part.sensitivity))
    return price


def declaration(parts: tuple[CustomPart, ...]) -> str:
    """The sentence of a guarantee on parts whose sensitivity was declared and tested; empty if there are none."""
    declared = [part for part in parts if part.sensitivity is not None]
    return f"The sensitivity of {_join_names(declared)} was declared by you and tested, not proved." if declared else ""


def _is_our_class(kind: type) -> bool:
    return kind.__module__.split(".")[0] == "tacit" and _is_found_in_its_module(kind)


def _is_value(kind: type) -> bool:
    """Whether arguments of this class are values: Python code can claim these modules, but not be found there."""
    written_in_python = bool(kind.__flags__ & _HEAP_TYPE)
    return kind.__module__ in _PLAIN and (not written_in_python or _is_found_in_its_module(kind))


def _is_found_in_its_module(kind: type) -> bool:
    return getattr(sys.modules.get(kind.__module__), kind.__qualname__, None) is kind


def _own_parts(slot: str, part: object) -> Iterator[CustomPart]:
    match part:
        case tuple() | list():
            inner: Iterable[object] = part
        case _ if _is_value(type(part)):
            return
        case _:
            inner = [getattr(part, each.name) for each in fields(part)] if is_dataclass(part) else ()
            if not is_ours(part):
                yield CustomPart(slot, type(part).__name__, _declaration(part))
    for each in inner:
        yield from _own_parts(slot, each)


def _declaration(part: object) -> float | None:
    match getattr(part, DECLARED, None):
        case int(value) | float(value) if 0 < value < inf:
            return float(value)
        case _:
            return None


def _join_names(parts: list[CustomPart]) -> str:
    names = list(dict.fromkeys(map(str, parts)))
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
