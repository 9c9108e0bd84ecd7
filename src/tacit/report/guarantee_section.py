"""The guarantee section of a page: the guarantee, its meaning for a test, and what it does not cover."""

from collections.abc import Mapping, Sequence
from math import ceil

from tacit.core.prices import Adjacency, Unit
from tacit.privacy.guarantee import FALSE_ALARMS, Guarantee, LeakageGuarantee
from tacit.report.labels import number
from tacit.report.markup import Html, element, join, table

STRONG, WEAK = 0.1, 0.5  # detection rates: up to the first a bound is called strong, above the second weak
VERDICTS = {
    "strong": "That is a strong guarantee.",
    "fair": "That is neither a strong nor a weak guarantee.",
    "weak": "Such a bound promises little by itself; tacit audit and tacit attack measure what attacks really find.",
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
    kind = f"statement {_strength(guarantee, limit) if proved else 'none'}"
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


def _strength(guarantee: Guarantee | LeakageGuarantee, limit: float) -> str:
    """How strong a bound is, in the words of the style sheet; d-privacy has no such bound."""
    if not isinstance(guarantee, Guarantee):
        return "fair"
    return "strong" if limit <= STRONG else "fair" if limit <= WEAK else "weak"


def _meaning(guarantee: Guarantee, limit: float) -> Html:
    """What the guarantee means for a test of participation; `limit` bounds its detection rate."""
    question, innocent, outcome = _question(guarantee)
    verdict = VERDICTS[_strength(guarantee, limit)]
    return element(
        "p",
        f"Suppose one of those named above wants to find out {question}, by whatever means, and accepts one false "
        f"accusation in a hundred {innocent}. {outcome} with a probability of at most {limit_in_words(limit)}. Without "
        f"any information it would be {FALSE_ALARMS:.0%}. {verdict}",
    )


def _question(guarantee: Guarantee) -> tuple[str, str, str]:
    """What is asked, who is innocent, and what is found, by unit and adjacency."""
    unit = guarantee.unit
    if guarantee.adjacency == Adjacency.ZERO_OUT:
        outcome = "If it sent its update, that is found"
        return f"whether a given {unit} sent its update or zeros", f"{unit}s that sent zeros", outcome
    if guarantee.adjacency == Adjacency.REPLACE_ONE:
        outcome = "If it has the second, that is found"
        return f"which of two data sets a given {unit} has", f"{unit}s that have the first", outcome
    if unit is Unit.PERSON:
        return "whether Mrs X was in the data", "people who were not", "If she was, she is found"
    if unit is Unit.RECORD:
        question = "whether one given record, such as one of Mrs X, was in the data"
        return question, "records that were not", "If it was, it is found"
    question = f"whether a given {unit}, with all of its data, was in the population"
    return question, f"{unit}s that were not", "If it was, it is found"


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
