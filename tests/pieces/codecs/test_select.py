"""Which coordinates are said: the largest on public data, voted for, or random."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import CrossEntropy, DenseRows, Key, Method, Population, Round, State, Task, View
from tacit.core.round import broadcast
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout
from tacit.engine.learners import Fastest
from tacit.engine.learners.reference import Reference
from tacit.engine.waves import StackedClients
from tacit.errors import TrainingError, UserError
from tacit.pieces.channels import IdealSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Size, TopK, Vote
from tacit.pieces.codecs.select import MASK, largest
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, PublicClip
from tacit.pieces.samplers import Everyone, FixedSize
from tacit.pieces.trainers import Masked, Sgd
from tacit.runs.run import Plan
from tacit.runs.training import follow
from tacit.wire import indices
from tacit.wire.frames import Part

FIVE = Size(number=5)
SGD = Sgd(lr=0.1, steps=2)
EVERY = [TopK(size=FIVE, lr=0.1), Vote(size=FIVE), FixedRandom(size=FIVE), RandomK(size=FIVE)]


def now(index: int = 0, seed: int = 0) -> Round:
    return Round(index, 8, 8.0, 8, Key.from_seed(seed).child("round", index), Key.from_seed(seed, "secret"))


def task(**changes: object) -> Task:
    options = {"model": zoo.softmax, "clients": zoo.population([4] * 8), "public": zoo.population([6], seed=3)[0]}
    return Task(**{**options, **changes})


def method(which: object, **changes: object) -> Method:
    options = {"name": "x", "rounds": 3, "sampler": FixedSize(4), "trainer": Masked(SGD), "codec": Select(which)}
    return Method(**{**options, **changes})


@pytest.mark.parametrize(
    ("ratio", "dim", "count"),
    [
        *((ratio, 1_663_370, count) for ratio, count in ((0.005, 8316), (0.05, 83_168), (0.1, 166_337))),
        *((ratio, 1_496_601, count) for ratio, count in ((0.001, 1496), (0.05, 74_830), (0.1, 149_660))),
        (0.29, 100, 29),
        (1.0, 7, 7),
    ],
)
def test_a_share_is_rounded_down(ratio: float, dim: int, count: int) -> None:
    assert Size(ratio=ratio).of(dim) == count


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Size(), "either ratio or number, and not both"),
        (lambda: Size(ratio=0.1, number=3), "either ratio or number, and not both"),
        (lambda: Size(ratio=0.0), r"ratio=0.0 in \(0, 1\]"),
        (lambda: Size(ratio=1.1), r"ratio=1.1 in \(0, 1\]"),
        (lambda: Size(number=0), "number=0 >= 1"),
        (lambda: Size(ratio=0.001).of(999), "ratio=0.001 to be at least one of 999 weights"),
        (lambda: Size(number=11).of(10), "number=11 <= 10, the number of the model's weights"),
        (lambda: TopK(size=FIVE, lr=0.0), "lr=0.0 > 0"),
        (lambda: TopK(size=FIVE, lr=0.1, steps=0), "steps=0 >= 1"),
    ],
)
def test_bad_sizes(make: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        make()


def test_of_equal_scores_the_lower_coordinate_goes_first() -> None:
    assert largest(torch.zeros(6), 3).tolist() == [0, 1, 2]
    assert largest(torch.tensor([0.0, 2.0, -1.0, 2.0, 2.0]), 2).tolist() == [1, 3]
    many = torch.zeros(5000).index_fill_(0, torch.arange(10, 5000, 10), 1.0)
    assert largest(many, 100).tolist() == list(range(10, 1001, 10))


def by_plain_autograd(model: nn.Module, x: Tensor, y: Tensor, *, lr: float, steps: int) -> Tensor:
    """Σ |gradient| over all parameters, biases among them, of a model that steps along."""
    scores = 0.0
    for _ in range(steps):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        scores = scores + torch.cat([gradient.flatten() for gradient in gradients]).abs()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter -= lr * gradient
    return scores


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn], ids=["mlp", "cnn"])
@pytest.mark.parametrize("way", [Fastest, Reference])
def test_top_k_is_global_over_sums_of_absolute_gradients(make: object, way: object) -> None:
    model, (x, y) = make().double(), zoo.population([7], dtype=torch.float64, seed=3)[0]
    layout, top = Layout.of(model), TopK(size=Size(ratio=0.1), lr=0.3, steps=4)
    state = State(0, layout.flatten(model), layers=layout.sizes)
    wave = StackedClients(torch.tensor([0]), Population.of([(x, y)]), way(model, CrossEntropy()))
    mask = top.prepare(state, wave, now()).memory[MASK]
    scores = by_plain_autograd(model, x, y, lr=0.3, steps=4)
    assert torch.equal(mask, scores.topk(layout.dim // 10).indices.sort().values)
    ends = torch.tensor(layout.sizes).cumsum(0)
    shares = torch.bincount(torch.bucketize(mask, ends, right=True), minlength=len(ends)) / torch.tensor(layout.sizes)
    assert shares.max() > 2 * shares.min()  # no fixed share of every layer


def test_top_k_without_a_gradient_takes_the_first() -> None:
    """A weight that no public image moves is no better than another: the lower coordinate goes first."""
    x, y = torch.zeros(3, 1, 8, 8), torch.tensor([1, 1, 2])
    state = initial_state(method(TopK(size=Size(number=20), lr=0.1)), task(public=(x, y)))
    assert state.memory[MASK].tolist() == [*range(10), *range(640, 650)]  # only biases have gradients


def test_top_k_needs_public_data() -> None:
    with pytest.raises(UserError) as error:
        initial_state(method(EVERY[0]), task(public=None))
    assert str(error.value) == (
        "TopK chooses coordinates by gradients on public data, but the task has none. Give the task some (public), "
        "let clients vote for coordinates (Vote; select=vote), or take random ones (FixedRandom)."
    )


def test_top_k_of_a_diverged_model_is_refused() -> None:
    with pytest.raises(TrainingError, match=r"public data diverged.*Lower lr"):
        initial_state(method(TopK(size=FIVE, lr=1e38, steps=5)), task())


def test_random_coordinates_are_new_in_every_round_and_the_same_for_all() -> None:
    codec, state = Select(RandomK(size=FIVE)), State(0, torch.arange(650.0))
    masks = [codec.view(state, now(index)).mask for index in range(20)]
    assert len({tuple(mask.tolist()) for mask in masks}) == 20
    for index, mask in enumerate(masks):
        assert mask.tolist() == sorted(set(mask.tolist()))
        spread = codec.decode(torch.ones(5), state, now(index))  # the server's side
        assert torch.equal(spread.nonzero().flatten(), mask)
    counts = torch.bincount(torch.cat([codec.view(state, now(i)).mask for i in range(2000)]), minlength=650)
    assert float(((counts - 10_000 / 650) ** 2 / (10_000 / 650)).sum()) < 650 + 5 * (2 * 650) ** 0.5


def test_fixed_random_coordinates_are_those_of_the_seed() -> None:
    playing = method(FixedRandom(size=FIVE))
    masks = [initial_state(playing, task(), seed).memory[MASK].tolist() for seed in (0, 0, 1)]
    assert masks[0] == masks[1] != masks[2]
    *_, (state, _) = rounds(playing, task(), workers=1)
    assert state.memory[MASK].tolist() == masks[0]


@pytest.mark.parametrize("which", EVERY, ids=lambda which: type(which).__name__)
def test_what_is_told(which: object) -> None:
    state = replace(State(3, torch.arange(650.0)), memory={MASK: torch.tensor([1, 2, 64, 300, 649])})
    view = Select(which).view(state, now(3))
    if isinstance(which, RandomK):
        assert set(view.sent(first=True)) == {Part.WEIGHTS}
        return
    assert view.parts[Part.VALUES].tolist() == [1.0, 2.0, 64.0, 300.0, 649.0]
    assert set(view.sent(first=False)) == {Part.VALUES}
    told = view.sent(first=True)
    assert (Part.MASK in told) == (not isinstance(which, FixedRandom))
    if Part.MASK in told:
        assert torch.equal(indices.unpack(told[Part.MASK], 650), view.mask)


def test_what_is_left_out_changes_nothing_that_it_is_added_to() -> None:
    state = State(0, torch.tensor([0.0, -0.0, 1.0, -0.0]), {MASK: torch.tensor([2])})
    after = state.weights + Select(Vote(size=Size(number=1))).decode(torch.tensor([0.5]), state, now())
    assert torch.equal(after, torch.tensor([0.0, -0.0, 1.5, -0.0]))
    assert after.signbit().tolist() == [False, True, False, True]


def test_a_ballot_has_a_vote_for_each_of_the_largest() -> None:
    rows = torch.tensor([[0.1, -3.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    ballots = Select(Vote(size=Size(number=2))).encode(DenseRows(rows), View(torch.zeros(4), {}), now())
    assert ballots.dense().tolist() == [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]


def test_the_elected_are_those_with_the_most_votes() -> None:
    """The engine's first round against a count by hand, and the model does not move before it is decided."""
    playing, work = method(Vote(size=FIVE), sampler=Everyone()), task()
    (state, report), *rest = rounds(playing, work, workers=1)
    first = initial_state(playing, work)
    votes = torch.zeros(650)
    wave = StackedClients(torch.arange(8), work.population, Reference(zoo.softmax(), work.loss))
    for row in wave.descend(first.weights, SGD.descent(now())).dense():
        votes[row.abs().topk(5).indices] += 1
    ranked = sorted(range(650), key=lambda i: (-votes[i], i))[:5]
    assert state.memory[MASK].tolist() == sorted(ranked)
    assert torch.equal(state.weights, first.weights)
    assert set(report.up) == {24 + 12 + 4 * 650}
    assert set(report.down) == {24}
    assert all(torch.equal(later.memory[MASK], state.memory[MASK]) for later, _ in rest)
    assert set(rest[0][1].up) == {24 + 12 + 4 * 5}


