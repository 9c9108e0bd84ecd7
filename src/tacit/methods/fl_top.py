"""Constrained federated learning for low-bandwidth devices (Kerkouche et al. 2021): FL-TOP and its baselines.

| scheme | coordinates uploaded | coordinates trained | coordinates downloaded |
|---|---|---|---|
| FL-STD | all | all | all |
| FL-BASIC | random, redrawn every round | the uploaded ones | all |
| FL-BAS-2 | random, redrawn every round | all | all |
| FL-BAS-3 | random, fixed | the uploaded ones | the uploaded ones |
| FL-BAS-4 | random, fixed | all | the uploaded ones |
| FL-CS | low and random frequencies of the whole update | all | all |
| FL-TOP-BIS | largest gradients on public data, fixed | all | the uploaded ones |
| FL-TOP | largest gradients on public data, fixed | the uploaded ones | the uploaded ones |

Each scheme has a differentially private form (`-dp`): clients clip their updates and add their shares of the noise, and
secure aggregation reveals only the sum. Differences from the paper:

- Cohorts are Poisson samples, which the paper's accountant assumes. The paper draws cohorts of a fixed size;
  `sampling=fixed` does so too, with the privacy cost that this sampling really has.
- The noise multiplier is computed by a tight accountant for all rounds, since all their models are released. The
  paper's is 1.54, and its ε is that of the best round by the moments accountant.
- With differential privacy, the sum is divided by the expected cohort size.
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
from tacit.pieces.mechanisms.arithmetic import Arithmetic
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd

Scheme = Callable[..., Method]
Sampling = Literal["poisson", "fixed"]
Choice = Literal["public", "vote"]
ChannelName = Literal["secure", "ideal"]
CHANNELS: dict[str, tuple[Channel, Arithmetic]] = {"secure": (SecureSum(), Grid()), "ideal": (IdealSum(), Reals())}
DRAWS = 100  # of random coordinates; the median of their updates' norms is the clipping bound (Section 4)


def fl_std(
    rounds: int = 200, cohort: int = 100, lr: float = 0.215, steps: int = 5, batch_size: int | None = 10
) -> Method:
    """Standard federated learning, the baseline of FL-TOP: clients send whole updates after a few gradient steps.

    The defaults are those for Fashion-MNIST (Table 3): 100 of 6000 clients, with 10 images each.

    Args:
        rounds: number of rounds, T_cl.
        cohort: clients per round, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all samples of the client.

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
    """Clients train and send only the weights with the largest gradients on public data.

    All other weights keep their initial values.

    Args:
        ratio: the fraction of the weights that is trained and sent.
        number: instead, the number of weights.
        select: `public`: by gradients on the task's public data; `vote`: by a vote of the clients in the first round.
        rounds: number of rounds, T_cl, including that of a vote.
        cohort: clients per round, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all samples of the client.
        init_steps: gradient steps on the public data to select weights, T_init.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Algorithms 1 and 2.
    """
    base = fl_std(rounds, cohort, lr, steps, batch_size)
    size = _size(ratio, number)
    top = TopK(size=size, lr=lr, steps=init_steps, batch_size=batch_size)
    choices: dict[str, Selection] = {"public": top, "vote": Vote(size=size)}
    selection = choose(choices, select, "select")
    return _masked(base, "fl-top", selection)


