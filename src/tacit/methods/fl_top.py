"""Constrained federated learning for low-bandwidth devices (Kerkouche et al. 2021): FL-TOP, its baselines, all with DP.

| scheme | coordinates sent | coordinates trained | sent down |
|---|---|---|---|
| FL-STD | all | all | all |
| FL-BASIC | random, new every round | those sent | all |
| FL-BAS-2 | random, new every round | all | all |
| FL-BAS-3 | random, fixed | those sent | those |
| FL-BAS-4 | random, fixed | all | those |
| FL-CS | low and random frequencies of the whole update | all | all |
| FL-TOP-BIS | largest gradients on public data, fixed | all | those |
| FL-TOP | largest gradients on public data, fixed | those sent | those |

The forms with differential privacy add a bound and noise: clients clip, and add their shares of the noise, and only the
sum is seen, through secure aggregation. What differs from the paper, and why:

- Cohorts are Poisson samples, the sampling that its accountant assumes; the paper draws a fixed number, and so does
  `sampling=fixed`, at the price that this really has.
- The noise is sized by a tight accountant for all rounds that are played, since all their models are released; the
  paper's is 1.54, and its ε is that of the best round by the moments accountant.
- Under privacy the sum is divided by the cohort's expected size.
"""

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Literal

from tacit.core import Budget, Method
from tacit.core.interfaces import Channel, Sampler
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.channels import IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Sense, Size, TopK, Vote
from tacit.pieces.codecs.select import Selection
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, Grid, PublicClip, Reals
from tacit.pieces.mechanisms.numbers import Numbers
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd

Scheme = Callable[..., Method]
Sampling = Literal["poisson", "fixed"]
Choice = Literal["public", "vote"]
Way = Literal["secure", "ideal"]
WAYS: dict[str, tuple[Channel, Numbers]] = {"secure": (SecureSum(), Grid()), "ideal": (IdealSum(), Reals())}
DRAWS = 100  # of random coordinates, whose median length is the bound (Section 4)


def fl_std(
    rounds: int = 200, cohort: int = 100, lr: float = 0.215, steps: int = 5, batch_size: int | None = 10
) -> Method:
    """Standard federated learning as in the FL-TOP paper: whole updates, a few gradient steps per round.

    The defaults are those for Fashion-MNIST (Table 3), where 100 of 6000 clients of 10 images each take part.

    Args:
        rounds: how many rounds, T_cl.
        cohort: how many clients take part in each, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all of a client's.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Section 2.1.
    """
    sgd = Sgd(lr=lr, steps=steps, batch_size=batch_size)
    return Method(name="fl-std", rounds=rounds, sampler=FixedSize(cohort), trainer=sgd)


def fl_top(
    ratio: float = 0.005,
    number: int | None = None,
    select: Choice = "public",
    rounds: int = 200,
    cohort: int = 100,
    lr: float = 0.215,
    steps: int = 5,
    batch_size: int | None = 10,
    init_steps: int = 5,
) -> Method:
    """Only the weights that matter most on public data are ever trained or sent; all others stay as they began.

    Args:
        ratio: the share of the weights.
        number: how many weights, instead of a share.
        select: `public`: by gradients on the task's public data; `vote`: by a vote of the clients in the first round.
        rounds: how many rounds, T_cl; a vote is one of them.
        cohort: how many clients take part in each, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all of a client's.
        init_steps: gradient steps on the public data by which weights are chosen, T_init.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Algorithms 1 and 2.
    """
    base = fl_std(rounds, cohort, lr, steps, batch_size)
    size = _size(ratio, number)
    top = TopK(size=size, lr=lr, steps=init_steps, batch_size=batch_size)
    choices: dict[str, Selection] = {"public": top, "vote": Vote(size=size)}
    which = choose(choices, select, "select")
    return _masked(replace(base, name="fl-top", codec=Select(which)))


def fl_basic(
    ratio: float = 0.005,
    number: int | None = None,
    rounds: int = 200,
    cohort: int = 100,
    lr: float = 0.215,
    steps: int = 5,
    batch_size: int | None = 10,
) -> Method:
    """A random part of the weights is trained and sent, another one in every round.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Section 4, FL-BASIC.
    """
    base = fl_std(rounds, cohort, lr, steps, batch_size)
    return _masked(replace(base, name="fl-basic", codec=Select(RandomK(size=_size(ratio, number)))))


