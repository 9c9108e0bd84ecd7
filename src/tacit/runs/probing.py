"""Tests whether a custom piece keeps the laws behind guarantees, on hostile rows and data.

| piece | tried |
|---|---|
| sampler | cohorts are drawn as `sampling` declares |
| trainer | a client's row depends on no other client's data, and no further on one record than declared |
| codec | a client's row depends on no other client's row |
| mechanism | rows respect the bound, which does not depend on them; the noise of a sum is that of the price |
| aggregator | it adds messages up, and one client changes the sum by at most `sensitivity` times its bound |
| server | the same state and aggregate give the same model |

Where records are protected, records and persons are hostile, too. A trainer whose rows are sums over records
(`record_sum`) moves them by no more than twice its bound if one record, or all records of one person, are others. One
with noise of its own (`record_price`) separates two such rows by no more than its price allows. If a codec is bounded
for records (`bounded_for`), a row moves no further than the update; such a mechanism reads no data.

A failed trial is a violation. A passed one proves nothing.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import sqrt

import torch
from torch import Tensor, nn

from tacit.core import (
    Bound,
    BoundedMessages,
    CrossEntropy,
    DenseRows,
    Key,
    Mean,
    Messages,
    Method,
    SimulatedRound,
    State,
    View,
)
from tacit.core.composition import PIECES, missing_members
from tacit.core.interfaces import Aggregator, Codec, Mechanism, Sampler, ServerUpdate, Trainer
from tacit.core.prices import Release, Repeated, Unit
from tacit.core.provenance import DECLARED, is_bounded_for
from tacit.data import Population, Task
from tacit.engine import rounds as simulate
from tacit.engine.layout import Layout
from tacit.engine.waves import AutoLearner, StackedClients
from tacit.errors import UserError, WireError, one_line
from tacit.pieces.samplers import Everyone

_CLIENTS, _SAMPLES, _INPUTS, _CLASSES = 6, 5, 4, 3
_HOSTILE = (0.0, 1e-30, 1.0, -1.0, 1e6, 1e18)  # factors of rows and data
_UNITS = (1.0, -1.0, 1e6, 1e18, None)  # factors of a record, or of those of a person; None: it is not a number
_NAMES = ("negative", "a million times as large", "at the end of the number range", "not a number")
_EXTREME = (1.0, 1e6)  # factors of two records of opposite sign
_TOLERANCE = 1e-4
_DRAWS = 40  # of noise, each of all coordinates
SIGMAS = 5.0  # a correct piece fails a statistical trial with probability 6e-7


@dataclass(frozen=True)
class Probe:
    """The trials of a piece, and their violations.

    Attributes:
        piece: its class.
        slot: the slot that it fits.
        tried: the number of trials.
        violations: what failed, as sentences.
    """

    piece: str
    slot: str
    tried: int
    violations: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.violations

    def __str__(self) -> str:
        if self.passed:
            return f"{self.slot} {self.piece}: {self.tried} trials, no violation found. This proves nothing."
        details = "".join(f"\n  {one_line(sentence)}" for sentence in self.violations)
        return f"{self.slot} {self.piece}: {len(self.violations)} of {self.tried} trials failed.{details}"


def probe(piece: object) -> Probe:
    """Test a custom piece against the laws behind guarantees.

    Args:
        piece: a sampler, trainer, codec, mechanism, aggregator or server. Parts of it, such as a clipping rule, are
            tried with it.

    Raises:
        UserError: it is none of these. A channel cannot be tried: who sees what is a matter of proof.

    Example:
        >>> print(probe(Mean()))
        aggregator Mean: 12 trials, no violation found. This proves nothing.
    """
    slot = next((slot for slot in _TRIALS if not missing_members(piece, PIECES[slot][0])), None)
    if slot is None:
        raise UserError(
            f"Expected a sampler, trainer, codec, mechanism, aggregator or server, got {type(piece).__name__}. "
            "Make it a subclass of its Protocol in tacit.core.interfaces."
        )
    return _run_trials(type(piece).__name__, slot, _TRIALS[slot](piece))


def probe_method(method: Method) -> tuple[Probe, ...]:
    """Test a method's custom pieces, and the method as a whole in runs with seeded noise on a few clients.

    Returns:
        One result for each piece that is not Tacit's own, except for a channel, which cannot be tried, and one for the
        method.

    Example:
        >>> import tacit
        >>> [found.passed for found in probe_method(tacit.methods.fedavg(cohort=4))]
        [True]
    """
    calibrated = method.with_noise_multiplier(1.0)
    own = {part.slot for part in method.terms.own_parts}
    pieces = tuple(probe(getattr(calibrated, slot)) for slot in _TRIALS if slot in own)
    return *pieces, _run_trials(method.name, "method", _try_method(calibrated))


def _run_trials(name: str, slot: str, trials: Iterator[str]) -> Probe:
    """The result of these trials; an exception of the piece is their last violation."""
    outcomes: list[str] = []
    try:
        for violation in trials:
            outcomes += [violation]
    except Exception as error:  # whatever code of your own raises
        outcomes += [f"It raises {type(error).__name__}: {error}"]
    return Probe(name, slot, len(outcomes), tuple(dict.fromkeys(filter(None, outcomes))))


def _try_method(method: Method) -> Iterator[str]:
    """The method on a small task; cohorts, rounds and budget are those of a trial."""
    population = _population()
    task = Task(model=partial(_module, 128), clients=population, public=population[0], test_overlap="intended")
    trial = replace(method, rounds=2, budget=None, patience=None, sampler=Everyone())
    states = [list(simulate(trial, task, seed=1, workers=workers, randomness="seeded")) for workers in (1, 1, 2)]
    weights = [runs[-1][0].weights for runs in states]
    yield "" if bool(torch.isfinite(weights[0]).all()) else "The model is not finite after two rounds."
    yield "" if torch.equal(weights[0], weights[1]) else "Two runs with the same seed give different models."
    yield "" if torch.equal(weights[0], weights[2]) else "Another number of workers gives another model."
    memory = states[0][-1][0].memory
    yield "" if all(isinstance(value, Tensor) for value in memory.values()) else "State.memory holds more than tensors."


def _module(width: int, *, bias: bool = True, bounded: bool = True) -> nn.Module:
    """A small network; where it is not `bounded`, gradients grow with the inputs."""
    activation = nn.Tanh() if bounded else nn.ReLU()
    layers = nn.Linear(_INPUTS, width, bias=bias), activation, nn.Linear(width, _CLASSES, bias=bias)
    return nn.Sequential(*layers)


def check_declared(method: Method) -> None:
    """Raise `UserError` if a part that declares its sensitivity breaks the laws behind guarantees."""
    declared = {part.slot: part for part in method.terms.own_parts if part.sensitivity is not None}
    for slot, part in declared.items():
        if slot == "channel":
            continue
        piece = getattr(method, slot)
        result = probe(piece.with_noise_multiplier(1.0) if slot == "mechanism" and method.terms.uncalibrated else piece)
        if not result.passed:
            raise UserError(
                f"{method.name}: {part} declares sensitivity={part.sensitivity:g}, but a trial failed: "
                f"{result.violations[0]} Correct it, or leave the declaration out: then nothing is claimed."
            )


def _try_sampler(sampler: Sampler) -> Iterator[str]:
    population, draws = _smallest_population(sampler), 600
    declared = sampler.sampling(population, 0)
    cohorts = [sampler.cohort(population, 0, _key("cohort", draw)) for draw in range(draws)]
    sizes = torch.tensor([len(cohort) for cohort in cohorts], dtype=torch.float64)
    counts = torch.bincount(torch.cat(cohorts), minlength=population).double()
    valid = all(bool((cohort.diff() > 0).all()) for cohort in cohorts) and len(counts) == population
    yield "" if valid else "A cohort is not a set of clients in ascending order."
    slack = SIGMAS * sqrt(draws * declared.rate * (1 - declared.rate)) + _TOLERANCE
    fair = bool(((counts - draws * declared.rate).abs() <= slack).all())
    yield "" if fair else f"A client is not sampled at the declared rate of {declared.rate:g}."
    expected = population * declared.rate * (1 - declared.rate) * (declared.kind == "poisson")
    spread = float(sizes.var())
    fits = abs(spread - expected) <= SIGMAS * expected * sqrt(2 / draws) + _TOLERANCE
    yield (
        "" if fits else f"Sizes of cohorts vary by {spread:.3g}, but {declared.kind} sampling declares {expected:.3g}."
    )


def _smallest_population(sampler: Sampler) -> int:
    """The smallest trial population with room for the cohorts."""
    for population in (40, 400):
        with suppress(UserError):
            sampler.sampling(population, 0)
            return population
    return 4000


def _try_trainer(trainer: Trainer) -> Iterator[str]:
    trainer = trainer.with_noise_multiplier(1.0)
    honest = _rows(trainer, _population())
    for client in range(_CLIENTS):
        alone = _rows(trainer, _population(), [client])[0]
        yield "" if _close(honest[client], alone) else "A client's row depends on which clients share its wave."
    for factor in _HOSTILE:
        others = _rows(trainer, _population(hostile=factor))[1:]
        yield "" if _close(others, honest[1:]) else "A client's row depends on another client's data."
    units = (Unit.RECORD, Unit.PERSON) if trainer.draws_persons else (Unit.RECORD,)
    for unit in units:
        if trainer.record_sum is not None:
            yield from _try_record_sum(trainer, trainer.record_sum.bound, unit)
    price = trainer.record_price(1)
    if isinstance(price, Repeated):
        yield from (_try_record_noise(trainer, price, factor) for factor in _EXTREME)


def _try_record_sum(trainer: Trainer, bound: float, unit: Unit) -> Iterator[str]:
    """Whether one record or person moves the row of its client by more than it may, if it becomes another."""
    rows = [_row(trainer, _with_hostile_unit(factor, unit), draw) for draw in (0, 1) for factor in _UNITS]
    for draw in (rows[: len(_UNITS)], rows[len(_UNITS) :]):
        for number, row in enumerate(draw[1:]):
            moved = float((row - draw[0]).norm())
            within = moved <= 2 * bound * (1 + _TOLERANCE)  # false for NaN
            yield (
                ""
                if within
                else f"One {unit} that is {_NAMES[number]} moves the row of its client by {moved:.3g}, but it may by "
                f"{2 * bound:.3g}, twice the declared bound."
            )


def _try_record_noise(trainer: Trainer, price: Repeated, factor: float) -> str:
    """Whether rows with two versions of a record are further apart than the price declares, for their noise.

    The direction of the difference is found on half of the draws, and their distance measured on the others.
    """
    one, other = (
        torch.stack([_row(trainer, _one_record(each), draw) for draw in range(_DRAWS)]) for each in (factor, -factor)
    )
    half = _DRAWS // 2
    direction = one[:half].mean(0) - other[:half].mean(0)
    scores = [side[half:] @ direction for side in (one, other)]
    apart, spread = float(scores[0].mean() - scores[1].mean()), float(torch.stack([s.std() for s in scores]).mean())
    declared = 2 * sqrt(2 * price.release.loss.rho * price.times)  # of two records, each within the bound
    slack = 1 + SIGMAS / sqrt(2 * _DRAWS)
    if apart <= slack * declared * spread + SIGMAS * spread * sqrt(2 / half):
        return ""
    return (
        f"Its rows with two hostile records are {apart / max(spread, 1e-300):.3g} standard deviations of their noise "
        f"apart, but its price allows {declared:.3g}: noise is missing, or records are not clipped."
    )


def _one_record(factor: float) -> Population:
    """Clients, the first of which has a single record, which is in all of its batches."""
    clients = [(x[:1] * factor, y[:1]) if number == 0 else (x, y) for number, (x, y) in enumerate(_population())]
    return Population.of(clients)


def _with_hostile_unit(factor: float | None, unit: Unit) -> Population:
    """Clients, one of which has a hostile record, or a person with several such records; None: not a number."""
    clients = _population()
    count = 1 if unit is Unit.RECORD else 2
    x, y = clients.x.clone(), clients.y.clone()
    x[:count] *= torch.nan if factor is None else factor
    y[:count] = (y[:count] + (factor != 1.0)) % _CLASSES
    changed = replace(clients, x=x, y=y)
    if unit is Unit.RECORD:
        return changed
    ids = [[0, 0, *range(1, _SAMPLES - 1)] for _ in range(_CLIENTS)]
    return changed.with_persons([[f"{client} {each}" for each in own] for client, own in enumerate(ids)])


@cache
def _learner(*, bounded: bool) -> AutoLearner:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return AutoLearner(_module(5, bounded=bounded), CrossEntropy())


def _row(trainer: Trainer, population: Population, draw: int) -> Tensor:
    """The row of the first client, trained on a model whose gradients grow with the inputs."""
    return _rows(trainer, population, [0], draw, bounded=False)[0].double()


def _rows(
    trainer: Trainer,
    population: Population,
    clients: list[int] | None = None,
    draw: int = 0,
    *,
    bounded: bool = True,
) -> Tensor:
    learner = _learner(bounded=bounded)
    numbers = torch.arange(_CLIENTS) if clients is None else torch.tensor(clients)
    wave = StackedClients(numbers, population, learner)
    length = trainer.state_length
    flat = learner.layout.flatten(learner.model)
    weights = flat if length is None else torch.zeros(length, dtype=torch.float64)
    mask = torch.arange(0, len(weights), 2) if trainer.masked else None
    view = View(torch.stack([weights, weights + 0.1]) if trainer.chooses else weights, {}, mask)
    return trainer.train(view, wave, _now(draw)).dense()


def _population(hostile: float | None = None) -> Population:
    generator = torch.Generator().manual_seed(1)
    clients = []
    for client in range(_CLIENTS):
        x = torch.randn(_SAMPLES, _INPUTS, generator=generator)
        y = torch.randint(_CLASSES, (_SAMPLES,), generator=generator)
        clients.append((x * hostile, y.flip(0)) if client == 0 and hostile is not None else (x, y))
    return Population.of(clients)


def _try_codec(codec: Codec) -> Iterator[str]:
    state = State(0, torch.randn(2048, generator=torch.Generator().manual_seed(2)))
    rows = torch.randn(_CLIENTS, state.dim, generator=torch.Generator().manual_seed(3))
    view = View(state.weights, {}, torch.arange(0, state.dim, 2) if codec.coordinates == "mask" else None)
    honest = codec.encode(DenseRows(rows), view, _now()).dense()
    for factor in _HOSTILE:
        changed = torch.cat([rows[:1] * factor, rows[1:]])
        others = codec.encode(DenseRows(changed), view, _now()).dense()[1:]
        yield "" if _close(others, honest[1:]) else "A client's row depends on another client's row."
    if is_bounded_for(codec, Unit.RECORD):
        yield from (_record_violation(codec, rows, each) for each in (view, View(state.weights, {})))


def _record_violation(codec: Codec, rows: Tensor, view: View) -> str:
    """Whether a record moves a row further than it moves the update; a view that the codec refuses moves nothing."""
    record = torch.nn.functional.normalize(torch.randn(rows.shape, generator=torch.Generator().manual_seed(6)))
    for size in (1e-3, 1.0, 1e6):
        try:
            one, other = (codec.encode(DenseRows(each), view, _now()).dense() for each in (rows, rows + size * record))
        except WireError:
            return ""
        ratio = float((one.double() - other.double()).norm(dim=1).max()) / size
        if ratio > 1 + 1e-2:  # numbers of rows are rounded, which is much of a small record
            return f"It is declared to be bounded for records, but one moves a row by {ratio:.3g} times what it adds."
    return ""


def _try_mechanism(mechanism: Mechanism) -> Iterator[str]:
    price = mechanism.price(0).accounted
    layout = Layout.of(_module(10, bias=False))
    state = State(0, torch.zeros(layout.dim), layers=layout.sizes, shapes=layout.shapes)
    state = mechanism.prepare(state, lambda _: DenseRows(torch.full((1, layout.dim), 0.1)))
    for factor in _HOSTILE:
        rows = torch.randn(_CLIENTS, state.dim, generator=torch.Generator().manual_seed(4))
        rows[0] *= factor
        yield from _try_bound(mechanism, state, rows)
    if is_bounded_for(mechanism, Unit.RECORD):
        yield _data_violation(mechanism, state)
    if price is not None:
        yield _noise_violation(mechanism, state, price.release)


def _data_violation(mechanism: Mechanism, state: State) -> str:
    """Whether messages with the same rows depend on the clients' data."""
    state = replace(state, weights=torch.randn(state.dim, generator=torch.Generator().manual_seed(7)))
    sent = (_before_sum(mechanism, state, torch.zeros(_CLIENTS, state.dim), hostile=each) for each in (None, 1e6))
    one, other = (each.messages.rows.dense() for each in sent)
    return "" if torch.equal(one, other) else "It is declared to be bounded for records, but reads their data."


