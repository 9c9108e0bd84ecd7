"""For every method that protects records, and every piece that fits it: one record moves a row by what is priced.

A method adds noise for records in one of two places. After a mechanism with `RecordClip`, the row itself is measured,
with a record that is hostile and without it. After noise of the trainer's own, all that follows is post-processing, so
that nothing may look at the records again, and what is measured is the sum to which the trainer adds its noise.
"""

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import zoo
from laws.compositions import SIZE, TOP, all_methods
from scale import head, scaled
from tacit.attacks.lies import lies
from tacit.core import (
    Bound,
    ClientMemory,
    ClientRound,
    CrossEntropy,
    Descent,
    Key,
    Messages,
    Method,
    Perturbation,
    Query,
    Rows,
    SimulatedRound,
    State,
    View,
    Wave,
)
from tacit.core.client_half import make_messages, read_broadcast
from tacit.core.interfaces import Channel, Codec, Mechanism, Trainer
from tacit.core.prices import Unit, Unproved
from tacit.core.rows import ClippedSum
from tacit.core.schema import SLOTS
from tacit.core.server_half import prepare, reject_unusable
from tacit.core.standardised import StandardisedLinear
from tacit.core.wave import EmptyWave, Shapes
from tacit.data import Population
from tacit.engine.layout import Layout
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import UserError, WireError
from tacit.pieces.aggregators import KMeans, Mean, WeightedMean
from tacit.pieces.channels import Enclave, IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Vote
from tacit.pieces.mechanisms import DistributedGaussian, Grid, Reals
from tacit.pieces.mechanisms.arithmetic import Arithmetic
from tacit.pieces.trainers import BestOf, DpSgd, RecordGradient
from tacit.wire.sparse import Compact

SIZES = [9, 7, 5, 6, 8]
HOSTILE = (1e6, -1.0, 1e18)  # factors of a record, which has another label too
VICTIM = 3  # of client 0
METHODS = all_methods()
FEDSGD = METHODS["dp-fedsgd"]
MOMENTS = replace(FEDSGD, trainer=replace(FEDSGD.trainer, rate=1.0, moments=70.0))  # type: ignore[type-var]
RECORD_METHODS = {name: method for name, method in METHODS.items() if method.terms.protects_records} | {
    "dp-fedsgd of standardised inputs": MOMENTS
}


def different(slot: str) -> list[Any]:
    """All pieces of a slot that any method has."""
    return list({repr(getattr(method, slot)): getattr(method, slot) for method in METHODS.values()}.values())


def codecs() -> list[Codec]:
    chosen = (TOP, Vote(size=SIZE), RandomK(size=SIZE), FixedRandom(size=SIZE))
    return [*different("codec"), *(Select(selection) for selection in chosen)]


def mechanisms(method: Method) -> list[Mechanism]:
    own = method.mechanism
    if not isinstance(own, DistributedGaussian):
        return different("mechanism")
    ways: tuple[Arithmetic, ...] = (Reals(), Grid(), Grid(noise="skellam"))
    variants = [
        replace(own, arithmetic=arithmetic, single_draw=single_draw, dropouts=dropouts)
        for arithmetic, single_draw, dropouts in product(ways, (True, False), (0.0, 0.2))
    ]
    return [*variants, *different("mechanism")]


def channels() -> list[Channel]:
    return [
        *different("channel"),
        IdealSum(),
        SecureSum(),
        Enclave(min_clients=1),
        Enclave(min_clients=1, wire=Compact()),
    ]


def surely_drawn(method: Method) -> Method:
    """The method with batches of all records, so that the one that is changed is in them."""
    match method.trainer:
        case RecordGradient():
            return replace(method, trainer=replace(method.trainer, rate=1.0))
        case DpSgd():
            return replace(method, trainer=replace(method.trainer, batch_size=100, epochs=None, steps=2))
    raise AssertionError("a trainer for records that this law does not know")


