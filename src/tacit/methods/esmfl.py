"""Pruned models in few bytes (ESMFL, Lin et al. 2020): ADMM pruning on the clients, its baseline, and sparse formats.

After a warm-up every client sends a sparse model, so uploads shrink with the number of weights. Differences from the
paper:

- Pruning is gradual (`ramp`), and finally the mask is frozen (`freeze_after`), as in the work on ADMM that the paper
  builds on. The paper prunes at once and lets clients choose weights until the end.
- The penalty coefficient follows from one number, `penalty` (see `tacit.pieces.trainers.pruning`); the paper gives no
  value.
- The average of models with different masks has more weights than each of them. Its density is measured in every
  round, and so is its accuracy after it has been pruned like a client's model (`pruned_accuracy`).
- The default wire format, `Compact()`, is our own; the paper's, compressed sparse rows, is `Csr()`.
- The enclave is a separate process that clients reach through attestation only. It is simulated, not hardware.
- The server sends dense models, as in the paper's volumes, unless `down` is set.
"""

from dataclasses import dataclass

from tacit.core import Method
from tacit.core.interfaces import Channel
from tacit.errors import expect
from tacit.pieces.channels import Enclave
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune, Sgd
from tacit.wire.sparse import Compact


@dataclass(frozen=True)
class Admm:
    """What ADMM adds to pruning by magnitude.

    Args:
        penalty: strength of the ADMM penalty: the fraction of the distance to the pruned model that weights move per
            step.
        updates: how often in a round that pruned model is updated; None: after every epoch.
        freeze_after: number of rounds, warm-up included, after which the mask of the aggregated model is frozen; None:
            half of all rounds. As many as there are rounds: never.
    """

    penalty: float = 0.01
    updates: int | None = None
    freeze_after: int | None = None


ADMM = Admm()
PRUNING = Keep(compression=10.0)
_DESCENT = Sgd(lr=0.05, epochs=5, batch_size=10, sends="weights")
_ENCLAVE = Enclave(wire=Compact(), conversation=True)


def esmfl(
    rounds: int = 60,
    warm_up: int | None = None,
    ramp: int | None = None,
    cohort: int = 10,
    pruning: Keep = PRUNING,
    admm: Admm = ADMM,
    descent: Sgd = _DESCENT,
    channel: Channel = _ENCLAVE,
) -> Method:
    """ADMM pruning: after a warm-up, clients train towards sparse models and send only the remaining weights.

    Args:
        rounds: number of rounds, warm-up included.
        warm_up: number of rounds before full pruning; none: a third of all rounds.
        ramp: how many of the last rounds of the warm-up already prune, each keeping fewer weights than the one before;
            none: half of the warm-up. In the rounds before, clients send whole models.
        cohort: clients per round.
        pruning: the compression ratio of the weights, without biases and normalisation parameters (`compression`), or
            the number of weights that a client sends of each layer, in the model's order (`keep`).
        admm: the penalty, how often the pruned model is updated, and when the mask is frozen (`penalty`, `updates`,
            `freeze_after`).
        descent: the clients' training in a round; it sends the trained weights.
        channel: an enclave, a separate process that clients reach through attestation only (simulated, which all
            output states); with `Plain(wire=Compact())` the server sees every model. Wire formats of uploads (`wire`)
            and downloads (`down`) are `Compact()`, `Csr()` (compressed sparse rows) or none; all are lossless.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, arXiv 2009.01867.
    """
    warm_up, ramp = _phases(rounds, warm_up, ramp)
    trainer = AdmmPrune(
        sgd=descent,
        keep=pruning,
        warm_up=warm_up,
        ramp=ramp,
        freeze_after=max(rounds // 2, warm_up) if admm.freeze_after is None else admm.freeze_after,
        penalty=admm.penalty,
        updates=admm.updates,
    )
    return _method("esmfl", trainer, rounds, cohort, channel)


def masked_pruning(
    rounds: int = 60,
    warm_up: int | None = None,
    ramp: int | None = None,
    cohort: int = 10,
    pruning: Keep = PRUNING,
    descent: Sgd = _DESCENT,
    channel: Channel = _ENCLAVE,
    freeze_after: int | None = None,
) -> Method:
    """Magnitude pruning, the baseline of ESMFL: clients train all weights and send the largest of each layer.

    Args: those of ESMFL, as far as they apply, and:
        freeze_after: number of rounds, warm-up included, after which the mask of the aggregated model is frozen, as
            ESMFL does; none: never, as in the paper.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, Section 2.3.
    """
    warm_up, ramp = _phases(rounds, warm_up, ramp)
    trainer = MagnitudePrune(sgd=descent, keep=pruning, warm_up=warm_up, ramp=ramp, freeze_after=freeze_after)
    return _method("masked-pruning", trainer, rounds, cohort, channel)


def _method(name: str, trainer: AdmmPrune | MagnitudePrune, rounds: int, cohort: int, channel: Channel) -> Method:
    sampler, server = FixedSize(cohort), Replace()
    return Method(name=name, rounds=rounds, sampler=sampler, trainer=trainer, channel=channel, server=server)


def _phases(rounds: int, warm_up: int | None, ramp: int | None) -> tuple[int, int]:
    """The rounds of the warm-up, and how many of the last of them prune gradually."""
    warm_up = rounds // 3 if warm_up is None else warm_up
    expect(warm_up < rounds, f"warm_up={warm_up} < rounds={rounds}", "Full pruning starts after the warm-up.")
    return warm_up, warm_up // 2 if ramp is None else ramp


SHORT_NAMES = {
    "pruning.compression": "compression",
    "pruning.counts": "keep",
    "admm.penalty": "penalty",
    "admm.updates": "updates",
    "admm.freeze_after": "freeze_after",
    "channel.wire": "wire",
    "channel.down": "down",
}
METHODS = (esmfl, masked_pruning)
