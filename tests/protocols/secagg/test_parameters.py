from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial

import pytest

from protocols.secagg.federation import parameters
from tacit.errors import ProtocolError, UserError
from tacit.protocols.secagg import Parameters, SecaggPolicy, ThreatModel


@pytest.mark.parametrize(
    "make",
    [
        partial(parameters, 2),
        partial(parameters, 7, dim=0),
        partial(parameters, 7, bits=33),
        partial(parameters, 7, bits=0),
        partial(parameters, 7, corrupt=Fraction(1)),
        partial(parameters, 7, dropout=Fraction(-1)),
        partial(parameters, 7, min_uploads=8),
    ],
)
def test_parameters_out_of_range_are_refused(make: Callable[[], Parameters]) -> None:
    with pytest.raises(UserError, match="Expected"):
        make()


def test_survivors_follow_from_dropouts_unless_they_are_given() -> None:
    assert Parameters(cohort=100, dim=1, dropout=Fraction("0.3")).min_survivors == 70
    assert Parameters(cohort=100, dim=1, min_uploads=90).min_survivors == 90


def test_a_policy_refuses_parameters_below_its_minimum() -> None:
    policy = SecaggPolicy(min_corrupt=Fraction(1, 10), min_cohort=20, min_survivors=16)
    assert policy.threat_model is ThreatModel.ACTIVE_SERVER
    good = Parameters(cohort=20, dim=1, corrupt=Fraction(1, 10), dropout=Fraction(1, 5))
    policy.validate(good)
    weaker = (
        replace(good, threat_model=ThreatModel.SEMI_HONEST),
        replace(good, corrupt=Fraction(9, 100)),
        replace(good, cohort=19),
        replace(good, dropout=Fraction(1, 4)),
    )
    for less in weaker:
        with pytest.raises(ProtocolError, match="Expected"):
            policy.validate(less)
