import math
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tacit.core.prices import (
    TOLERANCE,
    Adjacency,
    Gaussian,
    Leakage,
    Release,
    Repeated,
    Sampling,
    Unproved,
    Zcdp,
)
from tacit.errors import UserError


@pytest.mark.parametrize(
    "invalid",
    [
        partial(Gaussian, -1.0),
        partial(Gaussian, math.inf),
        partial(Gaussian, math.nan),
        partial(Zcdp, 0.0),
        partial(Zcdp, math.inf),
        partial(Zcdp, 1.0, -1.0),
        partial(Sampling, "poisson", 0.0),
        partial(Sampling, "poisson", 1.5),
        partial(Sampling, "poisson", 1.0),
        partial(Sampling, "everyone", 0.5),
        partial(Sampling, "sometimes", 0.5),  # type: ignore[arg-type]
        partial(Release, Gaussian(1.0), 2.0),
    ],
    ids=str,
)
def test_impossible_values_are_refused(invalid):
    with pytest.raises(UserError, match="Expected"):
        invalid()


def test_adjacencies_are_those_that_are_proved():
    fixed, poisson = Sampling.at(0.1, "fixed"), Sampling.at(0.1, "poisson")
    assert Sampling.at(1.0, "fixed") == Sampling.at(1.0, "poisson") == Sampling()
    for sampling in (fixed, poisson, Sampling()):
        assert Release(Gaussian(1.0)).sampled(sampling).adjacencies == tuple(Adjacency)
    assert Release(Zcdp(1.0), sampling=poisson).adjacencies == tuple(Adjacency)
    assert Release(Zcdp(1.0), sampling=fixed).adjacencies == ()


def test_noise_that_depends_on_the_turnout_is_not_proved_for_add_or_remove():
    poisson = Sampling.at(0.1, "poisson")
    for loss in (Gaussian(1.0), Zcdp(1.0)):
        release = Release(loss, sampling=poisson, constant=False)
        assert release.adjacencies == (Adjacency.ZERO_OUT, Adjacency.REPLACE_ONE)
        assert release.amplification == Sampling()
        release.check_proved(Adjacency.ZERO_OUT)
        with pytest.raises(UserError, match="Expected zero-out adjacency, got add-or-remove"):
            release.check_proved(Adjacency.ADD_OR_REMOVE)
    assert Release(Gaussian(1.0), sampling=poisson).amplification == poisson


def test_every_adjacency_is_explained():
    for adjacency in Adjacency:
        assert adjacency.meaning.startswith("What is released would be about as likely if the client ")


def test_what_is_accounted_for():
    release, leakage = Release(Gaussian(1.0)), Leakage(5.0, 0.1)
    for price in (release, leakage):
        assert Unproved("why", price).accounted == price.accounted
        assert Unproved("why", price).leakage == price.leakage
        assert (price.reason, price.figures) == ("", {})
    unproved = Unproved("why", figures={"nominal epsilon": 1.0})
    assert (release.accounted, release.leakage) == (Repeated(release), None)
    assert (leakage.accounted, leakage.leakage) == (None, leakage)
    assert (unproved.accounted, unproved.leakage) == (None, None)
    assert (unproved.reason, unproved.figures) == ("why", {"nominal epsilon": 1.0})


def test_only_a_leakage_limit_bounds_participations():
    limited = Leakage(5.0, 0.1, limit=2.4)
    assert limited.max_participations(2) == 6  # six times 0.4 is slightly above 2.4
    assert Leakage(5.0, 0.1).max_participations(2) is None


@given(st.floats(0.01, 100), st.floats(0.01, 100), st.integers(1, 1000))
def test_one_more_participation_exceeds_the_limit(noise, limit, dim):
    leakage = Leakage(noise, 1.0, limit)
    most = leakage.max_participations(dim)
    assert most is not None
    assert most * leakage.per_message(dim) <= limit * TOLERANCE < (most + 1) * leakage.per_message(dim)


def test_sensitivities_are_those_of_the_table():
    samplings = (Sampling(), Sampling("poisson", 0.5), Sampling("fixed", 0.5))
    table = [sampling.sensitivity(adjacency) for sampling in samplings for adjacency in Adjacency]
    assert table == [1, 1, 2, 1, 1, 2, 2, 2, 2]
