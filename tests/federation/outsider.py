"""Parties that speak the transport's protocol as they like: a peer of a server, and a server of sites."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

import tacit.federation.transport.grpc  # noqa: F401, before gRPC: it sets options
from tacit.federation.plan.directory import read_identity
from tacit.federation.transport.grpc.frame_stream import METHOD, PATH, SERVICE, ended
from tacit.federation.transport.grpc.frames import Kind, Receiver, frames
from tacit.federation.transport.grpc.hello import HELLO_NONCE, Hello
from tacit.federation.transport.kits import ServerAddress, ServerKit, SiteKit
from tacit.protocols.certificates import CertificateKey

UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
SECONDS = 30.0


@dataclass(frozen=True)
class Peer:
    """Whoever can reach the server's port.

    Attributes:
        address: of the server.
        key: its certificate and key; None: it has none.
        identity: its secret identity key.
    """

    address: ServerAddress
    key: CertificateKey | None = None
    identity: bytes = bytes(range(32))

    @classmethod
    def of(cls, kit: SiteKit) -> "Peer":
        """Who has this kit, with everything in it."""
        return cls(kit.server(), kit.keyring.keys()[0], read_identity(kit.folder / "identity.key"))

    @asynccontextmanager
    async def channel(self) -> AsyncIterator[Any]:
        roots = self.address.certificates[0].text.encode()
        pair = (self.key.pem.encode(), self.key.certificate.text.encode()) if self.key else (None, None)
        options = [*UNLIMITED, ("grpc.ssl_target_name_override", self.address.name), ("grpc.enable_http_proxy", 0)]
        options.append(("grpc.use_local_subchannel_pool", 1))
        async with grpc.aio.secure_channel(
            self.address.target, grpc.ssl_channel_credentials(roots, *pair), options
        ) as channel:
            yield channel

    async def greet(self, call: Any, *, process: bytes = bytes(16), known: Sequence[bytes] = ()) -> None:
        """Answer the challenge; the welcome comes next, if it was right."""
        challenge = Receiver({Kind.CHALLENGE: HELLO_NONCE}).add(await in_time(call.read()))
        assert challenge is not None
        assert challenge.body is not None
        assert self.key is not None
        hello = Hello(process, 1 << 20, tuple(known))
        await call.write(
            next(frames(Kind.HELLO, body=hello.pack(challenge.body, self.key.certificate.fingerprint, self.identity)))
        )

    async def say(self, *said: bytes, greet: bool = True, path: str = PATH, metadata: Any = None) -> str:
        """Send these frames over a stream of its own; returns how the server ended it."""
        async with self.channel() as channel:
            return await self.say_over(channel, *said, greet=greet, path=path, metadata=metadata)

    async def say_over(
        self, channel: Any, *said: bytes, greet: bool = True, path: str = PATH, metadata: Any = None, **hello: Any
    ) -> str:
        call = channel.stream_stream(path)(metadata=metadata)
        try:
            if greet:
                await self.greet(call, **hello)
            for frame in said:
                await call.write(frame)
            while await in_time(call.read()) is not ended:
                pass
            return str((await call.code()).name)
        except grpc.aio.AioRpcError as error:
            return str(error.code().name)
        except asyncio.InvalidStateError:
            return str((await call.code()).name)
        except TimeoutError:
            return "open"
        finally:
            call.cancel()


async def in_time(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, SECONDS)


@asynccontextmanager
async def hostile_server(kit: ServerKit, act: Callable[[Any, int], Awaitable[None]]) -> AsyncIterator[None]:
    """A server with the genuine key, which does this with each connection, after a genuine beginning."""
    count = 0

    async def serve(_: Any, context: Any) -> None:
        nonlocal count
        count += 1
        await context.write(next(frames(Kind.CHALLENGE, body=secrets.token_bytes(HELLO_NONCE))))
        await context.read()
        await act(context, count)

    own = kit.keyring.to_present()
    roots = "".join(each.text for found in kit.enrolments().values() for each in found.certificates)
    credentials = grpc.ssl_server_credentials(
        [(own.pem.encode(), own.certificate.text.encode())], roots.encode(), require_client_auth=True
    )
    server = grpc.aio.server(options=UNLIMITED)
    method = grpc.stream_stream_rpc_method_handler(serve)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
    server.add_secure_port(f"127.0.0.1:{kit.address().port}", credentials)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
