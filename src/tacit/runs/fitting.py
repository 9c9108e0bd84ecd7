"""Defaults of methods that depend on the task: cohorts, parts of weights, models for tables, private descent on them.

A default that does not fit is adapted, and the change is said. A chosen value is never changed: if it does not fit, it
is refused.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import sqrt

from tacit import methods
from tacit.core import BinaryCrossEntropy, CrossEntropy, Key, Loss, MeanSquared, Method
from tacit.core.descent_rule import BATCH_RATE, DescentRule, noise_at_once, records_in_row
from tacit.data import Task
from tacit.data.encoding import Encoding
from tacit.data.table_task import TableModel
from tacit.errors import CompositionError, UserError
from tacit.pieces.mechanisms import DistributedGaussian, Grid, TermClip
from tacit.pieces.samplers import Everyone
from tacit.pieces.servers import RecordDescent, StandardisedDescent
from tacit.pieces.trainers import RecordGradient

RATIO = 0.1  # of the weights of a model with so few that the default ratio selects none


@dataclass(frozen=True)
class Sizes:
    """What is public about the data of a federation, or of a simulation.

    Attributes:
        clients: their number.
        mean: the mean number of records, or persons, of a client; None: that which the method declares.
        largest: the most that a client has; None: unknown.
    """

    clients: int
    mean: float | None
    largest: int | None = None


def fit_task(method: Method, task: Task) -> Task:
    """The task with a model for tables that suits the method, unless the user chose one."""
    model = task.model
    if not isinstance(model, TableModel) or model.chosen:
        return task
    adds_noise = method.terms.adds_noise or bool(method.terms.uncalibrated)
    if not adds_noise or method.codec.coordinates == "mask":  # a few weights of a linear model are too few
        return replace(task, model=replace(model, chosen=True))
    standardises = task.encoding is not None and _can_standardise(method, task.loss)
    return replace(task, model=replace(model, name="standardised" if standardises else "logistic", chosen=True))


def fit_defaults(method: Method, task: Task) -> Method:
    """The method with defaults that fit the task; a method that is not known by its name has none."""
    if method.server.follows_sizes and not task.population.is_remote:
        sizes = task.population.unit_sizes
        known = Sizes(len(sizes), float(sizes.double().mean()), int(sizes.max()))
        model = task.model if isinstance(task.model, TableModel) else None
        method = fit_descent(method, known, model, task.encoding, task.loss)
    elif isinstance(task.model, TableModel):
        _check_standardised(method, task.model)
    if method.name not in methods.definitions():
        return method
    return _fit_ratio(_fit_cohort(method, len(task.population)), task)


def fit_descent(
    method: Method, sizes: Sizes, model: TableModel | None, encoding: Encoding | None, loss: Loss
) -> Method:
    """The method with the settings of its descent that were left to a rule of public sizes.

    Raises `UserError` if neither the method nor the data tell the mean number of records.
    """
    server = method.server
    if not isinstance(server, RecordDescent):  # its only kind so far
        return method
    mean = server.size or sizes.mean
    if mean is None:
        raise UserError(
            f"Expected the mean number of records, or persons, of a client, by which {method.name} divides sums and "
            "chooses its rounds. In a plan: args = { size = … }."
        )
    if sizes.mean is not None and sizes.largest is not None and not sizes.mean / 2 <= mean <= 2 * sizes.mean:
        warnings.warn(
            f"The declared mean number of records of a client, size = {mean:g}, is wrong: it is {sizes.mean:g}. The "
            "step is divided by what was declared. Leave size out, and it is taken from the data.",
            stacklevel=2,
        )
    if model is None or model.name != "standardised":
        records = records_in_row(server.rate, mean)
        return _with_clip(replace(method, server=replace(server, size=mean)), records)
    if encoding is None or not _can_standardise(method, loss):
        _check_standardised(method, model)
    assert encoding is not None
    return _make_standardised(method, server, replace(sizes, mean=mean), model, encoding, loss)


def _make_standardised(
    method: Method, server: RecordDescent, sizes: Sizes, model: TableModel, encoding: Encoding, loss: Loss
) -> Method:
    """Full-batch descent on standardised inputs, by the public rule."""
    mechanism, trainer = method.mechanism, method.trainer
    assert isinstance(mechanism, DistributedGaussian)
    assert sizes.mean is not None  # by now
    units, weights = sizes.clients * sizes.mean, model.weights + model.outputs
    if method.budget is not None:
        noise = noise_at_once(method.budget)
    else:
        noise = (mechanism.noise_multiplier or 1.0) / sqrt(method.rounds)
    rule = DescentRule.of(units, weights, noise, None if server.rounds is None else max(server.rounds - 1, 1))
    clip = getattr(trainer, "clip", rule.clip)
    largest = sqrt(2 + 2 * len(encoding.columns))  # a column adds at most 1 to ‖x‖², and to ‖x²‖²
    rounds = rule.rounds + 1
    most = 4 * sizes.mean if sizes.largest is None else sizes.largest
    descent = StandardisedDescent(
        lr=server.lr or rule.lr,
        rounds=rounds,
        size=sizes.mean,
        largest=largest / clip,
        numbers=tuple(_numbers_of(encoding)),
        noise=noise * sqrt(rounds) * largest / units,
        link={BinaryCrossEntropy: "logit", CrossEntropy: "log"}.get(type(loss), "identity"),  # type: ignore[arg-type]
    )
    return replace(
        method,
        rounds=rounds,
        trainer=RecordGradient(rate=1.0, clip=clip, moments=largest),
        server=descent,
        mechanism=replace(
            mechanism, clip=TermClip(clip, int(most) + 1), arithmetic=Grid(steps=_steps(sizes.clients * most))
        ),
    )


def describe_descent(method: Method) -> Iterator[str]:
    """The settings that the rule chose, a sentence."""
    server = method.server
    if isinstance(server, StandardisedDescent):
        yield (
            f"{method.name} trains a linear model in {server.rounds} rounds. The first buys counts, means and "
            "variances of the inputs and the base rate from the same budget; the others are steps over all records, a "
            f"learning rate from {server.lr:.3g} down to a twentieth of it, and gradients clipped to "
            f"{getattr(method.trainer, 'clip', 1.0):g}. These follow from the budget, the number of records and the "
            "number of weights, which are public."
        )


def _can_standardise(method: Method, loss: Loss) -> bool:
    """Whether the method's descent can be that on standardised inputs."""
    plain = type(loss) in (BinaryCrossEntropy, MeanSquared) or loss == CrossEntropy()
    server = method.server
    of_all = isinstance(server, RecordDescent) and server.rate == BATCH_RATE and method.codec.coordinates == "model"
    return plain and of_all and isinstance(method.mechanism, DistributedGaussian)


