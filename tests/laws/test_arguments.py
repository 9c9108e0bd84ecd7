"""Every piece refuses numbers and words that mean nothing, with a sentence that names the field and the value."""

import dataclasses
import inspect
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from laws.compositions import all_methods, small_arguments
from tacit import methods
from tacit.attacks.dlg import Dlg
from tacit.core.prices import AggregateNoise, Gaussian, Laplace, RecordSum, Release, Sampling, Zcdp
from tacit.errors import UserError
from tacit.pieces.mechanisms import DistributedLaplace, TermClip
from tacit.privacy.noise.discrete import DiscreteGaussian
from tacit.privacy.noise.lattice import Lattice
from tacit.privacy.noise.sum_grid import SumGrid

LIMITS = {  # of every number of every piece and record; each sentence that refuses one ends with its limits
    "> 0": "AccuracySensitivity.noise_factor Add.rate Budget.epsilon DistributedLaplace.noise_multiplier "
    "Laplace.noise_multiplier DpSgd.clip DpSgd.lr DpSgd.noise_multiplier "
    "EllipsoidClip.value FixedClip.value Lattice.clip Method.max_row_norm MetricLaplace.limit "
    "MetricLaplace.noise_multiplier MetricLaplace.radius Momentum.rate NbaflGaussian.clip NbaflGaussian.epsilon "
    "Poisson.size PublicClip.factor QuantileClip.count_noise QuantileClip.rate QuantileClip.start RecordClip.value "
    "RecordDescent.lr RecordGradient.clip RecordGradient.moments RecordSum.bound StandardisedDescent.largest "
    "StandardisedDescent.lr StandardisedDescent.rare SecureSum.value_range Sense.lr Sgd.clip Sgd.lr "
    "SumGrid.noise_multiplier TermClip.value TopK.lr Zcdp.rho",
    ">= 0": "AdmmPrune.freeze_after AdmmPrune.ramp AdmmPrune.warm_up AggregateNoise.deviation "
    "CentralGaussian.noise_multiplier DistributedGaussian.noise_multiplier Dlg.smoothness DpSgd.weight_decay "
    "StandardisedDescent.noise KMeans.warm_up Lattice.depth MagnitudePrune.freeze_after MagnitudePrune.ramp "
    "MagnitudePrune.warm_up Sense.tolerance Sgd.weight_decay Zcdp.xi",
    ">= 1": "RecordDescent.rounds RecordDescent.size StandardisedDescent.rounds StandardisedDescent.size "
    "AdmmPrune.updates Csr.columns DistributedLaplace.units Dlg.samples Dlg.starts Dlg.steps DpSgd.batch_size "
    "DpSgd.epochs DpSgd.steps "
    "Enclave.min_clients Enclave.padding FixedSize.size Graded.factor Grid.steps KMeans.models Keep.compression "
    "Lattice.cohort Lattice.records Method.patience Method.rounds NbaflGaussian.exposures NbaflGaussian.rounds "
    "NbaflGaussian.samples PublicClip.draws RecordClip.records Sense.batch_size Sense.chunks Sense.iterations "
    "Sense.steps Sgd.batch_size Sgd.epochs Sgd.steps Size.number TermClip.units TopK.batch_size TopK.steps "
    "TwoLevel.factor",
    "in (0, 1)": "AdmmPrune.penalty Budget.delta DpSgd.quantile Method.report_delta NbaflGaussian.delta "
    "QuantileClip.quantile",
    "in (0, 1]": "RecordDescent.rate DpSgd.decay EllipsoidClip.floor RecordGradient.rate RecordSum.rate Sampling.rate "
    "Sgd.decay Size.ratio",
    "in [0, 1)": "DistributedLaplace.colluding DistributedLaplace.dropouts DistributedGaussian.colluding "
    "DistributedGaussian.dropouts DpSgd.momentum Enclave.colluding Momentum.rho RecordDescent.rho SecureSum.corrupt "
    "SecureSum.dropout Sense.threshold Sgd.momentum",
    "in [0, 1]": "Keep.progress Release.distance Release.failure Sense.lowest TwoLevel.share",
    "in [-4, 4]": "EllipsoidClip.power",
    "in [2, 32]": "Lattice.bits",
    "in [1, 4096]": "SecureSum.epoch",
    "in [8, 32]": "Grid.bits SecureSum.bits",
    "in [0, 1048576]": "SumGrid.rows",
    "in [1, 268435456]": "SumGrid.dim",
    "in [1, 2147483647]": "Lattice.dim",
    "in [1, 2147483648)": "Lattice.steps",
}
RECORDS = (  # what pieces compute with
    Lattice(clip=1.0, dim=20, cohort=20, noise=DiscreteGaussian(50.0), bits=32),
    SumGrid(dim=20, rows=20, noise_multiplier=1.0),
    Sampling("poisson", 0.25),
    Release(Gaussian(1.0)),
    Zcdp(1.0),
    AggregateNoise(1.0, 1.0),
    RecordSum(1.0, 0.5),
    TermClip(1.0, 20),
    DistributedLaplace(units=20, noise_multiplier=1.0),
    Laplace(1.0),
    Dlg(),
)
UNLIMITED = {"AggregateNoise.bound", "Gaussian.noise_multiplier", "SumGrid.depth"}  # with limits of their own tests
MEANINGLESS = (math.nan, math.inf, -math.inf, -1e9)
UNKNOWN = "unheard of"


