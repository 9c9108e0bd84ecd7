"""Pieces of your own: what is claimed for them, and what the checker finds."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

import tacit
import zoo
from attacks.bugs import HalfTheNoise
from tacit import Method
from tacit.core import (
    Bound,
    BoundedMessages,
    ClientRound,
    DenseRows,
    Key,
    Mean,
    Messages,
    Round,
    Rows,
    ServerRound,
    State,
    Sum,
    Turnout,
    View,
    Wave,
)
from tacit.core.composition import PIECES
from tacit.core.interfaces import Aggregator, Mechanism, Summation, Trainer
from tacit.core.neutral import Identity, NoNoise
from tacit.core.prices import Gaussian, Price, Release, Unit, Unproved
from tacit.core.provenance import is_bounded_for, own_parts
from tacit.data import Task
from tacit.engine.waves import StackedClients
from tacit.errors import CompositionError, UserError
from tacit.methods import definitions, make
from tacit.pieces import CentralGaussian, FixedClip, Poisson, Sgd
from tacit.pieces.codecs import RandomK, Select, Size
from tacit.pieces.mechanisms.clipping import clip_rows
from tacit.pieces.samplers import Everyone, Growing
from tacit.pieces.trainers import DpSgd, RecordGradient
from tacit.runs.probing import probe
from tacit.runs.run import RunSpec


@dataclass(frozen=True)
class Median(Aggregator):
    """Not a sum; it declares nothing, and is therefore not taken for one."""

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        rows = bounded.messages.rows.dense()
        return bounded.summed(rows.median(0).values * len(rows), float(len(rows)), 0.0)


@dataclass(frozen=True)
class HiddenMedian(Median):
    """Not a sum, and it does not say so."""

    requires: ClassVar[Summation] = "sum"
    sensitivity: ClassVar[float] = 1.0


@dataclass(frozen=True)
class Hundredfold(Mean):
    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        total = super().combine(bounded, state)
        return replace(total, total=total.total * 100)


@dataclass(frozen=True)
class DeclaredHundredfold(Hundredfold):
    sensitivity: ClassVar[float] = 100.0


@dataclass(frozen=True)
class UnderstatedHundredfold(Hundredfold):
    sensitivity: ClassVar[float] = 1.0


@dataclass(frozen=True)
class Signs(Identity):
    """Turned by a single record, however little it adds."""

    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return DenseRows(rows.dense().sign())


@dataclass(frozen=True)
class Ballots(Select):
    """Sends ballots in every round without a mask."""

    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return rows.select(view.mask) if view.mask is not None else DenseRows((rows.dense() > 2).float())


@dataclass(frozen=True)
class Turned(Identity):
    """A linear map that lengthens nothing."""

    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return DenseRows(-rows.dense().flip(1))


@dataclass(frozen=True)
class Peeking(NoNoise):
    """Adds something that it reads in the data."""

    bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        losses = data.losses(view.weights[None])
        return replace(messages, rows=DenseRows(messages.rows.dense() + losses.to(torch.float32)))


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Signs(), "one moves a row by"),
        (Ballots(RandomK(size=Size(ratio=0.5))), "one moves a row by"),
        (Peeking(), "reads their data"),
    ],
)
def test_what_is_wrongly_declared_to_be_bounded_for_records_is_found(piece: object, words: str) -> None:
    (found,) = probe(piece).violations
    assert "It is declared to be bounded for records, but" in found
    assert words in found


@pytest.mark.parametrize("piece", [Turned(), Select(RandomK(size=Size(ratio=0.5))), Identity(), NoNoise()])
def test_what_is_bounded_for_records_passes(piece: object) -> None:
    assert probe(piece).passed


@dataclass(frozen=True, kw_only=True)
class Mixing(Sgd):
    """Every client gets a part of its neighbour's update."""

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        rows = super().train(view, data, now).dense()
        return DenseRows(rows + 0.1 * rows.roll(1, 0))


@dataclass(frozen=True, kw_only=True)
class Harmless(Sgd):
    sensitivity: ClassVar[float] = 1.0


@dataclass(frozen=True)
class Halved(Mean):
    """A sum of halves: one client changes it by half of its bound."""

    sensitivity: ClassVar[float] = 0.5

    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        total = super().combine(bounded, state)
        return replace(total, total=total.total / 2)


