"""Flower's client app, in a separate module.

Ray sends the app with every message: functions of an importable module are sent as a name, those of the main script as
their code.
"""

import functools
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from torch import Tensor, nn

from workloads import WORKLOADS, Workload, train

# Environment variables that the server sets before Ray starts the actors
NAME, DATA, CHECK = "BENCHMARK_WORKLOAD", "BENCHMARK_DATA", "BENCHMARK_CHECK"
logging.getLogger("flwr").setLevel(logging.ERROR)
app = ClientApp(mods=[fixedclipping_mod])


@functools.cache
def prepared() -> tuple[Workload, nn.Module, Tensor, Tensor]:
    """What an actor prepares once: the workload, a model to reuse, and all data, memory-mapped."""
    torch.set_num_threads(1)
    workload = WORKLOADS[os.environ[NAME]]
    workload = workload.full_batch() if os.environ[CHECK] else workload
    x, y = torch.load(os.environ[DATA], mmap=True)
    return workload, workload.net(), x, y


@app.train()
def fit(message: Message, context: Context) -> Message:
    """Receive the weights, train on this client's data, send the weights back; the mod clips the update."""
    workload, net, x, y = prepared()
    client = context.node_config["partition-id"]
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(net, workload.batches(x[client], y[client]), workload.lr)
    record = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": workload.samples})}
    return Message(RecordDict(record), reply_to=message)