def parts_of(value: Any) -> Iterator[Any]:
    """All pieces of a method, with the records that they hold."""
    if isinstance(value, tuple):
        for item in value:
            yield from parts_of(item)
    if dataclasses.is_dataclass(value):
        yield value
        for field in dataclasses.fields(value):
            yield from parts_of(getattr(value, field.name))


def annotations_of(piece: Any) -> Mapping[str, set[Any]]:
    """The types that each field of a constructor accepts."""
    hints = typing.get_type_hints(type(piece))
    unions = {field.name: hints[field.name] for field in dataclasses.fields(piece) if field.init}
    return {
        name: set(typing.get_args(hint)) if isinstance(hint, types.UnionType) else {hint}
        for name, hint in unions.items()
    }


def replaced(piece: Any, name: str, value: object) -> object:
    """A copy with another value of one field, without those that exclude it."""
    field = next(field for field in dataclasses.fields(piece) if field.name == name)
    excluded = {
        each.name: each.default for each in dataclasses.fields(piece) if each.name == field.metadata.get("instead_of")
    }
    return dataclasses.replace(piece, **{**excluded, name: value})


def fields_of_all_pieces() -> Iterator[tuple[Any, str, set[Any]]]:
    """One piece of each type, with each of its fields."""
    pieces = {type(piece): piece for method in all_methods().values() for piece in parts_of(method)}
    for piece in (*pieces.values(), *RECORDS):
        for name, accepted in annotations_of(piece).items():
            yield piece, name, accepted


FIELDS = {f"{type(piece).__name__}.{name}": (piece, name, accepted) for piece, name, accepted in fields_of_all_pieces()}
NUMBERS = {key: field[:2] for key, field in FIELDS.items() if field[2] & {int, float} and key not in UNLIMITED}
CHOICES = {
    key: field[:2] for key, field in FIELDS.items() if any(typing.get_origin(a) is typing.Literal for a in field[2])
}


ARGUMENTS = [
    (method, name)
    for method in methods.definitions()
    for name, parameter in inspect.signature(methods.find(method)).parameters.items()
    if re.search(r"\b(int|float)\b", str(parameter.annotation))
]
WHOLE = {key: field for key, field in NUMBERS.items() if float not in FIELDS[key][2]}
PAIRS = {
    key: (piece, name, field.metadata["instead_of"])
    for key, (piece, name, _) in FIELDS.items()
    for field in dataclasses.fields(piece)
    if field.name == name and "instead_of" in field.metadata
}


