"""Flower's SecAgg+: its client mod and its server workflow, in one process, without a network between them.

Flower is given these advantages: messages are passed as objects, neither packed nor parsed; no model is broadcast;
clients answer at once with arrays that are ready; the strategy uses the mean as it is, where `FedAvg` would average it
again; and the time of quantisation is not counted, since Tacit's sums begin with integers.

Pads are timed where they are generated and added (`pseudo_rand_gen` and the arithmetic on its results), without the
agreement on their keys.
"""

import logging
import os
import random
import sys
import time
from collections.abc import Iterable

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.client import Client, NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import NDArrays, Parameters, Scalar
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.server import LegacyContext
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation import secaggplus_workflow as server_module
from flwr.supercore.task_identity import TaskIdentity
from messages import Stopwatch, commands, send, send_ready

from sum_cases import CASES, CLIP, STEPS, TINY, Case

client_module = sys.modules[secaggplus_mod.__module__]  # the module has the same name as the function
FIRST = 1  # the first node id
PADS = ("pseudo_rand_gen", "parameters_addition", "parameters_subtraction")


class TrainedClient(NumPyClient):
    """A client whose update is ready."""

    def __init__(self, arrays: NDArrays) -> None:
        self.arrays = arrays

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """The client's arrays, with weight 1."""
        del parameters, config
        return self.arrays, 1, {}


class InProcess:
    """The part of a `Grid` that the workflow uses: every message is answered before the next."""

    def __init__(self, case: Case) -> None:
        self.surviving = {FIRST + client for client in case.surviving}
        self.arrays = {FIRST + client: [case.floats(client)] for client in case.surviving}
        self.app = ClientApp(client_fn=self._client, mods=[secaggplus_mod])
        nodes = range(FIRST, FIRST + case.clients)
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}

    def _client(self, context: Context) -> Client:
        return TrainedClient(self.arrays[context.node_id]).to_client()

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        """The answers of the clients that have not dropped out."""
        del timeout
        return [self._answer(message) for message in messages if self._online(message)]

    def _online(self, message: Message) -> bool:
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        return message.metadata.dst_node_id in self.surviving or stage in (Stage.SETUP, Stage.SHARE_KEYS)

    def _answer(self, message: Message) -> Message:
        """The settings are copied, because the mod modifies the record, which all messages share."""
        settings = ConfigRecord(dict(message.content.config_records[RECORD_KEY_CONFIGS]))
        message.content = RecordDict({**message.content, RECORD_KEY_CONFIGS: settings})
        return self.app(message, self.contexts[message.metadata.dst_node_id])


class FirstResult(FedAvg):
    """Each result is already the mean: use the first."""

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> tuple[Parameters, dict[str, Scalar]]:
        """The mean that the workflow computed."""
        del server_round
        assert not failures, failures
        return results[0][1].parameters, {}


class Workflow(SecAggPlusWorkflow):
    """Flower's workflow; the stopwatch for the server's pads starts when it begins to remove them."""

    def __init__(self, case: Case, pads: Stopwatch) -> None:
        shares = case.neighbours + 1  # a client keeps one itself
        super().__init__(shares, case.threshold, max_weight=1, clipping_range=CLIP, quantization_range=STEPS)
        self.pads = pads

    def unmask_stage(self, *args: object) -> bool:
        """Discard the time of the additions so far, which are the sum itself."""
        self.pads.read()
        return super().unmask_stage(*args)  # type: ignore[arg-type]


class SecureSum:
    """Runs and times rounds of one case."""

    def __init__(self, case: Case) -> None:
        self.case, self.grid = case, InProcess(case)
        self.client_pads, self.server_pads, self.rounding = Stopwatch(), Stopwatch(), Stopwatch()
        self.workflow = Workflow(case, self.server_pads)
        strategy = FirstResult(min_fit_clients=case.clients)
        self.context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=strategy)
        self.context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 0})
        for node in self.grid.contexts:
            self.context.client_manager.register(GridClientProxy(node, self.grid, 1))  # type: ignore[arg-type]

    def watch(self) -> None:
        """Time pads on both sides, and the quantisation."""
        self.client_pads.watch(client_module, *PADS)
        self.server_pads.watch(server_module, *PADS)
        self.rounding.watch(client_module, "parameters_multiply", "quantize")

    def run_round(self) -> dict[str, float]:
        """One round: its seconds, those spent on pads, and the error of the sum."""
        self.context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(1, np.float32)])
        self.context.state.config_records[MAIN_CONFIGS_RECORD][WorkflowKey.CURRENT_ROUND] += 1
        begin, cpu_begin = time.perf_counter(), time.process_time()
        self.workflow(self.grid, self.context)  # type: ignore[arg-type]
        seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - cpu_begin
        rounding = self.rounding.read()
        return {
            "seconds": seconds - rounding,
            "cpu_seconds": cpu_seconds - rounding,
            "client_pads": self.client_pads.read() / len(self.grid.surviving),
            "server_pads": self.server_pads.read(),
            "error": self._error(),
        }

    def _error(self) -> int:
        """The largest error of a number in the sum of integers."""
        (mean,) = self.context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
        total = (mean + CLIP) * (len(self.grid.surviving) * STEPS / (2 * CLIP))
        return int(np.abs(np.rint(total).astype(np.int64) - self.case.total()).max())


def main() -> None:
    """A small round to warm up, then one for every command."""
    random.seed(1)  # for the graph of neighbours
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    SecureSum(TINY).run_round()
    secure_sum = SecureSum(CASES[sys.argv[1]])
    secure_sum.watch()
    send_ready("flwr", "cryptography", "numpy")
    for _ in commands():
        send(**secure_sum.run_round())


if __name__ == "__main__":
    main()