def composed(method: Method) -> Iterator[Method]:
    """The method with all pieces of Tacit's that fit it, and are not refused."""
    own = surely_drawn(method)
    trainers: list[Trainer] = [own.trainer, BestOf(own.trainer)]
    if not standardises(own):  # which trains all weights
        trainers.append(replace(own.trainer, masked=not own.trainer.masked))  # type: ignore[type-var]
    for codec, mechanism, channel in product(codecs(), mechanisms(own), channels()):
        yield from _fitting(own, codec=codec, mechanism=mechanism, channel=channel)
    for trainer, codec, aggregator in product(trainers, codecs(), (Mean(), WeightedMean(), KMeans(1), KMeans(2))):
        yield from _fitting(own, trainer=trainer, codec=codec, aggregator=aggregator)
    yield from _fitting(own, max_row_norm=2.0)


def _fitting(method: Method, **pieces: Any) -> Iterator[Method]:
    try:
        made = replace(method, **pieces)
        prepared(made)
    except UserError:
        return
    if Unit.RECORD in made.terms.accounted:
        yield made


def told_apart(method: Method) -> str:
    """By what is measured: after noise of the trainer's own, the channel makes no difference."""
    if method.terms.record_bound is not None:
        return repr(method)
    return repr((method.trainer, method.codec, method.mechanism, method.aggregator))


def standardises(method: Method) -> bool:
    """Whether its model is linear, with inputs that the first round standardises."""
    return isinstance(method.trainer, RecordGradient) and method.trainer.moments is not None


def population(factor: float | None, unit: Unit = Unit.RECORD, *, flat: bool = False) -> Population:
    """Clients, one of which has a hostile record or person; None: not there, as what is not a number adds nothing."""
    clients = zoo.population(SIZES)
    x, y = clients.x.flatten(1) if flat else clients.x.clone(), clients.y.clone()
    places = clients.indices(0)[VICTIM : VICTIM + (1 if unit is Unit.RECORD else 3)]
    x[places] *= torch.nan if factor is None else factor
    y[places] = (y[places] + 1) % 10
    hostile = replace(clients, x=x, y=y)
    if unit is Unit.RECORD:
        return hostile
    ids = [[max(place - 2, VICTIM) if place >= VICTIM else place for place in range(size)] for size in SIZES]
    return hostile.with_persons([[f"{client} {each}" for each in own] for client, own in enumerate(ids)])


@cache
def learner(*, linear: bool = False) -> AutoLearner:
    torch.manual_seed(0)
    return AutoLearner(StandardisedLinear(64, 10) if linear else zoo.mlp(), CrossEntropy())


def now(index: int) -> SimulatedRound:
    keys = Key.from_seed(0, "shared"), Key.from_seed(0, "secret")
    return SimulatedRound.of(index, len(SIZES), float(len(SIZES)), len(SIZES), *keys)


@cache
def prepared(method: Method) -> State:
    linear, public = standardises(method), zoo.population([6], seed=3)
    used = learner(linear=linear)
    public = replace(public, x=public.x.flatten(1)) if linear else public
    layout = Layout.of(used.model)
    state = State(0, layout.flatten(used.model), layers=layout.sizes, shapes=layout.shapes)
    return prepare(method, state, StackedClients(torch.tensor([0]), public, used), now(0))


