"""Surplus noise: whose shares are removed, and that what stays is the target whatever the number of losses."""

from fractions import Fraction

import pytest

from tacit.core import Bound, Key
from tacit.core.rows import Surplus, add_surplus, to_remove
from tacit.pieces.mechanisms.arithmetic import SharedNoise

SEEDS = {client: Key.from_seed(client) for client in (8, 3, 5, 9)}


@pytest.mark.parametrize(("losses", "removed"), [(0, [3, 5, 8]), (1, [3, 5]), (2, [3]), (3, []), (4, [])])
def test_the_shares_of_the_first_survivors_are_removed(losses: int, removed: list[int]) -> None:
    opened = Surplus(3, SEEDS).opened(losses)
    assert opened.seeds == {client: SEEDS[client] for client in removed}
    assert opened.opened(losses) == opened
    assert to_remove(3, losses, SEEDS) == removed


def test_surplus_is_added_and_selected_by_client() -> None:
    one, other = Surplus(3, {3: SEEDS[3]}), Surplus(3, {5: SEEDS[5], 8: SEEDS[8]})
    both = {client: SEEDS[client] for client in (3, 5, 8)}
    assert one + other == add_surplus(one, other) == Surplus(3, both)
    assert (add_surplus(one, None), add_surplus(None, one), add_surplus(None, None)) == (one, one, None)
    assert Surplus(3, both).of([5]).seeds == {5: SEEDS[5]}
    assert Surplus(3).of([5]) == Surplus(3)  # drawn at once


@pytest.mark.parametrize(("cohort", "dropouts"), [(3, 0.4), (10, 0.1), (10, 0.3), (97, 0.25), (1000, 0.1), (1, 0.5)])
def test_what_stays_is_the_target_for_every_number_of_losses(cohort: int, dropouts: float) -> None:
    noise = SharedNoise(Bound((1.0,)), 1.0, 1 - dropouts, dropouts)
    tolerated, share = noise.max_losses(cohort), 1 / noise.min_delivered(cohort)
    assert tolerated == int(Fraction(str(dropouts)) * cohort)
    for lost in range(tolerated + 1):
        survivors = range(lost, cohort)
        kept = len(survivors) - len(to_remove(tolerated, lost, survivors))
        assert kept == noise.min_delivered(cohort)
        assert kept * share == pytest.approx(1.0, rel=1e-12)
