"""Who tries to misuse the doors, over real processes: strangers, thieves, enrolled sites, and the server itself."""

import asyncio
import random
import secrets
import socket
import ssl
import struct
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from federation.outsider import SECONDS, Peer, hostile_server, in_time
from federation.processes import Processes, memory, processes, until
from scale import scaled
from tacit.federation.transport.endpoints import Failure
from tacit.federation.transport.grpc.frame_stream import PATH, SERVICE
from tacit.federation.transport.grpc.frames import FRAME_BYTES, FRAME_HEADER, NO_NUMBER, Kind, frames
from tacit.federation.transport.kits import SiteKit
from tacit.protocols.certificates import make_certificate

SITES = ("ash", "birch", "cedar")
LARGE = 200_000_000  # bytes, more than the processes accept
FRAMES = scaled(300, campaign=10**6)  # of garbage, at each door
GROWTH = 1.2  # of memory, at most
SOME_NUMBER = bytes(range(16))
ENDED = {
    "INVALID_ARGUMENT",
    "RESOURCE_EXHAUSTED",
    "CANCELLED",
    "INTERNAL",
}  # the last two: what was still to be written


@pytest.fixture(scope="module")
def running() -> Iterator[Processes]:
    """cedar's kit is in the hands of an attacker; its process does not run."""
    with processes(*SITES) as started:
        started.start("server", "ash", "birch")
        started.wait_for(("ash", "birch"))
        yield started


@pytest.fixture(scope="module")
def half_open(running) -> Iterator[list[socket.socket]]:
    """Connections that never begin, opened before all other tests."""
    opened = [socket.create_connection(("127.0.0.1", running.port)) for _ in range(scaled(100, campaign=900))]
    yield opened
    for connection in opened:
        connection.close()


@pytest.fixture(autouse=True)
def nothing_happens(running, half_open):
    """Whatever a test does, the others are served, in little more memory than before."""
    for _ in range(3):
        running.transport.ask("echo", dict.fromkeys(("ash", "birch"), b"x"), 30.0)
    before = memory(running.pid("server"), "VmRSS")
    Path(f"/proc/{running.pid('server')}/clear_refs").write_text("5")
    yield
    assert running.transport.ask("echo", dict.fromkeys(("ash", "birch"), b"x"), 30.0) == {"ash": b"x", "birch": b"x"}
    assert memory(running.pid("server")) < GROWTH * before


def enrolled(running: Processes) -> Peer:
    return Peer.of(running.kit("cedar"))


def say(peer: Peer, *said: bytes, **how) -> str:
    return asyncio.run(peer.say(*said, **how))


# Strangers


@pytest.mark.parametrize("certificate", ["none", "own", "the server's name"])
def test_without_an_enrolled_certificate_nobody_connects(running, certificate):
    address = running.kit("ash").server()
    key = {"none": None, "own": make_certificate("a" * 64, 10), "the server's name": make_certificate("localhost", 10)}
    assert say(Peer(address, key[certificate])) == "UNAVAILABLE"


def test_nor_does_who_speaks_http_or_nothing_that_is_known(running):
    for text in (b"GET / HTTP/1.1\r\n\r\n", bytes(1000), b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", running.port)) as connection, suppress(ConnectionError):
            connection.sendall(text)
            connection.settimeout(SECONDS)
            while connection.recv(1000):
                pass


def test_tls_before_1_3_is_refused(running):
    kit = running.kit("cedar")
    context = ssl.create_default_context(cadata=kit.server().certificates[0].text)
    (file,) = (kit.folder / "tls").iterdir()
    context.load_cert_chain(file)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", running.port)) as plain:
        plain.settimeout(SECONDS)
        with context.wrap_socket(plain, server_hostname="localhost") as secure:
            secure.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, b"") + _frame(1, 4, _headers(), stream=1))
            received = b""
            while b"TLSv1.3 is needed" not in received and (part := secure.recv(10_000)):
                received += part
    assert b"TLSv1.3 is needed" in received


