"""What a server remembers of its clients grows with those that took part."""

import torch

from tacit import Task, methods, train
from tacit.engine.simulation import PARTICIPATIONS, RECEIVED
from tacit.engine.tallies import counts_of, empty_tally, with_one_more

POPULATION = 5000


def test_a_tally_counts_as_a_vector_of_all_clients_does() -> None:
    source, tally, every = torch.Generator().manual_seed(3), empty_tally(), torch.zeros(200, dtype=torch.int64)
    for size in (0, 1, 7, 40, 0, 200):
        cohort = torch.randperm(200, generator=source)[:size]
        tally, every = with_one_more(tally, cohort), every.index_add(0, cohort, torch.ones_like(cohort))
        asked = torch.randperm(200, generator=source)[:50]
        assert torch.equal(counts_of(tally, asked), every[asked])
        assert torch.equal(tally, torch.stack([every.nonzero().flatten(), every[every > 0]]))


def test_checkpoints_grow_with_cohorts_and_not_with_the_population() -> None:
    x = torch.randn(2 * POPULATION, 4)
    clients = [(x[2 * i : 2 * i + 2], (x[2 * i : 2 * i + 2, 0] > 0).long()) for i in range(POPULATION)]
    task = Task(model=lambda: torch.nn.Linear(4, 2), clients=clients, public=(x[:4], (x[:4, 0] > 0).long()))
    run = train(methods.make("fl-top", {"rounds": 3, "cohort": 5, "ratio": 0.5}), task, workers=1)
    seen = sorted({client for report in run.history for client in report.clients})
    assert run.state.memory[RECEIVED][0].tolist() == seen
    assert PARTICIPATIONS not in run.state.memory
    assert max(value.numel() for value in run.state.memory.values()) < POPULATION / 10
