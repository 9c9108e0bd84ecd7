import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import zoo
from tacit.engine.batches import make_batches


@given(
    sizes=st.lists(st.integers(1, 12), min_size=1, max_size=5),
    batch=st.integers(1, 14) | st.none(),
    epochs=st.integers(1, 3),
)
def test_every_epoch_uses_every_sample_once(sizes: list[int], batch: int | None, epochs: int) -> None:
    clients = zoo.population(sizes)
    batches = make_batches(
        clients, torch.arange(len(sizes)), zoo.descent(epochs=epochs, batch_size=batch), torch.float32
    )
    for client, size in enumerate(sizes):
        used = torch.cat([batches.batch_of(client, step)[0] for step in range(batches.steps)])
        assert len(used) == epochs * size
        owned = clients[client][0]
        for begin in range(0, len(used), size):
            epoch = sorted(map(tuple, used[begin : begin + size].flatten(1).tolist()))
            assert epoch == sorted(map(tuple, owned.flatten(1).tolist()))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=5), batch=st.integers(1, 5), steps=st.integers(1, 7))
def test_weights_sum_to_one_while_a_client_trains(sizes: list[int], batch: int, steps: int) -> None:
    batches = make_batches(
        zoo.population(sizes), torch.arange(len(sizes)), zoo.descent(steps=steps, batch_size=batch), torch.float64
    )
    assert batches.steps == steps
    for step in range(steps):
        total = batches.weights(step).sum(1)
        torch.testing.assert_close(total, torch.ones_like(total))
        assert bool(batches.active(step).all())


def test_a_clients_batches_do_not_depend_on_its_wave() -> None:
    clients, descent = zoo.population([5, 8, 6]), zoo.descent(epochs=2, batch_size=3)
    together = make_batches(clients, torch.tensor([0, 1, 2]), descent, torch.float32)
    alone = make_batches(clients, torch.tensor([2]), descent, torch.float32)
    for step in range(alone.steps):
        assert torch.equal(together.batch_of(2, step)[0], alone.batch_of(0, step)[0])


def test_epochs_are_shuffled() -> None:
    batches = make_batches(zoo.population([40]), torch.tensor([0]), zoo.descent(epochs=2, batch_size=10), torch.float32)
    first, second = batches.index[0, :4].flatten(), batches.index[0, 4:].flatten()
    assert not torch.equal(first, second)
    assert not torch.equal(first, torch.arange(40))


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_inputs_and_targets_belong_together(order: list[int]) -> None:
    clients = zoo.population([4, 4, 4])
    batches = make_batches(clients, torch.tensor(order), zoo.descent(steps=2), torch.float32)
    for row, client in enumerate(order):
        assert torch.equal(batches.x(0, 1)[row], clients[client][0])
        assert torch.equal(batches.y(1, 2)[row], clients[client][1])
