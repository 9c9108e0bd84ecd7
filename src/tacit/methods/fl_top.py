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
  `sampler=FixedSize(100)` does so too, with the privacy cost that this sampling really has.
- The noise multiplier is computed by a tight accountant for all rounds, since all their models are released. The
  paper's is 1.54, and its ε is that of the best round by the moments accountant.
- With differential privacy, the sum is divided by the expected cohort size.

Papers assume a trusted party that adds real numbers: `channel=IdealSum()` and `mechanism.arithmetic=Reals()`. Shares of
the noise that may be missing, or known to the adversary, are `mechanism.dropouts` and `mechanism.colluding`.
"""

from collections.abc import Callable
from dataclasses import replace
from inspect import Signature, getdoc, signature
from typing import Any

from tacit.core import Budget, Method
from tacit.errors import expect, positive
from tacit.pieces.channels import SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Sense, Size, TopK
from tacit.pieces.codecs.select import Selection
from tacit.pieces.mechanisms import DistributedGaussian, FixedClip, Grid, PublicClip
from tacit.pieces.samplers import FixedSize, Poisson
from tacit.pieces.servers import Momentum
from tacit.pieces.trainers import Masked, Sgd

_DESCENT = Sgd(lr=0.215, steps=5, batch_size=10)  # for Fashion-MNIST (Table 3)
_DROPOUTS = 0.1  # the fraction of a cohort that may be lost in any phase: the noise of the sum stays the same
NOISE_OPTIONS = ("epsilon", "delta", "noise", "clip")  # additional parameters of a differentially private form
_DRAWS = 100  # of random coordinates; the median of their updates' norms is the clipping bound (Section 4)


def fl_std(rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Standard federated learning, the baseline of FL-TOP: clients send whole updates after a few gradient steps.

    The defaults are those for Fashion-MNIST (Table 3): 100 of 6000 clients, with 10 images each.

    Args:
        rounds: number of rounds, T_cl; too few end before the model is good.
        cohort: clients per round, |K|; with few, models of unlike clients differ from round to round.
        descent: the clients' gradient steps per round, T_gd (`descent.steps`); if `descent.lr` is too large, the loss
            oscillates.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Section 2.1.
    """
    return Method(name="fl-std", rounds=rounds, sampler=FixedSize(cohort), trainer=descent)


