"""Rows much longer than others are shortened by whoever sees them; honest runs are as before, bit for bit."""

from dataclasses import replace

import pytest
import torch

import tacit
import zoo
from tacit.core import DenseRows, Key, Messages, Method, Round, State
from tacit.core.client_half import make_messages
from tacit.core.lengths import ABSURD, OUTLIER, row_limit, shorten_outliers
from tacit.core.neutral import Plain
from tacit.engine import worker
from tacit.pieces.channels import Enclave, IdealSum
from tacit.pieces.mechanisms import CentralGaussian, DistributedGaussian, FixedClip

SENDS_UPDATES = tacit.pieces.Sgd(lr=0.1, steps=3)
FEDAVG = Method(name="fedavg", rounds=3, sampler=tacit.pieces.Everyone(), trainer=SENDS_UPDATES)
MODELS = replace(FEDAVG, trainer=replace(SENDS_UPDATES, sends="weights"), server=tacit.pieces.Replace())
STATE = State(0, torch.tensor([5.0, 0.0, 0.0]))
TASK = tacit.Task(model=zoo.mlp, clients=zoo.population([5] * 12), name="tiny")


def stack(*rows: list[float]) -> Messages:
    return Messages(torch.arange(len(rows)), DenseRows(torch.tensor(rows)))


def test_a_row_of_usual_length_stays_as_it_is() -> None:
    sent = stack([1.0, 0, 0], [0, 1.0, 0], [0, 0, OUTLIER])
    assert shorten_outliers(FEDAVG, sent, STATE) is sent


@pytest.mark.parametrize(("length", "left"), [(OUTLIER + 0.1, 1.0), (ABSURD, 1.0), (ABSURD + 0.1, 0.0), (1e20, 0.0)])
def test_a_longer_one_counts_as_much_as_others_or_nothing(length: float, left: float) -> None:
    sent = stack([1.0, 0, 0], [0, 1.0, 0], [0, 0, length])
    shortened = shorten_outliers(FEDAVG, sent, STATE)
    assert shortened.rows.dense().tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, pytest.approx(left)]]
    assert shorten_outliers(FEDAVG, shortened, STATE) is shortened


def test_nothing_is_shortened_where_most_rows_are_zero() -> None:
    """No length is usual there."""
    sent = stack([0.0, 0, 0], [0, 0, 0], [0, 0, 9])
    assert shorten_outliers(FEDAVG, sent, STATE) is sent


def test_a_round_may_have_other_lengths_than_the_one_before() -> None:
    """As when clients begin to prune: what is usual is the median of the same round."""
    assert shorten_outliers(FEDAVG, stack([9.0, 0, 0], [0, 9.0, 0]), replace(STATE, round=1)).rows.norms().tolist() == [
        9,
        9,
    ]


@pytest.mark.parametrize("channel", [Plain(), Enclave()])
def test_whole_weights_are_as_long_as_they_move_the_model(channel) -> None:
    """An enclave does not know the model, but where most clients' weights are."""
    method, about = replace(MODELS, channel=channel), 5.0 if isinstance(channel, Plain) else 6.0
    sent = stack([6.0, 0, 0], [6.0, 0.1, 0], [6.0, 0, 0.1], [5.0, 0, 0], [6.0, 0, 500.0])
    shortened = shorten_outliers(method, sent, STATE)
    assert torch.equal(shortened.rows.dense()[:3], sent.rows.dense()[:3])
    assert shortened.rows.dense()[4].tolist() == [about, 0.0, 0.0]


def test_the_nearest_of_several_hypotheses_is_the_model() -> None:
    state = replace(STATE, weights=torch.tensor([[5.0, 0, 0], [-5.0, 0, 0]]))
    shortened = shorten_outliers(MODELS, stack([5.0, 1, 0], [-5.0, 1, 0], [-5.0, 20, 0]), state)
    assert shortened.rows.dense().tolist() == [[5, 1, 0], [-5, 1, 0], [-5, 0, 0]]


@pytest.mark.parametrize(
    "method",
    [
        replace(FEDAVG, max_row_norm=1e9),
        replace(FEDAVG, channel=IdealSum()),
        replace(FEDAVG, mechanism=CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)),
    ],
    ids=["a limit is given", "nobody sees rows", "the mechanism clips"],
)
def test_where_rows_have_another_bound_none_is_shortened(method: Method) -> None:
    sent = stack([1.0, 0, 0], [0, 1.0, 0], [0, 0, 9])
    assert not method.shortens
    assert shorten_outliers(method, sent, STATE) is sent


@pytest.mark.parametrize("channel", [Plain(), Enclave()], ids=["Plain", "Enclave"])
@pytest.mark.parametrize("factor", [5.0, 50.0])
def test_a_client_that_scales_its_row_up_moves_the_model_as_one(monkeypatch, channel, factor) -> None:
    """In every round, whose waves are trained again."""
    method = replace(FEDAVG, channel=channel)

    def hostile(*args) -> Messages:
        messages = make_messages(*args)
        rows = messages.rows.dense().clone()
        rows[messages.clients == 7] *= factor
        return replace(messages, rows=DenseRows(rows))

    honest = tacit.train(method, TASK, workers=1, seed=0, randomness="seeded")
    monkeypatch.setattr(worker, "make_messages", hostile)
    lied = tacit.train(method, TASK, workers=1, seed=0, randomness="seeded")
    monkeypatch.undo()
    moved, other = (run.state.weights - run.spec.simulation.initial_state.weights for run in (honest, lied))
    assert float((moved - other).norm()) < 0.5 * float(moved.norm())


def test_an_honest_run_is_bitwise_that_without_a_limit() -> None:
    run = tacit.train(FEDAVG, TASK, workers=1, seed=0, randomness="seeded")
    free = tacit.train(replace(FEDAVG, max_row_norm=1e9), TASK, workers=1, seed=0, randomness="seeded")
    assert torch.equal(run.state.weights, free.state.weights)


def test_noise_in_shares_never_rejects_an_honest_row_and_always_a_long_one() -> None:

    mechanism = DistributedGaussian(clip=FixedClip(0.5), noise_multiplier=1.5, single_draw=False)
    method = replace(FEDAVG, mechanism=mechanism, channel=Enclave())
    now = Round(0, 12, 12.0, 12, Key.from_seed(0))
    limit = row_limit(method, stack([0.0] * 200), STATE, now)
    deviation = 0.5 * 1.5 / 11**0.5
    assert deviation * 200**0.5 < limit < 3 * deviation * 200**0.5
    assert limit < method.max_norm(200) / 100
