from dataclasses import replace

import pytest
import torch
from torch import nn

import tacit
from tacit.attacks.auditing import CANARY_NORM, Audit, Canary
from tacit.attacks.claims import claim_of
from tacit.attacks.scenario import prepare_audit
from tacit.core import Key, Method
from tacit.core.prices import Gaussian, Release, Sampling, Unit
from tacit.pieces.trainers import DpSgd, RecordGradient
from tacit.privacy.accountants import FAST_PLD, Accounting

DESCENT = DpSgd(lr=0.5, steps=2, batch_size=8, clip=0.5)


def audit(method: Method, rounds: int = 1) -> Audit:
    parts = [(torch.randn(8, 3), torch.arange(8) % 2)] * 3
    return prepare_audit(method, tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts), rounds=rounds)


def fedsgd(rate: float = 1.0, noise: float = 1.0) -> Method:
    return tacit.methods.dp_fedsgd(
        rounds=1, gradient=RecordGradient(rate=rate, clip=0.5), size=8, noise=noise, epsilon=None
    )


def sums(of: Audit, *, included: bool, runs: int = 30, sampled: bool = False) -> torch.Tensor:
    """What is released along the canary's direction, in each run."""
    canary = Canary("ones", torch.full((of.rounds, of.state.dim), CANARY_NORM))
    found = [
        of.run(canary, Key.from_seed(run, "run"), included=included, sampled=sampled)["sum"] for run in range(runs)
    ]
    return torch.stack([each.double().sum() / of.state.dim**0.5 for each in found])


def test_a_record_canary_is_clipped_by_the_trainer_and_its_client_takes_part_without_it() -> None:
    found = audit(fedsgd(noise=1.0))
    assert found.unit is Unit.RECORD
    with_it, without = sums(found, included=True), sums(found, included=False)
    assert float(with_it.mean() - without.mean()) == pytest.approx(0.5, abs=5 * 0.5 * (2 / 30) ** 0.5)
    assert float(without.std()) == pytest.approx(0.5, rel=0.6)


def test_the_coins_of_a_batch_decide_about_a_record() -> None:
    found = audit(fedsgd(rate=0.5, noise=0.02))
    drawn = sums(found, included=True, runs=60, sampled=True) > 0.25
    assert 15 < int(drawn.sum()) < 45  # each with a probability of 1e-4 at most
    assert bool((sums(found, included=True, runs=8) > 0.25).all())


def test_noise_within_a_client_hides_a_record_in_every_step() -> None:
    method = tacit.methods.dp_sgd(rounds=1, descent=replace(DESCENT, noise_multiplier=4.0), epsilon=None)
    found = audit(method)
    assert found.clients == 0  # the adversary sees the message of the record's client, not only a sum
    with_it, without = (sums(found, included=flag, runs=30) for flag in (True, False))
    step = 0.5 / 4  # learning rate over the expected batch of the client's four records
    moved, noise = 2 * step * 0.5, 2**0.5 * step * 4.0 * 0.5  # two steps of a record within 0.5
    assert float(with_it.mean() - without.mean()) == pytest.approx(moved, abs=5 * noise * (2 / 30) ** 0.5)
    assert float(without.std()) == pytest.approx(noise, rel=0.65)


def test_the_claim_is_that_of_one_record() -> None:
    def epsilon(rate: float, noise: float, steps: int) -> float:
        release = Release(Gaussian(noise), sampling=Sampling.at(rate, "poisson"))
        return Accounting.of(FAST_PLD).compose(release, steps).epsilon(1e-5)

    sampled = claim_of(audit(fedsgd(rate=0.3, noise=2.0), rounds=3))
    assert sampled.amplified == pytest.approx(epsilon(0.3, 2.0, 3), abs=1e-3)
    assert sampled.epsilon == pytest.approx(epsilon(1.0, 2.0, 3), abs=1e-3)
    local = tacit.methods.dp_sgd(rounds=1, descent=replace(DESCENT, noise_multiplier=2.0), epsilon=None)
    claimed = claim_of(audit(local, rounds=3))
    assert claimed.epsilon == pytest.approx(epsilon(1.0, 2.0, 6), abs=1e-3)
    assert claimed.full_participation
    assert claimed.mu == pytest.approx(6**0.5 / 2, abs=1e-2)


def test_a_method_with_both_guarantees_is_audited_for_either() -> None:
    both = tacit.methods.dp_sgd(rounds=1, noise=1.0, epsilon=None, client_noise=2.0)
    task = tacit.Task(model=lambda: nn.Linear(3, 2), clients=[(torch.randn(8, 3), torch.arange(8) % 2)] * 4)
    assert prepare_audit(both, task).unit is Unit.CLIENT
    assert prepare_audit(both, task, unit=Unit.RECORD).adjacency == "add-or-remove"