def _try_bound(mechanism: Mechanism, state: State, rows: Tensor) -> Iterator[str]:
    bounded, calm = _before_sum(mechanism, state, rows), _before_sum(mechanism, state, torch.zeros_like(rows))
    lengths = _size(bounded.messages.rows.dense() - calm.messages.rows.dense(), bounded.bound)
    record, row = mechanism.record_bound, mechanism.row_bound
    longest = 1.0 if record is None or row is None else row / record  # times the bound, where it is that of one record
    within = bool((lengths <= longest + _TOLERANCE).all())
    yield "" if within else f"A row is {float(lengths.max()):.3g} times as long as its bound."
    same = bounded.bound.values == calm.bound.values
    yield "" if same else "The bound depends on the rows of the round."


def _before_sum(
    mechanism: Mechanism, state: State, rows: Tensor, draw: int = 0, hostile: float | None = None
) -> BoundedMessages:
    """The clients' side and the server's side before the sum, with the noise of one draw."""
    now, messages = _now(draw), Messages(torch.arange(len(rows)), DenseRows(rows))
    wave = StackedClients(messages.clients, _population(hostile), AutoLearner(_module(10, bias=False), CrossEntropy()))
    sent = mechanism.at_client(messages, View(state.weights, mechanism.broadcast_parts(state)), wave, now)
    return mechanism.before_sum(sent, state)


