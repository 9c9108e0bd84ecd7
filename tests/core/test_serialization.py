import copy
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta, Struct

from tacit.core.serialization import Source, convert, read_json, read_toml, write_json
from tacit.errors import RunError, UserError, expect


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Circle(Struct, frozen=True, kw_only=True, tag_field="kind", tag="circle"):
    radius: float


class Square(Struct, frozen=True, kw_only=True, tag_field="kind", tag="square", rename="kebab"):
    side_length: float


@dataclass(frozen=True)
class Box:
    width: Annotated[float, Meta(description="in metres")]


@dataclass(frozen=True)
class Inner:
    size: float
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Everything:
    count: Annotated[int, Meta(ge=1)]
    numbers: tuple[float, ...] = ()
    by_name: Mapping[str, int | float | None] = field(default_factory=dict)
    options: Mapping[str, object] = field(default_factory=dict)
    clients: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    names: Annotated[
        tuple[Annotated[str, Meta(min_length=1)], ...], Meta(min_length=1, description="a list of names")
    ] = ("a",)
    inner: Inner | None = None
    box: Box | None = None
    parts: tuple[Inner, ...] = ()
    pair: tuple[str, str] = ("a", "b")
    colour: Colour = Colour.RED
    mode: Literal["fast", "slow"] = "fast"
    shape: Circle | Square | None = None
    file: Path = Path()

    def __post_init__(self) -> None:
        expect(self.mode != "slow" or self.count < 9, f"count={self.count} < 9")


HERE = Source(label="here.toml")


def test_a_record_has_the_types_that_it_declares() -> None:
    table = {
        "count": 2,
        "numbers": [1, 2.5],
        "by_name": {"a": 3, "b": None, "c": 0.5},
        "options": {"lr": [1, "x"]},
        "inner": {"size": 1},
        "parts": [{"size": 2, "note": "n"}],
        "pair": ["x", "y"],
        "colour": "green",
        "shape": {"kind": "square", "side-length": 2},
        "file": "a/b",
    }
    found = convert({**table}, Everything, HERE)
    assert found == Everything(
        count=2,
        numbers=(1.0, 2.5),
        by_name={"a": 3, "b": None, "c": 0.5},
        options={"lr": [1, "x"]},
        inner=Inner(1.0),
        parts=(Inner(2.0, "n"),),
        pair=("x", "y"),
        colour=Colour.GREEN,
        shape=Square(side_length=2.0),
        file=Path("a/b"),
    )
    assert type(found.by_name["a"]) is int  # so that a document that is written again is the same


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ([1], "Expected here.toml to be a table, got [1]."),
        ({}, "Expected here.toml to have the key 'count'."),
        ({"count": "1"}, "Expected count of here.toml to be a whole number, got '1'."),
        ({"count": True}, "Expected count of here.toml to be a whole number, got True."),
        ({"count": 0}, "Expected count of here.toml to be a whole number >= 1, got 0."),
        ({"count": 1, "numbers": 3}, "Expected numbers of here.toml to be a list, got 3."),
        ({"count": 1, "numbers": [1, "x"]}, "Expected numbers.2 of here.toml to be a number, got 'x'."),
        ({"count": 1, "inner": 3}, "Expected inner of here.toml to be a table or none, got 3."),
        ({"count": 1, "inner": {}}, "Expected inner of here.toml to have the key 'size'."),
        ({"count": 1, "pair": ["a", 3]}, "Expected pair.2 of here.toml to be a string, got 3."),
        ({"count": 1, "mode": "fats"}, "Expected mode of here.toml in fast, slow, got 'fats'. Did you mean 'fast'?"),
        ({"count": 1, "colour": "gren"}, "Expected colour of here.toml in red, green, got 'gren'."),
        ({"count": 1, "shape": {"kind": "sqare"}}, "Expected shape.kind of here.toml in circle, square, got 'sqare'."),
        ({"count": 1, "shape": {"kind": "circle"}}, "Expected shape of here.toml to have the key 'radius'."),
        (
            {"count": 1, "by_name": {"a": 1, "b": "x"}},
            "Expected by_name.b of here.toml to be a whole number or a number",
        ),
        (
            {"count": 1, "clients": {"0": {}, "x": {}}},
            "Expected keys of clients of here.toml to be a whole number, got 'x'",
        ),
        (
            {"count": 1, "clients": {"0": {}, "1": {"q": "y"}}},
            "Expected clients.1.q of here.toml to be a number, got 'y'",
        ),
        ({"count": 1, "names": [""]}, "Expected names.1 of here.toml to be a string of length >= 1, got ''."),
        ({"count": 1, "names": []}, "Expected names of here.toml to be a list of names, got []."),
        ({"count": 1, "box": {}}, "Expected box of here.toml to have the key 'width', in metres."),
        ({"count": 9, "mode": "slow"}, "here.toml: Expected count=9 < 9."),
    ],
)
def test_a_wrong_value_gets_one_clear_sentence(table: object, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        convert(table, Everything, HERE)
    assert str(caught.value).startswith(sentence), str(caught.value)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"cuont": 1}, ["Expected keys of here.toml in count, numbers,", "got 'cuont'. Did you mean 'count'?"]),
        ({"parts": [{"siez": 1}]}, ["Expected keys of parts.1 of here.toml in size, note, got 'siez'."]),
        ({"inner": {"nite": ""}}, ["inner of here.toml", "Did you mean 'note'?"]),
        ({"shape": {"kind": "circle", "raduis": 1}}, ["in kind, radius, got 'raduis'. Did you mean 'radius'?"]),
    ],
)
def test_an_unknown_key_is_refused_unless_another_version_may_have_written_it(
    table: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        convert({"count": 1, **table}, Everything, HERE)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    newer = {"count": 1, "added": {"later": 1}, "inner": {"size": 1, "added": 2}}
    assert convert(newer, Everything, Source(label="", closed=False)).inner == Inner(1.0)


@pytest.mark.parametrize("size", [math.inf, -math.inf, math.nan, 0.1, 1e-300])
def test_every_number_is_read_as_it_was_written(size: float) -> None:
    content = write_json({"inner": asdict(Inner(size)), "count": 1})
    json.loads(content, parse_constant=pytest.fail)  # NaN and Infinity are not JSON
    found = read_json(content, Everything, HERE, strict=False)
    assert found.inner is not None
    assert found.inner.size == pytest.approx(size, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "to be JSON"), (b"\xff", "to be JSON"), (b"[" * 99_999, "to be JSON"), (b"[]", "format 1, got None")],
)
def test_other_documents_are_refused_with_the_advice_of_the_source(content: bytes, words: str) -> None:
    source = Source(label="run.json", error=RunError, advice="Start a new run.")
    with pytest.raises(RunError, match=rf"^Expected run.json .*{words}.*\. Start a new run\.$"):
        read_json(content, Everything, source, version=1)


