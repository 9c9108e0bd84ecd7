from dataclasses import dataclass

import pytest

from tacit import core, pieces
from tacit.core.value_text import dataclasses_of, parse
from tacit.errors import UserError


@dataclass(frozen=True)
class Pair:
    first: object
    second: object = None


RECORDS = {"Pair": Pair}


def test_records_nest_and_hold_plain_values() -> None:
    assert parse("Pair(Pair(-1.5, second='x'), (1, None, True, inf))", RECORDS, "a pair") == Pair(
        Pair(-1.5, "x"), (1, None, True, float("inf"))
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Pair(", "Expected the text of a pair"),
        ("Pair.mro()", 'got "Pair.mro"'),
        ("Par(1)", "Did you mean 'Pair'"),
        ("Pair(1, third=2)", "Expected the fields of Pair"),
        ("Pair(**{'first': 1})", "got \\*\\*"),
        ("Pair(1 + 1)", 'got "1 . 1"'),
    ],
)
def test_nothing_else_is_an_expression(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(text, RECORDS, "a pair")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Poisson('3')", "size of Poisson to be a number, got '3'"),
        ("Poisson(True)", "size of Poisson to be a number, got True"),
        ("FixedSize(2.5)", "size of FixedSize to be a whole number"),
        ("Growing(3)", r"stages of Growing to be a list, each item \(a whole number, Sampler\), got 3"),
        ("Growing(((3, 4),))", "stages of Growing"),
        ("Growing(((3, Poisson(4), 5),))", "stages of Growing"),
        ("Sgd(lr=Schedule(3), steps=1)", "function of Schedule to be a function"),
        ("SecureSum(level='none')", "level of SecureSum"),
        (f"FixedSize({10**30})", "size of FixedSize to be a whole number"),
    ],
)
def test_fields_have_the_types_that_they_declare(text: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(text, dataclasses_of(core, pieces), "a piece")


def test_records_are_those_that_packages_export() -> None:
    records = dataclasses_of(core, pieces)
    assert {"Method", "FixedSize", "Reals", "Compact"} <= records.keys()
    assert "DENSE" not in records
