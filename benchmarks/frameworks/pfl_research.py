"""pfl-research in its fastest mode here: two single-threaded processes under torchrun, gloo between them.

Start with `torchrun --standalone --nproc-per-node 2`. The first process exchanges messages with the runner, and both
wait for it between rounds in a collective call. Users' data are built once and kept as tensors; nothing is evaluated
after the first round.
"""

import types

import numpy as np
import torch
from messages import commands, send_ready
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
from torch import Tensor, distributed, nn
from torch.nn import functional as F
from training import Job, RoundTimer, parse_job

from workloads import Workload, flat

UNLIMITED_ROUNDS = 1_000_000


def loss(net: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """The loss of a batch, which pfl calls as a method of the model."""
    return F.cross_entropy(net(x), y)


def metrics(net: nn.Module, x: Tensor, y: Tensor) -> dict[str, Weighted]:
    """The metrics of a batch, which pfl calls as a method of the model (here in its first iteration only)."""
    with torch.no_grad():
        return {"loss": Weighted(loss(net, x, y).item(), 1)}


def model_of(workload: Workload) -> PyTorchModel:
    """The workload's model with the two methods that pfl needs."""
    net = workload.net()
    net.loss, net.metrics = types.MethodType(loss, net), types.MethodType(metrics, net)
    return PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))


def backend_of(job: Job) -> SimulatedBackend:
    """All users once per round, with central clipping and noise."""
    users = {
        number: Dataset([x, y], user_id=number) for number, (x, y) in enumerate(zip(*job.workload.data(), strict=True))
    }
    population = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(users)))
    clip = job.workload.clip
    with_noise = job.noise_multiplier > 0
    mechanism = GaussianMechanism(clip, job.noise_multiplier) if with_noise else NormClippingOnly(2.0, clip)
    return SimulatedBackend(population, population, [CentrallyAppliedPrivacyMechanism(mechanism)])


class RoundControl(TrainingProcessCallback):
    """Stops the timer after a round and waits for the next command, in both processes."""

    def __init__(self, job: Job, net: nn.Module) -> None:
        self.timer = RoundTimer(job, lambda: flat(net))
        self.first = distributed.get_rank() == 0
        self.commands = commands()

    def wait(self) -> bool:
        """Block until the first process receives a command; return whether there are no more rounds."""
        more = torch.tensor([self.first and next(self.commands, "end") != "end"])
        distributed.broadcast(more, src=0)
        if self.first and more:
            self.timer.start()
        return not more

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Called before the first round."""
        del model
        if self.first:
            send_ready("torch", "pfl")
        self.wait()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Called after every round."""
        del aggregate_metrics, model, central_iteration
        if self.first:
            self.timer.stop()
        return self.wait(), Metrics()


def main() -> None:
    """Run the job on the command line."""
    job = parse_job()
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
        central_num_iterations=UNLIMITED_ROUNDS,
        evaluation_frequency=UNLIMITED_ROUNDS,
        train_cohort_size=workload.clients,
        val_cohort_size=None,
    )
    FederatedAveraging().run(
        algorithm,
        backend_of(job),
        model,
        training,
        callbacks=[RoundControl(job, model.pytorch_model)],
        send_metrics_to_platform=False,
    )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
