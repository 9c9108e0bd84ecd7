"""The methods that laws run over: all registered ones with their defaults, and pieces that no method uses yet."""

import inspect
from collections.abc import Mapping
from dataclasses import replace

from tacit import methods
from tacit.core import Method, Plain
from tacit.pieces.aggregators import KMeans, WeightedMean
from tacit.pieces.channels import Enclave, IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Size, TopK, Vote
from tacit.pieces.mechanisms import (
    AccuracySensitivity,
    ByImportance,
    CentralGaussian,
    DistributedGaussian,
    EllipsoidClip,
    FixedClip,
    Graded,
    Grid,
    MedianClip,
    MetricLaplace,
    NbaflGaussian,
    PublicClip,
    QuantileClip,
    ReleasedMovement,
    SingleWeights,
    TwoLevel,
    WeightVariance,
)
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.pieces.servers import Momentum, Replace
from tacit.pieces.trainers import AdmmPrune, BestOf, Keep, Masked, Sgd
from tacit.wire.sparse import Compact

SGD = Sgd(lr=0.1, epochs=1, batch_size=3)
RATIO = 0.05  # of the coordinates that codecs select
SIZE = Size(ratio=RATIO)
SMALL = {
    "rounds": 3,
    "cohort": 6,
    "ratio": RATIO,
    "chunks": 10,
    "samples": 3,
    "warm_up": 1,
    "epochs": 2,
    "channel": "Plain(wire=Csr())",
}
NOISE = {"noise": 0.5, "epsilon": None}
TOP = TopK(size=SIZE, lr=0.1, steps=2, batch_size=4)
UNREGISTERED: tuple[Method, ...] = (
    Method(name="everyone", rounds=3, sampler=Everyone(), trainer=SGD),
    Method(
        name="growing",
        rounds=3,
        sampler=Growing(stages=((1, FixedSize(3)), (1, FixedSize(6)))),
        trainer=SGD,
        server=Momentum(0.9),
    ),
    Method(
        name="weights", rounds=3, sampler=FixedSize(4), trainer=Sgd(lr=0.1, steps=2, sends="weights"), server=Replace()
    ),
    Method(
        name="pruned",
        rounds=3,
        sampler=FixedSize(5),
        trainer=AdmmPrune(sgd=replace(SGD, epochs=2, sends="weights"), keep=Keep(compression=20), warm_up=1),
        channel=Plain(wire=Compact(), down=Compact()),
        aggregator=WeightedMean(),
        server=Replace(),
    ),
    Method(name="weighted", rounds=3, sampler=FixedSize(5), trainer=SGD, aggregator=WeightedMean()),
    Method(
        name="median",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        mechanism=CentralGaussian(clip=MedianClip(per_layer=True), noise_multiplier=0.5),
    ),
    Method(
        name="quantile",
        rounds=3,
        sampler=Poisson(5),
        trainer=SGD,
        mechanism=CentralGaussian(clip=QuantileClip(start=0.1, count_noise=1.0), noise_multiplier=0.5),
    ),
    Method(
        name="central",
        rounds=3,
        sampler=Poisson(5),
        trainer=Sgd(lr=0.1, steps=2, momentum=0.9, weight_decay=0.01),
        mechanism=CentralGaussian(clip=FixedClip(0.3), noise_multiplier=0.5),
    ),
    Method(
        name="enclave",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        mechanism=CentralGaussian(clip=QuantileClip(start=0.1, count_noise=1.0), noise_multiplier=0.5),
        channel=Enclave(padding=64, min_clients=3),
    ),
    Method(
        name="weighted enclave",
        rounds=3,
        sampler=FixedSize(5),
        trainer=Masked(SGD),
        codec=Select(FixedRandom(size=SIZE)),
        channel=Enclave(wire=Compact()),
        aggregator=WeightedMean(),
    ),
    Method(name="vote", rounds=3, sampler=FixedSize(5), trainer=Masked(SGD), codec=Select(Vote(size=SIZE))),
    Method(
        name="noisy vote",
        rounds=3,
        sampler=Poisson(5),
        trainer=Masked(SGD),
        codec=Select(Vote(size=SIZE)),
        mechanism=DistributedGaussian(clip=FixedClip(0.3), noise_multiplier=0.5),
        channel=IdealSum(),
    ),
    Method(
        name="central top-k",
        rounds=3,
        sampler=Poisson(5),
        trainer=Masked(Sgd(lr=0.1, steps=2, momentum=0.9, weight_decay=0.01)),
        codec=Select(TOP),
        mechanism=CentralGaussian(clip=QuantileClip(start=0.1, count_noise=1.0), noise_multiplier=0.5),
    ),
    Method(
        name="median of a mask",
        rounds=3,
        sampler=FixedSize(5),
        trainer=Masked(SGD),
        codec=Select(FixedRandom(size=Size(number=7))),
        mechanism=CentralGaussian(clip=MedianClip(), noise_multiplier=0.5),
    ),
    Method(
        name="weighted selection",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        codec=Select(RandomK(size=SIZE)),
        aggregator=WeightedMean(),
        server=Momentum(0.9),
    ),
    Method(
        name="individual shares",
        rounds=3,
        sampler=Poisson(5),
        trainer=Masked(SGD),
        codec=Select(TOP),
        mechanism=DistributedGaussian(clip=PublicClip(factor=0.5), noise_multiplier=0.5, single_draw=False),
        channel=IdealSum(),
    ),
    Method(
        name="released ellipsoid",
        rounds=3,
        sampler=Poisson(5),
        trainer=SGD,
        mechanism=CentralGaussian(
            clip=EllipsoidClip(value=0.3, importance=ReleasedMovement(), power=-0.5, ball=True), noise_multiplier=0.5
        ),
    ),
    Method(
        name="shares by sensitivity",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        mechanism=ByImportance(
            base=DistributedGaussian(clip=FixedClip(0.3), noise_multiplier=0.5, single_draw=False),
            importance=AccuracySensitivity(),
            allocation=Graded(3.0, "most"),
            expects="updates",
        ),
        channel=IdealSum(),
    ),
    Method(
        name="single weights by variance",
        rounds=3,
        sampler=Everyone(),
        trainer=Sgd(lr=0.1, epochs=1, batch_size=3, clip=0.5, sends="weights"),
        mechanism=ByImportance(
            base=NbaflGaussian(epsilon=50.0, delta=0.01, samples=3, rounds=3, exposures=1),
            importance=WeightVariance(),
            allocation=TwoLevel(3.0, 0.3, "most"),
            groups=SingleWeights(),
        ),
        server=Replace(),
    ),
    Method(
        name="oversized shares",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        codec=Select(FixedRandom(size=SIZE)),
        mechanism=DistributedGaussian(
            clip=FixedClip(0.3), noise_multiplier=0.5, dropouts=0.2, colluding=0.3, single_draw=False
        ),
        channel=IdealSum(),
    ),
    Method(name="secure sum", rounds=3, sampler=FixedSize(5), trainer=SGD, channel=SecureSum()),
    Method(
        name="secure weights",
        rounds=3,
        sampler=FixedSize(5),
        trainer=Sgd(lr=0.1, steps=2, sends="weights"),
        channel=SecureSum(level="semi_honest", bits=24, value_range=4.0),
        server=Replace(),
    ),
    Method(
        name="integer shares",
        rounds=3,
        sampler=FixedSize(5),
        trainer=Masked(SGD),
        codec=Select(TOP),
        mechanism=DistributedGaussian(
            clip=FixedClip(0.3),
            noise_multiplier=0.5,
            dropouts=0.4,
            colluding=0.2,
            single_draw=False,
            arithmetic=Grid(bits=24),
        ),
        channel=SecureSum(bits=24, dropout=0.2),
    ),
    Method(
        name="skellam shares",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        mechanism=DistributedGaussian(
            clip=FixedClip(0.3), noise_multiplier=0.5, dropouts=0.2, single_draw=False, arithmetic=Grid(noise="skellam")
        ),
        channel=SecureSum(level="semi_honest"),
    ),
    Method(
        name="hypotheses after a warm-up",
        rounds=3,
        sampler=FixedSize(5),
        trainer=BestOf(Sgd(lr=0.1, steps=2, sends="weights")),
        mechanism=MetricLaplace(noise_multiplier=0.5, radius=None, per_layer=True, limit=1e9),
        aggregator=KMeans(models=3, warm_up=2),
        server=Replace(),
    ),
    Method(
        name="metric noise on updates",
        rounds=3,
        sampler=FixedSize(5),
        trainer=SGD,
        mechanism=MetricLaplace(noise_multiplier=2.0, radius=0.1, per_layer=True, expects="updates"),
    ),
)


def all_methods() -> Mapping[str, Method]:
    """All of them by name, with cohorts that fit a small population."""
    registered = {name: _with_few_draws(methods.make(name, small_arguments(name))) for name in methods.definitions()}
    return {**registered, **{method.name: method for method in UNREGISTERED}}


def _with_few_draws(method: Method) -> Method:
    """Estimating the bound from public data takes longer than training, and the laws hold for any number of draws."""
    mechanism = method.mechanism
    if not isinstance(mechanism, DistributedGaussian) or not isinstance(mechanism.clip, PublicClip):
        return method
    few = replace(mechanism.clip, draws=min(mechanism.clip.draws, 2))
    return replace(method, mechanism=replace(mechanism, clip=few))


def small_arguments(name: str) -> dict[str, object]:
    """Arguments with which a method trains a small population within a second."""
    parameters = inspect.signature(methods.find(name)).parameters
    from_budget = "noise" in parameters and parameters["noise"].default is None  # here the noise is given instead
    in_steps = "descent" in parameters and parameters["descent"].default.steps is not None
    accepted = {*parameters, *methods.short_names(name)} - ({"epochs"} if in_steps else set())
    return {key: value for key, value in {**SMALL, **(NOISE if from_budget else {})}.items() if key in accepted}