def test_a_toml_file_is_a_record(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_text('count = 3\n[shape]\nkind = "circle"\nradius = 2\n')
    assert read_toml(file, Everything) == Everything(count=3, shape=Circle(radius=2.0))
    with pytest.raises(UserError, match=r"Could not read .*none\.toml: No such file"):
        read_toml(tmp_path / "none.toml", Everything)
    file.write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"Expected .*it\.toml to be TOML"):
        read_toml(file, Everything)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a = " + "[" * 5000, "at most 32 nested values"),
        ("a." * 60_000 + "a = 1", "a key has more than 8 parts"),
        ("x = { y = '\"', " + "a . " * 30_000 + "a = 1 }", "a key has more than 8 parts"),
        ("[" + "'=#'." * 20_000 + "a]", "a key has more than 8 parts"),
        ('x = """\n\'\\"""" # \'\n' + "a." * 60_000 + "a = 1", "a key has more than 8 parts"),
        ("a = " + "9" * 5000, "to be TOML"),
        ("# " + "x" * 300_000, "at most 131072 bytes"),
    ],
    ids=["nested", "long key", "in a table", "quoted key", "after a string", "digits", "long"],
)
def test_hostile_toml_is_refused_with_a_sentence(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "it.toml").write_text(content)
    with pytest.raises(UserError, match=words):
        read_toml(tmp_path / "it.toml", Everything)


def test_hostile_json_is_refused_with_a_sentence() -> None:
    with pytest.raises(UserError, match="at most 16777216 bytes, got 16777217"):
        read_json(b" " * (2**24 + 1), Everything, HERE)
    with pytest.raises(UserError, match="at most 32 nested values"):
        read_json(b'{"a":' * 33 + b"1" + b"}" * 33, Everything, HERE)
    with pytest.raises(UserError, match="half a character"):
        read_json(b'{"count": 3, "inner": {"size": "\\ud800"}}', Everything, HERE, strict=False)


def test_a_long_value_is_shortened_in_the_message() -> None:
    with pytest.raises(UserError) as caught:
        read_json(b'{"' + b"x" * 100_000 + b'": 1}', Everything, HERE)
    assert len(str(caught.value)) < 1000


PLAIN = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
HOSTILE = PLAIN | st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=9), PLAIN, max_size=2)
VALID = {
    "count": 2,
    "numbers": [1, 2.5],
    "options": {"lr": 0.1, "names": ["a"]},
    "by_name": {"a": 3, "b": None},
    "clients": {"0": {"q": 1.0}},
    "names": ["a"],
    "inner": {"size": 1},
    "parts": [{"size": 2, "note": "n"}],
    "pair": ["x", "y"],
    "colour": "green",
    "mode": "slow",
    "shape": {"kind": "square", "side-length": 2},
    "file": "a/b",
}


@settings(max_examples=500)
@given(st.data())
def test_whatever_is_refused_the_sentence_says_where_and_what_is_expected(data: st.DataObject) -> None:
    """The place of an error is searched for, because msgspec reports it in prose only."""
    table, name = copy.deepcopy(VALID), data.draw(st.sampled_from(list(VALID)))
    inner: Any = table[name]
    if isinstance(inner, dict | list) and data.draw(st.booleans()):
        inner[data.draw(st.sampled_from([*inner] if isinstance(inner, dict) else range(len(inner))))] = data.draw(
            HOSTILE
        )
    else:
        table[name] = data.draw(HOSTILE)
    refusal = refused(table)
    assert not refusal or ("to be valid" not in refusal and name in refusal)


def refused(table: Mapping[str, Any]) -> str:
    """The sentence with which a table is refused; empty if it is read."""
    try:
        convert(table, Everything, HERE)
    except UserError as error:
        return str(error)
    return ""