def examples(limits: str, *, whole: bool) -> tuple[list[float], list[float]]:
    """Numbers just inside and just outside of limits."""
    below, above = "=" in limits or "[" in limits, "]" in limits
    low, *high = map(int, re.findall(r"-?\d+", limits))
    step: float = 1 if whole else 2.0**-20
    inside = [low if below else low + step, *([high[0] if above else high[0] - step] if high else ())]
    outside = [low - step if below else low, *([high[0] + step if above else high[0]] if high else ())]
    return inside, outside


def refusal(piece: Any, name: str, value: object) -> str:
    with pytest.raises(UserError, match=name) as caught:
        replaced(piece, name, value)
    return str(caught.value)


def reason_against(piece: Any, name: str, value: object) -> str:
    try:
        replaced(piece, name, value)
    except UserError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(("piece", "name"), NUMBERS.values(), ids=NUMBERS)
def test_a_number_that_means_nothing_is_refused(piece: Any, name: str) -> None:
    for value in MEANINGLESS:
        refusal(piece, name, value)


@pytest.mark.parametrize(("piece", "name"), NUMBERS.values(), ids=NUMBERS)
def test_what_is_no_number_is_refused(piece: Any, name: str) -> None:
    for value in (True, "3"):
        assert f"{name}={value!r}" in refusal(piece, name, value)


@pytest.mark.parametrize(("piece", "name"), WHOLE.values(), ids=WHOLE)
def test_a_fraction_is_no_whole_number(piece: Any, name: str) -> None:
    """Not even 1.0: it would be equal, but its bytes are others."""
    for value in (1.5, 1.0):
        assert f"{name}={value}" in refusal(piece, name, value)


@pytest.mark.parametrize("key", NUMBERS)
def test_limits_are_those_of_the_table(key: str) -> None:
    """What is just outside gets a sentence with the field, the value and the limits; what is just inside is accepted.

    Or refused for another reason: `warm_up` rounds may be too many for `rounds`.
    """
    piece, name = NUMBERS[key]
    (limits,) = (limits for limits, keys in LIMITS.items() if key in keys.split())
    inside, outside = examples(limits, whole=key in WHOLE)
    for value in outside:
        sentence = refusal(piece, name, value)
        assert re.match(rf"Expected {name}={re.escape(f'{value}')} {re.escape(limits)}(?: and finite)?\.", sentence)
    for value in inside:
        assert f"{name}={value} {limits}" not in reason_against(piece, name, value)


@pytest.mark.parametrize(("piece", "name", "other"), PAIRS.values(), ids=PAIRS)
def test_of_two_fields_that_exclude_each_other_one_is_given(piece: Any, name: str, other: str) -> None:
    fields = {field.name: field for field in dataclasses.fields(piece)}
    none = {each: fields[each].default for each in (name, other)}
    both = {each: 1 if default is None else (1,) for each, default in none.items()}
    for wrong in (none, both):
        with pytest.raises(UserError, match=rf"either ({name} or {other}|{other} or {name})"):
            dataclasses.replace(piece, **wrong)


@pytest.mark.parametrize(("piece", "name"), CHOICES.values(), ids=CHOICES)
def test_an_unknown_word_is_refused(piece: Any, name: str) -> None:
    with pytest.raises(UserError, match=f"{name}.*{UNKNOWN}"):
        replaced(piece, name, UNKNOWN)


@pytest.mark.parametrize(("method", "name"), ARGUMENTS, ids=[f"{method}.{name}" for method, name in ARGUMENTS])
def test_a_method_refuses_what_means_nothing(method: str, name: str) -> None:
    """With a sentence that has the value, so that whoever typed it finds it: a piece may have another name for it."""
    for value in MEANINGLESS:
        with pytest.raises(UserError, match=r"nan|inf|-1e\+09|-1000000000"):
            methods.make(method, {**small_arguments(method), name: value})


def test_the_law_sees_the_catalogue() -> None:
    """Fields of every family, so that an empty list is noticed."""
    assert {"Sgd.lr", "Sgd.steps", "FixedClip.value", "SecureSum.bits", "KMeans.models", "Momentum.rho"} <= set(NUMBERS)
    assert {"Sgd.sends", "ByImportance.expects"} <= set(CHOICES)