def fl_top(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Clients train and send only the weights with the largest gradients on public data.

    The gradients are those of T_init steps (`codec.selection.steps`). All other weights keep their initial values.
    Without public data, the clients of the first round may vote: `codec.selection=Vote(size=Size(ratio=0.01))`. This
    protects clients as the other rounds do, and no records.

    Args:
        ratio: the fraction of the weights that is trained and sent; too small a one leaves none of a small model.
        rounds: number of rounds, T_cl; too few end before the model is good.
        cohort: clients per round, |K|.
        descent: the clients' gradient steps per round, T_gd; where gradients select the weights, its learning rate and
            batch size decide on them, too.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Algorithms 1 and 2.
    """
    top = TopK(size=Size(ratio=ratio), lr=descent.rate(0), batch_size=descent.batch_size)
    return _scheme("fl-top", top, rounds, cohort, descent)


def fl_top_bis(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Like FL-TOP, but clients train all weights and send only the selected ones.

    Args: those of FL-TOP.

    Reference: Kerkouche et al. 2021, Appendix D, FL-TOP-BIS.
    """
    return replace(fl_top(ratio, rounds, cohort, descent), name="fl-top-bis", trainer=descent)


def fl_basic(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Clients train and send a random subset of the weights, redrawn every round.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Section 4, FL-BASIC.
    """
    return _scheme("fl-basic", RandomK(size=Size(ratio=ratio)), rounds, cohort, descent)


def fl_bas_2(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Like FL-BASIC, but clients train all weights and send only the random subset.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Appendix D, FL-BAS-2.
    """
    return replace(fl_basic(ratio, rounds, cohort, descent), name="fl-bas-2", trainer=descent)


def fl_bas_3(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Like FL-BASIC, but the random subset is the same in all rounds.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Appendix D, FL-BAS-3.
    """
    return _scheme("fl-bas-3", FixedRandom(size=Size(ratio=ratio)), rounds, cohort, descent)


def fl_bas_4(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Like FL-BAS-3, but clients train all weights and send only the random subset.

    Args: those of FL-TOP, as far as they apply.

    Reference: Kerkouche et al. 2021, Appendix D, FL-BAS-4.
    """
    return replace(fl_bas_3(ratio, rounds, cohort, descent), name="fl-bas-4", trainer=descent)


def fl_cs(ratio: float = 0.005, rounds: int = 200, cohort: int = 100, descent: Sgd = _DESCENT) -> Method:
    """Compressive sensing: clients send some frequencies of the update; the server reconstructs a sparse update.

    The update is transformed in P chunks (`codec.chunks`). The server's learning rate is η_G (`server.rate`).

    Args:
        ratio: the fraction of the frequencies that is sent.
        rounds: number of rounds, T_cl.
        cohort: clients per round, |K|.
        descent: the clients' gradient steps per round, T_gd; the codec is fitted to updates of such steps.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Compression Boosts Differentially Private Federated Learning.
    EuroS&P 2021; as a baseline in Kerkouche et al. (UAI) 2021.
    """
    expect(descent.steps is not None, "descent.steps to be given", "The codec is fitted to updates of this many steps.")
    codec = Sense(size=Size(ratio=ratio), lr=descent.rate(0), steps=descent.steps or 0, batch_size=descent.batch_size)
    return replace(fl_std(rounds, cohort, descent), name="fl-cs", codec=codec, server=Momentum(rho=0.9, rate=0.35))


def fl_top_dp(
    ratio: float = 0.005,
    rounds: int = 200,
    cohort: int = 100,
    descent: Sgd = _DESCENT,
    epsilon: float | None = 1.0,
    delta: float = 1e-5,
    noise: float | None = None,
    clip: float | None = None,
) -> Method:
    """FL-TOP with client-level differential privacy.

    Args:
        ratio: the fraction of the weights that is trained and sent; more of them get more noise together.
        rounds: number of rounds, T_cl; too few end before the model is good, and more get more noise each.
        cohort: expected number of clients per round, |K|; noise is divided by it, so that with few nothing is learnt.
        descent: the clients' gradient steps per round, T_gd; where gradients select the weights, its learning rate and
            batch size decide on them, too.
        epsilon: privacy budget ε for all rounds; none: no budget, and `noise` must be given.
        delta: the δ of ε, with a budget or without; above one over the number of clients, nothing is promised to some.
        noise: noise multiplier (σ); none: as much as the budget requires for all rounds. With less noise, training
            stops before the round that would exceed the budget.
        clip: clipping bound S of a client's update; none: the norm of an update on the task's public data. A small one
            slows learning, a large one adds noise.

    Reference: Kerkouche, Ács, Castelluccia, Genevès. Constrained Differentially Private Federated Learning for
    Low-bandwidth Devices. UAI 2021, Algorithms 1 and 2.
    """
    return _with_noise(fl_top(ratio, rounds, cohort, descent), cohort, epsilon, delta, noise, clip)


def _with_noise(
    method: Method, cohort: int, epsilon: float | None, delta: float, noise: float | None, clip: float | None
) -> Method:
    """A scheme with distributed noise: clients clip and add their shares of the noise, and only the sum is revealed."""
    positive("Without noise nothing is proved.", noise=noise)
    bound = PublicClip(draws=1 if method.codec.fixed else _DRAWS) if clip is None else FixedClip(clip)
    return replace(
        method,
        name=f"{method.name}-dp",
        sampler=Poisson(float(cohort)),
        mechanism=DistributedGaussian(clip=bound, noise_multiplier=noise, dropouts=_DROPOUTS, arithmetic=Grid()),
        channel=SecureSum(dropout=_DROPOUTS),
        budget=None if epsilon is None else Budget(epsilon, delta),
        report_delta=delta,
    )


def _scheme(name: str, selection: Selection, rounds: int, cohort: int, descent: Sgd) -> Method:
    """The scheme in which clients train and send only the selected weights."""
    return replace(fl_std(rounds, cohort, descent), name=name, trainer=Masked(descent), codec=Select(selection))


def _private(scheme: Callable[..., Method]) -> Callable[..., Method]:
    """The differentially private form of a scheme, with the scheme's parameters and those of FL-TOP-DP for noise."""
    own, noise = signature(scheme).parameters, signature(fl_top_dp).parameters
    parameters = Signature([*own.values(), *(noise[name] for name in NOISE_OPTIONS)], return_annotation=Method)

    def factory(*args: object, **named: object) -> Method:
        binding = parameters.bind(*args, **named)
        binding.apply_defaults()
        values: dict[str, Any] = binding.arguments
        plain = scheme(**{name: values[name] for name in own})
        return _with_noise(plain, values["cohort"], *(values[name] for name in NOISE_OPTIONS))

    title = scheme.__name__.replace("_", "-").upper()
    _, _, reference = (getdoc(scheme) or "").partition("Reference: ")
    factory.__name__ = factory.__qualname__ = f"{scheme.__name__}_dp"
    factory.__doc__ = (
        f"{title} with client-level differential privacy.\n\nArgs: those of FL-TOP-DP, as far as they apply.\n\n"
        f"Reference: {reference}"
    )
    vars(factory)["__signature__"] = parameters
    return factory


_BASELINES: tuple[Callable[..., Method], ...] = (fl_std, fl_basic, fl_bas_2, fl_bas_3, fl_bas_4, fl_cs, fl_top_bis)
_PRIVATE = tuple(map(_private, _BASELINES))
fl_std_dp, fl_basic_dp, fl_bas_2_dp, fl_bas_3_dp, fl_bas_4_dp, fl_cs_dp, fl_top_bis_dp = _PRIVATE

METHODS = (*_BASELINES, fl_top, *_PRIVATE, fl_top_dp)