@dataclass(frozen=True, eq=False)
class Watched:
    """A wave that is asked for nothing but sums of clipped records or terms, and remembers the former."""

    inner: StackedClients
    sums: list[ClippedSum]

    clients = property(lambda self: self.inner.clients)
    samples = property(lambda self: self.inner.samples)
    units = property(lambda self: self.inner.units)

    @property
    def shapes(self) -> Shapes:
        return self.inner.shapes

    def clipped_sums(
        self, weights: Tensor, batches: Sequence[Tensor], clip: float, mask: Tensor | None
    ) -> list[ClippedSum]:
        found = self.inner.clipped_sums(weights, batches, clip, mask)
        self.sums.extend(found)
        return found

    def term_sums(self, query: Query, state: Tensor, *, cells: bool = False) -> Tensor:
        return self.inner.term_sums(query, state, cells=cells)

    def keep(self, which: Tensor) -> "Watched":
        return Watched(self.inner.keep(which), self.sums)

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        raise AssertionError("records are read without clipping")

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        raise AssertionError("records are read again, without noise")

    def losses(self, hypotheses: Tensor) -> Tensor:
        raise AssertionError("records are read again, without noise")


def watched(method: Method, factor: float | None, unit: Unit) -> Watched:
    linear = standardises(method)
    clients = population(factor, unit, flat=linear)
    return Watched(StackedClients(torch.tensor([0]), clients, learner(linear=linear)), [])


def rounds_of(method: Method) -> Iterator[tuple[View, ClientRound]]:
    """The first two rounds, as far as there is a broadcast for them before anything was trained."""
    for index in (0, 1):
        here, state = now(index), prepared(method)
        voting = isinstance(method.codec, Select) and isinstance(method.codec.selection, Vote)
        if not (voting and index):
            yield zoo.view_of(method, state, here), here


def lied_to(method: Method) -> Iterator[tuple[View, ClientRound]]:
    """What a new client makes of a lying server's broadcasts, unless it refuses them."""
    state, here = prepared(method), now(0)
    for lie in lies(Key.from_seed(0, "lies")):
        parts = lie.change_broadcast(method, state, here).client_parts(first=True, wire_format=method.channel.down)
        memory = ClientMemory(state.weights, here.shared)
        with suppress(WireError):
            yield read_broadcast(method, parts, memory, here)[0], here


def sent(
    method: Method, view: View, here: ClientRound, factor: float | None, unit: Unit = Unit.RECORD
) -> tuple[Messages, list[ClippedSum]]:
    """A client's message; what comes after the trainer has no data at all."""
    data = watched(method, factor, unit)
    rows = method.codec.encode(method.trainer.train(view, data, here), view, here)
    samples = data.samples if method.weighted else None
    empty = _NoRecords(data.shapes)
    messages = method.mechanism.at_client(Messages(data.clients, rows, samples), view, empty, here)
    return method.channel.send(messages, here), data.sums


class _NoRecords(EmptyWave):
    """What a mechanism gets instead of a client's data: it may know how many there are, and nothing else."""

    samples = property(lambda _: torch.tensor([SIZES[0]]))

    def descend(self, weights: Tensor, how: Descent) -> Rows:
        raise AssertionError("records are read again, without noise")

    def perturbed_scores(self, weights: Tensor, perturbation: Perturbation) -> Tensor:
        raise AssertionError("records are read again, without noise")


def distances(method: Method, view: View, here: ClientRound, unit: Unit = Unit.RECORD) -> Iterator[float]:
    """How far hostile records move what gets noise, relative to how far they may."""
    other, without = sent(method, view, here, None, unit)
    for factor in HOSTILE:
        one, sums = sent(method, view, here, factor, unit)
        if method.terms.record_bound is None:
            assert isinstance(method.trainer, DpSgd)
            yield float((sums[0].total - without[0].total).norm()) / method.trainer.clip
        else:
            assert method.channel.message_format.sizes(one) == method.channel.message_format.sizes(other)
            inflation = 0.0 if one.grid_step is None else one.grid_step.inflation
            difference = one.rows.dense().double() - other.rows.dense().double()
            yield float(difference.norm()) / method.terms.record_bound / (1 + inflation)


@pytest.mark.law
@pytest.mark.parametrize("name", RECORD_METHODS)
def test_one_record_moves_a_row_by_no_more_than_is_priced(name: str) -> None:
    """Takes seconds: only this would find a piece that may not follow records, and is not refused."""
    fitting = {told_apart(method): method for method in composed(RECORD_METHODS[name])}
    assert len(fitting) >= 10  # the law is about something
    for method in fitting.values():
        for view, here in rounds_of(method):
            assert max(distances(method, view, here)) <= 1 + 1e-4, repr(method)


