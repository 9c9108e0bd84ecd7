"""A federation in one process on which something happens to messages, for tests of faults and strangers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from federation.consortium import Consortium, transport
from tacit.core import Report, State
from tacit.federation.messages import Answer, Refusal
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.server.server import FederationServer
from tacit.federation.site.service import Site
from tacit.federation.transport.endpoints import Failure
from tacit.runs.training import follow

DP = {"noise": 4.0, "epsilon": "none"}
Tamper = Callable[[str, str, bytes], "bytes | Failure | None"]


def unchanged(name: str, verb: str, data: bytes) -> bytes:
    return data


class Faulty:
    """A transport on which something happens to what sites send, and to what they are sent."""

    def __init__(self, sites: Mapping[str, Site]) -> None:
        self.inner = transport(sites)
        self.before: Tamper = unchanged
        self.after: Tamper = unchanged
        self.seen: list[tuple[str, str, bytes, bytes]] = []

    def sites(self) -> tuple[str, ...]:
        return self.inner.sites()

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        return {name: self._one(name, verb, data, timeout) for name, data in requests.items()}

    def _one(self, name: str, verb: str, data: bytes, timeout: float) -> bytes | Failure:
        sent = self.before(name, verb, data)
        if not isinstance(sent, bytes):
            return sent or Failure("late")
        reply = self.inner.ask(verb, {name: sent}, timeout)[name]
        if isinstance(reply, Failure):
            return reply
        self.seen.append((name, verb, sent, reply))
        return self.after(name, verb, reply) or Failure("late")


def at(tmp_path: Path, method: str = "fl-std", count: int = 5, **changes: Any) -> tuple[Consortium, FederationPlan]:
    policy = changes.pop("policy", {})
    consortium = Consortium.at(tmp_path, count, **policy)
    args = {"cohort": count, **changes.pop("args", {})}
    plan = consortium.plan(method, args=args, **changes)
    consortium.accept(plan)
    return consortium, plan


def secure(tmp_path: Path, count: int = 5, **changes: Any) -> tuple[Consortium, FederationPlan]:
    args = {"channel": "SecureSum()", **changes.pop("args", {})}
    return at(tmp_path, "fl-std", count, args=args, **changes)


def final(here: FederationServer) -> tuple[State, tuple[Report, ...]]:
    *_, run = follow(here.run_spec, source=here)
    return run.state, run.history


def refusal(reply: bytes) -> Refusal:
    found = msgspec.msgpack.decode(reply, type=Answer | Refusal)
    assert isinstance(found, Refusal), "expected a refusal"
    return found
