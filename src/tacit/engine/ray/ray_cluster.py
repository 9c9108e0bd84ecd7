"""The Ray cluster of this process: joined where it runs, or started on this machine and ended after the last run.

A cluster that is started here listens on 127.0.0.1 only, admits nobody without its own random token, keeps its files in
a private folder that is removed, and reports nothing to anybody.
"""

import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from tacit.core.worker_choice import RayChoice, available_cores
from tacit.errors import UserError

try:
    import ray
    from ray import _raylet
    from ray._private import ray_constants
except ImportError as missing:
    raise UserError("Expected Ray for workers='ray'. Install it: pip install 'tacit-fl[ray]'.") from missing

__all__ = ["Actor", "RayCluster", "end_actor", "forget_token", "join_cluster", "ray", "ray_cluster", "ray_constants"]

Actor = Any  # a handle of Ray's
REACHABLE = 10.0  # seconds in which the address of a cluster has to accept a connection
LOOPBACK = ("127.0.0.1", "localhost", "::1")
_current: "RayCluster | None" = None


class RayCluster:
    """The cluster that this process is connected to, and the actors that no run uses at the moment.

    Attributes:
        cores: how many the cluster has.
        folder: of a cluster that was started here; None: it does not end with this process.
    """

    def __init__(self, *, folder: Path | None = None, connected_before: bool = False) -> None:
        self.folder, self._connected_before, self._runs = folder, connected_before, 0
        self.cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._idle: list[Actor] = []

    def join(self) -> "RayCluster":
        """One more run uses the cluster."""
        self._runs += 1
        return self

    def leave(self) -> None:
        """One run less uses it. With the last one, actors end, and so does a cluster that was started here."""
        global _current
        self._runs -= 1
        if self._runs:
            return
        _current = None
        for actor in self._idle:
            end_actor(actor)
        if not self._connected_before:
            with _keep_signals():
                ray.shutdown()
            forget_token()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def take(self, kind: type) -> Actor:
        """An actor of this class: an idle one, or a new one on the machine with the fewest.

        It occupies one core. Where the cluster is our own, runs share the cores and Ray does not count them.
        """
        if self._idle:
            return self._idle.pop()
        cores = 1 if self.folder is None else 0
        return ray.remote(num_cpus=cores, scheduling_strategy="SPREAD")(kind).remote()

    def give_back(self, actor: Actor) -> None:
        """Keep an actor for the next run."""
        self._idle.append(actor)


def join_cluster(choice: RayChoice) -> RayCluster:
    """The cluster that this process is connected to; else that at the address; else a new one on this machine."""
    global _current
    if _current is None:
        if ray.is_initialized():
            _current = RayCluster(connected_before=True)
        elif choice.address is None:
            _current = _start(choice.count or available_cores())
        else:
            _connect(choice.address)
            _current = RayCluster()
    return _current.join()


@contextmanager
def ray_cluster(choice: RayChoice) -> Iterator[RayCluster]:
    """A cluster for all runs inside this block, with actors that start once."""
    cluster = join_cluster(choice)
    try:
        yield cluster
    finally:
        cluster.leave()


def end_actor(actor: Actor) -> None:
    """Kill an actor, which may have ended by itself."""
    with suppress(Exception):
        ray.kill(actor)


def _start(cores: int) -> RayCluster:
    folder = Path(tempfile.mkdtemp(prefix="tacit-ray-", dir="/tmp"))  # sockets need a short path
    own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        with _environment(own), _loopback():
            forget_token()
            _init(address="local", num_cpus=cores, include_dashboard=False, _temp_dir=str(folder))
        return RayCluster(folder=folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _connect(address: str) -> None:
    """Join a running cluster; raises `UserError` where none answers, or where it does not admit us."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and address != "auto":
        _check_reachable(host, int(port))
    forget_token()
    try:
        with _loopback() if host in LOOPBACK else nullcontext():
            _init(address=address)
    except ImportError as error:
        raise UserError(f"Expected Ray's client to join {address}. Install it: pip install 'ray[client]'.") from error
    except (ConnectionError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UserError(f"Expected to join the Ray cluster at {address}, but: {reason}. {_token_advice()}") from error


def _check_reachable(host: str, port: int) -> None:
    try:
        socket.create_connection((host, port), timeout=REACHABLE).close()
    except OSError as error:
        raise UserError(
            f"Expected a Ray cluster at {host}:{port}, but nothing answers there ({error}). Start it with ray start."
        ) from error


def _token_advice() -> str:
    """The token that this process shows: Ray reports a wrong one as a failed connection."""
    mode = os.environ.get("RAY_AUTH_MODE", "unset")
    path = os.environ.get("RAY_AUTH_TOKEN_PATH", str(Path.home() / ".ray" / "auth_token"))
    source = "RAY_AUTH_TOKEN" if "RAY_AUTH_TOKEN" in os.environ else path
    return (
        f"If the cluster runs, check its token: RAY_AUTH_MODE is {mode} here, and the token is that of {source}, which "
        "may be left from another cluster or version. Use the token of the cluster's head: ray get-auth-token."
    )


def _init(**options: Any) -> None:
    with _keep_signals():
        ray.init(log_to_driver=False, configure_logging=False, **options)


@contextmanager
def _keep_signals() -> Iterator[None]:
    """Keep this process's handler of SIGTERM, which Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _loopback() -> Iterator[None]:
    """Make Ray use 127.0.0.1 as this machine's address: its default is one that others can reach."""
    before, ray_constants.ENABLE_RAY_CLUSTER = ray_constants.ENABLE_RAY_CLUSTER, False
    try:
        yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


def forget_token() -> None:
    """Make Ray read the mode and the token from the environment again: it caches the first ones."""
    raylet: Any = _raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
