from dataclasses import dataclass
from functools import partial
from typing import Literal

import pytest

from tacit.core.schema import annotation_of, call, change_fields, choose, instead_of, suggestion
from tacit.errors import UserError


def factory(
    ratio: float,
    rounds: int = 10,
    private: bool = False,
    partition: Literal["iid", "shards"] = "iid",
    samples: int | None = None,
    sizes: tuple[int, ...] = (),
    label: str | float = "x",
) -> tuple[object, ...]:
    return ratio, rounds, private, partition, samples, sizes, label


def test_toml_and_the_command_line_give_the_same_arguments() -> None:
    toml: dict[str, object] = {"ratio": 1, "rounds": 3, "private": True, "samples": 5, "sizes": [1, 2], "label": 2}
    typed: dict[str, object] = {
        "ratio": "1",
        "rounds": "3",
        "private": "true",
        "samples": "5",
        "sizes": "1,2",
        "label": "2",
    }
    assert call(factory, "f", toml) == call(factory, "f", typed)


@pytest.mark.parametrize(
    ("text", "sizes"), [("3", (3,)), ("3,4", (3, 4)), (" [3, 4] ", (3, 4)), ("(3,)", (3,)), ("", ()), ("[]", ())]
)
def test_a_list_is_written_with_commas(text: str, sizes: tuple[int, ...]) -> None:
    assert call(factory, "f", {"ratio": 1, "sizes": text})[5] == sizes


@dataclass(frozen=True, kw_only=True)
class Record:
    clip: float
    rounds: "int" = 3


def test_records_and_partial_functions_are_factories() -> None:
    assert call(Record, "record", {"clip": "2"}) == Record(clip=2.0)
    assert call(partial(factory, ratio=0.5), "f", {"rounds": "4"})[:2] == (0.5, 4)


RECORD = Record(clip=1.0)


def nested(name: str, record: Record = RECORD) -> tuple[str, Record]:
    return name, record


def test_dots_reach_into_the_records_of_a_factory() -> None:
    assert call(nested, "f", {"name": "x", "record.clip": "1/2"}) == ("x", Record(clip=0.5))
    assert call(nested, "f", {"name": "x", "record": Record(clip=2.0), "record.rounds": 4})[1] == Record(
        clip=2.0, rounds=4
    )
    assert annotation_of(nested, "record.clip") is float
    assert annotation_of(nested, "name") is str
    for name in ("record.clp", "recrd.clip"):
        with pytest.raises(UserError, match="Did you mean"):
            call(nested, "f", {"name": "x", name: 1})


def test_parameters_without_annotation_accept_any_value() -> None:
    assert call(lambda x: x, "f", {"x": "3"}) == "3"


def test_fractions_and_none() -> None:
    assert call(factory, "f", {"ratio": "1/60", "samples": "none"})[:5] == (1 / 60, 10, False, "iid", None)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ratio": 1, "round": 3}, ["options of f", "'round'", "'rounds'"]),
        ({}, ["f", "ratio"]),
        ({"ratio": "much"}, ["ratio of f", "a number", "'much'"]),
        ({"ratio": True}, ["ratio of f", "a number"]),
        ({"ratio": "1/0"}, ["ratio of f", "a number"]),
        ({"ratio": 1, "rounds": 2.5}, ["rounds of f", "a whole number", "2.5"]),
        ({"ratio": 1, "private": "perhaps"}, ["private of f", "true or false"]),
        ({"ratio": 1, "partition": "shard"}, ["partition of f", "'shard'", "'shards'"]),
        ({"ratio": 1, "samples": "few"}, ["samples of f", "a whole number or none"]),
        ({"ratio": 1, "rounds": "9" * 30}, ["rounds of f", "a whole number"]),
        ({"ratio": 1, "sizes": ["a"]}, ["sizes of f", "a list, each item a whole number"]),
        ({"ratio": 1, "sizes": "3,,4"}, ["sizes of f", "'3,,4'"]),
        ({"ratio": 1, "sizes": "[3"}, ["sizes of f", "'[3'"]),
        ({"ratio": 1, "sizes": 3}, ["sizes of f", "3 (int)"]),
    ],
)
def test_invalid_options_are_reported(options: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError, match="Expected") as caught:
        call(factory, "f", options)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_choose_and_suggestion() -> None:
    assert choose({"a": 1}, "a", "letter") == 1
    assert suggestion("fl_top", ["fl-top", "geyer"]) == " Did you mean 'fl-top'?"
    assert suggestion("zzz", ["fl-top"]) == ""


@dataclass(frozen=True)
class Length:
    steps: int | None = instead_of("epochs")
    epochs: int | None = instead_of("steps")


def test_a_field_that_is_given_instead_of_another_resets_it():
    assert change_fields(Length(epochs=5), {"steps": "3"}, "length") == Length(steps=3)
    assert change_fields(Length(steps=3), {"epochs": 2}, "length") == Length(epochs=2)
    assert change_fields(Length(epochs=5), {"steps": "none"}, "length") == Length(epochs=5)
    assert change_fields(Length(), {"steps": 3, "epochs": 2}, "length") == Length(steps=3, epochs=2)


def test_a_misspelt_family_suggests_its_members() -> None:
    names = ("geyer/table-1", "geyer/figure-2", "esmfl/table-1")
    assert suggestion("geyr", names) == " Did you mean one of geyer/table-1, geyer/figure-2?"
    assert suggestion("geyer/tabel-1", names) == " Did you mean 'geyer/table-1'?"
    assert suggestion("x", names) == ""