def nearly(own: Method, fitting: Iterable[Method]) -> list[Method]:
    """Those that differ from a method in one piece at most."""
    return [each for each in fitting if sum(getattr(each, slot) != getattr(own, slot) for slot in SLOTS) <= 1]


def some(own: Method, fitting: Mapping[str, Method], what: str) -> list[Method]:
    """These, and a few of the others, which another commit changes; in a campaign all."""
    near = nearly(own, fitting.values())
    others = [fitting[each] for each in sorted(fitting) if fitting[each] not in near]
    count = scaled(4, campaign=len(others))
    return near + random.Random(f"{head()} {what}").sample(others, min(count, len(others)))


@pytest.mark.law
@pytest.mark.parametrize("unit", [Unit.RECORD, Unit.PERSON])
@pytest.mark.parametrize("name", RECORD_METHODS)
def test_a_lying_server_gets_no_more_of_a_record_or_person(name: str, unit: Unit) -> None:
    """Of all methods that can be composed."""
    own = surely_drawn(RECORD_METHODS[name])
    tried, fitting = 0, {told_apart(each): each for each in composed(RECORD_METHODS[name])}
    for method in some(own, fitting, f"{name} {unit}"):
        for view, here in (*rounds_of(method), *lied_to(method)):
            tried += 1
            assert max(distances(method, view, here, unit)) <= 1 + 1e-4, repr(method)
    assert tried >= 20


CLIENT_METHODS = {
    name: method
    for name, method in METHODS.items()
    if Unit.CLIENT in method.terms.accounted and not isinstance(method.terms.prices[Unit.CLIENT], Unproved)
}


def client_row(method: Method, view: View, here: ClientRound, factor: float) -> tuple[Tensor, Bound, float]:
    """The row of a client all of whose records are hostile, as it is summed, with its bound and rounding."""
    clients = zoo.population(SIZES)
    data = StackedClients(torch.tensor([0]), replace(clients, x=factor * clients.x), learner())
    messages, _ = reject_unusable(make_messages(method, view, data, here))
    bounded = method.mechanism.before_sum(messages, prepared(method))
    rows, step = bounded.messages.rows.dense().double(), bounded.messages.grid_step
    row = rows[0] if len(rows) else rows.new_zeros(rows.shape[1])
    return row, bounded.bound, 0.0 if step is None else step.inflation


@pytest.mark.law
@pytest.mark.parametrize("name", CLIENT_METHODS)
def test_a_lying_server_gets_no_more_of_a_client(name: str) -> None:
    """However hostile its data: two rows of a client are at most twice the bound apart, to which noise is scaled."""
    method = CLIENT_METHODS[name]
    honest = next(iter(rounds_of(method)))
    _, bound, _ = client_row(method, *honest, 1.0)
    for view, here in (honest, *lied_to(method)):
        zero, _, _ = client_row(method, view, here, 0.0)
        for factor in HOSTILE:
            row, received, inflation = client_row(method, view, here, factor)
            assert received.values == bound.values
            axes = 1.0 if bound.axes is None or bound.ball else bound.axes.double()
            most = bound.whole if bound.axes is None or bound.ball else bound.values[0]
            assert float(((row - zero) / axes).norm()) <= 2 * most * (1 + inflation) * (1 + 1e-4)


def test_every_way_to_protect_records_is_tried() -> None:
    assert {method.terms.record_bound is None for method in RECORD_METHODS.values()} == {True, False}
    assert set(RECORD_METHODS) >= {"dp-sgd", "dp-fedsgd", "fl-top-record-dp", "fl-top-dp-sgd"}


_: type[Wave] = Watched
