"""Audits do not refute the claims of correct methods, and detect planted bugs."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest
import torch
from torch import nn

from attacks.bugs import (
    CORRECT,
    IN_SHARES,
    SHARED,
    Bug,
    ClipSkipped,
    SharesOfDeliverers,
    bugs,
    dropout_case,
    further,
    sampled_dropout_case,
    seven,
    shares_of_deliverers,
)
from attacks.other_bugs import other_bugs
from scale import scaled
from tacit.attacks.auditing import FAILED, Audit, AuditAdjacency, Canary, _Crowd, one_run
from tacit.attacks.bounds import ErrorCounts, ScoreGap
from tacit.attacks.canaries import CanaryCatalog
from tacit.attacks.claims import AuditEvidence, AuditResult, Claim, claim_of, power_of
from tacit.attacks.sampling import sampler_problems
from tacit.attacks.scenario import prepare_audit
from tacit.attacks.search import Search, search
from tacit.core import Key, Method
from tacit.data import Task
from tacit.errors import UserError
from tacit.pieces.channels import SecureSum
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, Grid, QuantileClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd
from tacit.privacy.noise.sum_grid import SumGrid

AUDITS = scaled(1, campaign=100)  # of each correct method; more than 1: all bugs, too
RUNS = 200
CLIENTS = 6
ALL_BUGS = (*bugs(CLIENTS), *seven(), *further(), *other_bugs())
FAST = {
    "number of messages in the checkpoint",
    "uniform noise of the same variance",
    "noise on a coarser grid than the sum",
    "no noise for an empty cohort",
}
TRIED = [bug for bug in ALL_BUGS if AUDITS > 1 or bug.name in FAST or bug in seven()]


def task(clients: int = CLIENTS, inputs: int = 6) -> Task:
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, inputs, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(clients)]
    return Task(model=lambda: nn.Linear(inputs, 3), clients=parts)


def audited(audit: Audit, claim: Claim, runs: int = RUNS, seed: int = 0) -> tuple[AuditResult, AuditEvidence]:
    evidence = search(audit, claim, runs, Key.from_seed(seed))
    return AuditResult.of(claim, evidence), evidence


def audit_of(bug: Bug) -> Audit:
    there = task(bug.clients, bug.inputs)
    return prepare_audit(bug.method, there, rounds=bug.rounds, dropouts=bug.dropouts, adjacency=bug.adjacency)


CORRECT_ONES = {
    "central": CORRECT,
    "in shares": IN_SHARES,
    "poisson": replace(CORRECT, sampler=Poisson(4.0)),
    "fixed size": replace(CORRECT, sampler=FixedSize(4)),
    "momentum": replace(CORRECT, server=Momentum(0.9)),
    "quantile": replace(
        CORRECT, mechanism=CentralGaussian(clip=QuantileClip(start=1.0, count_noise=3.0), noise_multiplier=1.0)
    ),
    "low noise": replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.7)),
    "few weights": replace(
        IN_SHARES, trainer=Masked(Sgd(lr=0.1, steps=1)), codec=Select(FixedRandom(size=Size(number=9)))
    ),
}


@pytest.mark.law("audits")
@pytest.mark.parametrize("name", CORRECT_ONES if AUDITS > 1 else ["poisson"])
def test_claims_of_correct_methods_are_not_refuted(name: str) -> None:
    audit = prepare_audit(CORRECT_ONES[name], task(), rounds=2)
    claim = claim_of(audit)
    violated = sum(audited(audit, claim, seed=seed)[0].violated for seed in range(AUDITS))
    assert violated <= AUDITS // 20


@pytest.mark.law("audits")
@pytest.mark.parametrize("bug", TRIED, ids=[bug.name for bug in TRIED])
def test_every_planted_bug_is_detected(bug: Bug) -> None:
    audit = audit_of(bug)
    assert audited(audit, claim_of(audit))[0].violated


@pytest.mark.law("audits")
def test_a_variance_that_shows_how_many_delivered_is_detected_by_the_energy() -> None:
    """Priced as before shares had a surplus; one of five is lost, and there are fewer numbers than in the campaign."""
    few = shares_of_deliverers(5.0, 0.2)
    small = replace(dropout_case(), clients=4, inputs=2000, dropouts=0.2)
    case = dropout_case() if AUDITS > 1 else replace(small, method=replace(small.method, mechanism=few))
    audit = audit_of(case)
    claim = claim_of(audit)
    assert claim.epsilon == pytest.approx(0.726, abs=0.001)
    result, evidence = audited(audit, claim)
    assert "energy" in evidence.statistic
    assert result.violated
    assert result.best > 2 * 0.726


def test_the_published_price_of_sampled_shares_is_that_of_the_planted_bug() -> None:
    """Ten of a hundred, of whom one is lost: 1.685 was claimed, and 3.4 and more is true (`test_turnout`)."""
    method = replace(IN_SHARES, mechanism=shares_of_deliverers(1.0, 0.1), sampler=Poisson(10.0))
    audit = prepare_audit(method, task(clients=99), rounds=1, dropouts=0.1)
    assert claim_of(audit).amplified == pytest.approx(1.685, abs=0.001)


@pytest.mark.law("audits")
def test_amplification_is_refuted_if_the_variance_shows_who_was_drawn() -> None:
    """Also for zero-out adjacency: with zeros or with its update, the client shows in the variance if it was drawn."""
    audit = audit_of(replace(sampled_dropout_case(), inputs=4000))
    claim = claim_of(audit)
    assert claim.hides_cohort
    assert claim.amplified is not None
    assert claim.epsilon is not None
    assert claim.amplified < claim.epsilon
    result, evidence = audited(audit, claim, runs=300)
    assert "absent" in evidence.canary
    assert "energy" in evidence.statistic
    assert result.violated


@pytest.mark.law("audits")
@pytest.mark.parametrize(
    ("case", "clients", "dropouts", "adjacency"),
    [
        (dropout_case(), 19, 0.06, "add-or-remove"),  # one of twenty is lost, and two are tolerated; of nineteen, one
        (dropout_case(), 4, 0.2, "zero-out"),
        (sampled_dropout_case(), 15, 0.25, "zero-out"),
    ],
    ids=["tolerated", "zero-out", "sampled"],
)
def test_noise_in_shares_with_a_surplus_is_not_refuted(
    case: Bug, clients: int, dropouts: float, adjacency: AuditAdjacency
) -> None:
    planted = case.method.mechanism
    assert isinstance(planted, SharesOfDeliverers)
    mechanism = replace(SHARED, noise_multiplier=planted.noise_multiplier, dropouts=planted.dropouts)
    correct = replace(case.method, mechanism=mechanism)
    there = replace(case, method=correct, clients=clients, inputs=2000, dropouts=dropouts, adjacency=adjacency)
    audit = audit_of(there)
    assert not audited(audit, claim_of(audit))[0].violated


def test_a_cohort_below_the_smallest_of_the_channel_is_empty() -> None:
    """As in a run: a round without enough clients for secure aggregation neither fails nor shows how many there are."""
    mechanism = replace(SHARED, arithmetic=Grid())
    method = replace(IN_SHARES, mechanism=mechanism, channel=SecureSum(), sampler=Poisson(2.0))
    audit = prepare_audit(method, task(), rounds=3)
    canary = Canary("one sign", torch.ones(3, 21))
    sizes = {
        len(method.sampler.cohort(7, 0, Key.from_seed(seed).child("round", 0).child("cohort"))) for seed in range(9)
    }
    assert sizes & {1, 2}
    for seed in range(9):
        released = audit.run(canary, Key.from_seed(seed), included=True)
        assert released[FAILED].tolist() == [0]
        assert released["sum"].numel() == 3 * 21


def test_a_canary_in_every_cohort_has_enough_others() -> None:
    """Too small cohorts are charged to δ, so the claim that is audited is not about them."""
    method = replace(IN_SHARES, mechanism=replace(SHARED, arithmetic=Grid()), channel=SecureSum(), sampler=Poisson(1.0))
    audit = prepare_audit(method, task(), rounds=5)
    cohorts = [audit.fixed_cohort(torch.tensor([6]), index) for index in range(5)]
    assert min(map(len, cohorts)) == 4
    assert all(6 in cohort for cohort in cohorts)
    for included in (True, False):
        released = audit.run(Canary("none", torch.zeros(5, 21)), Key.from_seed(0), included=included, sampled=False)
        assert released[FAILED].tolist() == [0]


def test_a_known_effect_sharpens_the_gaussian_bound_and_a_wrong_one_is_not_used() -> None:
    scores = torch.randn(2, 100, generator=torch.Generator().manual_seed(1), dtype=torch.float64).numpy()
    included, excluded = scores[0] + 2.0, scores[1]
    estimated, known, wrong = (ScoreGap.of(included, excluded, 0.95, moved) for moved in (None, 2.0, 4.0))
    assert known.exact
    assert known.mu - known.mu_lower_bound < 0.7 * (estimated.mu - estimated.mu_lower_bound)
    assert wrong == estimated


@pytest.mark.law("audits")
def test_noise_that_two_runs_share_is_reported() -> None:
    bug = next(bug for bug in ALL_BUGS if bug.name == "one byte of the key decides about the noise")
    audit = audit_of(bug)
    _, evidence = audited(audit, claim_of(audit), runs=300)
    assert any("was the same in two of 60 runs" in premise for premise in evidence.premises)


def test_a_client_that_is_always_in_the_cohort_is_reported() -> None:
    bug = next(bug for bug in ALL_BUGS if bug.name == "a client always in the cohort")
    (problem, *_) = sampler_problems(bug.method.sampler, 7, 2, Key.from_seed(0))
    assert problem == "client 0 was in 500 of 500 cohorts of round 1, where the sampler declares a rate of 0.571"


@pytest.mark.law
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("one cohort for all rounds", "rounds 1 and 2 share more clients"),
        ("Poisson sampling claimed, cohorts of fixed size", "variance of cohort sizes"),
        ("a higher rate than declared", "declares a rate of 0.571"),
        ("a client can be drawn twice", "contain a client more than once"),
        ("cohorts are neighbours", "were drawn together"),
        ("cohorts of an epoch, declared as independent", "share fewer clients"),
    ],
)
def test_cohorts_that_are_not_drawn_as_declared_are_reported(name: str, words: str) -> None:
    bug = next(bug for bug in ALL_BUGS if bug.name == name)
    assert any(words in problem for problem in sampler_problems(bug.method.sampler, 7, 2, Key.from_seed(0)))


@pytest.mark.parametrize("sampler", [Everyone(), Poisson(4.0), FixedSize(4), Poisson(0.5), FixedSize(1)])
def test_samplers_that_draw_as_they_declare_are_not_reported(sampler: Poisson) -> None:
    assert [sampler_problems(sampler, 20, 3, Key.from_seed(seed)) for seed in range(3)] == [()] * 3


@pytest.mark.parametrize("exact", [False, True])
def test_the_effect_of_a_canary_is_exact_and_within_the_bound(exact: bool) -> None:
    """Two runs with the same keys differ by the clipped update alone: noise cancels, and so does all rounding.

    On a grid, both sums are rounded with the same random numbers, so that they differ by one step more or less.
    """
    method = replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0, exact=exact))
    audit = prepare_audit(method, task(), rounds=2)
    searching = Search(audit, claim_of(audit), 100, Key.from_seed(0))
    effects, _, _ = searching._effects(Canary("all", torch.full((2, 21), 100.0)))
    grid = SumGrid(dim=21, rows=7, noise_multiplier=1.0)
    step = 1 / grid.steps / 7 if exact else 0.0
    tolerance = 1e-4 / sqrt(21) / 7 + step
    for effect in effects["model"].reshape(2, 21):
        assert effect == pytest.approx([1 / sqrt(21) / 7] * 21, rel=0, abs=tolerance)
        assert 7 * np.linalg.norm(effect) <= (grid.bound.l2 / grid.steps if exact else 1.0) * (1 + 1e-4)
    assert not effects["divisor"].any()


def test_the_catalog_has_canaries_of_all_kinds() -> None:
    audit = prepare_audit(CORRECT, task(), rounds=3)
    canaries = list(CanaryCatalog(audit.state, 3, 1.0, Key.from_seed(0)).all())
    names = [canary.name for canary in canaries]
    assert len(names) == len(set(names)) or len(names) - len(set(names)) <= 1
    for word in ("biases", "parameter 0", "block 3 of 10", "coordinate 20", "first client", "first round only"):
        assert any(word in name for name in names)
    assert all(canary.updates.shape == (3, 21) for canary in canaries)
    assert sum(not bool(canary.updates.isfinite().all()) for canary in canaries) == 2
    lengths = {round(float(canary.updates[0].norm()), 2) for canary in canaries}
    assert {1.5, 3.0, 9.0, 1e4} <= lengths


@pytest.mark.law("audits")
def test_the_measured_separation_is_that_of_the_mechanism() -> None:
    """Only this test detects a weak adversary: two rounds at noise multiplier 1 separate scores by √2 deviations."""
    audit = prepare_audit(CORRECT, task(), rounds=2)
    _, evidence = audited(audit, claim_of(audit), runs=400, seed=3)
    assert evidence.gap is not None
    assert evidence.gap.normal
    assert evidence.gap.mu == pytest.approx(sqrt(2), abs=0.3)


def test_the_sharp_bound_for_gaussian_noise_holds_with_its_confidence() -> None:
    """Of 400 gaps of a true 1.5, at most one in twenty has a lower bound above it, and they are not far below."""
    g = torch.Generator().manual_seed(0)
    bounds = []
    for _ in range(400):
        scores = torch.randn(2, 150, generator=g, dtype=torch.float64).numpy()
        bounds.append(ScoreGap.of(scores[0] + 1.5, scores[1]).mu_lower_bound)
    assert 0.01 < sum(bound > 1.5 for bound in bounds) / 400 <= 0.05 + 3 * sqrt(0.05 / 400)
    assert sum(bounds) / 400 > 1.2


def test_scores_that_are_not_normal_get_no_gaussian_bound() -> None:
    heavy = torch.randn(2, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64).numpy() ** 3
    assert ScoreGap.of(heavy[0] + 50, heavy[1]).epsilon_lower_bound(1e-5) == 0
    constant = torch.ones(30, dtype=torch.float64).numpy()
    assert ScoreGap.of(constant, 0 * constant).epsilon_lower_bound(1e-5) == 100


@pytest.mark.law("audits")
def test_power_is_reported_for_a_tenth_of_the_noise() -> None:
    claim = claim_of(prepare_audit(CORRECT, task()))
    many, few = (AuditEvidence("", "", "", ErrorCounts(0, runs, 0, runs, 0.97), runs=2 * runs) for runs in (300, 60))
    strong, weak = power_of(claim, many), power_of(claim, few)
    assert strong is not None
    assert weak is not None
    assert strong.tenth == weak.tenth == 1.0
    assert strong.factor is not None
    assert weak.factor is not None
    assert 1 < strong.factor < weak.factor < 2
    assert claim.epsilon is not None
    assert strong.epsilon is not None
    assert strong.epsilon > claim.epsilon
    assert power_of(Claim(None, 1e-5), many) is None


@pytest.mark.law("audits")
def test_a_claim_for_sampled_clients_is_tested_for_a_client_that_is_in_every_cohort() -> None:
    """There the bound for Gaussian noise applies; that cohorts are drawn as declared is tested apart."""
    bug = next(bug for bug in ALL_BUGS if bug.name == "half the noise")
    audit = prepare_audit(replace(bug.method, sampler=Poisson(4.0)), task())
    claim, amplified = claim_of(audit), claim_of(audit, sampled=True)
    assert claim.amplified == amplified.epsilon
    assert claim.full_participation
    assert not amplified.full_participation
    result, evidence = audited(audit, claim)
    assert evidence.always_in_cohort
    assert result.violated


def test_the_correct_mechanism_has_the_noise_of_its_claim_whatever_the_dropouts() -> None:
    """The same dropouts as in the bug: the missing noise is added to what is released."""

    def claimed(method: Method, dropouts: float, adjacency: AuditAdjacency = "zero-out") -> float:
        epsilon = claim_of(prepare_audit(method, task(), dropouts=dropouts, adjacency=adjacency)).epsilon
        assert epsilon is not None
        return epsilon

    complete = claimed(IN_SHARES, 0.0)
    tolerant = replace(IN_SHARES, mechanism=replace(SHARED, dropouts=0.5))
    for adjacency in ("zero-out", "add-or-remove"):
        assert claimed(IN_SHARES, 0.0, adjacency) == complete
        assert claimed(IN_SHARES, 0.8, adjacency) == claimed(tolerant, 0.4, adjacency) == complete


def test_one_run_detects_skipped_clipping_and_not_a_correct_method() -> None:
    wide = task(inputs=200)
    audit = prepare_audit(CORRECT, wide, rounds=2)
    assert not AuditResult.of(claim_of(audit), one_run(audit, 400, Key.from_seed(0))).violated
    correct = replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=8.0))
    broken = replace(correct, mechanism=ClipSkipped(clip=FixedClip(1.0), noise_multiplier=8.0))
    guesses = one_run(prepare_audit(broken, wide, rounds=2), 400, Key.from_seed(0))
    result = AuditResult.of(claim_of(prepare_audit(correct, wide, rounds=2)), guesses)
    assert result.violated
    assert result.lower_bounds["one run"] > 3
    assert result.lower_bounds["one run, Gaussian"] > result.lower_bounds["one run"]


@pytest.mark.law("audits")
def test_audits_are_reproducible() -> None:
    audit = prepare_audit(CORRECT, task(), rounds=1)
    once, again = (audited(audit, claim_of(audit), runs=100)[1] for _ in range(2))
    assert once == again


@pytest.mark.law("audits")
@pytest.mark.parametrize("sampler", [Everyone(), FixedSize(2)])
def test_a_method_without_noise_gets_a_large_epsilon(sampler: Everyone) -> None:
    """Whatever the sampling: nothing is claimed for it, so the canary is in every cohort."""
    bare = Method(name="bare", rounds=1, sampler=sampler, trainer=Sgd(lr=0.1, steps=1))
    audit = prepare_audit(bare, task(), rounds=2)
    claim = claim_of(audit)
    assert claim.epsilon is None
    assert "no noise is added" in claim.reason
    result, evidence = audited(audit, claim)
    assert not result.violated  # without a claim
    assert evidence.always_in_cohort
    assert result.best == 100


def test_who_drops_out_does_not_depend_on_the_canary() -> None:
    audit = prepare_audit(IN_SHARES, task(clients=9), rounds=1, dropouts=0.1)
    canary = Canary("none", torch.zeros(1, 21))
    delivered = [
        len(audit._survivors(torch.arange(present), 10, _crowd(canary), Key.from_seed(0))) for present in (10, 9)
    ]
    assert delivered == [9, 8]


def _crowd(canary: Canary) -> _Crowd:
    return _Crowd(torch.tensor([9]), canary.updates[:, None], torch.tensor([True]))


def test_wrong_arguments_are_refused() -> None:
    audit = prepare_audit(CORRECT, task())
    with pytest.raises(UserError, match="runs=5 >= 100"):
        Search(audit, claim_of(audit), 5, Key.from_seed(0))
    with pytest.raises(UserError, match="canaries=1000 <= 21"):
        one_run(audit, 1000, Key.from_seed(0))
    with pytest.raises(UserError, match="dropouts=1"):
        prepare_audit(CORRECT, task(), dropouts=1.0)
