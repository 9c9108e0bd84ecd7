"""The `repr` of every method is parsed back, and other texts are refused."""

import pytest

from laws.compositions import all_methods
from tacit.errors import UserError
from tacit.runs.expressions import build

METHODS = all_methods()


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_is_rebuilt_from_its_repr(method) -> None:
    assert build(repr(method)) == method


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        "Sgd(lr=0.1, steps=1)",
        "__import__('os').system('true')",
        "Method.__class__",
        "Method(**{})",
        "Method(name=open('/etc/passwd').read())",
        "[Method for _ in ()]",
        "(lambda: Method)()",
        "Method(nmae='x')",
        "Methd()",
        "Method(name='x', rounds=1+1)",
        "f'{Method}'",
        "(" * 500,
        "Task(model=Sgd)",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UserError):
        build(text)


@pytest.mark.parametrize(
    "text",
    [
        "Masked(" * 90 + "1" + ")" * 90,
        "Method(name='x', rounds=1, sampler=Everyone(), trainer=3)",
        "Method(name='x', rounds=None, sampler=Everyone(), trainer=None)",
        "Sgd(lr=" + "9" * 5000 + ")",
        "Method(name='" + "x" * 70_000 + "')",
        "-" * 5000 + "1",
        "\x00",
        "'\\ud800'",
    ],
    ids=["nested", "a number for a piece", "nothing for a piece", "digits", "long", "signs", "NUL", "half a character"],
)
def test_hostile_texts_are_refused_with_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^(x: )?Expected"):
        build(text)
