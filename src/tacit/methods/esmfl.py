"""Pruned models in few bytes (ESMFL, Lin et al. 2020): ADMM pruning on the clients, its baseline, and sparse formats.

After a warm-up every client sends a sparse model, so uploads shrink with the number of weights. Differences from the
paper:

- Pruning is gradual (`ramp`), and finally the mask is frozen (`freeze_after`), as in the work on ADMM that the paper
  builds on. The paper prunes at once and lets clients choose weights until the end.
- The penalty coefficient follows from one number, `penalty` (see `tacit.pieces.trainers.pruning`); the paper gives no
  value.
- The average of models with different masks has more weights than each of them. Its density is measured in every
  round, and so is its accuracy after it has been pruned like a client's model (`pruned_accuracy`).
- The default wire format, `compact`, is our own; the paper's, compressed sparse rows, is `csr`.
- The enclave is a separate process that clients reach through attestation only. It is simulated, not hardware.
- The server sends dense models, as in the paper's volumes, unless `down` is set.
"""

from collections.abc import Callable
from typing import Literal

from tacit.core import Method, Plain
from tacit.core.interfaces import Channel
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.channels import Enclave
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune, Sgd
from tacit.wire.sparse import Compact, Csr, WireFormat

Format = Literal["dense", "csr", "compact"]
_FORMATS: dict[str, Callable[[], WireFormat | None]] = {"dense": lambda: None, "csr": Csr, "compact": Compact}


def esmfl(
    rounds: int = 60,
    warm_up: int | None = None,
    ramp: int | None = None,
    freeze_after: int | None = None,
    cohort: int = 10,
    compression: float = 10.0,
    keep: tuple[int, ...] = (),
    penalty: float = 0.01,
    updates: int | None = None,
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    steps: int | None = None,
    batch_size: int | None = 10,
    weight_decay: float = 0.0,
    wire: Format = "compact",
    down: Format = "dense",
    enclave: bool = True,
) -> Method:
    """ADMM pruning: after a warm-up, clients train towards sparse models and send only the remaining weights.

    Args:
        rounds: number of rounds, warm-up included.
        warm_up: number of rounds before full pruning; none: a third of all rounds.
        ramp: how many of the last rounds of the warm-up already prune, each keeping fewer weights than the one before;
            none: half of the warm-up. In the rounds before, clients send whole models.
        freeze_after: number of rounds, warm-up included, after which the mask of the aggregated model is frozen; none:
            half of all rounds. As many as `rounds`: never.
        cohort: clients per round.
        compression: compression ratio of the weights, without biases and normalisation parameters.
        keep: instead, the number of weights that a client sends of each layer, in the model's order.
        penalty: strength of the ADMM penalty: the fraction of the distance to the pruned model that weights move per
            step.
        updates: how often in a round that pruned model is updated; none: after every epoch.
        lr: the clients' learning rate.
        decay: the learning rate of round t is lr·decay^t.
        epochs: passes over a client's data per round.
        steps: instead, gradient steps per round.
        batch_size: samples per gradient step; none: all samples of the client.
        weight_decay: coefficient of the L2 penalty; it shrinks weights that are not needed.
        wire: wire format of uploads: `compact`, `csr` (compressed sparse rows) or `dense`; all are lossless.
        down: wire format of downloads, by the same names.
        enclave: aggregate in an enclave, a separate process that clients reach through attestation only (simulated,
            which all output states); otherwise the server sees every model.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, arXiv 2009.01867.
    """
    warm_up, ramp = _phases(rounds, warm_up, ramp)
    trainer = AdmmPrune(
        sgd=_sgd(lr, decay, epochs, steps, batch_size, weight_decay),
        keep=_keep(compression, keep),
        warm_up=warm_up,
        ramp=ramp,
        freeze_after=max(rounds // 2, warm_up) if freeze_after is None else freeze_after,
        penalty=penalty,
        updates=updates,
    )
    return _method("esmfl", trainer, rounds, cohort, _channel(wire, down, enclave))


def masked_pruning(
    rounds: int = 60,
    warm_up: int | None = None,
    ramp: int | None = None,
    cohort: int = 10,
    compression: float = 10.0,
    keep: tuple[int, ...] = (),
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    steps: int | None = None,
    batch_size: int | None = 10,
    weight_decay: float = 0.0,
    wire: Format = "compact",
    down: Format = "dense",
    enclave: bool = True,
) -> Method:
    """Magnitude pruning, the baseline of ESMFL: clients train all weights and send the largest of each layer.

    Args:
        rounds: number of rounds, warm-up included.
        warm_up: number of rounds before full pruning; none: a third of all rounds.
        ramp: how many of the last rounds of the warm-up already prune, each keeping fewer weights than the one before;
            none: half of the warm-up. In the rounds before, clients send whole models.
        cohort: clients per round.
        compression: compression ratio of the weights, without biases and normalisation parameters.
        keep: instead, the number of weights that a client sends of each layer, in the model's order.
        lr: the clients' learning rate.
        decay: the learning rate of round t is lr·decay^t.
        epochs: passes over a client's data per round.
        steps: instead, gradient steps per round.
        batch_size: samples per gradient step; none: all samples of the client.
        weight_decay: coefficient of the L2 penalty; it shrinks weights that are not needed.
        wire: wire format of uploads: `compact`, `csr` (compressed sparse rows) or `dense`; all are lossless.
        down: wire format of downloads, by the same names.
        enclave: aggregate in an enclave, a separate process that clients reach through attestation only (simulated,
            which all output states); otherwise the server sees every model.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, Section 2.3.
    """
    warm_up, ramp = _phases(rounds, warm_up, ramp)
    trainer = MagnitudePrune(
        sgd=_sgd(lr, decay, epochs, steps, batch_size, weight_decay),
        keep=_keep(compression, keep),
        warm_up=warm_up,
        ramp=ramp,
    )
    return _method("masked-pruning", trainer, rounds, cohort, _channel(wire, down, enclave))


def _method(name: str, trainer: AdmmPrune | MagnitudePrune, rounds: int, cohort: int, channel: Channel) -> Method:
    return Method(
        name=name,
        rounds=rounds,
        sampler=FixedSize(cohort),
        trainer=trainer,
        channel=channel,
        server=Replace(),
    )


def _sgd(lr: float, decay: float, epochs: int, steps: int | None, batch_size: int | None, weight_decay: float) -> Sgd:
    length = {"epochs": epochs} if steps is None else {"steps": steps}
    return Sgd(lr=lr, decay=decay, batch_size=batch_size, weight_decay=weight_decay, sends="weights", **length)


def _phases(rounds: int, warm_up: int | None, ramp: int | None) -> tuple[int, int]:
    """The rounds of the warm-up, and how many of the last of them prune gradually."""
    warm_up = rounds // 3 if warm_up is None else warm_up
    expect(warm_up < rounds, f"warm_up={warm_up} < rounds={rounds}", "Full pruning starts after the warm-up.")
    return warm_up, warm_up // 2 if ramp is None else ramp


def _keep(compression: float, counts: tuple[int, ...]) -> Keep:
    return Keep(counts=counts) if counts else Keep(compression=compression)


def _channel(wire: Format, down: Format, enclave: bool) -> Channel:
    uplink, downlink = (choose(_FORMATS, name, "wire")() for name in (wire, down))
    if enclave:
        return Enclave(wire=uplink, down=downlink, conversation=True)
    return Plain(wire=uplink, down=downlink)


METHODS = (esmfl, masked_pruning)