def _frame(kind: int, flags: int, payload: bytes, stream: int = 0) -> bytes:
    """A frame of HTTP/2."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _headers() -> bytes:
    """Those of a call, uncompressed."""
    pairs = {":method": "POST", ":scheme": "https", ":path": PATH, ":authority": "x", "te": "trailers"}
    pairs["content-type"] = "application/grpc"
    return b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in pairs.items()
    )


# What can be called


@pytest.mark.parametrize(
    "path",
    [f"/{SERVICE}/Other", f"/{SERVICE}/", "/tacit.federation.v2/Connect", "/grpc.health.v1.Health/Check",
     "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/grpc.channelz.v1.Channelz/GetServers"],
)  # fmt: skip
def test_no_other_method_exists(running, path):
    assert say(enrolled(running), path=path, greet=False) == "UNIMPLEMENTED"


# An enrolled site


@pytest.mark.parametrize(
    ("name", "said"),
    {
        "a short frame": [b"abc"],
        "an empty frame": [b""],
        "what a server says": [next(frames(Kind.REQUEST, SOME_NUMBER, b"x" * 30))],
        "a second hello": [next(frames(Kind.HELLO, body=bytes(100)))],
        "no kind": [FRAME_HEADER.pack(99, NO_NUMBER, 0)],
        "an answer to no request": [next(frames(Kind.REPLY, SOME_NUMBER, b"hello"))],
        "an error of no request": [next(frames(Kind.ERROR, SOME_NUMBER))],
        "a pong with content": [next(frames(Kind.PONG, NO_NUMBER, b"hello"))],
        "too many pongs": [next(frames(Kind.PONG))] * 3,
        "2 to the 63 bytes": [FRAME_HEADER.pack(Kind.REPLY, SOME_NUMBER, 2**63) + bytes(100)],
        "one of 200 MB": [bytes(LARGE)],
        "200 MB in frames": [FRAME_HEADER.pack(Kind.REPLY, SOME_NUMBER, LARGE) + bytes(FRAME_BYTES)] * 20,
    }.items(),
)
def test_an_enrolled_site_that_breaks_the_rules_is_disconnected(running, name, said):
    assert say(enrolled(running), *said) in ENDED, name


def test_headers_that_are_too_long_are_refused(running):
    assert say(enrolled(running), metadata=[("x-a", "y" * 60_000)]) in ("RESOURCE_EXHAUSTED", "UNAVAILABLE", "INTERNAL")


@pytest.mark.parametrize(
    "said", [b"", b"x" * 500, b"[" * 500_000, bytes(FRAME_HEADER.size), FRAME_HEADER.pack(2, NO_NUMBER, 1 << 40)]
)
def test_a_hello_that_is_none(running, said):
    assert say(enrolled(running), said, greet=False) == "UNAUTHENTICATED"


def test_who_says_nothing_is_disconnected(running):
    began = time.monotonic()
    assert say(enrolled(running), greet=False) == "UNAUTHENTICATED"
    assert time.monotonic() - began < SECONDS


def test_a_reply_that_is_longer_than_the_server_accepts_is_refused_before_it_is_stored(running):
    """From a genuine process, asked by the server: only its announcement arrives."""
    running.start("cedar", limit=LARGE)
    running.wait_for(SITES)
    (got,) = running.transport.ask("bytes", {"cedar": str(LARGE).encode()}, 60.0).values()
    assert isinstance(got, Failure)
    assert f"a message of {LARGE} bytes, where at most" in got.text
    running.kill("cedar")
    running.wait_for(("ash", "birch"))


# Thieves


def test_who_has_the_kit_and_not_the_identity_key_displaces_nobody(running):
    """The thief tries all the time; 20 asks reach the genuine site, which also comes back after a crash."""
    stolen, stop = running.kit("ash"), asyncio.Event()
    thief = Peer(stolen.server(), stolen.keyring.keys()[0])
    ended: Counter[str] = Counter()

    async def attack() -> None:
        async with thief.channel() as channel:
            while not stop.is_set():
                ended[await thief.say_over(channel)] += 1

    async def played() -> list[object]:
        attacks = [asyncio.ensure_future(attack()) for _ in range(4)]
        got = [await asyncio.to_thread(running.transport.ask, "echo", {"ash": b"x"}, 30.0) for _ in range(20)]
        running.kill("ash")
        running.start("ash")
        await asyncio.to_thread(until, lambda: "ash" in running.transport.sites(), running.output)
        stop.set()
        await asyncio.gather(*attacks)
        return got

    began = time.monotonic()
    assert asyncio.run(played()) == [{"ash": b"x"}] * 20
    assert time.monotonic() - began < 60
    assert set(ended) == {"UNAUTHENTICATED"}


def test_while_a_site_answers_a_second_connection_of_it_is_refused_even_with_its_identity(running):
    copy = Peer.of(running.kit("ash"))
    assert say(copy) == "ALREADY_EXISTS"
    assert "a second connection was refused" in (running.study / "server.out").read_text()


def test_a_removed_site_is_disconnected_and_one_that_is_added_connects(running):
    running.server.remove("birch")
    running.wait_for(("ash",))
    assert say(Peer.of(running.kit("birch"))) in ("UNAVAILABLE", "PERMISSION_DENIED")
    running.enrol("birch")
    running.wait_for(("ash", "birch"))


def test_a_renewed_certificate_replaces_the_earlier_one_without_a_restart(running):
    kit = running.kit("birch")
    earlier = Peer.of(kit)
    identity = earlier.identity
    kit.make(identity, renew=True)  # both are enrolled
    running.server.add("birch", kit.enrolment)
    assert say(earlier) == "ALREADY_EXISTS"
    kit.make(identity, renew=True, only=True)  # others may have the earlier ones
    running.server.add("birch", kit.enrolment)
    assert say(earlier) in ("UNAVAILABLE", "PERMISSION_DENIED")
    running.wait_for(("ash", "birch"))


def test_the_server_changes_its_certificate_and_its_sites_follow(running):
    running.server.renew(only=True)
    for name in ("ash", "birch"):
        running.give_address(name)
    for name in ("server", "ash"):
        running.kill(name)
        running.start(name)
    running.wait_for(("ash", "birch"))
    running.give_address("cedar")


# The server


def test_a_hostile_server_can_make_a_site_do_nothing_but_answer():
    """It has the genuine server's key. What it says is refused in little memory, and the site connects again."""
    request = frames(Kind.REQUEST, SOME_NUMBER, b"x", b"echo".ljust(20))
    welcome = next(frames(Kind.WELCOME))
    first = FRAME_HEADER.pack(Kind.REQUEST, SOME_NUMBER, LARGE) + b"echo".ljust(20) + bytes(FRAME_BYTES - 20)
    said = [
        [b""],
        [next(frames(Kind.PING))],
        [welcome, welcome],
        [welcome, next(frames(Kind.REPLY, SOME_NUMBER, b"x"))],
        [welcome, next(frames(Kind.HELLO, body=bytes(100)))],
        [welcome, next(frames(Kind.REQUEST, SOME_NUMBER, b"too short"))],
        [welcome, next(frames(Kind.REQUEST, SOME_NUMBER, b"\x1b[31m".ljust(20)))],
        [welcome, *[next(frames(Kind.PING))] * 1000],
        [
            welcome,
            *(
                FRAME_HEADER.pack(Kind.REQUEST, secrets.token_bytes(16), FRAME_BYTES * 3) + bytes(FRAME_BYTES)
                for _ in range(6)
            ),
        ],
        [welcome, bytes(LARGE)],
        [welcome, *[first] * 20],
        [welcome, *request],
    ]
    answered: list[bytes] = []

    async def act(context, count: int) -> None:
        for frame in said[count - 1] if count <= len(said) else ():
            await context.write(frame)
        if count == len(said):
            answered.append(await context.read())
        elif count < len(said):
            while await in_time(context.read()):
                pass

    async def play(running: Processes) -> tuple[int, int]:
        async with hostile_server(running.server, act):
            running.start("ash")
            await asyncio.to_thread(until, lambda: (running.study / "ash.pid").exists(), running.output)
            await asyncio.sleep(2)
            before = memory(running.pid("ash"))
            await asyncio.to_thread(until, lambda: bool(answered), running.output)
            return before, memory(running.pid("ash"))

    with processes("ash") as alone:
        before, after = asyncio.run(play(alone))
    assert answered == [next(frames(Kind.REPLY, SOME_NUMBER, b"x"))]
    assert after < GROWTH * before


