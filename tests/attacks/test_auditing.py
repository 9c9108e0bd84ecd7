"""Audits of correct methods find nothing; audits of broken ones find the bug."""

import os
from collections import deque
from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks.bugs import CORRECT, IN_SHARES, Bug, bugs
from tacit.attacks.auditing import Trial, many_runs, one_run
from tacit.attacks.scenario import Claim, Verdict, claim_of, judge, trial_of
from tacit.core import Key, Method, Task
from tacit.errors import UserError
from tacit.pieces.codecs import FixedRandom, Select, Size
from tacit.pieces.mechanisms import CentralGaussian, FixedClip, QuantileClip
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.trainers import Masked, Sgd

AUDITS = int(os.environ.get("TACIT_AUDITS", "2"))  # of correct methods; 100 for the figure in the guide
RUNS = int(os.environ.get("TACIT_AUDIT_RUNS", "300"))
CLIENTS = 6
ALL_BUGS = bugs(CLIENTS)


def task(clients: int = CLIENTS, inputs: int = 6) -> Task:
    g = torch.Generator().manual_seed(0)
    parts = [(torch.randn(4, inputs, generator=g), torch.randint(0, 3, (4,), generator=g)) for _ in range(clients)]
    return Task(model=lambda: nn.Linear(inputs, 3), clients=parts)


def audit(trial: Trial, claim: Claim, seed: int = 0) -> Verdict:
    (found,) = deque(many_runs(trial, RUNS, Key.from_seed(seed)), maxlen=1)
    return judge(claim, found.errors())


CORRECT_ONES = {
    "central": CORRECT,
    "in shares": IN_SHARES,
    "poisson": replace(CORRECT, sampler=Poisson(4.0)),
    "fixed size": replace(CORRECT, sampler=FixedSize(4)),
    "quantile": replace(
        CORRECT, mechanism=CentralGaussian(clip=QuantileClip(start=1.0, count_noise=3.0), noise_multiplier=1.0)
    ),
    "loud": replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.7)),
    "few weights": replace(
        IN_SHARES, trainer=Masked(Sgd(lr=0.1, steps=1)), codec=Select(FixedRandom(size=Size(number=9)))
    ),
}


@pytest.mark.parametrize("name", CORRECT_ONES)
def test_correct_methods_stay_below_their_claim(name: str) -> None:
    trial = trial_of(CORRECT_ONES[name], task())
    claim = claim_of(trial)
    exceeded = sum(audit(trial, claim, seed).exceeded for seed in range(AUDITS))
    assert exceeded <= AUDITS // 20


@pytest.mark.parametrize("bug", ALL_BUGS, ids=[bug.name for bug in ALL_BUGS])
def test_every_planted_bug_is_caught(bug: Bug) -> None:
    trial = trial_of(bug.method, task(), dropouts=bug.dropouts, adjacency=bug.adjacency)
    found = audit(trial, claim_of(trial))
    assert found.exceeded
    assert max(found.bounds.values()) > (found.claim.epsilon or 0)


def test_bugs_are_found_behind_sampling_too() -> None:
    """There the claim is refuted on its curve; a Gaussian bound would only be a guess."""
    bug = next(bug for bug in ALL_BUGS if bug.name == "clip skipped")
    trial = trial_of(replace(bug.method, sampler=Poisson(4.0)), task())
    found = audit(trial, claim_of(trial))
    assert found.exceeded
    assert "Gaussian" not in found.bounds


def test_noise_that_was_lost_is_paid_for_by_the_correct_mechanism() -> None:
    """The same dropouts as in the bug: less noise, and a claim that says so."""
    promised, lost = (claim_of(trial_of(IN_SHARES, task(), dropouts=part)) for part in (0.0, 0.8))
    assert lost.epsilon > 1.5 * promised.epsilon
    assert not audit(trial_of(IN_SHARES, task(), dropouts=0.8), lost).exceeded


def test_one_run_finds_missing_noise_and_clears_a_correct_method() -> None:
    wide = task(inputs=200)
    claim = claim_of(trial_of(CORRECT, wide))
    assert not judge(claim, one_run(trial_of(CORRECT, wide), 400, Key.from_seed(0))).exceeded
    skipped = next(bug for bug in ALL_BUGS if bug.name == "clip skipped")
    quiet = replace(CORRECT, mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=8.0))
    loud = replace(quiet, mechanism=replace(skipped.method.mechanism, noise_multiplier=8.0))
    found = judge(claim_of(trial_of(quiet, wide)), one_run(trial_of(loud, wide), 400, Key.from_seed(0)))
    assert found.exceeded
    assert found.bounds["one run"] > 3


def test_the_measured_separation_is_that_of_the_mechanism() -> None:
    """With two rounds at multiplier 1, scores are √2 standard deviations apart, and nearly all of it is found."""
    (found,) = deque(many_runs(trial_of(CORRECT, task()), 1200, Key.from_seed(3)), maxlen=1)
    errors = found.errors()
    missed, false = errors.missed / errors.inside, errors.false / errors.outside
    expected = float(torch.distributions.Normal(0.0, 1.0).cdf(torch.tensor(-(2**0.5) / 2)))  # 0.24
    assert abs(missed - expected) < 0.06
    assert abs(false - expected) < 0.06


def test_audits_repeat_themselves_and_grow_run_by_run() -> None:
    trial = trial_of(CORRECT, task())
    once, again = ([*many_runs(trial, 20, Key.from_seed(0))] for _ in range(2))
    assert len(once) == 20
    assert (once[-1].features == again[-1].features).all()
    assert once[-1].inside.sum() == 10


def test_a_method_without_a_claim_is_measured_all_the_same() -> None:
    bare = Method(name="bare", rounds=1, sampler=Everyone(), trainer=Sgd(lr=0.1, steps=1))
    trial = trial_of(bare, task())
    claim = claim_of(trial)
    assert claim.epsilon is None
    assert "nothing is blurred" in claim.reason
    found = audit(trial, claim)
    assert not found.exceeded  # there is nothing to exceed
    assert max(found.bounds.values()) > 1


def test_bad_questions_get_a_sentence() -> None:
    trial = trial_of(CORRECT, task())
    with pytest.raises(UserError, match="runs=5 >= 20"):
        next(many_runs(trial, 5, Key.from_seed(0)))
    with pytest.raises(UserError, match="canaries=1000 <= 21"):
        one_run(trial, 1000, Key.from_seed(0))
    with pytest.raises(UserError, match="dropouts=1"):
        trial_of(CORRECT, task(), dropouts=1.0)