def _noise_violation(mechanism: Mechanism, state: State, price: Release) -> str:
    """Whether the noise of a sum of zeros is less than the price declares, in any coordinate or overall."""
    zeros, sums = torch.zeros(_CLIENTS, state.dim), []
    for draw in range(_DRAWS):
        bounded = _before_sum(mechanism, state, zeros, draw)
        total = mechanism.after_sum(Mean().combine(bounded, state), _now(draw))
        sums.append(total.total.double() / total.bound.per_coordinate(total.total).double())
    declared = (1 - 0.05) / sqrt(2 * price.loss.rho)
    noise, scale = torch.stack(sums), sqrt(len(bounded.bound.values))
    overall = float(noise.square().mean().sqrt())
    enough = overall >= declared * scale * (1 - SIGMAS / sqrt(2 * noise.numel()))
    least = float(noise.square().mean(0).sqrt().min())
    everywhere = least >= declared * scale * (1 - 7 / sqrt(2 * _DRAWS)) and float(noise.std(1).min()) > 0
    if enough and everywhere:
        return ""
    return f"The noise of a sum is {min(overall, least):.3g} times the bound, but its price declares {declared:.3g}."


def _size(rows: Tensor, bound: Bound) -> Tensor:
    """The norm of every row, relative to its bound."""
    if bound.layers:
        parts = torch.split(rows.double(), list(bound.layers), dim=1)
        limits = zip(parts, bound.values, strict=True)
        return torch.stack([part.norm(dim=1) / limit for part, limit in limits], dim=1).amax(1)
    axes = 1.0 if bound.axes is None or bound.ball else bound.axes.double()
    whole = bound.whole if bound.axes is None or bound.ball else bound.values[0]
    norms: Tensor = (rows.double() / axes).norm(dim=1)
    return norms / whole


