"""pfl-research in its fastest mode here: two single-threaded processes under torchrun, gloo between them.

Start with `torchrun --standalone --nproc-per-node 2`. The first process talks to the referee, and both wait
for it between rounds in a collective call. Users' data are built once and kept as tensors; nothing is
evaluated after the first round.
"""

import types

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism, NormClippingOnly
from player import Assignment, Clock, assignment
from talk import commands, ready
from torch import Tensor, distributed, nn
from torch.nn import functional as F

from workloads import Workload, flat

ENDLESS = 1_000_000


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """What pfl asks of a model: the loss of a batch."""
    return F.cross_entropy(net(x), y)


def metrics(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Weighted]:
    """What pfl asks of a model for evaluation (it evaluates in its first iteration only)."""
    with torch.no_grad():
        return {"loss": Weighted(loss(net, x, y).item(), 1)}


def model_of(workload: Workload) -> PyTorchModel:
    """The workload's model with the two methods that pfl wants."""
    net = workload.net()
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    return PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))


def backend_of(job: Assignment) -> SimulatedBackend:
    """All users once per round, clipped and blurred centrally."""
    users = {
        number: Dataset([x, y], user_id=number) for number, (x, y) in enumerate(zip(*job.workload.data(), strict=True))
    }
    population = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    clip = job.workload.clip
    noisy = job.noise_multiplier > 0
    mechanism = GaussianMechanism(clip, job.noise_multiplier) if noisy else NormClippingOnly(2.0, clip)
    return SimulatedBackend(population, population, [CentrallyAppliedPrivacyMechanism(mechanism)])


class Referee(TrainingProcessCallback):
    """Stops the clock after a round and waits for the next command, in both processes."""

    def __init__(self, job: Assignment, net: nn.Module) -> None:
        self.clock = Clock(job, lambda: flat(net))
        self.chief = distributed.get_rank() == 0
        self.commands = commands()

    def wait(self) -> bool:
        """Block until the first process is told to play; whether the race is over."""
        more = torch.tensor([self.chief and next(self.commands, "over") != "over"])
        distributed.broadcast(more, src=0)
        if self.chief and more:
            self.clock.start()
        return not more

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Before the first round."""
        del model
        if self.chief:
            ready("torch", "pfl")
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """After every round."""
        del aggregate_metrics, model, central_iteration
        if self.chief:
            self.clock.stop()
        return self.wait(), Metrics()


def main() -> None:
    """Race as told on the command line and standard input."""
    job = assignment()
    workload = job.workload
    torch.set_num_threads(1)
    np.random.seed(0)
    model = model_of(workload)
    training = NNTrainHyperParams(
        local_num_epochs=workload.epochs,
        local_learning_rate=workload.lr,
        local_batch_size=workload.batch_size,
    )
    algorithm = NNAlgorithmParams(
        central_num_iterations=ENDLESS,
        evaluation_frequency=ENDLESS,
        train_cohort_size=workload.clients,
        val_cohort_size=None,
    )
    FederatedAveraging().run(
        algorithm,
        backend_of(job),
        model,
        training,
        callbacks=[Referee(job, model.pytorch_model)],
        send_metrics_to_platform=False,
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
