"""Which coordinates are sent: those with the largest public gradients, those voted for, or random ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import zoo
from tacit.core import ClientMemory, CrossEntropy, DenseRows, Key, Method, SimulatedRound, State, View
from tacit.core.client_half import read_broadcast
from tacit.core.prices import Unit
from tacit.core.server_half import broadcast
from tacit.core.state import MASK
from tacit.data import Population, Task
from tacit.engine import initial_state, rounds
from tacit.engine.layout import Layout
from tacit.engine.learners.reference import ReferenceLearner
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import TrainingError, UserError, WireError
from tacit.pieces.channels import IdealSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Size, TopK, Vote
from tacit.pieces.codecs.select import Selection, largest
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, PublicClip
from tacit.pieces.samplers import Everyone, FixedSize
from tacit.pieces.trainers import Masked, Sgd
from tacit.privacy.guarantee import Guarantee
from tacit.runs.run import RunSpec
from tacit.runs.training import follow
from tacit.wire import indices
from tacit.wire.frames import Part, Parts

FIVE = Size(number=5)
SGD = Sgd(lr=0.1, steps=2)
TOP_K = TopK(size=FIVE, lr=0.1)
SELECTIONS: list[Selection] = [TOP_K, Vote(size=FIVE), FixedRandom(size=FIVE), RandomK(size=FIVE)]


def now(index: int = 0, seed: int = 0) -> SimulatedRound:
    return SimulatedRound.of(index, 8, 8.0, 8, Key.from_seed(seed).child("round", index), Key.from_seed(seed, "secret"))


def task(**changes: Any) -> Task:
    options = {"model": zoo.softmax, "clients": zoo.population([4] * 8), "public": zoo.population([6], seed=3)[0]}
    return Task(**{**options, **changes})


def method(selection: Selection, **changes: Any) -> Method:
    options = {"name": "x", "rounds": 3, "sampler": FixedSize(4), "trainer": Masked(SGD), "codec": Select(selection)}
    return Method(**{**options, **changes})


def mask_of(view: View) -> Tensor:
    assert view.mask is not None
    return view.mask


@pytest.mark.parametrize(
    ("ratio", "dim", "count"),
    [
        *((ratio, 1_663_370, count) for ratio, count in ((0.005, 8316), (0.05, 83_168), (0.1, 166_337))),
        *((ratio, 1_496_601, count) for ratio, count in ((0.001, 1496), (0.05, 74_830), (0.1, 149_660))),
        (0.29, 100, 29),
        (1.0, 7, 7),
    ],
)
def test_a_ratio_is_rounded_down(ratio: float, dim: int, count: int) -> None:
    assert Size(ratio=ratio).count(dim) == count


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Size(ratio=0.001).count(999), "ratio=0.001 to be at least one of 999 weights"),
        (lambda: Size(number=11).count(10), "number=11 <= 10, the number of the model's weights"),
    ],
)
def test_a_size_that_no_model_has_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make()


def test_ties_go_to_the_lower_coordinate() -> None:
    assert largest(torch.zeros(6), 3).tolist() == [0, 1, 2]
    assert largest(torch.tensor([0.0, 2.0, -1.0, 2.0, 2.0]), 2).tolist() == [1, 3]
    many = torch.zeros(5000).index_fill_(0, torch.arange(10, 5000, 10), 1.0)
    assert largest(many, 100).tolist() == list(range(10, 1001, 10))


def scores_by_autograd(model: nn.Module, x: Tensor, y: Tensor, *, lr: float, steps: int) -> Tensor:
    """Σ |gradient| over all parameters, including biases, of a model that follows the gradients."""
    scores = torch.zeros(())
    for _ in range(steps):
        gradients = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), list(model.parameters()))
        scores = scores + torch.cat([gradient.flatten() for gradient in gradients]).abs()
        with torch.no_grad():
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.sub_(lr * gradient)
    return scores


@pytest.mark.parametrize("make", [zoo.mlp, zoo.cnn], ids=["mlp", "cnn"])
@pytest.mark.parametrize("learner", [AutoLearner, ReferenceLearner])
def test_top_k_is_global_over_sums_of_absolute_gradients(
    make: Callable[[], nn.Module], learner: type[AutoLearner]
) -> None:
    model, (x, y) = make().double(), zoo.population([7], dtype=torch.float64, seed=3)[0]
    layout, top = Layout.of(model), TopK(size=Size(ratio=0.1), lr=0.3, steps=4)
    state = State(0, layout.flatten(model), layers=layout.sizes)
    wave = StackedClients(torch.tensor([0]), Population.of([(x, y)]), learner(model, CrossEntropy()))
    mask = top.prepare(state, wave, now()).memory[MASK]
    scores = scores_by_autograd(model, x, y, lr=0.3, steps=4)
    assert torch.equal(mask, scores.topk(layout.dim // 10).indices.sort().values)
    ends = torch.tensor(layout.sizes).cumsum(0)
    fractions = torch.bincount(torch.bucketize(mask, ends, right=True), minlength=len(ends)) / torch.tensor(
        layout.sizes
    )
    assert fractions.max() > 2 * fractions.min()  # layers do not have equal fractions


def test_top_k_without_gradients_takes_the_lower_coordinates() -> None:
    """Weights without a gradient on the public images are tied."""
    x, y = torch.zeros(3, 1, 8, 8), torch.tensor([1, 1, 2])
    state = initial_state(method(TopK(size=Size(number=20), lr=0.1)), task(public=(x, y)))
    assert state.memory[MASK].tolist() == [*range(10), *range(640, 650)]  # only biases have gradients


def test_top_k_needs_public_data() -> None:
    with pytest.raises(UserError) as error:
        initial_state(replace(method(TOP_K), name="fl-top"), task(public=None))
    random = f"codec.selection=FixedRandom(size={FIVE})"  # which fits every method, unlike Vote
    assert str(error.value) == f"fl-top needs public data: add `--task-set public=50`, or `--set '{random}'`."


def test_top_k_refuses_public_training_that_diverges() -> None:
    with pytest.raises(TrainingError, match=r"public data diverged.*Lower lr"):
        initial_state(method(TopK(size=FIVE, lr=1e38, steps=5)), task())


def test_random_coordinates_are_redrawn_every_round_and_the_same_for_client_and_server() -> None:
    codec, state = Select(RandomK(size=FIVE)), State(0, torch.arange(650.0))
    memory = ClientMemory(torch.zeros(650), Key(bytes(32)))

    def mask_at(index: int) -> Tensor:
        return mask_of(codec.read(codec.broadcast(state, now(index)).parts, memory, now(index))[0])

    masks = [mask_at(index) for index in range(20)]
    assert len({tuple(mask.tolist()) for mask in masks}) == 20
    for index, mask in enumerate(masks):
        assert mask.tolist() == sorted(set(mask.tolist()))
        spread, _ = codec.decode(torch.ones(5), state, now(index))  # on the server
        assert torch.equal(spread.nonzero().flatten(), mask)
    counts = torch.bincount(torch.cat([mask_at(index) for index in range(2000)]), minlength=650)
    assert float(((counts - 10_000 / 650) ** 2 / (10_000 / 650)).sum()) < 650 + 5 * (2 * 650) ** 0.5


def test_fixed_random_coordinates_follow_from_the_seed() -> None:
    fixed = method(FixedRandom(size=FIVE))
    masks = [initial_state(fixed, task(), seed).memory[MASK].tolist() for seed in (0, 0, 1)]
    assert masks[0] == masks[1] != masks[2]
    *_, (state, _) = rounds(fixed, task(), workers=1, randomness="seeded")
    assert state.memory[MASK].tolist() == masks[0]


@pytest.mark.parametrize("selection", SELECTIONS, ids=lambda selection: type(selection).__name__)
def test_what_is_broadcast(selection: Selection) -> None:
    state = replace(State(3, torch.arange(650.0)), memory={MASK: torch.tensor([1, 2, 64, 300, 649])})
    sent = Select(selection).broadcast(state, now(3))
    if isinstance(selection, RandomK):
        assert set(sent.client_parts(first=True)) == {Part.WEIGHTS}
        return
    assert sent.parts[Part.VALUES].tolist() == [1.0, 2.0, 64.0, 300.0, 649.0]
    assert set(sent.client_parts(first=False)) == {Part.VALUES}
    first = sent.client_parts(first=True)
    assert (Part.MASK in first) == (not isinstance(selection, FixedRandom))
    if Part.MASK in first:
        assert torch.equal(indices.unpack(first[Part.MASK], 650), state.memory[MASK])


VOTE = Select(Vote(size=FIVE))
SENT = {Part.VALUES: torch.arange(5.0) + 10, Part.MASK: indices.pack(torch.tensor([1, 2, 64, 300, 649]), 650)}


def test_a_client_keeps_its_first_weights_and_the_mask() -> None:
    """Weights outside a fixed mask are never sent: the client has them, and puts the received ones in their places."""
    memory = ClientMemory(torch.arange(650.0), Key(bytes(32)))
    view, kept = VOTE.read({}, memory, now(0))
    assert view.mask is None
    assert view.weights is memory.weights
    view, kept = VOTE.read(SENT, kept, now(1))
    again, _ = VOTE.read({Part.VALUES: torch.zeros(5)}, ClientMemory.read(kept.pack()), now(2))
    for each, values in ((view, SENT[Part.VALUES]), (again, torch.zeros(5))):
        assert torch.equal(each.weights, memory.weights.index_copy(0, mask_of(view), values))
        assert mask_of(each).tolist() == [1, 2, 64, 300, 649]


@pytest.mark.parametrize(
    ("parts", "mask", "sentence"),
    [
        (SENT, torch.tensor([1, 2, 64, 300, 648]), "the mask that this client has received before"),
        ({}, None, "the mask with the first broadcast, got none"),
        ({Part.VALUES: torch.zeros(5)}, None, "the mask with the first broadcast, got none"),
        ({Part.VALUES: torch.zeros(4)}, torch.tensor([1, 2, 64, 300, 649]), "weights at the 5 coordinates"),
        ({}, torch.tensor([1, 2, 64, 300, 649]), "weights at the 5 coordinates"),
        ({**SENT, Part.MASK: indices.pack(torch.tensor([1, 2]), 650)}, None, "mask of 5 coordinates, got 2"),
    ],
)
def test_a_client_refuses_a_broadcast_that_does_not_fit(parts: Parts, mask: Tensor | None, sentence: str) -> None:
    with pytest.raises(WireError, match=sentence):
        VOTE.read(parts, ClientMemory(torch.arange(650.0), Key(bytes(32)), mask), now(1))


@pytest.mark.parametrize("parts", [SENT, {Part.VALUES: torch.zeros(5)}], ids=["mask", "values"])
def test_a_client_votes_in_the_first_round_and_in_no_other(parts: Parts) -> None:
    memory = ClientMemory(torch.arange(650.0), Key(bytes(32)))
    with pytest.raises(WireError, match="in the round in which clients vote"):
        VOTE.read(parts, memory, now(0))
    with pytest.raises(WireError, match="Expected a mask"):
        VOTE.encode(DenseRows(torch.ones(1, 650)), View(memory.weights, {}), now(1))
    with pytest.raises(WireError, match="Expected a mask"):
        Select(TOP_K).encode(DenseRows(torch.ones(1, 650)), View(memory.weights, {}), now(0))


def test_a_mask_that_is_sent_again_is_the_same() -> None:
    kept = ClientMemory(torch.arange(650.0), Key(bytes(32)), torch.tensor([1, 2, 64, 300, 649]))
    assert mask_of(VOTE.read(SENT, kept, now(1))[0]).tolist() == [1, 2, 64, 300, 649]


def test_a_run_in_which_nobody_voted_ends_with_advice() -> None:
    with pytest.raises(TrainingError, match="nobody voted in the first round"):
        VOTE.broadcast(State(1, torch.zeros(650)), now(1))


def test_decoding_changes_no_weight_outside_the_mask() -> None:
    state = State(0, torch.tensor([0.0, -0.0, 1.0, -0.0]), {MASK: torch.tensor([2])})
    after = state.weights + Select(Vote(size=Size(number=1))).decode(torch.tensor([0.5]), state, now(1))[0]
    assert torch.equal(after, torch.tensor([0.0, -0.0, 1.5, -0.0]))
    assert after.signbit().tolist() == [False, True, False, True]


def test_a_ballot_votes_for_the_largest_updates() -> None:
    rows = torch.tensor([[0.1, -3.0, 2.0, 0.0], [1.0, 1.0, 1.0, 1.0]])
    ballots = Select(Vote(size=Size(number=2))).encode(DenseRows(rows), View(torch.zeros(4), {}), now())
    assert ballots.dense().tolist() == [[0.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]]


def test_a_vote_selects_the_coordinates_with_the_most_votes() -> None:
    """The engine's first round against a count by hand; the model does not change in that round."""
    vote, work = method(Vote(size=FIVE), sampler=Everyone()), task()
    (state, report), *rest = rounds(vote, work, workers=1, randomness="seeded")
    first = initial_state(vote, work)
    votes = torch.zeros(650)
    wave = StackedClients(torch.arange(8), work.population, ReferenceLearner(zoo.softmax(), work.loss))
    for row in wave.descend(first.weights, SGD.descent(now())).dense():
        votes[row.abs().topk(5).indices] += 1
    ranked = sorted(range(650), key=lambda i: (-votes[i], i))[:5]
    assert state.memory[MASK].tolist() == sorted(ranked)
    assert torch.equal(state.weights, first.weights)
    assert set(report.up) == {24 + 12 + 4 * 650}
    assert set(report.down) == {24}
    assert all(torch.equal(later.memory[MASK], state.memory[MASK]) for later, _ in rest)
    assert set(rest[0][1].up) == {24 + 12 + 4 * 5}


