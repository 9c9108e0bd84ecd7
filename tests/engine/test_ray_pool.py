"""Actors of a Ray cluster compute the bits of the local pool, also if they die: here two raylets on the loopback."""

import os
import secrets
import socket
import sys
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import zoo
from federation.processes import until
from laws.compositions import all_methods
from tacit.core import ClientRound, Method, SeededKeys
from tacit.core.discovery import run_file
from tacit.core.worker_choice import RayChoice
from tacit.data import Task
from tacit.engine import rounds
from tacit.engine.layout import make_model
from tacit.engine.pool import choose_workers
from tacit.engine.simulation import Simulation, draw
from tacit.engine.waves import AutoLearner
from tacit.engine.worker import Worker
from tacit.errors import TacitError, UserError, WorkerError
from tacit.federation.transport.relay import free_port
from tacit.pieces.samplers import Everyone
from tacit.pieces.trainers import Sgd

ray = pytest.importorskip("ray", reason="needs Ray: pip install 'tacit-fl[ray]'")
from ray.cluster_utils import Cluster  # noqa: E402

from tacit.engine.ray import ray_cluster, ray_pool  # noqa: E402

NAMES = (  # with client-side state, server memory, several hypotheses, masks, rows needed at once, shares of noise
    *("dp-sgd", "esmfl", "fl-cs-dp", "fl-top-dp", "fl-top-record-dp", "ifca", "priority-dp", "growing", "pruned"),
    *("quantile", "weighted enclave", "vote", "weighted selection", "hypotheses after a warm-up"),
)
METHODS = {name: method for name, method in all_methods().items() if name in NAMES}
SIZES = [4, 9, 7, 7, 5, 3, 8, 6, 4, 4, 9, 2, 6]
PLAIN = Method(name="plain", rounds=2, sampler=Everyone(), trainer=Sgd(lr=0.1, epochs=1, batch_size=4))


@pytest.fixture(scope="module")
def client_port() -> int:
    """Where the cluster's first machine waits for Ray's client."""
    return free_port()