@dataclass(frozen=True, kw_only=True)
class TenthOfTheNoise(HalfTheNoise):
    part: ClassVar[float] = 0.1


@dataclass(frozen=True, kw_only=True)
class NoNoiseOnTheLast(CentralGaussian):
    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noisy = super().after_sum(total, now)
        return replace(noisy, total=torch.cat([noisy.total[:-3], total.total[-3:]]))


@dataclass(frozen=True, kw_only=True)
class Unclipped(CentralGaussian):
    def before_sum(self, messages: tacit.core.Messages, state: State) -> BoundedMessages:
        return replace(super().before_sum(messages, state), messages=messages)


@dataclass(frozen=True)
class Favourite(Poisson):
    """Client 0 takes part twice as often as is declared."""

    def cohort(self, population: int, index: int, key: Key) -> Tensor:
        cohorts = [super(Favourite, self).cohort(population, index, key.child("coin", i)) for i in range(2)]
        drawn: Tensor = torch.cat([cohorts[0], cohorts[1][cohorts[1] == 0]]).unique()
        return drawn


@dataclass(frozen=True)
class Averaging(tacit.pieces.Identity):
    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return DenseRows(rows.dense() - rows.dense().mean(0))


@dataclass(frozen=True)
class Drifting(tacit.pieces.Add):
    def apply(self, state: State, aggregate: Tensor) -> State:
        return replace(state, weights=state.weights + torch.randn(len(aggregate)))


@dataclass(frozen=True)
class Raising(Mean):
    def combine(self, bounded: BoundedMessages, state: State) -> Sum:
        raise ValueError("not today")


def method(**pieces: object) -> Method:
    noisy = CentralGaussian(clip=FixedClip(1.0), noise_multiplier=1.0)
    given = {"sampler": Poisson(3), "trainer": Sgd(lr=0.1, steps=1), "mechanism": noisy, **pieces}
    return Method(name="mine", rounds=2, **given)  # type: ignore[arg-type]


def guarantee(used: Method) -> str:
    task = Task(model=zoo.mlp, clients=zoo.population([5, 3, 8, 4, 4, 4]))
    return str(tacit.train(used, task, workers=1).privacy)


class Unclipped100(RecordGradient):
    """Clips nothing, in whatever it declares."""

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        return RecordGradient(rate=self.rate, clip=1e9).train(view, data, now)


class RowsTimes100(RecordGradient):
    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        return super().train(view, data, now).scaled(torch.full((len(data.clients),), 100.0))


class RecordsOfPersons(RecordGradient):
    """Clips the records of a person one by one."""

    draws_persons: ClassVar[bool] = True

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        assert isinstance(data, StackedClients)
        bare = replace(data, population=replace(data.population, persons=None))
        return super().train(view, bare, now)


class NoNoiseInSteps(DpSgd):
    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        quiet = DpSgd(lr=self.lr, steps=self.steps, batch_size=self.batch_size, clip=self.clip, noise_multiplier=1e-3)
        return quiet.train(view, data, now)


class UnclippedSteps(DpSgd):
    """The noise of a step is as large as ever, and no gradient is clipped."""

    def train(self, view: View, data: Wave, now: ClientRound) -> Rows:
        assert self.noise_multiplier is not None
        noise, clip = self.noise_multiplier * self.clip / 1e4, 1e4
        quiet = DpSgd(lr=self.lr, steps=self.steps, batch_size=self.batch_size, clip=clip, noise_multiplier=noise)
        return quiet.train(view, data, now)


IN_STEPS: dict[str, Any] = {"lr": 0.1, "steps": 2, "batch_size": 4, "clip": 0.5, "noise_multiplier": 1.0}