def test_noise_blurs_the_vote() -> None:
    loud = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=100.0)
    masks = []
    for mechanism in ({}, {"mechanism": loud, "channel": IdealSum()}):
        (state, _), *_ = rounds(method(Vote(size=FIVE), rounds=1, **mechanism), task(), workers=1)
        masks.append(state.memory[MASK].tolist())
    assert masks[0] != masks[1]


def test_a_vote_is_one_of_the_rounds_that_are_paid_for() -> None:
    mechanism = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=2.0)
    with_vote, without = (
        [*follow(Plan(method=method(which, mechanism=mechanism, channel=IdealSum()), task=task()), workers=1)][-1]
        for which in (Vote(size=FIVE), FixedRandom(size=FIVE))
    )
    assert with_vote.state.round == without.state.round == 3
    assert with_vote.privacy.epsilon == without.privacy.epsilon > 0
    assert [report.epsilon for report in with_vote.history] == [report.epsilon for report in without.history]


def test_a_bound_from_public_data_cannot_be_for_coordinates_that_nobody_knows() -> None:
    mechanism = DistributedGaussian(clip=PublicClip(), noise_multiplier=1.0)
    playing = method(Vote(size=FIVE), mechanism=mechanism, channel=IdealSum())
    with pytest.raises(UserError, match=r"x: the bound cannot come from public data.*yet to be voted for.*clip="):
        initial_state(playing, task())


def test_clients_of_a_broadcast_know_the_mask_that_the_server_decodes_with() -> None:
    for which in EVERY:
        playing = method(which)
        state = initial_state(playing, task())
        mask = broadcast(playing, state, now(2)).mask
        theirs = which.mask(state, now(2))
        assert (mask is None and theirs is None) or torch.equal(mask, theirs)
