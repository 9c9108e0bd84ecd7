"""What the laws run over: every registered method at its defaults, and pieces no method uses yet."""

from collections.abc import Mapping

from tacit import methods
from tacit.aggregators import WeightedMean
from tacit.core import Method
from tacit.mechanisms import CentralGaussian, FixedClip, MedianClip, QuantileClip
from tacit.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.servers import Momentum, Replace
from tacit.trainers import Sgd

SGD = Sgd(lr=0.1, epochs=1, batch_size=3)
SPARE: tuple[Method, ...] = (
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
)


def everything() -> Mapping[str, Method]:
    """All of them by name, with small cohorts so that they fit a small population."""
    registered = {name: methods.make(name, _small(name)) for name in methods.catalog()}
    return {**registered, **{method.name: method for method in SPARE}}


def _small(name: str) -> dict[str, object]:
    import inspect

    accepted = inspect.signature(methods.find(name)).parameters
    return {key: value for key, value in {"rounds": 3, "cohort": 6}.items() if key in accepted}
