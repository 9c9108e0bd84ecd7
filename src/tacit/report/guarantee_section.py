"""The guarantee section of a page: the guarantee, its meaning for a test, and what it does not cover."""

from collections.abc import Mapping, Sequence
from math import ceil

from tacit.core.prices import Adjacency
from tacit.privacy.guarantee import FALSE_ALARMS, Guarantee, LeakageGuarantee
from tacit.report.labels import number
from tacit.report.markup import Html, element, join, table

WEAK = 0.5  # the detection rate above which a bound is called weak
TESTS: dict[str, tuple[str, str, str]] = {  # by adjacency: what is tested, when an alarm is false, and what it finds
    Adjacency.ADD_OR_REMOVE: ("whether a {unit} is in the data", "are not", "one that is"),
    Adjacency.ZERO_OUT: ("whether a {unit} sent its update or zeros", "sent zeros", "an update"),
    Adjacency.REPLACE_ONE: ("which of two data sets a {unit} has", "have the first", "the second"),
}


def show_guarantee(guarantee: Guarantee | LeakageGuarantee, nominal: Mapping[str, float] | None = None) -> Html:
    """The guarantee, its meaning for a test, and what it does not cover."""
    lines = str(guarantee).splitlines()
    sentences = [line for line in lines if not line.startswith("  ")]
    uncovered = [line.strip() for line in lines if line.startswith("  ")]
    heading = next((line for line in sentences if line in ("Not covered:", "Note:")), "")
    statement, *others = [line for line in sentences if line != heading]
    proved, limit, meaning = guarantee.proved, 0.0, None
    if isinstance(guarantee, Guarantee) and guarantee.epsilon is not None:
        limit = guarantee.detection_limit
        meaning = _meaning(guarantee, limit)
    first = statement if proved else f"Nothing is proved: {statement.removeprefix('none: ')}"
    kind = "statement" if proved and limit <= WEAK else "statement weak" if proved else "statement none"
    parts: list[Html | None] = [element("div", element("p", first), meaning, class_=kind)]
    columns = []
    if others:
        columns.append(element("div", element("h3", "What it rests on"), _list(others)))
    if uncovered:
        title = "What it does not cover" if proved else "Note"
        columns.append(element("div", element("h3", title), _list(uncovered)))
    parts.append(element("div", *columns, class_="columns") if columns else None)
    if nominal:
        figures = [[name, number(value)] for name, value in nominal.items()]
        parts.append(table("Nominal figures of the method's paper; they are no guarantee", ["figure", "value"], figures,
                           numbers=1))  # fmt: skip
    return join(parts)


def _meaning(guarantee: Guarantee, limit: float) -> Html:
    """What the guarantee means for a test of participation; `limit` bounds its detection rate."""
    weak = " Such a bound promises little by itself; tacit audit and tacit attack measure what attacks really find."
    tests, others, target = TESTS.get(guarantee.adjacency, TESTS[Adjacency.ADD_OR_REMOVE])
    return element(
        "p",
        f"In other words: whoever, of those named above, tests {tests.format(unit=guarantee.unit)}, and is wrong about "
        f"{FALSE_ALARMS:.0%} of those that {others}, detects {target} with a probability of at most "
        f"{limit_in_words(limit)}. Without any information it would be {FALSE_ALARMS:.0%}.{weak * (limit > WEAK)}",
    )


def limit_in_words(value: float) -> str:
    """A bound on a probability, rounded up.

    Example:
        >>> limit_in_words(0.02719), limit_in_words(0.99966), limit_in_words(0.9999999)
        ('2.8 %', '99.97 %', '100 %, which is no limit')
    """
    digits = 1 if value < 0.99 else 2
    percent = ceil(value * 10 ** (2 + digits)) / 10**digits
    return "100 %, which is no limit" if percent >= 100 else f"{percent:g} %"


def _list(sentences: Sequence[str]) -> Html:
    return element("ul", *(element("li", sentence) for sentence in sentences))
