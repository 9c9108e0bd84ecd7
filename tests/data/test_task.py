"""Held-out samples that clients own are noticed, and preprocessing is declared."""

import time
from dataclasses import replace

import pytest
import torch

import tacit
import zoo
from tacit.data import Population, Preprocessing, Task
from tacit.data.checks import Overlap, find_overlap
from tacit.errors import DataError, UserError
from tacit.runs.manifest import TaskEntry

POPULATION = zoo.population([4, 5, 6])
X, Y = POPULATION.x, POPULATION.y


def task(**changes: object) -> Task:
    return Task(**{"model": zoo.softmax, "clients": POPULATION, "test": zoo.population([9], seed=9)[0], **changes})  # type: ignore[arg-type]


def test_held_out_samples_that_clients_own_are_refused() -> None:
    other = zoo.population([9], seed=9)[0]
    mixed = (torch.cat([other[0], X[[5, 7]]]), torch.cat([other[1], Y[[5, 7]]]))
    message = (
        r"Expected held-out samples that no client owns, but 2 of 11 are owned by clients "
        r"\(held-out sample 9 is sample 1 of client 1\)\. Remove them .* test_overlap='coincidental'"
    )
    with pytest.raises(DataError, match=message):
        task(test=mixed)
    assert task(test=mixed, test_overlap="coincidental").not_covered == task().not_covered
    (sentence,) = set(task(test=mixed, test_overlap="intended").not_covered) - set(task().not_covered)
    assert sentence.startswith("Held-out metrics")


def test_samples_of_the_pool_that_no_client_owns_may_be_held_out() -> None:
    parts = [torch.tensor([0, 1]), torch.tensor([2, 3])]
    assert len(task(clients=Population.split(X, Y, parts), test=(X[4:], Y[4:])).population) == 2


def test_the_same_input_with_another_target_is_another_sample() -> None:
    assert task(test=(X[:3], (Y[:3] + 1) % 3)).test is not None


def test_unknown_kinds_of_overlap_are_refused() -> None:
    with pytest.raises(UserError, match=r"test_overlap='allowed' to be one of refused, coincidental, intended"):
        task(test_overlap="allowed")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.int64, torch.uint8, torch.bool])
def test_overlap_is_found_in_every_type(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, y = (torch.rand(50, 33) * 200).to(dtype), torch.arange(50)
    assert find_overlap((x[40:], y[40:]), (x[:45], y[:45]), torch.arange(45)) == Overlap(5, 0, 40)
    assert find_overlap((x[45:], y[45:]), (x[:45], y[:45]), torch.arange(45)) is None


def test_sixty_thousand_images_take_little_time() -> None:
    images, labels = torch.rand(70_000, 1, 28, 28), torch.zeros(70_000, dtype=torch.int64)
    held_out, pool = (images[60_000:], labels[60_000:]), (images[:60_000], labels[:60_000])
    began = time.process_time()
    assert find_overlap(held_out, pool, torch.arange(60_000)) is None
    assert time.process_time() - began < 2.0


def test_private_preprocessing_needs_a_sentence() -> None:
    with pytest.raises(UserError, match="a sentence that says what was computed"):
        Preprocessing("private")
    with pytest.raises(UserError, match="one of row, public, private, undeclared, got none"):
        Preprocessing("none")  # type: ignore[arg-type]


def test_what_preprocessing_does_not_cover_is_in_guarantee_and_manifest() -> None:
    scaled = Preprocessing("private", "ages are scaled by their mean.")
    method = tacit.methods.geyer(rounds=1, cohort=2, epsilon=20.0, delta=1e-3)
    found = {
        name: tacit.train(method, task(preprocessing=each), workers=1).privacy.not_covered
        for name, each in {"private": scaled, "row": Preprocessing("row"), "none": Preprocessing()}.items()
    }
    assert "Preprocessing used the clients' rows: ages are scaled by their mean." in found["private"]
    assert not any("reprocessing" in sentence for sentence in found["row"])
    assert any("does not declare its preprocessing" in sentence for sentence in found["none"])
    entry = TaskEntry.of(task(preprocessing=scaled), None, 10)
    assert entry.not_covered == (scaled.not_covered,)
    without_noise = tacit.train(tacit.methods.fedavg(rounds=1, cohort=2), replace(task(), test=None), workers=1)
    assert without_noise.privacy.not_covered == ()
