import json

import dp_accounting as dp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core import Method
from tacit.errors import UserError
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.pieces.trainers import Sgd
from tacit.privacy.events import (
    Adjacency,
    Release,
    Sampling,
    canonical,
    describe_sampling,
    event_of,
    from_json,
    releases,
    to_json,
)

gaussian = st.floats(0.1, 100).map(dp.GaussianDpEvent)
inner = gaussian | st.lists(gaussian, min_size=1, max_size=3).map(dp.ComposedDpEvent)
sampled = st.builds(dp.PoissonSampledDpEvent, st.floats(0.001, 1), inner) | st.builds(
    lambda n, m, event: dp.SampledWithoutReplacementDpEvent(n, min(n, m), event),
    st.integers(1, 10_000),
    st.integers(1, 10_000),
    inner,
)
events = st.recursive(
    inner | sampled,
    lambda part: (
        st.lists(part, min_size=1, max_size=3).map(dp.ComposedDpEvent)
        | st.builds(dp.SelfComposedDpEvent, part, st.integers(1, 9))
    ),
    max_leaves=6,
)


@given(events)
def test_events_round_trip_through_json(event):
    text = canonical(to_json(event))
    back = from_json(json.loads(text))
    assert back == event
    assert releases(back) == releases(event)
    assert canonical(to_json(back)) == text


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        {},
        {"kind": "laplace", "noise": 1.0},
        {"kind": "gaussian"},
        {"kind": "gaussian", "noise": float("nan")},
        {"kind": "gaussian", "noise": -1.0},
        {"kind": "gaussian", "noise": float("inf")},
        {"kind": "poisson", "rate": 1.5, "event": {"kind": "gaussian", "noise": 1.0}},
        {"kind": "poisson", "rate": 0.5, "event": {"kind": "poisson", "rate": 0.5, "event": None}},
        {"kind": "fixed", "population": 10, "size": 11, "event": {"kind": "gaussian", "noise": 1.0}},
        {"kind": "fixed", "population": 10.5, "size": 1, "event": {"kind": "gaussian", "noise": 1.0}},
        {"kind": "repeated", "count": -3, "event": {"kind": "gaussian", "noise": 1.0}},
        {"kind": "repeated", "count": True, "event": {"kind": "gaussian", "noise": 1.0}},
        {"kind": "all", "events": 3},
        {"kind": ["gaussian"]},
    ],
)
def test_json_that_describes_no_event_is_refused(data):
    with pytest.raises(UserError, match="Expected"):
        from_json(data)


def test_events_that_no_accountant_supports_are_refused():
    for event in (
        dp.LaplaceDpEvent(1.0),
        dp.NonPrivateDpEvent(),
        dp.PoissonSampledDpEvent(0.5, dp.LaplaceDpEvent(1.0)),
    ):
        with pytest.raises(UserError, match="Gaussian"):
            releases(event)
    with pytest.raises(UserError, match="Gaussian"):
        to_json(dp.LaplaceDpEvent(1.0))


def test_gaussian_sums_over_one_cohort_are_one_release():
    pair = dp.ComposedDpEvent([dp.GaussianDpEvent(3.0), dp.GaussianDpEvent(4.0)])
    assert releases(dp.PoissonSampledDpEvent(0.1, pair)) == {Release(2.4, 0.1, "poisson"): 1}
    assert releases(pair) == {Release(3.0): 1, Release(4.0): 1}


@pytest.mark.parametrize(
    ("sampler", "release"),
    [
        (Everyone(), Release(2.0)),
        (Poisson(5), Release(2.0, 0.25, "poisson")),
        (Poisson(20), Release(2.0)),
        (FixedSize(5), Release(2.0, 0.25, "fixed")),
        (FixedSize(20), Release(2.0)),
        (Growing(((3, FixedSize(5)), (1, Poisson(10)))), Release(2.0, 0.5, "poisson")),
    ],
    ids=repr,
)
def test_every_sampler_declares_its_amplification(sampler, release):
    """Poisson accounting of fixed-size cohorts cannot be written."""
    assert releases(sampler.amplify(dp.GaussianDpEvent(2.0), 20, 3)) == {release: 1}


def test_without_noise_there_is_no_event():
    plain = Method(name="plain", rounds=1, sampler=Poisson(3), trainer=Sgd(lr=0.1, steps=1))
    assert event_of(plain, 10, 0) is None


def test_descriptions_of_sampling():
    fixed, poisson = Release(1.0, 1 / 60, "fixed"), Release(1.0, 1 / 60, "poisson")
    assert describe_sampling(fixed) == "cohorts of fixed size without replacement, 1 in 60 of the clients"
    assert "probability 0.01667" in describe_sampling(poisson)
    with pytest.raises(UserError, match="sampling"):
        Release(1.0, 0.5, "everyone")


def test_sensitivities_are_those_of_the_table():
    kinds: tuple[tuple[Sampling, float], ...] = (("everyone", 1.0), ("poisson", 0.5), ("fixed", 0.5))
    table = [Release(1.0, rate, kind).sensitivity(adjacency) for kind, rate in kinds for adjacency in Adjacency]
    assert table == [1, 2, 1, 2, 2, 2]