def _check_standardised(method: Method, model: TableModel) -> None:
    """Raise `CompositionError` for a model that the method does not standardise."""
    fits = isinstance(method.server, StandardisedDescent)
    if model.name == "standardised" and not fits:
        raise CompositionError(
            f"{method.name}: the model standardised needs a first round that centres and scales its inputs. Use "
            "dp-fedsgd with its default rate, or the model logistic."
        )


def _with_clip(method: Method, records: int) -> Method:
    """The method with room for rows of this many records."""
    mechanism = method.mechanism
    assert isinstance(mechanism, DistributedGaussian)
    clip = mechanism.clip if mechanism.clip.max_records is None else replace(mechanism.clip, records=records)  # type: ignore[type-var]
    return replace(method, mechanism=replace(mechanism, clip=clip))


def _numbers_of(encoding: Encoding) -> Iterator[int]:
    """The positions of the inputs that are numbers."""
    names = encoding.names
    yield from (place for place, name in enumerate(names[: _before_categories(encoding)]) if name in encoding.numbers)


def _before_categories(encoding: Encoding) -> int:
    return len(encoding.names) - sum(map(len, encoding.categories.values()))


_STEPS = (64, 4096)  # of the grid for the bound of one record
_RANGE = 1 << 29  # steps of the sum over all records: a quarter of what 32 bits have room for


def _steps(units: float) -> int:
    """The steps of the grid per bound, as fine as 32 bits have room for."""
    fitting = 1 << max(int(_RANGE / units).bit_length() - 1, 0)
    return max(_STEPS[0], min(_STEPS[1], fitting))


def _fit_cohort(method: Method, population: int) -> Method:
    """Every client takes part, if the default cohort is larger than the population."""
    size = getattr(method.sampler, "size", 0)
    if size <= population or method.sampler != methods.make(method.name).sampler:
        return method
    private = " Sampling does not lower ε then: it is that of full participation." if method.terms.changes_rows else ""
    warnings.warn(
        f"{method.name} samples {size:g} clients a round by default, but there are {population}: every client takes "
        f"part in every round.{private}",
        stacklevel=2,
    )
    return replace(method, sampler=Everyone())


def _fit_ratio(method: Method, task: Task) -> Method:
    """A larger part of the weights, if the default one is less than a single weight."""
    default = methods.definitions()[method.name].parameters.get("ratio", "")
    if not default or method.codec != methods.make(method.name).codec:
        return method
    model = task.make_model(Key.from_seed(0))
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
    if float(default) * weights >= 1 or weights * RATIO < 1:
        return method
    warnings.warn(
        f"{method.name} sends {100 * float(default):g} % of the weights by default, which is none of {weights}: it "
        f"sends {100 * RATIO:g} % of them. Choose another part with ratio.",
        stacklevel=2,
    )
    return replace(method, codec=methods.make(method.name, {"ratio": RATIO}).codec)
