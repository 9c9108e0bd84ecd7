"""A closed list: all that a stranger, a peer and the server can make the processes of a site and of the server do.

Each test fails when something is added. Then say in `docs/concepts/federation.md` who can call it, and what it costs.
"""

import ast
import asyncio
import inspect
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import grpc.aio

import tacit.federation.transport.grpc  # noqa: F401, before gRPC: it sets options
from tacit.federation import messages
from tacit.federation.site.service import Site
from tacit.federation.transport import relay
from tacit.federation.transport.grpc import server_end as server_module
from tacit.federation.transport.grpc.frames import FROM_SERVER, FROM_SITE, Kind, Receiver
from tacit.federation.transport.grpc.hello import Hello
from tacit.federation.transport.grpc.server_end import GrpcTransport, _Site, _SiteLink
from tacit.federation.transport.grpc.site_end import Requests
from tacit.federation.transport.kits import ServerKit

KINDS = {"CHALLENGE", "HELLO", "WELCOME", "REQUEST", "FORGET", "PING", "REPLY", "ERROR", "PONG"}
VERBS = {"register", "train", "continue", "prepare", "evaluate"}


def test_the_server_has_one_method_and_nothing_else(tmp_path, monkeypatch):
    """Whatever is registered with gRPC, in all modules."""
    registered = []
    made = grpc.aio.server

    def recorded(*args, **kwargs):
        server = made(*args, **kwargs)
        add = server.add_generic_rpc_handlers

        def added(handlers):
            registered.extend(handlers)
            add(handlers)

        server.add_generic_rpc_handlers = added
        return server

    monkeypatch.setattr(grpc.aio, "server", recorded)
    kit = ServerKit(tmp_path)
    kit.make("localhost", relay.free_port())
    GrpcTransport(kit, "127.0.0.1:0", 1 << 20, lambda _: None)
    (handler,) = registered
    assert {*handler._method_handlers} == {"/tacit.federation.v1/Connect"}
    assert handler.service(SimpleNamespace(method="/grpc.health.v1.Health/Check", invocation_metadata=())) is None


def test_what_registers_something_with_grpc():
    """No other module adds handlers, interceptors, reflection or a second server."""
    source = Path(inspect.getfile(server_module)).parents[1]
    calls = ("add_generic_rpc_handlers", "add_registered_method_handlers", "add_secure_port", "add_insecure_port")
    found = [
        name for path in source.rglob("*.py") for name in calls for _ in range(path.read_text().count(f".{name}("))
    ]
    assert sorted(found) == ["add_generic_rpc_handlers", "add_secure_port"]


def test_the_kinds_of_frames():
    assert set(Kind.__members__) == KINDS
    assert {kind.name for kind in FROM_SERVER} == {"WELCOME", "REQUEST", "FORGET", "PING"}
    assert {kind.name for kind in FROM_SITE} == {"REPLY", "ERROR", "PONG"}


def limits(receiver: Receiver) -> dict[int, int]:
    return {**receiver.limits}


def test_what_each_end_accepts_once_a_site_is_welcome():
    async def accepted() -> dict[int, int]:
        context, hello = SimpleNamespace(read=None, write=None), Hello(bytes(16), 0, ())
        return limits(_SiteLink(context, _Site("a"), "", hello, 1000)._receiver)

    assert asyncio.run(accepted()) == {Kind.REPLY: 1000, Kind.ERROR: 0, Kind.PONG: 0}
    at_site = limits(Requests(lambda *_: b"", print, 1000).receiver())
    assert at_site == {Kind.REQUEST: 1020, Kind.WELCOME: 64, Kind.FORGET: 0, Kind.PING: 0}


def test_the_verbs_of_a_site():
    """Those that its handler has, and those that messages name."""
    named = {value for name, value in vars(messages).items() if name.isupper() and isinstance(value, str)}
    assert named == VERBS
    assert set(vars(Site)["_acts"].func(Mock())) == VERBS


def test_the_local_socket_of_the_server_answers_two_questions():
    """Only the server's user can open it: who is connected, and an ask."""
    used = {
        node.attr
        for node in ast.walk(ast.parse(inspect.getsource(relay.Relay)))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute) and node.value.attr == "_transport"
    }
    assert used == {"sites", "ask"}