def fl_cs(
    ratio: float = 0.005,
    number: int | None = None,
    chunks: int = 200,
    rate: float = 0.35,
    rho: float = 0.9,
    rounds: int = 200,
    cohort: int = 100,
    lr: float = 0.215,
    steps: int = 5,
    batch_size: int | None = 10,
) -> Method:
    """Compressive sensing: low and random frequencies of the update are sent; the server reconstructs a sparse one.

    Args:
        ratio: the share of the frequencies.
        number: how many frequencies, instead of a share.
        chunks: into how many pieces the update is cut, each with frequencies of its own, P.
        rate: the server's learning rate, η_G.
        rho: the server's momentum.
        rounds: how many rounds, T_cl.
        cohort: how many clients take part in each, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all of a client's.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Compression Boosts Differentially Private Federated Learning.
    EuroS&P 2021; as a baseline in Kerkouche et al. (UAI) 2021.
    """
    codec = Sense(size=_size(ratio, number), chunks=chunks, lr=lr, steps=steps, batch_size=batch_size)
    base = fl_std(rounds, cohort, lr, steps, batch_size)
    return replace(base, name="fl-cs", codec=codec, server=Momentum(rho, rate))


def _variant(scheme: Scheme, change: Callable[[Method], Method], *, name: str, summary: str, reference: str) -> Scheme:
    """A scheme with one piece exchanged: a factory with the same parameters."""

    @wraps(scheme)
    def factory(*args: object, **options: object) -> Method:
        return replace(change(scheme(*args, **options)), name=name)

    factory.__name__ = factory.__qualname__ = name.replace("-", "_")
    arguments = "those of FL-TOP, as far as they apply."
    factory.__doc__ = f"{summary}\n\nArgs: {arguments}\n\nReference: Kerkouche et al. 2021, {reference}."
    return factory


def _private(scheme: Scheme, privatize: Scheme, *, summary: str) -> Scheme:
    """The differentially private form of a scheme: a factory with the parameters of both functions."""
    own, added = (list(inspect.signature(f, eval_str=True).parameters.values()) for f in (scheme, privatize))
    signature = inspect.Signature([*own, *added[1:]], return_annotation=Method)

    @wraps(scheme)
    def factory(*args: object, **options: object) -> Method:
        given = signature.bind(*args, **options).arguments
        noise = {parameter.name: given.pop(parameter.name) for parameter in added[1:] if parameter.name in given}
        return privatize(scheme(**given), **noise)

    factory.__name__ = factory.__qualname__ = f"{scheme.__name__}_dp"
    factory.__doc__ = _private_doc(scheme, summary)
    factory.__signature__ = signature  # type: ignore[attr-defined]
    return factory


def with_noise(
    method: Method,
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    noise: float | None = None,
    clip: float | None = None,
    sampling: Sampling = "poisson",
    dropouts: float = 0.0,
    colluding: float = 0.0,
    channel: Way = "secure",
) -> Method:
    """A scheme whose clients clip what they send and add their shares of the noise; only the sum is seen.

    Args:
        method: the scheme.
        epsilon: the budget for all rounds; none: there is none, and `noise` must be given.
        delta: the probability with which the guarantee may fail; small against one over the number of clients.
        noise: noise multiplier (σ); none: as much as the budget needs for all rounds. With more rounds than the budget
            pays for, training stops before the one that would pass it.
        clip: the bound S of what a client sends; none: the length of an update on the task's public data.
        sampling: `poisson`, or `fixed` cohorts as in the paper, which cost far more privacy.
        dropouts: the part of a cohort that may fail to deliver its noise.
        colluding: the part of a cohort that may tell the adversary its noise.
        channel: `secure`: integer noise under secure aggregation; `ideal`: real numbers, added up by a trusted party,
            as papers have it, whose own bytes are not counted.
    """
    expect(noise is None or noise > 0, f"noise={noise} > 0", "Without noise nothing is proved.")
    assert isinstance(method.sampler, FixedSize)  # as all schemes have it
    bound = PublicClip(draws=1 if method.codec.fixed else DRAWS) if clip is None else FixedClip(clip)
    way, numbers = choose(WAYS, channel, "channel")
    samplers: dict[str, Sampler] = {"poisson": Poisson(float(method.sampler.size)), "fixed": method.sampler}
    return replace(
        method,
        name=f"{method.name}-dp",
        sampler=choose(samplers, sampling, "sampling"),
        mechanism=DistributedGaussian(
            clip=bound, noise_multiplier=noise, dropouts=dropouts, colluding=colluding, numbers=numbers
        ),
        channel=way,
        budget=None if epsilon is None else Budget(epsilon, delta),
    )


