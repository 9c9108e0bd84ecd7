"""Flower's SecAgg+: its client mod and its server workflow, in one process, without a network between them.

What is generous: messages are handed over as they are, neither packed nor read; no model is broadcast; clients
answer at once with arrays that are ready; the strategy takes the mean as it comes, where `FedAvg` would average it
once more; and the time in which floats become integers is not counted, as Tacit's sums begin with integers.

Pads are timed where they are made and added (`pseudo_rand_gen` and the arithmetic on its results); agreeing on
their keys is not a part of that.
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
from stopwatch import Stopwatch
from talk import commands, ready, say

from sums import CASES, CLIP, STEPS, TINY, Case

client_module = sys.modules[secaggplus_mod.__module__]  # it has the name of the function in it
FIRST = 1  # node ids begin here
PADS = ("pseudo_rand_gen", "parameters_addition", "parameters_subtraction")


class Fixed(NumPyClient):
    """A client that has trained already."""

    def __init__(self, arrays: NDArrays) -> None:
        self.arrays = arrays

    def fit(self, parameters: NDArrays, config: dict[str, Scalar]) -> tuple[NDArrays, int, dict[str, Scalar]]:
        """Its arrays, with weight 1."""
        del parameters, config
        return self.arrays, 1, {}


class InProcess:
    """All of a `Grid` that the workflow uses: every message is answered before the next."""

    def __init__(self, case: Case) -> None:
        self.delivering = {FIRST + client for client in case.delivering}
        self.arrays = {FIRST + client: [case.floats(client)] for client in case.delivering}
        self.app = ClientApp(client_fn=self._client, mods=[secaggplus_mod])
        nodes = range(FIRST, FIRST + case.clients)
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in nodes}

    def _client(self, context: Context) -> Client:
        return Fixed(self.arrays[context.node_id]).to_client()

    def send_and_receive(self, messages: Iterable[Message], timeout: float | None = None) -> list[Message]:
        """The answers of those that are not lost."""
        del timeout
        return [self._answer(message) for message in messages if self._present(message)]

    def _present(self, message: Message) -> bool:
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        return message.metadata.dst_node_id in self.delivering or stage in (Stage.SETUP, Stage.SHARE_KEYS)

    def _answer(self, message: Message) -> Message:
        """From a copy of what the server says: the mod takes its record of settings apart, which others share."""
        settings = ConfigRecord(dict(message.content.config_records[RECORD_KEY_CONFIGS]))
        message.content = RecordDict({**message.content, RECORD_KEY_CONFIGS: settings})
        return self.app(message, self.contexts[message.metadata.dst_node_id])


class AsItIs(FedAvg):
    """Each result holds the mean already: take the first."""

    def aggregate_fit(self, server_round: int, results: list, failures: list) -> tuple[Parameters, dict[str, Scalar]]:
        """The mean as the workflow found it."""
        del server_round
        assert not failures, failures
        return results[0][1].parameters, {}


class Workflow(SecAggPlusWorkflow):
    """Flower's, whose stopwatch for the server's pads starts when it begins to take them off."""

    def __init__(self, case: Case, pads: Stopwatch) -> None:
        shares = case.neighbours + 1  # one is its own
        super().__init__(shares, case.threshold, max_weight=1, clipping_range=CLIP, quantization_range=STEPS)
        self.pads = pads

    def unmask_stage(self, *args: object) -> bool:
        """What was added before is the sum itself."""
        self.pads.read()
        return super().unmask_stage(*args)  # type: ignore[arg-type]


class Conversation:
    """Plays rounds of one case, and times them."""

    def __init__(self, case: Case) -> None:
        self.case, self.grid = case, InProcess(case)
        self.clients_pads, self.servers_pads, self.rounding = Stopwatch(), Stopwatch(), Stopwatch()
        self.workflow = Workflow(case, self.servers_pads)
        self.context = LegacyContext(Context(1, 0, {}, RecordDict(), {}), strategy=AsItIs(min_fit_clients=case.clients))
        self.context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 0})
        for node in self.grid.contexts:
            self.context.client_manager.register(GridClientProxy(node, self.grid, 1))  # type: ignore[arg-type]

    def watch(self) -> None:
        """Time pads on both sides, and what makes integers of floats."""
        self.clients_pads.watch(client_module, *PADS)
        self.servers_pads.watch(server_module, *PADS)
        self.rounding.watch(client_module, "parameters_multiply", "quantize")

    def play(self) -> dict[str, float]:
        """One round: its seconds, those of them for pads, and how wrong the sum is."""
        self.context.state.array_records[MAIN_PARAMS_RECORD] = ArrayRecord([np.zeros(1, np.float32)])
        self.context.state.config_records[MAIN_CONFIGS_RECORD][WorkflowKey.CURRENT_ROUND] += 1
        begin, busy = time.perf_counter(), time.process_time()
        self.workflow(self.grid, self.context)  # type: ignore[arg-type]
        seconds, busy = time.perf_counter() - begin, time.process_time() - busy
        rounding = self.rounding.read()
        return {
            "seconds": seconds - rounding,
            "processor": busy - rounding,
            "pads_of_a_client": self.clients_pads.read() / len(self.grid.delivering),
            "pads_of_the_server": self.servers_pads.read(),
            "error": self._error(),
        }

    def _error(self) -> int:
        """In steps of the integers."""
        (mean,) = self.context.state.array_records[MAIN_PARAMS_RECORD].to_numpy_ndarrays()
        total = (mean + CLIP) * (len(self.grid.delivering) * STEPS / (2 * CLIP))
        return int(np.abs(np.rint(total).astype(np.int64) - self.case.total()).max())


def main() -> None:
    """A small round to warm up, then as told."""
    random.seed(1)  # who is whose neighbour
    logging.getLogger("flwr").setLevel(logging.ERROR)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1
    Conversation(TINY).play()
    conversation = Conversation(CASES[sys.argv[1]])
    conversation.watch()
    ready("flwr", "cryptography", "numpy")
    for _ in commands():
        say(**conversation.play())


if __name__ == "__main__":
    main()
