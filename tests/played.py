"""Reports of rounds of which only the turnout matters."""

from tacit.core import Report, Turnout


def played(*turnouts: Turnout) -> list[Report]:
    """A report for each turnout: of those that did not deliver, messages were rejected."""
    return [_report(number, turnout) for number, turnout in enumerate(turnouts, start=1)]


def _report(number: int, turnout: Turnout) -> Report:
    cohort = tuple(range(turnout.cohort))
    lost = cohort[turnout.delivered :]
    return Report(number, cohort, lost, (), (), None, None, None, {}, 0.0)
