import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core import Method
from tacit.core.prices import Adjacency, Gaussian, Release, Sampling, Zcdp
from tacit.errors import UserError
from tacit.pieces.samplers import Poisson
from tacit.pieces.trainers import Sgd
from tacit.privacy.releases import canonical, describe_sampling, from_json, release_of, sensitivity, to_json

losses = st.floats(0, 100).map(Gaussian) | st.builds(Zcdp, st.floats(1e-6, 10), st.floats(0, 1))
samplings = st.builds(Sampling.at, st.floats(0.001, 1), st.sampled_from(["poisson", "fixed"]))
releases = st.builds(Release, losses, st.floats(0, 1), samplings)


@given(releases)
def test_releases_round_trip_through_json(release):
    text = canonical(to_json(release))
    assert from_json(json.loads(text)) == {release: 1}


GAUSSIAN = {"kind": "gaussian", "noise": 3.0}
TWO = {"kind": "all", "events": [GAUSSIAN, {"kind": "gaussian", "noise": 4.0}]}


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (GAUSSIAN, {Release(Gaussian(3.0)): 1}),
        ({"kind": "near", "distance": 1e-9, "event": GAUSSIAN}, {Release(Gaussian(3.0), 1e-9): 1}),
        (
            {
                "kind": "poisson",
                "rate": 0.1,
                "event": {"kind": "near", "distance": 1e-9, "event": {"kind": "zcdp", "rho": 0.2, "xi": 0.1}},
            },
            {Release(Zcdp(0.2, 0.1), 1e-9, Sampling("poisson", 0.1)): 1},
        ),
        ({"kind": "poisson", "rate": 1.0, "event": GAUSSIAN}, {Release(Gaussian(3.0)): 1}),
        (
            {"kind": "fixed", "population": 60, "size": 1, "event": GAUSSIAN},
            {Release(Gaussian(3.0), sampling=Sampling("fixed", 1 / 60)): 1},
        ),
        ({"kind": "fixed", "population": 60, "size": 60, "event": GAUSSIAN}, {Release(Gaussian(3.0)): 1}),
        ({"kind": "repeated", "count": 3, "event": GAUSSIAN}, {Release(Gaussian(3.0)): 3}),
        (TWO, {Release(Gaussian(3.0)): 1, Release(Gaussian(4.0)): 1}),
        (
            {"kind": "poisson", "rate": 0.1, "event": TWO},  # Gaussian sums over one cohort are one
            {Release(Gaussian(2.4), sampling=Sampling("poisson", 0.1)): 1},
        ),
        (
            {"kind": "poisson", "rate": 0.1, "event": {"kind": "repeated", "count": 4, "event": GAUSSIAN}},
            {Release(Gaussian(1.5), sampling=Sampling("poisson", 0.1)): 1},
        ),
    ],
    ids=str,
)
def test_events_of_earlier_versions_are_read(event, found):
    assert from_json(event) == found


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
        {"kind": "poisson", "rate": 0.5, "event": {"kind": "laplace", "noise": 1.0}},
        {"kind": "release", "loss": {"kind": "gaussian", "noise": 1.0}, "distance": 0.0},
        {
            "kind": "release",
            "loss": {"kind": "laplace"},
            "distance": 0.0,
            "sampling": {"kind": "everyone", "rate": 1.0},
        },
        {"kind": "release", "loss": GAUSSIAN, "distance": 2.0, "sampling": {"kind": "everyone", "rate": 1.0}},
        {"kind": "release", "loss": GAUSSIAN, "distance": 0.0, "sampling": {"kind": "sometimes", "rate": 0.5}},
        {"kind": "release", "loss": GAUSSIAN, "distance": 0.0, "sampling": {"kind": "fixed", "rate": 1.5}},
    ],
)
def test_json_that_describes_no_release_is_refused(data):
    with pytest.raises(UserError, match="Expected"):
        from_json(data)


def test_without_noise_there_is_no_release():
    plain = Method(name="plain", rounds=1, sampler=Poisson(3), trainer=Sgd(lr=0.1, steps=1))
    assert release_of(plain, 10, 0) is None


def test_descriptions_of_sampling():
    fixed, poisson = Sampling("fixed", 1 / 60), Sampling("poisson", 1 / 60)
    assert describe_sampling(fixed) == "cohorts of fixed size without replacement, 1 in 60 of the clients"
    assert "probability 0.01667" in describe_sampling(poisson)


def test_sensitivities_are_those_of_the_table():
    samplings = (Sampling(), Sampling("poisson", 0.5), Sampling("fixed", 0.5))
    table = [sensitivity(sampling, adjacency) for sampling in samplings for adjacency in Adjacency]
    assert table == [1, 2, 1, 2, 2, 2]