@pytest.mark.parametrize(
    ("piece", "words"),
    [
        (Unclipped100(rate=1.0, clip=0.5), "One record that is a million times as large moves the row of its client"),
        (RowsTimes100(rate=1.0, clip=0.5), "One record that is negative moves the row of its client"),
        (RecordsOfPersons(rate=1.0, clip=0.5), "One person that is a million times as large moves the row"),
        (NoNoiseInSteps(**IN_STEPS), "noise is missing, or records are not clipped"),
        (UnclippedSteps(**IN_STEPS), "noise is missing, or records are not clipped"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_trainers_that_do_not_bound_records_are_found(piece: Trainer, words: str) -> None:
    assert words in str(probe(piece))


@pytest.mark.parametrize(
    "piece",
    [
        RecordGradient(rate=1.0, clip=0.5),
        RecordGradient(rate=0.5, clip=2.0),
        DpSgd(**IN_STEPS),
        DpSgd(**{**IN_STEPS, "quantile": 0.5, "batch_size": 1}),
        DpSgd(**{**IN_STEPS, "noise_multiplier": None, "momentum": 0.9}),
    ],
    ids=repr,
)
def test_trainers_that_bound_records_pass(piece: Trainer) -> None:
    found = probe(piece)
    assert found.passed, str(found)
    assert found.tried > 12


def test_a_method_of_our_pieces_has_no_parts_of_ones_own() -> None:
    for name in definitions():
        assert own_parts(make(name)) == ()


@pytest.mark.parametrize(
    ("pieces", "named"),
    [
        ({"aggregator": Hundredfold()}, "your aggregator `Hundredfold`"),
        ({"trainer": Mixing(lr=0.1, steps=1)}, "your trainer `Mixing`"),
        ({"mechanism": TenthOfTheNoise(clip=FixedClip(1.0), noise_multiplier=1.0)}, "your mechanism `TenthOfTheNoise`"),
        ({"sampler": Growing(stages=((1, Favourite(3)),))}, "your sampler `Favourite`"),
        (
            {"aggregator": Hundredfold(), "trainer": Mixing(lr=0.1, steps=1)},
            "your trainer `Mixing` and your aggregator `Hundredfold`",
        ),
    ],
)
def test_nothing_is_claimed_for_a_piece_that_is_not_ours(pieces: dict[str, object], named: str) -> None:
    assert guarantee(method(**pieces)).startswith(
        f"none: rests on {named}, whose sensitivity nobody has proved.\nNote:\n  Nominal ε = "
    )


@dataclass(frozen=True)
class Minimal(Mechanism):
    """A mechanism with the four members that it must have, and no other."""

    def price(self, index: int, turnout: Turnout | None = None) -> Price:
        return Release(Gaussian(1.0))

    def at_client(self, messages: Messages, view: View, data: Wave, now: ClientRound) -> Messages:
        return messages

    def before_sum(self, messages: Messages, state: State) -> BoundedMessages:
        return BoundedMessages(replace(messages, rows=clip_rows(messages.rows, Bound((1.0,)))), Bound((1.0,)))

    def after_sum(self, total: Sum, now: ServerRound) -> Sum:
        noise = now.server.child("minimal").stream().normal(total.total.shape, total.total)
        return replace(total, total=total.total + noise, weight=now.expected_cohort)


def test_a_mechanism_needs_four_members_and_the_rest_is_the_worst_case() -> None:
    used = method(mechanism=Minimal())
    run = tacit.train(used, Task(model=zoo.mlp, clients=zoo.population([5, 3, 8, 4, 4, 4])), workers=1)
    assert run.charges[Unit.CLIENT].rounds == run.state.round == 2
    assert str(run.privacy).startswith("none: rests on your mechanism `Minimal`, whose sensitivity nobody has proved.")
    assert probe(Minimal()).passed
    assert Minimal().requires == "all messages"
    assert not is_bounded_for(Minimal(), Unit.RECORD)
    with pytest.raises(CompositionError, match="Minimal processes every message at the server"):
        method(mechanism=Minimal(), channel=tacit.pieces.SecureSum())


@pytest.mark.parametrize("interface", [each for each, _ in PIECES.values()])
def test_a_piece_that_does_not_answer_what_it_must_cannot_be_made(interface: type) -> None:
    with pytest.raises(TypeError, match="abstract"):
        type("Empty", (interface,), {})()


def test_a_piece_that_claims_to_be_of_another_module_is_ones_own() -> None:
    """Code that is executed without a name claims to be of `builtins`."""
    names: dict[str, object] = {"CentralGaussian": CentralGaussian}
    exec("class Claimed(CentralGaussian): ...", names)
    claimed = names["Claimed"](clip=FixedClip(1.0), noise_multiplier=1.0)  # type: ignore[operator]
    assert type(claimed).__module__ == "builtins"
    assert [str(part) for part in own_parts(method(mechanism=claimed))] == ["your mechanism `Claimed`"]


def test_a_declared_sensitivity_is_tested_and_counts() -> None:
    """A hundred times the sensitivity is a hundredth of the noise multiplier; half of it is twice."""
    for aggregator, noise in ((DeclaredHundredfold(), 0.01), (Halved(), 2.0)):
        used = method(aggregator=aggregator)
        price = used.terms.prices[Unit.CLIENT].accounted
        assert price is not None
        assert price.release.loss == Gaussian(noise)
        named = f"your aggregator `{type(aggregator).__name__}`"
        assert f"The sensitivity of {named} was declared by you and tested, not proved." in guarantee(used)
    harmless = guarantee(method(trainer=Harmless(lr=0.1, steps=1)))
    assert harmless.startswith("(ε = ")
    assert "your trainer `Harmless` was declared by you and tested, not proved" in harmless


@pytest.mark.parametrize(
    ("aggregator", "sentence"),
    [
        (HiddenMedian(), "It does not add messages up"),
        (UnderstatedHundredfold(), "One client changes the sum by 100 times its bound; 1 is declared."),
    ],
)
def test_a_false_declaration_is_refused(aggregator: tacit.core.interfaces.Aggregator, sentence: str) -> None:
    task = Task(model=zoo.mlp, clients=zoo.population([5, 3, 8, 4, 4, 4]))
    with pytest.raises(UserError, match=sentence):
        RunSpec(method=method(aggregator=aggregator), task=task)


def test_an_aggregator_that_is_no_sum_is_refused_under_noise_on_the_sum() -> None:
    with pytest.raises(CompositionError) as error:
        method(aggregator=Median())
    assert str(error.value) == (
        "mine: CentralGaussian adds noise to a sum of bounded messages, but Median is not a sum. Use Mean."
    )
    assert method(aggregator=Median(), mechanism=tacit.pieces.NoNoise()).terms.prices[Unit.CLIENT] == Unproved(
        "no noise is added, so updates can reveal training data", noisy=False
    )


@pytest.mark.parametrize(
    ("piece", "slot", "sentence"),
    [
        (HiddenMedian(), "aggregator", "It does not add messages up"),
        (UnderstatedHundredfold(), "aggregator", "changes the sum by 100 times"),
        (Raising(), "aggregator", "It raises ValueError: not today"),
        (Mixing(lr=0.1, steps=1), "trainer", "depends on another client's data"),
        (Averaging(), "codec", "depends on another client's row"),
        (TenthOfTheNoise(clip=FixedClip(1.0), noise_multiplier=1.0), "mechanism", "The noise of a sum is"),
        (NoNoiseOnTheLast(clip=FixedClip(1.0), noise_multiplier=1.0), "mechanism", "The noise of a sum is 0 times"),
        (Unclipped(clip=FixedClip(1.0), noise_multiplier=1.0), "mechanism", "times as long as its bound"),
        (
            CentralGaussian(clip=tacit.pieces.MedianClip(), noise_multiplier=1.0),
            "mechanism",
            "The bound depends on the rows",
        ),
        (Favourite(8), "sampler", "not sampled at the declared rate"),
        (Drifting(), "server", "give another model"),
    ],
)
def test_the_checker_finds_violations(piece: object, slot: str, sentence: str) -> None:
    found = probe(piece)
    assert (found.slot, found.passed) == (slot, False)
    assert any(sentence in violation for violation in found.violations), found.violations


def test_our_own_pieces_pass() -> None:
    """Except those that are accounted as unproved, or not as a sum."""
    tried = set[str]()
    for name in definitions():
        used = make(name).with_noise_multiplier(1.0)
        proved = [] if isinstance(used.mechanism.price(0), Unproved) else [used.mechanism]
        sums = [used.aggregator] if used.aggregator.models == 1 else []
        for piece in (used.sampler, used.trainer, used.codec, used.server, *proved, *sums):
            if repr(piece) not in tried:
                assert probe(piece).passed, (name, str(probe(piece)))
                tried.add(repr(piece))
    assert len(tried) > 20


def test_what_cannot_be_checked() -> None:
    with pytest.raises(
        UserError, match="Expected a sampler, trainer, codec, mechanism, aggregator or server, got Plain"
    ):
        probe(tacit.pieces.Plain())
    assert str(probe(Everyone())).startswith("sampler Everyone: 3 trials, no violation found.")
    assert "of 12 trials failed.\n  It does not add" in str(probe(HiddenMedian()))
