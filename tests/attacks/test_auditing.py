"""Audits do not refute the claims of correct methods, and detect planted bugs."""

import os
from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.bugs import CORRECT, IN_SHARES, Bug, ClipSkipped, bugs
from tacit.attacks.auditing import Audit, many_runs, one_run
from tacit.attacks.scenario import AuditResult, Claim, claim_of, prepare_audit
from tacit.core import Key, Method, Task
from tacit.errors import UserError
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, QuantileClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.trainers import Masked, Sgd

AUDITS = int(os.environ.get("TACIT_AUDITS", "2"))  # of each correct method; 100 for the figures in the guide
RUNS = int(os.environ.get("TACIT_AUDIT_RUNS", "300"))
CLIENTS = 6
ALL_BUGS = bugs(CLIENTS)


def task(clients: int = CLIENTS, inputs: int = 6) -> Task:
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, inputs, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(clients)]
    return Task(model=lambda: nn.Linear(inputs, 3), clients=parts)


def result_of(audit: Audit, claim: Claim, seed: int = 0) -> AuditResult:
    (runs,) = deque(many_runs(audit, RUNS, Key.from_seed(seed)), maxlen=1)
    return AuditResult.of(claim, runs.count_errors())


CORRECT_ONES = {
    "central": CORRECT,
    "in shares": IN_SHARES,
    "poisson": replace(CORRECT, sampler=Poisson(4.0)),
    "fixed size": replace(CORRECT, sampler=FixedSize(4)),
    "quantile": replace(
        CORRECT, mechanism=CentralGaussian(clip=QuantileClip(start=1.0, count_noise=3.0), noise_multiplier=1.0)
    ),
    "low noise": replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.7)),
    "few weights": replace(
        IN_SHARES, trainer=Masked(Sgd(lr=0.1, steps=1)), codec=Select(FixedRandom(size=Size(number=9)))
    ),
}


@pytest.mark.parametrize("name", CORRECT_ONES)
def test_claims_of_correct_methods_are_not_refuted(name: str) -> None:
    audit = prepare_audit(CORRECT_ONES[name], task())
    claim = claim_of(audit)
    violated = sum(result_of(audit, claim, seed).violated for seed in range(AUDITS))
    assert violated <= AUDITS // 20


@pytest.mark.parametrize("bug", ALL_BUGS, ids=[bug.name for bug in ALL_BUGS])
def test_every_planted_bug_is_detected(bug: Bug) -> None:
    audit = prepare_audit(bug.method, task(), dropouts=bug.dropouts, adjacency=bug.adjacency)
    result = result_of(audit, claim_of(audit))
    assert result.violated
    assert result.best > (result.claim.epsilon or 0)


def test_bugs_are_detected_with_sampling_too() -> None:
    """The privacy profile is refuted; the Gaussian bound does not apply to sampled cohorts."""
    bug = next(bug for bug in ALL_BUGS if bug.name == "clip skipped")
    audit = prepare_audit(replace(bug.method, sampler=Poisson(4.0)), task())
    result = result_of(audit, claim_of(audit))
    assert result.violated
    assert "Gaussian" not in result.lower_bounds


def test_the_correct_mechanism_accounts_for_the_noise_of_dropouts() -> None:
    """The same dropouts as in the bug: less noise, and a larger claimed ε."""
    complete, reduced = (claim_of(prepare_audit(IN_SHARES, task(), dropouts=part)) for part in (0.0, 0.8))
    assert complete.epsilon is not None
    assert reduced.epsilon is not None
    assert reduced.epsilon > 1.5 * complete.epsilon
    assert not result_of(prepare_audit(IN_SHARES, task(), dropouts=0.8), reduced).violated


def test_one_run_detects_skipped_clipping_and_not_a_correct_method() -> None:
    wide = task(inputs=200)
    audit = prepare_audit(CORRECT, wide)
    assert not AuditResult.of(claim_of(audit), one_run(audit, 400, Key.from_seed(0))).violated
    correct = replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=8.0))
    broken = replace(correct, mechanism=ClipSkipped(clip=FixedClip(1.0), noise_multiplier=8.0))
    guesses = one_run(prepare_audit(broken, wide), 400, Key.from_seed(0))
    result = AuditResult.of(claim_of(prepare_audit(correct, wide)), guesses)
    assert result.violated
    assert result.lower_bounds["one run"] > 3


def test_the_measured_separation_is_that_of_the_mechanism() -> None:
    """Only this test detects a weak adversary: two rounds at noise multiplier 1 separate scores by √2 deviations."""
    (runs,) = deque(many_runs(prepare_audit(CORRECT, task()), 1200, Key.from_seed(3)), maxlen=1)
    errors = runs.count_errors()
    expected = float(torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(-(2**0.5) / 2)))  # 0.24
    assert abs(errors.false_negatives / errors.included - expected) < 0.06
    assert abs(errors.false_positives / errors.excluded - expected) < 0.06


def test_audits_are_reproducible_and_yield_after_each_run() -> None:
    audit = prepare_audit(CORRECT, task())
    once, again = ([*many_runs(audit, 20, Key.from_seed(0))] for _ in range(2))
    assert len(once) == 20
    assert (once[-1].features == again[-1].features).all()
    assert once[-1].included.sum() == 10


def test_a_method_without_a_claim_is_audited_too() -> None:
    bare = Method(name="bare", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1))
    audit = prepare_audit(bare, task())
    claim = claim_of(audit)
    assert claim.epsilon is None
    assert "no noise is added" in claim.reason
    result = result_of(audit, claim)
    assert not result.violated  # without a claim
    assert result.best > 1


def test_wrong_arguments_are_refused() -> None:
    audit = prepare_audit(CORRECT, task())
    with pytest.raises(UserError, match="runs=5 >= 20"):
        next(many_runs(audit, 5, Key.from_seed(0)))
    with pytest.raises(UserError, match="canaries=1000 <= 21"):
        one_run(audit, 1000, Key.from_seed(0))
    with pytest.raises(UserError, match="dropouts=1"):
        prepare_audit(CORRECT, task(), dropouts=1.0)