def test_noise_changes_the_result_of_a_vote() -> None:
    noisy = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=100.0)
    masks = []
    for pieces in ({}, {"mechanism": noisy, "channel": IdealSum()}):
        (state, _), *_ = rounds(method(Vote(size=FIVE), rounds=1, **pieces), task(), workers=1, randomness="seeded")
        masks.append(state.memory[MASK].tolist())
    assert masks[0] != masks[1]


def test_a_vote_is_accounted_as_one_of_the_rounds() -> None:
    mechanism = DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=2.0)
    with_vote, without = (
        [
            *follow(
                RunSpec(
                    method=method(selection, mechanism=mechanism, channel=IdealSum()), task=task(), randomness="seeded"
                ),
                workers=1,
            )
        ][-1]
        for selection in (Vote(size=FIVE), FixedRandom(size=FIVE))
    )
    assert with_vote.state.round == without.state.round == 3
    assert isinstance(with_vote.privacy, Guarantee)
    assert isinstance(without.privacy, Guarantee)
    assert with_vote.privacy.epsilon == without.privacy.epsilon is not None
    assert [report.epsilons[Unit.CLIENT] for report in with_vote.history] == [
        report.epsilons[Unit.CLIENT] for report in without.history
    ]


def test_a_public_bound_needs_coordinates_that_are_known_before_the_first_round() -> None:
    mechanism = DistributedGaussian(clip=PublicClip(), noise_multiplier=1.0)
    vote = method(Vote(size=FIVE), mechanism=mechanism, channel=IdealSum())
    with pytest.raises(UserError, match=r"x: the clipping bound cannot be estimated from public data.*Vote.*clip="):
        initial_state(vote, task())


def test_clients_and_server_use_the_same_mask() -> None:
    for selection in SELECTIONS:
        selecting = method(selection)
        state = initial_state(selecting, task())
        memory = ClientMemory(state.weights, Key.from_seed(0, "shared").child("before"))
        here = now(0 if isinstance(selection, Vote) else 2)
        parts = broadcast(selecting, state, here).client_parts(first=True)
        read, _ = read_broadcast(selecting, parts, memory, here)
        decoded = selection.mask(state.memory.get(MASK), state.dim, here)
        if read.mask is None or decoded is None:
            assert read.mask is decoded
        else:
            assert torch.equal(read.mask, decoded)