# Garbage


def mutated(source: random.Random, valid: bytes) -> bytes:
    """A frame that is nearly right, or not at all."""
    match source.randrange(5):
        case 0:
            return source.randbytes(source.randrange(200))
        case 1:
            return valid[: source.randrange(len(valid) + 1)]
        case 2:
            changed = bytearray(valid)
            changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
            return bytes(changed)
        case 3:
            return struct.pack("<B", source.randrange(12)) + valid[1:]
    return valid + source.randbytes(source.randrange(1, 100))


def test_garbage_at_the_server_s_port(running):
    """Half of it in the place of the hello, half of it after a genuine one."""
    source, peer, said = random.Random(0), enrolled(running), Counter[str]()

    async def play() -> None:
        left = FRAMES
        while left > 0:
            async with peer.channel() as channel:
                for _ in range(min(left, 10_000)):
                    greet = source.random() < 0.5
                    valid = next(
                        frames(Kind.REPLY, SOME_NUMBER, b"x") if greet else frames(Kind.HELLO, body=bytes(152))
                    )
                    said[await peer.say_over(channel, mutated(source, valid), greet=greet)] += 1
                    left -= 1

    asyncio.run(play())
    assert sum(said.values()) == FRAMES
    assert set(said) <= {"UNAUTHENTICATED", *ENDED}, said


def test_garbage_at_the_local_socket_of_the_server_s_user(running):
    source = random.Random(1)
    valid = b'{"verb": "echo", "timeout": 1, "sites": {"ash": 0}, "contents": 1}'
    for _ in range(FRAMES // 3):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(running.transport.path))
            with suppress(BrokenPipeError):
                connection.sendall(mutated(source, struct.pack("!i", len(valid)) + valid))


def test_connections_that_never_begin_are_closed(running, half_open):
    """Those that were opened before all tests of this module."""

    def left() -> int:
        return sum(is_open(connection) for connection in half_open)

    until(lambda: left() == 0, lambda: f"{left()} are open")


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


def test_kits_of_one_site_are_not_those_of_another(running):
    assert SiteKit(running.kit("ash").folder).keyring.keys() != running.kit("birch").keyring.keys()