def _private_doc(scheme: Scheme, summary: str) -> str:
    """The scheme's docstring under another summary, with the arguments of `with_noise`."""
    body = (inspect.getdoc(scheme) or "").partition("\n")[2]
    added = (inspect.getdoc(with_noise) or "").partition("Args:\n")[2].partition("\n")[2]
    before, _, reference = body.partition("Reference:")
    return f"{summary}\n{before.rstrip()}\n{added}\n\nReference:{reference}"


def _masked(method: Method) -> Method:
    """The scheme whose clients train only what they send."""
    assert isinstance(method.trainer, Sgd)
    return replace(method, trainer=Masked(method.trainer))


def _trains_all(method: Method) -> Method:
    """The scheme whose clients train all weights, and send some."""
    assert isinstance(method.trainer, Masked)
    return replace(method, trainer=method.trainer.sgd)


def _draws_once(method: Method) -> Method:
    """The scheme whose random coordinates are the same in all rounds."""
    assert isinstance(method.codec, Select)
    return replace(method, codec=Select(FixedRandom(size=method.codec.which.size)))


def _size(ratio: float, number: int | None) -> Size:
    return Size(ratio=ratio) if number is None else Size(number=number)


fl_bas_2 = _variant(
    fl_basic,
    _trains_all,
    name="fl-bas-2",
    summary="All weights are trained and a random part is sent, another one in every round.",
    reference="Appendix D, FL-BAS-2",
)
fl_bas_3 = _variant(
    fl_basic,
    _draws_once,
    name="fl-bas-3",
    summary="One random part of the weights is trained and sent, the same in all rounds.",
    reference="Appendix D, FL-BAS-3",
)
fl_bas_4 = _variant(
    fl_bas_3,
    _trains_all,
    name="fl-bas-4",
    summary="All weights are trained and one random part is sent, the same in all rounds.",
    reference="Appendix D, FL-BAS-4",
)
fl_top_bis = _variant(
    fl_top,
    _trains_all,
    name="fl-top-bis",
    summary="Like FL-TOP, but clients train all weights and send only the selected ones.",
    reference="Appendix D, FL-TOP-BIS",
)

fl_std_dp = _private(fl_std, with_noise, summary="FL-STD with client-level differential privacy.")
fl_basic_dp = _private(fl_basic, with_noise, summary="FL-BASIC with client-level differential privacy.")
fl_bas_2_dp = _private(fl_bas_2, with_noise, summary="FL-BAS-2 with client-level differential privacy.")
fl_bas_3_dp = _private(fl_bas_3, with_noise, summary="FL-BAS-3 with client-level differential privacy.")
fl_bas_4_dp = _private(fl_bas_4, with_noise, summary="FL-BAS-4 with client-level differential privacy.")
fl_cs_dp = _private(fl_cs, with_noise, summary="FL-CS with client-level differential privacy.")
fl_top_bis_dp = _private(fl_top_bis, with_noise, summary="FL-TOP-BIS with client-level differential privacy.")
fl_top_dp = _private(fl_top, with_noise, summary="FL-TOP with client-level differential privacy.")

METHODS = (
    fl_std,
    fl_basic,
    fl_bas_2,
    fl_bas_3,
    fl_bas_4,
    fl_cs,
    fl_top_bis,
    fl_top,
    fl_std_dp,
    fl_basic_dp,
    fl_bas_2_dp,
    fl_bas_3_dp,
    fl_bas_4_dp,
    fl_cs_dp,
    fl_top_bis_dp,
    fl_top_dp,
)