@pytest.fixture(scope="module")
def address(client_port: int) -> Iterator[str]:
    """Two raylets that admit only who knows their token, and no other machine."""
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    own["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # Ray's processes take 127.0.0.1 as it is
    with pytest.MonkeyPatch.context() as patch:
        for name, value in own.items():
            patch.setenv(name, value)
        patch.setenv("RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S", "180")  # 30 s are short for a first import
        ray_cluster.forget_token()
        node = {"num_cpus": 2, "node_ip_address": "127.0.0.1", "object_store_memory": 100 << 20}
        head = {"include_dashboard": False, "ray_client_server_port": client_port}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # Ray leaves a log of its client server open
            cluster = Cluster(initialize_head=True, head_node_args={**node, **head})
        try:
            cluster.add_node(**node)
            yield cluster.address
        finally:
            cluster.shutdown()
    ray_cluster.forget_token()


@pytest.mark.law("Ray")
def test_a_token_of_another_cluster_is_named(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is left in the home folder: the connection is refused with a sentence, and nothing waits for ever."""
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text(secrets.token_hex(32))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("RAY_AUTH_TOKEN")
    monkeypatch.setattr(ray_cluster.ray_constants, "NUM_REDIS_GET_RETRIES", 1)
    with pytest.raises(UserError, match=rf"join the Ray cluster at {address}.*the token is that of {token}"):
        next(rounds(PLAIN, task(), workers=f"ray:{address}/2", randomness="seeded"))
    assert not ray.is_initialized()


def test_an_address_where_nothing_answers() -> None:
    with pytest.raises(UserError, match=r"Expected a Ray cluster at 127\.0\.0\.1:1, but nothing answers there"):
        next(rounds(PLAIN, task(), workers="ray:127.0.0.1:1", randomness="seeded"))


@pytest.mark.law("Ray")
def test_a_process_outside_the_cluster_computes_the_same_bits(address: str, client_port: int) -> None:
    """Through Ray's client, whose server starts a process for it and may not listen yet."""
    until(lambda: is_listening(client_port), lambda: "Ray's client server does not listen")
    assert torch.equal(final(PLAIN, task(), f"ray://127.0.0.1:{client_port}/1"), final(PLAIN, task(), 1))
    assert not ray.is_initialized()


def is_listening(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True


def test_without_rays_client_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**options: Any) -> None:
        raise ImportError("grpc")

    monkeypatch.setattr(ray_cluster, "_init", absent)
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"ray://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(UserError, match=rf"Ray's client to join {place}\. Install it: pip install 'ray\[client\]'"):
            next(rounds(PLAIN, task(), workers=place, randomness="seeded"))


@pytest.fixture(scope="module")
def workers(address: str) -> Iterator[str]:
    """Two actors, which the tests share: PyTorch takes seconds to import."""
    choice = RayChoice(2, address)
    with ray_cluster.ray_cluster(choice):
        yield f"ray:{address}/2"


def task(model: Any = zoo.cnn) -> Task:
    return Task(model=model, clients=zoo.population(SIZES), test=zoo.population([30], seed=9)[0])


def final(method: Method, work: Task, workers: int | str) -> Tensor:
    *_, (state, _) = rounds(method, work, seed=5, workers=workers, randomness="seeded")
    return state.weights


@pytest.mark.law("Ray")
def test_methods_compute_the_bits_of_one_process(workers: str) -> None:
    work = Task(model=zoo.mlp, clients=zoo.population(SIZES[:8]), public=zoo.population([6], seed=3)[0])
    assert len(METHODS) == len(NAMES)
    same = {name: torch.equal(final(method, work, 1), final(method, work, workers)) for name, method in METHODS.items()}
    assert [name for name in same if not same[name]] == []


@pytest.mark.law("Ray")
@pytest.mark.parametrize("model", [zoo.cnn, zoo.Residual, zoo.Recurrent])
def test_every_learner_computes_the_bits_of_one_process(model: Any, workers: str) -> None:
    """Also the metrics, and the sums of large models, which travel through shared memory."""
    one, other = (list(rounds(PLAIN, task(model), seed=5, workers=w, randomness="seeded")) for w in (1, workers))
    for (state, report), (actors_state, actors_report) in zip(one, other, strict=True):
        assert torch.equal(state.weights, actors_state.weights)
        assert report.metrics == actors_report.metrics
        assert report.clients == actors_report.clients


@pytest.mark.law("Ray")
def test_two_runs_at_a_time(workers: str, address: str) -> None:
    steps = [rounds(PLAIN, task(), seed=5, workers=f"ray:{address}/1", randomness="seeded") for _ in range(2)]
    pairs = zip(*steps, strict=True)
    assert all(torch.equal(one.weights, other.weights) for (one, _), (other, _) in pairs)


@pytest.mark.law("Ray")
def test_an_actor_that_dies_is_replaced_and_its_wave_repeated(workers: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    work = task(zoo.DiesOnce(tmp_path / "died"))
    expected = final(PLAIN, work, 1)
    assert torch.equal(final(PLAIN, work, workers), expected)
    assert (tmp_path / "died").exists()


class Raises(nn.Module):
    """Fails in an actor, with an error of the user's own or of Tacit."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.inner, self.error, self.parent = zoo.Recurrent(), error, os.getpid()  # not tried before it is trained

    def forward(self, x: Tensor) -> Tensor:
        if os.getpid() != self.parent:
            raise self.error
        outputs: Tensor = self.inner(x)
        return outputs


@pytest.mark.law("Ray")
@pytest.mark.parametrize("error", [ZeroDivisionError("by nothing"), UserError("Expected a better model.")])
def test_errors_of_user_code_are_those_of_the_local_pool(error: Exception, workers: str) -> None:
    messages = []
    for pool in (2, workers):
        with pytest.raises(TacitError) as raised:
            final(PLAIN, task(Raises(error)), pool)
        assert isinstance(raised.value, UserError) == isinstance(error, UserError)
        messages.append(str(raised.value).splitlines())
    assert messages[0][0] == messages[1][0]
    assert messages[0][-1] == messages[1][-1]
    assert str(error) in messages[0][-1]


@pytest.mark.law("Ray")
def test_what_is_sent(workers: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker once, and weights once per change: evaluation and the next round use the same."""
    sent: list[Any] = []
    put = ray.put

    def counted(value: Any) -> Any:
        sent.append(value)
        return put(value)

    monkeypatch.setattr(ray, "put", counted)
    final(PLAIN, task(), workers)
    parts, *weights = sent
    assert isinstance(parts, list)
    assert len(weights) == 3
    assert not any(np.array_equal(one, other) for one, other in pairwise(weights))


def test_clients_rounds_have_no_key_of_the_server() -> None:
    _, now = draw(PLAIN, len(SIZES), SeededKeys(0).keys(0), 0)
    sent = now.of_clients()
    assert type(sent) is ClientRound
    assert now.server.value.hex() not in repr([vars(sent), sent.clients.root.value.hex(), sent.shared.value.hex()])
    assert (sent.clients, sent.shared, sent.max_cohort) == (now.clients, now.shared, now.max_cohort)


def worker_of(work: Task) -> Worker:
    simulation = Simulation(PLAIN, work)
    model, (_, now) = make_model(work, 0), draw(PLAIN, len(SIZES), SeededKeys(0).keys(0), 0)
    return Worker(PLAIN, work, model, AutoLearner.of(model, work), simulation.initial_state, now.shared, 1)


def test_actors_of_a_machine_read_the_data_where_they_are() -> None:
    work = Task(model=zoo.cnn, clients=zoo.population([200, 300]))
    packed = ray_pool.pack(worker_of(work))
    copy = ray_pool.unpack(packed)
    assert torch.equal(copy.task.population.x, work.population.x)
    assert any(np.shares_memory(copy.task.population.x.numpy(), array) for array in packed)
    assert not any(np.shares_memory(copy.weights.numpy(), array) for array in packed)


FILE = """
from torch import nn

class Mine(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(64, 10)

    def forward(self, x):
        return self.inner(x.flatten(1)).relu()
"""


def test_code_of_a_file_is_sent(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FILE)
    module = run_file(tmp_path / "mine.py")
    packed = ray_pool.pack(worker_of(task(module.Mine)))
    del sys.modules[module.__name__]
    assert type(ray_pool.unpack(packed).model).__name__ == "Mine"


def test_other_versions_on_a_machine_are_refused() -> None:
    here = ray_pool.NodeCode.here()
    ray_pool.check_node(here)
    with pytest.raises(WorkerError, match=r"this Tacit \(\w{12}\).*but one has Tacit older.*Install the same versions"):
        ray_pool.check_node(ray_pool.NodeCode("older", here.torch, here.cpu))
    with pytest.warns(UserWarning, match="the last digits of results depend on which machine"):
        ray_pool.check_node(ray_pool.NodeCode(here.tacit, here.torch, "abacus"))


def test_an_accelerator_and_ray_exclude_each_other() -> None:
    with pytest.raises(UserError, match="Expected device='cpu' with workers='ray'"):
        choose_workers("ray", "cuda")


def test_without_ray_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for name in ("ray_cluster", "ray_pool"):
        monkeypatch.delitem(sys.modules, f"tacit.engine.ray.{name}")
    with pytest.raises(
        UserError, match=r"Expected Ray for workers='ray'\. Install it: pip install 'tacit-fl\[ray\]'\."
    ):
        next(rounds(PLAIN, task(), workers="ray", randomness="seeded"))