def _try_aggregator(aggregator: Aggregator) -> Iterator[str]:
    declared = float(getattr(aggregator, DECLARED, 1.0))
    state = State(0, torch.zeros(aggregator.models, 7) if aggregator.models > 1 else torch.zeros(7))
    for factor in _HOSTILE:
        rows = torch.nn.functional.normalize(torch.randn(_CLIENTS, 7, generator=torch.Generator().manual_seed(5)))
        rows[0] *= min(abs(factor), 1.0) * (-1 if factor < 0 else 1)
        whole, rest, one = (_combine(aggregator, part, state) for part in (rows, rows[1:], rows[:1]))
        yield "" if _close(whole, rest + one) else "It does not add messages up: the sum of two waves is another sum."
        change = float((whole - rest).norm())
        within = change <= declared * (1 + _TOLERANCE)
        yield "" if within else f"One client changes the sum by {change:.3g} times its bound; {declared:g} is declared."


def _combine(aggregator: Aggregator, rows: Tensor, state: State) -> Tensor:
    messages = Messages(torch.arange(len(rows)), DenseRows(rows), torch.ones(len(rows), dtype=torch.int64))
    return aggregator.combine(BoundedMessages(messages, Bound((1.0,))), state).total.double()


def _try_server(server: ServerUpdate) -> Iterator[str]:
    state, aggregate = State(0, torch.ones(7)), torch.arange(7.0)
    once, again = (server.apply(state, aggregate.clone()).weights for _ in range(2))
    yield "" if torch.equal(once, again) else "The same state and aggregate give another model."
    yield "" if torch.equal(state.weights, torch.ones(7)) else "It changes the state that it was given."


_TRIALS: Mapping[str, Callable[..., Iterator[str]]] = {
    "sampler": _try_sampler,
    "trainer": _try_trainer,
    "codec": _try_codec,
    "mechanism": _try_mechanism,
    "aggregator": _try_aggregator,
    "server": _try_server,
}


def _close(one: Tensor, other: Tensor) -> bool:
    return bool(torch.allclose(one.double(), other.double(), rtol=_TOLERANCE, atol=_TOLERANCE, equal_nan=True))


def _key(name: str, index: int) -> Key:
    return Key.from_seed(0, "check").child(name, index)


def _now(draw: int = 0) -> SimulatedRound:
    return SimulatedRound.of(0, 2 * _CLIENTS, float(_CLIENTS), _CLIENTS, _key("shared", 0), _key("secret", draw))
