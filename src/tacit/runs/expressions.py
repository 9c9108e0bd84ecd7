"""Parse the `repr` of a method without executing it.

Text from a file must not decide which code runs. It is parsed, not evaluated: the only calls allowed are to the records
that `tacit` exports, with arguments that are such calls or literals.
"""

from tacit import core, pieces, wire
from tacit.core import Method
from tacit.core.record_text import parse, records_of
from tacit.errors import UserError


def build(text: str) -> Method:
    """The method that an expression describes.

    Raises:
        UserError: the text is no such expression, describes something else, or its pieces do not fit together.

    Example:
        >>> build("Method(name='mine', rounds=2, sampler=FixedSize(size=3), trainer=Sgd(lr=0.1, steps=1))").rounds
        2
        >>> build("__import__('os').system('true')")
        Traceback (most recent call last):
            ...
        tacit.errors.UserError: Expected records and plain values in the text, got "__import__('os').system".
    """
    value = parse(text, records_of(core, wire, pieces), "a method")
    if not isinstance(value, Method):
        raise UserError(f"Expected the text of a method, got that of {type(value).__name__}.")
    return value
