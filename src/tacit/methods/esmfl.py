"""Pruned models in few bytes (ESMFL, Lin et al. 2020): ADMM pruning on the clients, its baseline, and a sparse wire.

After some rounds of warm-up every client sends a model of few weights, so that what travels upwards shrinks with them.
What differs from the paper, and why:

- Whole models become small ones in several rounds (`approach`), and in the end only the weights that are left are
  trained (`settled`), as in the work on ADMM that the paper builds on. It prunes at once, and never stops choosing.
- The penalty coefficient follows from one number, `pull` (see `tacit.pieces.trainers.admm`); the paper prints none.
- Averaging models that kept different weights gives a model of more weights than any of them. Its density is measured
  in every round, and so are its figures after it has been pruned like a client's (`pruned_accuracy`).
- The form on the wire is our own by default (`compact`); the paper's, compressed sparse rows, is there as `csr`.
- The enclave is a separate process that is reached through attestation only, and simulated: there is no hardware here.
- Models go down dense, as in the paper's volumes, unless `down` says otherwise.
"""

from collections.abc import Callable
from typing import Literal

from tacit.core import Method, Plain
from tacit.core.pieces import Channel
from tacit.core.schema import choose
from tacit.errors import expect
from tacit.pieces.channels import Enclave
from tacit.pieces.samplers import FixedSize
from tacit.pieces.servers import Replace
from tacit.pieces.trainers import AdmmPrune, Keep, MagnitudePrune, Sgd
from tacit.wire.sparse import Compact, Csr, Wire

Form = Literal["dense", "csr", "compact"]
_FORMS: dict[str, Callable[[], Wire | None]] = {"dense": lambda: None, "csr": Csr, "compact": Compact}


def esmfl(
    rounds: int = 60,
    warm_up: int | None = None,
    approach: int | None = None,
    settled: int | None = None,
    cohort: int = 10,
    compression: float = 10.0,
    keep: tuple[int, ...] = (),
    pull: float = 0.01,
    updates: int | None = None,
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    steps: int | None = None,
    batch_size: int | None = 10,
    weight_decay: float = 0.0,
    wire: Form = "compact",
    down: Form = "dense",
    enclave: bool = True,
) -> Method:
    """ADMM pruning on the clients: after a warm-up, they train towards few weights and send only these.

    Args:
        rounds: how many rounds, with those of the warm-up.
        warm_up: rounds before so few weights are sent, in which whole models are; none: a third of all.
        approach: how many of the last rounds of the warm-up already send fewer and fewer weights; none: half.
        settled: rounds after which no other weights are kept, and trained, than those of the aggregated model; none:
            half of all, with the warm-up, and as many as `rounds` for never.
        cohort: how many clients take part in each round.
        compression: how many times fewer weights a client sends, biases and norms not counted.
        keep: instead, how many weights of each layer a client sends, in the model's order.
        pull: the share of the way to the nearest pruned model that weights go with every step.
        updates: how often in a round that model is found anew; none: after every epoch.
        lr: the clients' learning rate.
        decay: the learning rate of round t is lr·decay^t.
        epochs: passes over a client's data per round.
        steps: instead, gradient steps per round.
        batch_size: samples per gradient step; none: all of a client's.
        weight_decay: L2 penalty, by which weights that are not needed make room for others.
        wire: the form in which clients send: `compact`, `csr` (compressed sparse rows) or `dense`.
        down: the form in which the server sends the aggregated model, exactly: of the same names.
        enclave: models are aggregated in an enclave, a process of its own that clients reach through attestation only;
            here it is simulated, and everything says so. Otherwise the server sees them.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, arXiv 2009.01867.
    """
    warm_up, approach = _phases(rounds, warm_up, approach)
    trainer = AdmmPrune(
        sgd=_sgd(lr, decay, epochs, steps, batch_size, weight_decay),
        keep=_keep(compression, keep),
        warm_up=warm_up,
        approach=approach,
        settled=max(rounds // 2, warm_up) if settled is None else settled,
        pull=pull,
        updates=updates,
    )
    return _method("esmfl", trainer, rounds, cohort, _channel(wire, down, enclave))


def masked_pruning(
    rounds: int = 60,
    warm_up: int | None = None,
    approach: int | None = None,
    cohort: int = 10,
    compression: float = 10.0,
    keep: tuple[int, ...] = (),
    lr: float = 0.05,
    decay: float = 1.0,
    epochs: int = 5,
    steps: int | None = None,
    batch_size: int | None = 10,
    weight_decay: float = 0.0,
    wire: Form = "compact",
    down: Form = "dense",
    enclave: bool = True,
) -> Method:
    """The baseline of ESMFL: after a warm-up, clients train all weights and send the largest of each layer.

    Args:
        rounds: how many rounds, with those of the warm-up.
        warm_up: rounds before so few weights are sent, in which whole models are; none: a third of all.
        approach: how many of the last rounds of the warm-up already send fewer and fewer weights; none: half.
        cohort: how many clients take part in each round.
        compression: how many times fewer weights a client sends, biases and norms not counted.
        keep: instead, how many weights of each layer a client sends, in the model's order.
        lr: the clients' learning rate.
        decay: the learning rate of round t is lr·decay^t.
        epochs: passes over a client's data per round.
        steps: instead, gradient steps per round.
        batch_size: samples per gradient step; none: all of a client's.
        weight_decay: L2 penalty, by which weights that are not needed make room for others.
        wire: the form in which clients send: `compact`, `csr` (compressed sparse rows) or `dense`.
        down: the form in which the server sends the aggregated model, exactly: of the same names.
        enclave: models are aggregated in an enclave, a process of its own that clients reach through attestation only;
            here it is simulated, and everything says so. Otherwise the server sees them.

    Reference: Lin, Wang, Li, Deng, Wang, Ding. ESMFL: Efficient and Secure Models for Federated Learning. NeurIPS 2020
    workshop, Section 2.3.
    """
    warm_up, approach = _phases(rounds, warm_up, approach)
    trainer = MagnitudePrune(
        sgd=_sgd(lr, decay, epochs, steps, batch_size, weight_decay),
        keep=_keep(compression, keep),
        warm_up=warm_up,
        approach=approach,
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


def _sgd(lr: float, decay: float, epochs: int, steps: int | None, batch_size: int | None, penalty: float) -> Sgd:
    length = {"epochs": epochs} if steps is None else {"steps": steps}
    return Sgd(lr=lr, decay=decay, batch_size=batch_size, weight_decay=penalty, sends="weights", **length)


def _phases(rounds: int, warm_up: int | None, approach: int | None) -> tuple[int, int]:
    """The warm-up's rounds, and how many of the last of them lead to few weights."""
    warm_up = rounds // 3 if warm_up is None else warm_up
    expect(warm_up < rounds, f"warm_up={warm_up} < rounds={rounds}", "Pruning comes after the warm-up.")
    return warm_up, warm_up // 2 if approach is None else approach


def _keep(compression: float, counts: tuple[int, ...]) -> Keep:
    return Keep(counts=counts) if counts else Keep(compression=compression)


def _channel(wire: Form, down: Form, enclave: bool) -> Channel:
    up, back = (choose(_FORMS, form, "wire")() for form in (wire, down))
    return Enclave(wire=up, down=back, conversation=True) if enclave else Plain(wire=up, down=back)


METHODS = (esmfl, masked_pruning)
