"""Seeds of surplus noise: what is opened reproduces the excess and nothing else, and the rest is the target."""

from fractions import Fraction

import pytest

from tacit.core import Bound, Key
from tacit.core.rows import Surplus, added, seed_after
from tacit.errors import TacitError
from tacit.pieces.mechanisms.arithmetic import SharedNoise

SEEDS = {client: Key.from_seed(client) for client in (3, 5, 8)}


@pytest.mark.parametrize("losses", [0, 1, 2, 3])
def test_opening_once_or_in_steps_reproduces_the_same_components(losses: int) -> None:
    whole = Surplus(3, SEEDS)
    opened = whole.opened(losses)
    assert list(opened.components()) == [(k, key) for k, key in whole.components() if k > losses]
    assert opened.opened(losses) == opened
    assert all(seed_after(seed, losses) == opened.seeds[client] for client, seed in SEEDS.items() if opened.seeds)


def test_later_seeds_do_not_lead_back() -> None:
    opened = Surplus(3, SEEDS).opened(2)
    earlier = {key for k, key in Surplus(3, SEEDS).components() if k <= 2}
    chain = [seed_after(seed, steps) for seed in opened.seeds.values() for steps in range(20)]
    assert not earlier & {seed.child("component") for seed in chain}
    with pytest.raises(TacitError, match="Expected the seeds of component 1, got those of component 3"):
        opened.opened(0)


def test_surplus_is_added_and_selected_by_client() -> None:
    one, other = Surplus(3, {3: SEEDS[3]}), Surplus(3, {5: SEEDS[5], 8: SEEDS[8]})
    assert one + other == added(one, other) == Surplus(3, SEEDS)
    assert (added(one, None), added(None, one), added(None, None)) == (one, one, None)
    assert Surplus(3, SEEDS).of([5]).seeds == {5: SEEDS[5]}
    assert Surplus(3).of([5]) == Surplus(3)  # drawn at once


@pytest.mark.parametrize(("cohort", "dropouts"), [(3, 0.4), (10, 0.1), (10, 0.3), (97, 0.25), (1000, 0.1), (1, 0.5)])
def test_what_stays_is_the_target_for_every_number_of_losses(cohort: int, dropouts: float) -> None:
    noise = SharedNoise(Bound((1.0,)), 1.0, 1 - dropouts, dropouts)
    tolerated, share = noise.tolerated(cohort), 1 / noise.of_cohort(cohort)
    assert tolerated == int(Fraction(str(dropouts)) * cohort)
    for lost in range(tolerated + 1):
        kept = share * sum(noise.component(k, cohort) for k in range(lost + 1))
        assert (cohort - lost) * kept == pytest.approx(1.0, rel=1e-12)
    assert sum(noise.component(k, cohort) for k in range(tolerated + 1)) == pytest.approx(1.0, rel=1e-12)
