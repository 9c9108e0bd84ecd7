"""Every method has one canonical form, which gives it back; other forms are refused, and run no code."""

import functools
import json
import math
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar

import pytest

from laws.compositions import all_methods
from tacit.core import Method
from tacit.core.plain_form import _MAX_DEPTH, MAX_CHARACTERS, MAX_VALUES, canonical, from_plain, to_plain
from tacit.errors import UserError
from tacit.methods import make
from tacit.pieces import Mean, Poisson, Schedule, Sgd

METHODS = all_methods()
FORM = make("fl-std-dp").to_plain()


@dataclass(frozen=True)
class Halved(Mean):
    """A piece of your own."""

    part: float = 0.5
    sensitivity: ClassVar[float] = 0.5


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_given_back_by_its_form(method: Method) -> None:
    plain = json.loads(json.dumps(method.to_plain(), allow_nan=False))
    assert Method.from_plain(plain) == method
    assert Method.from_plain(plain).digest == method.digest
    assert Method.from_canonical(method.canonical) == method


def changes(record: Any) -> list[Any]:
    """The record with one of its numbers changed, its own or that of a record within it; where that is allowed."""
    found = []
    for each in fields(record):
        value = getattr(record, each.name)
        numbers = [type(value)(value * 0.75), value + 1] if type(value) in (int, float) else []
        for other in changes(value) if is_dataclass(value) else numbers:
            with suppress(UserError):
                found.append(replace(record, **{each.name: other}))
    return [each for each in found if each != record]


@pytest.mark.parametrize("name", ["fl-std-dp", "geyer", "esmfl", "dp-sgd", "ifca-dp"])
def test_a_change_of_any_field_changes_the_digest(name: str) -> None:
    method = make(name)
    changed = changes(method)
    assert len(changed) >= 5
    assert len({each.digest for each in changed} | {method.digest}) == len(set(changed)) + 1


def test_equal_methods_have_equal_digests_in_every_process() -> None:
    line = "from tacit.methods import make; print(make('fl-std-dp').digest)"
    other = subprocess.run([sys.executable, "-c", line], capture_output=True, text=True, check=True).stdout.strip()
    assert make("fl-std-dp").digest == other
    assert to_plain(Poisson(10)) == to_plain(Poisson(10.0))
    assert canonical(to_plain(Poisson(10))) == '{"size":10.0,"type":"Poisson"}'


def test_infinite_numbers_are_kept_and_nan_is_refused() -> None:
    endless = replace(make("fl-std"), aggregator=Halved(part=math.inf))
    assert Method.from_plain(json.loads(endless.canonical), own=[Halved]) == endless
    with pytest.raises(UserError, match="got NaN"):
        to_plain((math.nan,))
    for number in (math.nan, math.inf):
        with pytest.raises(UserError, match="Expected plain values"):
            from_plain(number)
    with pytest.raises(UserError, match="Expected the canonical form"):
        Method.from_canonical(endless.canonical.replace('{"type":"float","value":"inf"}', "Infinity"))


def test_a_piece_of_ones_own_has_a_form_that_is_read_if_it_is_named() -> None:
    method = replace(make("fl-std"), aggregator=Halved(part=0.25))
    plain = method.to_plain()
    assert plain["aggregator"] == {"type": f"{__name__}:Halved", "part": 0.25}
    with pytest.raises(UserError, match="Expected a type that a form may name in"):
        Method.from_plain(plain)
    assert Method.from_plain(plain, own=[Halved]) == method


def test_functions_have_a_digest_and_cannot_be_read() -> None:
    def slower(by: float) -> Schedule:
        return Schedule(lambda index: by / (1 + index))

    def form(schedule: Schedule) -> str:
        return canonical(to_plain(Sgd(lr=schedule, steps=1)))

    assert form(slower(0.1)) == form(slower(0.1)) != form(slower(0.2))
    assert form(Schedule(functools.partial(max, 0.1))) != form(Schedule(functools.partial(max, 0.2)))
    with pytest.raises(UserError, match="got one with a function, of which it has a digest only"):
        from_plain(to_plain(slower(0.1)))
    with pytest.raises(UserError, match="Expected numbers, texts, tuples and dataclasses in a method, got dict"):
        to_plain(Halved(part={}))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"version": 2}, "Expected the form of a method of version 1, got 2"),
        ({"version": True}, "got True"),
        ({"type": "Methd"}, "Did you mean 'Method'"),
        ({"type": "Budget"}, "Expected options of Budget in"),
        ({"type": "subprocess:Popen"}, "Expected a type that a form may name"),
        ({"type": ["Method"]}, "Expected plain values and objects with a type"),
        ({"ronds": 3}, "got 'ronds'. Did you mean 'rounds'"),
        ({"rounds": "3"}, "Expected rounds of Method to be a whole number"),
        ({"rounds": True}, "Expected rounds of Method to be a whole number"),
        ({"sampler": 3}, "Expected sampler of Method to be Sampler"),
        ({"sampler": {"type": "Poisson"}}, "Expected Poisson with all of its fields, got none for size"),
        ({"sampler": {"type": "Poisson", "size": "4"}}, "Expected size of Poisson to be a number"),
        ({"sampler": {"size": 4.0}}, "Expected plain values and objects with a type"),
        ({"name": "x" * 10, "server": {"type": "Replace"}}, "Use Add or Momentum"),
        ({"patience": json.loads("[" * (_MAX_DEPTH + 1) + "]" * (_MAX_DEPTH + 1))}, f"{_MAX_DEPTH} deep"),
        ({"patience": [0] * MAX_VALUES}, f"at most {MAX_VALUES} values"),
    ],
)
def test_other_forms_are_refused_with_a_sentence(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Method.from_plain({**FORM, **changed})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "null",
        "[" * 100_000,
        "x" * (MAX_CHARACTERS + 1),
        json.dumps(FORM),
        canonical(FORM)[:-1] + ',"version":1}',
        canonical({**FORM, "patience": 1.0}),
        '{"type":"Everyone"}',
    ],
    ids=["empty", "number", "null", "deep", "long", "spaces", "twice", "float for int", "no method"],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError, match=r"^Expected"):
        Method.from_canonical(text)
