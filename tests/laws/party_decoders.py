"""Decoders of what parties of a federation and enclaves exchange, and of what they keep."""

import functools
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from federation.consortium import Consortium
from laws.fuzzing import BYTES, TEXT, Decoder, in_file, with_file
from laws.mutations import change_bytes, change_tokens
from tacit.core import Budget, Key
from tacit.core.keys import Ratchet
from tacit.enclave import secure_channel
from tacit.enclave.attestation.evidence import Evidence, QuoteKind
from tacit.enclave.attestation.verification import AttestationPolicy, verify_quote
from tacit.enclave.configuration import Configuration, Journal
from tacit.enclave.enclave_client import EnclaveClientState, join_run
from tacit.enclave.enclave_messages import pack_memory, read_memory
from tacit.federation import messages as site_messages
from tacit.federation.journal import AuditLog, read_journal
from tacit.federation.plan.directory import Directory, new_identity, read_directory, read_identity
from tacit.federation.plan.plan import read_plan
from tacit.federation.site.accepted_plan import SiteProgress
from tacit.federation.site.files import read_site
from tacit.federation.transport.grpc.frames import Kind, Receiver, frames
from tacit.federation.transport.grpc.hello import Hello
from tacit.federation.transport.kits import Enrolment, ServerAddress, ServerKit, SiteKit
from tacit.privacy.ledger import Ledger
from tacit.privacy.ledger_head import head_file, read_head
from tacit.protocols.certificates import CertificateKey
from tacit.protocols.crypto import public_identity
from tacit.runs import key_file
from tacit.wire.packing import Reader, pack_number


def _quotes() -> Iterator[Decoder]:
    evidence = Evidence(QuoteKind.SIMULATION, b"quote", b"{}", bytes(32), bytes(32), bytes(32), bytes(32), (bytes(32),))
    yield Decoder("evidence", lambda data: Evidence.read(Reader(data)), [evidence.pack()], BYTES)
    samples = Path(__file__).resolve().parents[1] / "enclave" / "attestation" / "samples"
    quote, collateral = (samples / "sgx_quote").read_bytes(), (samples / "sgx_quote_collateral.json").read_bytes()
    policy = AttestationPolicy(measurements=("00",))

    def verify(data: bytes) -> object:
        size, rest = struct.unpack_from("<I", data)[0] if len(data) >= 4 else 0, data[4:]
        return verify_quote(QuoteKind.SGX, rest[:size], rest[size:], policy, 1_751_371_200, None)

    yield Decoder("quote", verify, [pack_number(len(quote)) + quote + collateral], (change_bytes, change_tokens))


def _federation() -> Iterator[Decoder]:
    identity = bytes(range(32))
    session, known = bytes(32), {0: public_identity(identity)}
    asked = site_messages.SiteRequest(bytes(32), bytes(16), 3, 1, (0, 1, 2), b"frame", b"first", bytes(32), b"opening")
    read_asked = functools.partial(site_messages.read_request, kind=site_messages.SiteRequest)
    yield Decoder("site request", read_asked, [site_messages.pack(asked)], BYTES)
    read_continuation = functools.partial(site_messages.read_request, kind=site_messages.Continuation)
    yield Decoder(
        "site continuation",
        read_continuation,
        [site_messages.pack(site_messages.Continuation(bytes(32), session, 1, b"r"))],
        BYTES,
    )
    read_preparation = functools.partial(site_messages.read_request, kind=site_messages.Preparation)
    prepared = site_messages.Preparation(bytes(32), bytes(16), 3, 1, 1, b"r")
    yield Decoder("site preparation", read_preparation, [site_messages.pack(prepared)], BYTES)
    replies = [
        site_messages.pack(site_messages.sign_reply("continue", site_messages.Answer(0, session, b"body"), identity)),
        site_messages.pack(
            site_messages.sign_reply("continue", site_messages.Refusal(0, session, "policy", "No."), identity)
        ),
    ]
    read = functools.partial(site_messages.read_reply, verb="continue", session=session, site=0, identities=known)
    yield Decoder("site reply", read, replies, BYTES)
    directory = Directory({"a": known[0]}, server=bytes(32)).to_toml().encode()
    yield Decoder("directory", with_file("d.toml", read_directory), [directory], TEXT)
    plan = (
        b'method = "fl-std"\nmodel = "acme.models:net"\nsites = "d.toml"\nargs = { rounds = 3 }\n'
        b"min_cohort = 1\ntimeouts = { train = 10, message = 1.5 }\n"
    )
    yield Decoder("plan", with_file("p.toml", functools.partial(_plan, directory)), [plan], TEXT)
    site = b'data = "a.b:c"\nheld_out = 0.1\n[allow]\nmethods = ["fedavg"]\nchannels = ["plain"]\nepsilon = inf\n'
    site += b'models = { "a.b:c" = "sha256:' + b"0" * 64 + b'" }\n'
    yield Decoder("site file", with_file("s.toml", read_site), [site], TEXT)
    with tempfile.TemporaryDirectory() as folder:
        log = AuditLog(Path(folder) / "log.jsonl")
        log.append("charged", round=1)
        log.append("refused", reason="No.")
        yield Decoder("log", with_file("l.jsonl", read_journal), [log.path.read_bytes()], TEXT)