def fl_basic(
    ratio: float = 0.005,
    number: int | None = None,
    rounds: int = 200,
    cohort: int = 100,
    lr: float = 0.215,
    steps: int = 5,
    batch_size: int | None = 10,
) -> Method:
    """Clients train and send a random subset of the weights, redrawn every round.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Section 4, FL-BASIC.
    """
    base = fl_std(rounds, cohort, lr, steps, batch_size)
    return _masked(base, "fl-basic", RandomK(size=_size(ratio, number)))


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
    """Compressive sensing: clients send some frequencies of the update; the server reconstructs a sparse update.

    Args:
        ratio: the fraction of the frequencies that is sent.
        number: instead, the number of frequencies.
        chunks: number of chunks that the update is split into, each transformed separately, P.
        rate: the server's learning rate, η_G.
        rho: the server's momentum.
        rounds: number of rounds, T_cl.
        cohort: clients per round, |K|.
        lr: the clients' learning rate.
        steps: gradient steps per round, T_gd.
        batch_size: samples per gradient step; none: all samples of the client.

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
    channel: ChannelName = "secure",
) -> Method:
    """A scheme with distributed noise: clients clip and add their shares of the noise, and only the sum is revealed.

    Args:
        method: the scheme.
        epsilon: privacy budget ε for all rounds; none: no budget, and `noise` must be given.
        delta: privacy budget δ; it should be well below one over the number of clients.
        noise: noise multiplier (σ); none: as much as the budget requires for all rounds. With less noise, training
            stops before the round that would exceed the budget.
        clip: clipping bound S of a client's update; none: the norm of an update on the task's public data.
        sampling: `poisson`, or `fixed` cohort sizes as in the paper, which cost far more privacy.
        dropouts: the fraction of a cohort that may drop out without adding its noise.
        colluding: the fraction of a cohort that may disclose its noise to the adversary.
        channel: `secure`: integer noise and secure aggregation; `ideal`: real numbers summed by a trusted party, as
            papers assume, without its overhead in bytes.
    """
    expect(noise is None or noise > 0, f"noise={noise} > 0", "Without noise nothing is proved.")
    assert isinstance(method.sampler, FixedSize)  # true of all schemes
    bound = PublicClip(draws=1 if method.codec.fixed else DRAWS) if clip is None else FixedClip(clip)
    carrier, arithmetic = choose(CHANNELS, channel, "channel")
    samplers: dict[str, Sampler] = {"poisson": Poisson(float(method.sampler.size)), "fixed": method.sampler}
    return replace(
        method,
        name=f"{method.name}-dp",
        sampler=choose(samplers, sampling, "sampling"),
        mechanism=DistributedGaussian(
            clip=bound, noise_multiplier=noise, dropouts=dropouts, colluding=colluding, arithmetic=arithmetic
        ),
        channel=carrier,
        budget=None if epsilon is None else Budget(epsilon, delta),
    )


def _private_doc(scheme: Scheme, summary: str) -> str:
    """The scheme's docstring under another summary, with the arguments of `with_noise`."""
    body = (inspect.getdoc(scheme) or "").partition("\n")[2]
    added = (inspect.getdoc(with_noise) or "").partition("Args:\n")[2].partition("\n")[2]
    before, _, reference = body.partition("Reference:")
    return f"{summary}\n{before.rstrip()}\n{added}\n\nReference:{reference}"


def _masked(base: Method, name: str, selection: Selection) -> Method:
    """The scheme in which clients train and send only the selected weights."""
    assert isinstance(base.trainer, Sgd)
    return replace(base, name=name, trainer=Masked(base.trainer), codec=Select(selection))


def _trains_all(method: Method) -> Method:
    """The scheme without masked training: clients train all weights and send some."""
    assert isinstance(method.trainer, Masked)
    return replace(method, trainer=method.trainer.sgd)


def _draws_once(method: Method) -> Method:
    """The scheme with a fixed random mask."""
    assert isinstance(method.codec, Select)
    return replace(method, codec=Select(FixedRandom(size=method.codec.selection.size)))


def _size(ratio: float, number: int | None) -> Size:
    return Size(ratio=ratio) if number is None else Size(number=number)


fl_bas_2 = _variant(
    fl_basic,
    _trains_all,
    name="fl-bas-2",
    summary="Like FL-BASIC, but clients train all weights and send only the random subset.",
    reference="Appendix D, FL-BAS-2",
)
fl_bas_3 = _variant(
    fl_basic,
    _draws_once,
    name="fl-bas-3",
    summary="Like FL-BASIC, but the random subset is the same in all rounds.",
    reference="Appendix D, FL-BAS-3",
)
fl_bas_4 = _variant(
    fl_bas_3,
    _trains_all,
    name="fl-bas-4",
    summary="Like FL-BAS-3, but clients train all weights and send only the random subset.",
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
