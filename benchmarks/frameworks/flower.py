"""Flower's simulation in its fastest mode here: Ray with one single-threaded actor per worker.

Differential privacy with fixed clipping, by the clients (in parallel) and not by the server (one after the other).
Models and data are kept in the actors between messages. Rounds are interleaved with those of other frameworks through
`evaluate_fn`, which Flower calls once before the first round and once after each. Logging is off.
"""

import contextlib
import logging
import os
import tempfile
from pathlib import Path

os.environ |= {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
}

import torch
from flower_client import CHECK, DATA, NAME, app
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.simulation import run_simulation
from messages import commands, send_ready
from torch import Tensor
from training import Job, RoundTimer, parse_job

UNLIMITED_ROUNDS = 1_000_000


class NoMoreRounds(Exception):  # noqa: N818
    """Raised inside Flower's loop, which has no other way to stop early."""


class RoundControl:
    """Flower's `evaluate_fn`: stops the timer after a round and waits for the next command."""

    def __init__(self, job: Job) -> None:
        self.arrays = ArrayRecord()
        self.timer = RoundTimer(job, self.weights)
        self.commands = commands()

    def weights(self) -> Tensor:
        """The server's weights in one vector."""
        return torch.cat([array.reshape(-1) for array in self.arrays.to_torch_state_dict().values()])

    def __call__(self, number: int, arrays: ArrayRecord) -> MetricRecord | None:
        """Called after round `number`; 0 is before the first."""
        self.arrays = arrays
        if number == 0:
            send_ready("torch", "flwr", "ray")
        else:
            self.timer.stop()
        if next(self.commands, "end") == "end":
            raise NoMoreRounds
        self.timer.start()


def server(job: Job) -> ServerApp:
    """Federated averaging over all clients, with Gaussian noise on the mean."""
    workload = job.workload
    serverapp = ServerApp()

    @serverapp.main()
    def main(grid: Grid, context: Context) -> None:
        del context
        average = FedAvg(fraction_evaluate=0.0, min_train_nodes=workload.clients, min_available_nodes=workload.clients)
        strategy = DifferentialPrivacyClientSideFixedClipping(
            average, job.noise_multiplier, workload.clip, workload.clients
        )
        start = ArrayRecord(workload.net().state_dict())
        strategy.start(grid, start, num_rounds=UNLIMITED_ROUNDS, evaluate_fn=RoundControl(job))

    return serverapp


def main() -> None:
    """Run the job on the command line."""
    job = parse_job()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {NAME: job.workload.name, DATA: str(Path(folder) / "data.pt"), CHECK: job.dump or ""}
        torch.save(job.workload.data(), os.environ[DATA])
        resources = {
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"num_cpus": job.workers, "log_to_driver": False, "logging_level": "error"},
        }
        with contextlib.suppress(NoMoreRounds):
            run_simulation(server(job), app, num_supernodes=job.workload.clients, backend_config=resources)


if __name__ == "__main__":
    main()