def _plan(directory: bytes, path: Path) -> object:
    path.with_name("d.toml").write_bytes(directory)
    return read_plan(path)


def _enclaves() -> Iterator[Decoder]:
    identities = {client: public_identity(bytes([client] * 32)) for client in range(3)}
    own = secure_channel.certificate(bytes(range(32)))
    agreed = Configuration(run=bytes(16), method="m", population=3, directory=identities, rounds=3, host=own)
    yield Decoder("enclave configuration", Configuration.from_bytes, [agreed.to_bytes()], TEXT)
    pem = x509.load_der_x509_certificate(own).public_bytes(Encoding.PEM)
    yield Decoder("certificate", secure_channel.read_certificate, [own, pem], BYTES)
    joined = join_run(agreed.run, 1, agreed.digest, AttestationPolicy(measurements=("00",)), bytes(range(32)), limit=3)
    yield Decoder(
        "enclave client state", EnclaveClientState.from_bytes, [joined.to_bytes()], (change_bytes, change_tokens)
    )
    memory = pack_memory({"clip/bound": torch.rand(3), "n": torch.tensor(3)})
    yield Decoder("mechanism's memory", lambda data: read_memory(Reader(data)), [memory], (change_bytes, change_tokens))
    with in_file("journal", b"") as path:
        Journal(path, lambda size: bytes(size))
        begun = path.read_bytes()
    yield Decoder("enclave journal", with_file("journal", Journal), [begun, begun + bytes(76)], BYTES)


def _kept() -> Iterator[Decoder]:
    progress = SiteProgress({"train": 3}, {"train": (2, 1)}, bytes(32).hex(), "00", 1).to_bytes(bytes(range(32)))
    read_progress = functools.partial(SiteProgress.read, identity=bytes(range(32)))
    yield Decoder("site progress", with_file("progress.json", read_progress), [progress], TEXT)
    yield from _kits()
    with in_file("key", b"") as path:
        path.unlink()
        new_identity(path)
        key = path.read_bytes()
    yield Decoder("identity key", _private("key", read_identity), [key], BYTES)
    with in_file("noise.key", b"") as path:
        key_file.write(path, Ratchet(0, Key(bytes(32))), "run")
        secret = path.read_bytes()
    yield Decoder("noise key", _private("noise.key", lambda path: key_file.read(path, "run", 3)), [secret], TEXT)
    with in_file("l.db", b"") as path:
        Ledger.open(path, Budget(8, 1e-3)).close()
        head = head_file(path).read_bytes()
    name = head_file(Path("l.db")).name
    yield Decoder("ledger head", with_file(name, lambda path: read_head(path.with_name("l.db"))), [head], TEXT)
    yield Decoder("review", _accepted, [_reviewed()[1].read_bytes()], TEXT)


@functools.cache
def _folder() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory()


@functools.cache
def _reviewed() -> tuple[bytes, Path]:
    """The digest of a plan that a site has accepted, and the file that says so."""
    consortium = Consortium.at(Path(_folder().name), 1, min_cohort=1)
    plan = consortium.plan(min_cohort=1, args={"cohort": 1})
    consortium.accept(plan)
    (review,) = consortium.folder.rglob("reviews/*.json")
    return plan.digest, review


def _accepted(data: bytes) -> object:
    """The accepted plan of the site with this review."""
    digest, review = _reviewed()
    review.write_bytes(data)
    return read_site(next(Path(_folder().name).rglob("site.toml"))).accepted_plan(digest)


def _kits() -> Iterator[Decoder]:
    with tempfile.TemporaryDirectory() as folder:
        kit, server = SiteKit(Path(folder, "kit")), ServerKit(Path(folder, "server"))
        kit.make(bytes(range(32)))
        server.make("localhost", 8002)
        enrolment, address = kit.enrolment.read_bytes(), server.address_file.read_bytes()
        key = kit.keyring.keys()[0].pem.encode()
    yield Decoder("enrolment", with_file("enrolment.toml", Enrolment.read), [enrolment], TEXT)
    yield Decoder("server's address", with_file("server.toml", ServerAddress.read), [address], TEXT)
    yield Decoder("TLS key", lambda data: CertificateKey(data.decode("ascii", "replace")), [key], TEXT)
    limits: dict[int, int] = {Kind.REPLY: 100, Kind.ERROR: 0, Kind.REQUEST: 100, Kind.FORGET: 0}
    whole = [next(frames(Kind(kind), bytes(16), bytes(limit))) for kind, limit in limits.items()]
    yield Decoder("frame", lambda data: Receiver(limits).add(data), whole, BYTES)
    hello = Hello(bytes(16), 100, (bytes(16),)).pack(bytes(32), "00", bytes(range(32)))
    identity = public_identity(bytes(range(32)))
    yield Decoder("hello", lambda data: Hello.read(data, bytes(32), "00", identity), [hello], BYTES)


def _private(name: str, decode: Callable[[Path], object]) -> Callable[[bytes], object]:
    def run(path: Path) -> object:
        path.chmod(0o600)
        return decode(path)

    return with_file(name, run)


def party_decoders() -> Iterator[Decoder]:
    """All decoders of this module."""
    yield from (*_quotes(), *_federation(), *_enclaves(), *_kept())
