"""Audits play the rounds of the engine, and detect bugs that are planted in the product's own code."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest
import torch

from attacks.engine_bugs import (
    CLIENTS,
    EngineBug,
    central,
    dp_fedsgd,
    dp_sgd,
    engine_bugs,
    in_shares,
    task,
    top_records,
)
from laws.compositions import all_methods
from scale import scaled
from tacit.attacks.auditing import (
    CANARY_NORM,
    FAILED,
    MESSAGE_LENGTHS,
    Audit,
    AuditAdjacency,
    Canary,
    _Crowd,
    _Game,
    _RoundKeys,
)
from tacit.attacks.bounds import ScoreGap
from tacit.attacks.claims import AuditEvidence, AuditResult, claim_of
from tacit.attacks.sampling import batch_problems
from tacit.attacks.scenario import prepare_audit
from tacit.attacks.search import Search, search
from tacit.attacks.statistics import MeasuredNoise, commonest
from tacit.core import Key, Method
from tacit.core.prices import Unit
from tacit.data import Population
from tacit.engine import Simulation
from tacit.pieces.samplers import Poisson

Make = Callable[[], Method]
SEEDS = scaled(1, campaign=10)  # audits of every planted bug, of which nine in ten must find it
BUGS = engine_bugs()
FAST = (
    "small noise is zero",
    "a higher rate of batches",
    "one batch for all steps",
    "noise from the key that all know",
)


def audited(bug: EngineBug, seed: int) -> tuple[AuditResult, AuditEvidence]:
    with bug.needs():
        audit = prepare_audit(bug.method(), task(persons=bug.persons), rounds=bug.rounds)
        claim = claim_of(audit)
        with bug.plant():
            evidence = search(audit, claim, bug.runs, Key.from_seed(seed))
    return AuditResult.of(claim, evidence), evidence


@pytest.mark.law
@pytest.mark.parametrize("bug", [each for each in BUGS if SEEDS > 1 or each.name in FAST], ids=lambda bug: bug.name)
def test_a_bug_in_the_product_is_detected(bug: EngineBug) -> None:
    found = [audited(bug, seed) for seed in range(SEEDS)]
    assert sum(result.violated for result, _ in found) >= 0.9 * SEEDS
    assert all(bug.words in " ".join(evidence.premises) for result, evidence in found if result.violated)


@pytest.mark.law
@pytest.mark.parametrize("make", [central, in_shares, dp_fedsgd, top_records], ids=lambda make: make.__name__)
def test_a_round_of_an_audit_is_bitwise_a_round_of_a_simulation(make: Make) -> None:
    """With the same data and keys: whatever an audit would find in one is in the other."""
    audit = prepare_audit(make(), task(), rounds=1)
    record = (torch.randn(1, 6), torch.ones(1, dtype=torch.int64))
    canary = Canary("a record", torch.zeros(1, audit.state.dim), record=record)
    played = audit.run(canary, Key.from_seed(5), included=True, sampled=True)
    keys = _RoundKeys(audit.shared, Key.from_seed(5).child("round", 0))
    population = _population_of(audit, canary)
    simulation = Simulation(audit.method, audit.task.on(population), seed=audit.seed)
    with closing(simulation.rounds(audit.state, workers=1, keys=keys)) as rounds:
        state, _ = next(rounds)
    change = (state.weights - audit.state.weights).double()
    assert torch.equal(played["model"], change)
    assert bool(change.any())


def _population_of(audit: Audit, canary: Canary) -> Population:
    ids, absent = torch.tensor([audit.clients]), audit.removes
    crowd = _Crowd(ids, canary.updates[:, None], torch.tensor([True]), absent=absent, record=canary.record)
    return _Game(audit, crowd, sampled=True).population(0)


@pytest.mark.parametrize("make", [dp_sgd, dp_fedsgd], ids=lambda make: make.__name__)
def test_a_correct_method_for_records_is_not_refuted(make: Make) -> None:
    """`tacit audit dp-sgd` once reported ε ≥ 100: an excluded canary of numbers that overflow was 0 · ∞."""
    audit = prepare_audit(make(), task(), rounds=2)
    claim = claim_of(audit)
    evidence = search(audit, claim, 120, Key.from_seed(0))
    assert not AuditResult.of(claim, evidence).violated


@pytest.mark.law
@pytest.mark.parametrize("value", [torch.nan, 3e38, -3e38])
@pytest.mark.parametrize("make", [dp_sgd, dp_fedsgd, in_shares], ids=lambda make: make.__name__)
def test_an_excluded_canary_is_zeros_whatever_it_would_have_been(make: Make, value: float) -> None:
    adjacency: AuditAdjacency = "zero-out" if make is in_shares else "add-or-remove"
    audit = prepare_audit(make(), task(), rounds=1, adjacency=adjacency)
    hostile = Canary("hostile", torch.full((1, audit.state.dim), value))
    zeros = Canary("zeros", torch.zeros(1, audit.state.dim))
    one, other = (audit.run(each, Key.from_seed(0), included=False) for each in (hostile, zeros))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_two_equal_constant_scores_show_nothing() -> None:
    constant = np.full(30, 0.25)
    same = ScoreGap.of(constant, constant)
    assert (same.mu, same.mu_lower_bound, same.epsilon_lower_bound(1e-5)) == (0, 0, 0)
    assert ScoreGap.of(constant, constant, moved=0.0).epsilon_lower_bound(1e-5) == 0
    assert ScoreGap.of(constant + 1, constant).epsilon_lower_bound(1e-5) == 100


def test_lengths_of_messages_are_released_where_somebody_sees_them_who_is_not_trusted() -> None:
    audit = prepare_audit(in_shares(), task(), rounds=1)
    canary = Canary("ones", torch.full((1, audit.state.dim), CANARY_NORM))
    assert audit.run(canary, Key.from_seed(0), included=True)[MESSAGE_LENGTHS].tolist() == [0.0]
    trusting = prepare_audit(central(), task(), rounds=1)
    assert MESSAGE_LENGTHS not in trusting.run(canary, Key.from_seed(0), included=True)
    assert trusting.lies == ()
    assert {lie.name for lie in audit.lies} >= {"large weights", "a larger bound", "no bound"}


def test_clients_refuse_lies_whoever_takes_part() -> None:
    audit = prepare_audit(top_records(), task(), rounds=2)
    zeros = torch.zeros(2, audit.state.dim)
    accepted = {"weights of zero", "random weights", "large weights"}
    for lie in audit.lies:
        found = audit.run(Canary("", zeros, lie=lie), Key.from_seed(0), included=True)
        assert bool(found[FAILED].any()) is (lie.name not in accepted), lie.name
    assert len(audit.lies) >= 13


@pytest.mark.parametrize("name", ["fl-basic-dp", "noisy vote", "priority-dp"])
def test_a_lie_does_not_show_a_canary_by_the_form_of_what_is_released(name: str) -> None:
    """Noise that a simulation draws at once was that of an honest bound: sums of clients that were told another were
    dropped for their length, and `tacit audit fl-basic-dp` said that ε is at least 100."""
    method = replace(all_methods()[name], sampler=Poisson(16)).with_noise_multiplier(1.0)
    audit = prepare_audit(method, task(20), rounds=2)
    ones = torch.full((2, audit.state.dim), CANARY_NORM)
    for lie in (None, *audit.lies):
        canary, key = Canary("ones", ones, lie=lie), Key.from_seed(0)
        with_it, without = (audit.run(canary, key, included=flag, sampled=False) for flag in (True, False))
        assert {each: len(value) for each, value in with_it.items()} == {
            each: len(value) for each, value in without.items()
        }


def test_a_lie_that_clients_answer_with_another_row_is_observed_by_itself() -> None:
    """A bug that the runs of an honest server have no place for: ballots are longer than the values under a mask."""
    (bug,) = (each for each in engine_bugs() if each.name == "ballots where the mask is withheld")
    audit = prepare_audit(bug.method(), task(), rounds=1)
    searching = Search(audit, claim_of(audit), 100, Key.from_seed(0))
    catalog = searching._catalog()
    assert list(searching._list_lies_answered(catalog)) == []
    with bug.plant():
        (lie,) = searching._list_lies_answered(catalog)
        there = Search(audit, claim_of(audit), 100, Key.from_seed(0), lie)
        record = there.record(catalog.first(), Key.from_seed(1), included=True)
    assert (lie.name, len(record["sum"])) == ("no mask", audit.state.dim)


def test_all_records_beside_a_canary_are_in_its_batches() -> None:
    """As often as any is drawn: what a record does to others shows in every run."""
    audit = prepare_audit(dp_fedsgd(), task(), rounds=1)
    crowd = _Crowd(torch.tensor([audit.clients]), torch.ones(1, 1, audit.state.dim), torch.tensor([True]))
    fixed, drawn = (_Game(audit, crowd, sampled).population(0) for sampled in (False, True))
    batch = torch.tensor([1, 1])
    assert len(fixed.samples_of(audit.clients, batch)[0]) == 2 * audit.units_of_client
    assert len(drawn.samples_of(audit.clients, batch)[0]) == 2
    assert len(fixed.samples_of(0, torch.tensor([0]))[0]) == 1  # of another client, what was drawn


def test_batches_are_drawn_as_they_are_priced() -> None:
    for make, samples in ((dp_sgd, 30), (dp_fedsgd, 12), (dp_sgd, 3)):
        for unit in (Unit.RECORD, Unit.PERSON):
            assert batch_problems(make(), unit, samples, Key.from_seed(0)) == ()
    assert batch_problems(central(), Unit.CLIENT, 12, Key.from_seed(0)) == ()


def test_the_noise_of_sums_is_measured_to_within_one_share_of_eleven() -> None:
    """A missing share leaves √(10/11) = 0.953 of the noise; 97 runs of four sums of 21 numbers show it."""
    g = torch.Generator().manual_seed(0)
    noise = torch.randn(100, 4, 21, generator=g, dtype=torch.float64).numpy()
    bounds, declared = np.full((100, 4), 2.0), np.full(4, 1.5)
    whole = MeasuredNoise.of(3.0 * noise, bounds, declared)
    assert not whole.is_less
    assert whole.ratio == pytest.approx(1.0, abs=5 * whole.error)
    assert MeasuredNoise.of(3.0 * np.sqrt(1 - 1 / CLIENTS) * noise, bounds, declared).is_less
    assert not MeasuredNoise.of(3.3 * noise, bounds, declared).is_less  # more noise is no violation


def test_a_value_that_is_too_common_is_counted() -> None:
    runs = np.random.default_rng(0).standard_normal((40, 84))
    assert commonest(runs, np.zeros(84))[0] == 1
    found, expected = commonest(np.where(np.abs(runs) < 0.02, 0.0, runs), np.zeros(84))
    assert found > 30 > 1000 * expected
    integers = np.rint(100 * runs)
    found, expected = commonest(integers, np.ones(84))
    assert found < 2 * expected + 10
    assert commonest(np.rint(runs), np.ones(84)) == (0, 0.0)


def test_a_person_is_a_canary_with_several_records() -> None:
    audit = prepare_audit(dp_fedsgd(), task(persons=True), rounds=1)
    assert audit.unit is Unit.PERSON
    ones = Canary("ones", torch.full((1, audit.state.dim), CANARY_NORM))
    released = [audit.run(ones, Key.from_seed(1), included=flag, sampled=False)["sum"] for flag in (True, False)]
    assert float((released[0] - released[1]).norm()) == pytest.approx(1.0, rel=1e-2)  # the mean, clipped, and once
