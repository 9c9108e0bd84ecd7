"""Parties over NVFLARE who attack others with its own messages, and processes that note what is called in them.

`open_watched` and `open_hostile` are sites. `main("watched" | "forwarding", …)` is a process that notes what is called
in it, or one that accepts, forwards and sends everything, as NVFLARE does by itself.
"""

import json
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nvflare.apis.fl_constant import ReservedKey
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import CellChannel, MessageHeaderKey
from nvflare.fuel.f3.cellnet.registry import Callback, Registry
from nvflare.fuel.f3.cellnet.utils import encode_payload
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.streaming import stream_const
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.aux_runner import AuxRunner
from nvflare.private.defs import RequestHeader

from federation import echo
from tacit.federation.transport.endpoints import Failure, Handler
from tacit.federation.transport.nvflare import __main__ as nvflare_process
from tacit.federation.transport.nvflare import accepted_messages, components
from tacit.federation.transport.nvflare.components import NvflareTransport

REGISTERED, CALLED = "registered", "called"  # files in the kit of a process that is watched: `CHANNEL:TOPIC` lines
ATTACK = "attack"  # asked of a site: send these messages to the server
ATTACK_SITE = "attack site"  # asked of a server: send these messages to the site


def main(kind: str, *arguments: str) -> int:
    """The process of a server or of a site: `server KIT`, or `site KIT OPENER CONFIG`."""
    if kind == "watched":
        watch(Path(arguments[1]))
    else:
        accepted_messages.accept_only = _accept_all
        components.NvflareTransport = HostileTransport  # type: ignore[misc]
    return nvflare_process.main(list(arguments))


def _accept_all(accepted: accepted_messages.Accepted) -> None: ...


def watch(kit: Path) -> None:
    """Note which of NVFLARE's callbacks exist in this process, and which are called."""
    register, register_aux = Registry.set, AuxRunner.register_aux_message_handler

    def noted(self: Registry, channel: str, topic: str, items: Any) -> None:
        _note(kit / REGISTERED, f"{channel}:{topic}")
        if isinstance(items, Callback):
            items.cb = _calling(kit / CALLED, f"{channel}:{topic}", items.cb)
        register(self, channel, topic, items)

    def noted_aux(self: AuxRunner, topic: str, message_handle_func: Any) -> None:
        _note(kit / REGISTERED, f"{CellChannel.AUX_COMMUNICATION}:{topic}")
        register_aux(self, topic, message_handle_func)

    Registry.set, AuxRunner.register_aux_message_handler = noted, noted_aux


def _calling(file: Path, name: str, act: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        _note(file, name)
        return act(*args, **kwargs)

    return call


def _note(file: Path, line: str) -> None:
    with file.open("a") as out:
        out.write(f"{line}\n")


def open_watched(config: Path) -> Handler:
    """An echo at the kit `config`, whose process is watched."""
    watch(config)
    return echo.answer


def open_hostile(config: Path) -> Handler:
    """A site with its own, genuine kit, which accepts everything and sends what it is told to."""
    CoreCell.process_message = getattr(CoreCell.process_message, "__wrapped__", CoreCell.process_message)

    def answer(verb: str, request: bytes) -> bytes:
        if verb != ATTACK:
            return echo.answer(verb, request)
        attack(json.loads(request), through=accepted_messages.ROOT_SERVER)
        return b"done"

    return answer


class HostileTransport(NvflareTransport):
    """A server that sends its sites what it is told to."""

    def ask(self, verb: str, requests: Mapping[str, bytes], timeout: float) -> Mapping[str, bytes | Failure]:
        if verb != ATTACK_SITE:
            return NvflareTransport.ask(self, verb, requests, timeout)
        for name, request in requests.items():
            attack(json.loads(request), through=name)
        return dict.fromkeys(requests, b"done")


def attack(orders: list[dict[str, Any]], through: str) -> None:
    """Send these messages over the connection to `through`."""
    (cell,) = CoreCell.ALL_CELLS.values()
    for order in orders:
        message = _message(cell, **order)
        cell.communicator.send(cell.agents[through].endpoint, CoreCell.APP_ID, message)
    time.sleep(0.5)  # they are handled in threads


def _message(
    cell: Any,
    *,
    target: str,
    channel: str,
    topic: str,
    kind: str = "req",
    streamed: bool = False,
    body: Mapping[str, Any] | None = None,
    **headers: Any,
) -> Message:
    """A message as NVFLARE makes it, with whatever of its headers changed."""
    own = cell.get_fqcn()
    usual = {
        MessageHeaderKey.ORIGIN: own,
        MessageHeaderKey.FROM_CELL: own,
        MessageHeaderKey.DESTINATION: target,
        MessageHeaderKey.TO_CELL: target,
        MessageHeaderKey.CHANNEL: channel,
        MessageHeaderKey.TOPIC: topic,
        MessageHeaderKey.MSG_TYPE: kind,
        MessageHeaderKey.REQ_ID: str(uuid.uuid4()),
        MessageHeaderKey.REPLY_EXPECTED: False,
        MessageHeaderKey.ROUTE: [(own, time.time())],
    }
    made = Message(usual, _payload(channel, topic, body or {}))
    if streamed:
        _stream(cell, made)
    encode_payload(made, fobs_ctx=cell.get_fobs_context())
    for each in cell.out_req_filter_reg.find(channel, topic) or []:
        each.cb(made, *each.args, **each.kwargs)  # the sender's token
    made.add_headers(headers)
    return made


def _stream(cell: Any, message: Message) -> None:
    """Let the message be a stream's only part."""
    encode_payload(message, StreamHeaderKey.PAYLOAD_ENCODING, fobs_ctx=cell.get_fobs_context())
    message.add_headers(
        {
            StreamHeaderKey.CHANNEL: message.get_header(MessageHeaderKey.CHANNEL),
            StreamHeaderKey.TOPIC: message.get_header(MessageHeaderKey.TOPIC),
            StreamHeaderKey.STREAM_ID: uuid.uuid4().int % 2**60,
            StreamHeaderKey.STREAM_REQ_ID: str(uuid.uuid4()),
            StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL,
            StreamHeaderKey.SEQUENCE: 0,
            StreamHeaderKey.SIZE: len(message.payload or b""),
            MessageHeaderKey.CHANNEL: stream_const.STREAM_CHANNEL,
            MessageHeaderKey.TOPIC: stream_const.STREAM_DATA_TOPIC,
        }
    )


def _payload(channel: str, topic: str, body: Mapping[str, Any]) -> Any:
    if channel == CellChannel.CLIENT_MAIN:  # an administrator's command
        command = AdminMessage(topic, body.get("text", ""))
        command.set_header(RequestHeader.JOB_ID, body.get("job", "none"))
        return command
    if channel == CellChannel.CELLNET and topic == "bulk":
        pair = {"channel": body.get("channel", "admin"), "topic": body.get("topic", "sys.shell")}
        inner = Message({}, _payload(**pair, body={}))
        encode_payload(inner)
        return [{**pair, "target": "", "message": {"headers": dict(inner.headers), "payload": inner.payload}}]
    request = Shareable()
    request.set_peer_props({ReservedKey.IDENTITY_NAME: accepted_messages.ROOT_SERVER})
    request.update({name: value.encode() if name != "verb" else value for name, value in body.items()})
    return request
