"""Aggregation in an attested enclave between sites: its part of a plan, the server as its host, sites as clients.

::

    [enclave]
    address = "127.0.0.1:7070"              # where the server reaches it, or the path of a local socket
    configuration = "enclave.json"          # made by tacit enclave configure --plan
    identity = "host.key"                   # the server's secret key as the enclave's host, made with it
    simulated = false                       # true: without hardware, for tests; every output says so
    [enclave.attestation]                   # which enclaves the server accepts; every site has its own policy
    measurements = ["33d8736d…"]

Configuration and `simulated` are part of the plan that sites accept; the rest is the server's own.

The conversation is `tacit.enclave.converse`. Requests to the enclave go through its socket, those to sites
through the federation's transport: first the steps of attestation, for sites that have not accepted this enclave, then
the round's first message with the request for the upload. Absent sites receive no request and count as dropouts.

A site verifies the enclave by its own policy. Before it answers, it stores the release-log head, the number of its
participations and the last round on disk. So it refuses a rolled-back enclave and a surplus round even after a
restart.
"""

import json
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from msgspec import Struct, structs

from tacit.core import Messages, Method, Randomness, Round, ServerRound, State, files
from tacit.core.interfaces import Conversation
from tacit.core.serialization import Source, convert
from tacit.core.server_half import broadcast, no_messages
from tacit.core.state import Traffic
from tacit.enclave import enclave_messages
from tacit.enclave.attestation.evidence import Evidence
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.enclave.configuration import Configuration
from tacit.enclave.connection import TIMEOUT, EnclaveConnection, connect_to
from tacit.enclave.enclave_client import EnclaveClientState, PendingUpload, answer, join_run, set_time, set_upload
from tacit.enclave.enclave_messages import MessageType, RoundRequest, mechanism_memory, memory_digest
from tacit.enclave.host import ENCLAVE, EnclaveOutcome, Heads, converse
from tacit.enclave.secure_channel import ChannelIdentity, connect
from tacit.enclave.uploads import OVERHEAD
from tacit.errors import EnclaveUnavailableError, RoundOverError, TooFewClientsError, UserError
from tacit.federation.channels.interface import (
    Arrangement,
    Connect,
    FederatedChannel,
    Member,
    ServerHalf,
    SiteHalf,
    SiteReply,
    Survival,
    register,
)
from tacit.federation.channels.noise import has_surplus, in_shares
from tacit.federation.messages import TRAIN, RefusedError, SiteRequest
from tacit.federation.plan.directory import new_identity, read_identity
from tacit.federation.server.round_reports import RoundOutcome, SiteBytes
from tacit.pieces.channels import Enclave
from tacit.protocols.crypto import KEY
from tacit.protocols.kit import HEADER, RUN, Requests, play
from tacit.wire.packing import Reader

if TYPE_CHECKING:
    from tacit.federation.plan.plan import FederationPlan
    from tacit.federation.server.enrolled_sites import EnrolledSites
    from tacit.federation.site.policy import SitePolicy

_CONFIGURE = "Configure the enclave: tacit enclave configure --plan plan.toml --out enclave.json."
_NO_MODEL = bytes(KEY)  # opened to learn the cohort, before there is a broadcast
NO_POLICY = AttestationPolicy()
RENEW = NO_POLICY.acceptance_hours * 3600 / 2  # seconds after which the host lets sites verify the enclave again
_MAX_BYTES = 1 << 24  # bytes of a site's state
_ELSEWHERE = "The plan does not say where its enclave is. Use its file at the server."


class EnclaveTable(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The table `enclave` of a plan's file.

    Attributes:
        address: where the server reaches the enclave, `HOST:PORT`, or the path of a local socket.
        configuration: the file of the enclave's configuration.
        identity: the file of the server's secret key as the enclave's host.
        simulated: whether it may be a simulation, which isolates nothing.
        attestation: which enclaves the server accepts.
    """

    address: str
    configuration: Path = Path("enclave.json")
    identity: Path = Path("host.key")
    simulated: bool = False
    attestation: AttestationPolicy = NO_POLICY

    def within(self, folder: Path) -> "EnclaveTable":
        """The same table, with paths that do not depend on the current folder."""
        address = self.address if ":" in self.address else str(folder / self.address)
        return structs.replace(
            self, address=address, configuration=folder / self.configuration, identity=folder / self.identity
        )

    @property
    def host(self) -> ChannelIdentity:
        """The server's identity towards the enclave."""
        return ChannelIdentity.of(read_identity(self.identity))


@dataclass(frozen=True)
class PlannedEnclave:
    """The enclave of a plan.

    Attributes:
        configuration: its configuration; None: not configured yet.
        simulated: whether it may be a simulation, which isolates nothing.
        access: how the server reaches it, with the paths of the plan's file; None at sites.
    """

    configuration: Configuration | None
    simulated: bool
    access: EnclaveTable | None = field(default=None, compare=False)
    name: ClassVar[str] = "enclave"

    @classmethod
    def read(cls, table: Mapping[str, Any], path: Path, *, configured: bool) -> "PlannedEnclave":
        """Read the table of a plan's file; `configured`: its configuration, too."""
        access = convert(table, EnclaveTable, Source(label=f"enclave of {path}")).within(path.parent)
        if not configured:
            return cls(None, access.simulated, access)
        file = access.configuration
        if not file.exists():
            raise UserError(f"Expected the enclave's configuration in {file}, which does not exist. {_CONFIGURE}")
        content = files.read(file, "the enclave's configuration")
        return cls(Configuration.from_bytes(content), access.simulated, access)

    def restrict(self, policy: AttestationPolicy) -> AttestationPolicy:
        """A party's policy for this enclave: where the plan requires hardware, no party accepts a simulation."""
        return replace(policy, simulation=policy.simulation and self.simulated)

    def connect(self) -> EnclaveConnection:
        """The server's connection to the enclave, which its own policy accepts.

        Raises:
            EnclaveUnavailableError: nothing answers there, or it rejects this host.
            ProtocolError: what answers is not the enclave of this configuration.
        """
        if self.access is None or self.configuration is None:
            raise UserError(_ELSEWHERE)
        policy, host = self.restrict(self.access.attestation), self.access.host
        return connect(connect_to(self.access.address), host, self.configuration.digest, policy, int(time.time()))

    def canonical(self) -> dict[str, Any]:
        """What sites agree to, as plain values."""
        assert self.configuration is not None
        return {"simulated": self.simulated, "configuration": json.loads(self.configuration.to_bytes())}

    @classmethod
    def from_canonical(cls, content: Mapping[str, Any]) -> "PlannedEnclave":
        """The inverse."""
        configuration = Configuration.from_bytes(json.dumps(content["configuration"]).encode())
        return cls(configuration, bool(content["simulated"]))


def enclave_of(plan: "FederationPlan") -> PlannedEnclave:
    """The enclave of a plan; raises `UserError` if the plan names none."""
    enclave = _enclave_of(plan.arrangement)
    if enclave is None:
        raise UserError(
            f"{plan.method_name} sends messages to an enclave, and the plan names none. Add a table [enclave]. "
            f"{_CONFIGURE}"
        )
    return enclave


def configuration_of(plan: "FederationPlan") -> Configuration:
    """The configuration of the plan's enclave; raises `UserError` unless it is for this plan."""
    plan.check_channel()
    configuration = enclave_of(plan).configuration
    assert configuration is not None
    return configuration


def _enclave_of(arranged: Arrangement | None) -> PlannedEnclave | None:
    match arranged:
        case PlannedEnclave():
            return arranged
    return None


def new_configuration(plan: "FederationPlan") -> Configuration:
    """The configuration of a new run of a plan: the enclave draws cohorts from the plan's sites.

    Creates the server's key as the enclave's host if there is none.
    """
    method, access = plan.method, enclave_of(plan).access
    if plan.channel.arranged is not PlannedEnclave:
        raise UserError(f'{method.name} sends nothing to an enclave. Use channel = "Enclave()" in the plan\'s args.')
    if access is None:
        raise UserError(_ELSEWHERE)
    state = plan.run_spec().simulation.initial_state
    new_identity(access.identity)
    return Configuration(
        run=secrets.token_bytes(RUN),
        method=method.canonical,
        population=plan.population,
        directory=plan.directory.by_number,
        rounds=method.rounds,
        parameters=state.dim,
        memory=memory_digest(mechanism_memory(state)),
        host=access.host.certificate,
    )


@register(Enclave)
@dataclass(frozen=True)
class FederatedEnclave(FederatedChannel):
    """`Enclave` between sites."""

    channel: Enclave
    words: ClassVar[tuple[str, ...]] = ("enclave",)
    arranged: ClassVar[type[Arrangement] | None] = PlannedEnclave
    too_few: ClassVar[str] = "leaves the model as it was"
    notes: ClassVar[tuple[str, ...]] = (
        (
            "The enclave draws cohorts from all enrolled sites, and releases one sum per round. A round in which too "
            "few deliver leaves the model as it was, and is not repeated. A site is sent two more messages when it "
            "verifies the enclave: in its first round, and after a restart of the enclave or the run."
        ),
    )

    @property
    def min_cohort(self) -> int:
        return self.channel.min_clients

    @classmethod
    def check_policy(cls, allow: "SitePolicy") -> None:
        _policy_of(allow)

    def adapt(self, method: Method, sites: int, least: int, arranged: Arrangement | None) -> Method:
        """The method with sums of at least `least` sites; on hardware, unless the plan allows a simulation."""
        planned = _enclave_of(arranged)
        hardware = planned is not None and not planned.simulated
        inside = replace(
            self.channel, min_clients=max(self.channel.min_clients, least), conversation=False, hardware=hardware
        )
        return replace(method, channel=inside, mechanism=in_shares(method.mechanism, 0.0))

    def incompatibility(self, method: Method, sites: int, cohort: float) -> str:
        self.channel.check_messages(method)
        if has_surplus(method.mechanism):
            return f"{method.name} adds surplus noise, which an enclave does not remove. Use mechanism.dropouts = 0."
        self.channel.check_cohorts(method, sites)
        return ""

    def problem(self, plan: "FederationPlan") -> str:
        method = plan.method
        try:
            configuration = enclave_of(plan).configuration
        except UserError as error:
            return str(error)
        if configuration is None:
            return f"The plan's enclave has no configuration. {_CONFIGURE}"
        for other, same in (
            ("another method", configuration.method == method.canonical and configuration.rounds == method.rounds),
            ("other sites or keys", configuration.directory == plan.directory.by_number),
        ):
            if not same:
                return f"The enclave's configuration is of another plan, with {other}. {_CONFIGURE}"
        return ""

    def exposure(self, method: Method) -> str:
        """An enclave that sites verify keeps its noise from the server. A simulated one proves nothing.

        The operator of its machine, presumably the server, sees messages without noise, or with one share of it.
        """
        if self.channel.hardware or method.mechanism.requires == "anything":
            return ""
        return (
            "A simulated enclave isolates nothing: whoever runs it sees this site's messages without noise. Use an "
            "enclave on hardware, or trust the server: trust_server = true."
        )

    def objections(self, plan: "FederationPlan", allow: "SitePolicy") -> Iterator[str]:
        policy = _policy_of(allow)
        if enclave_of(plan).simulated and not policy.simulation:
            yield (
                "The plan's enclave may be a simulation, which isolates nothing. This site accepts none (attestation)."
            )
        if not policy.measurements:
            yield "This site accepts no enclave: list the measurements of trusted code under [allow.attestation]."
        if configuration_of(plan).seed is not None and math.isfinite(allow.epsilon):
            yield "The enclave's noise follows from a seed that everybody knows. Configure the enclave without one."

    def reveals(self, method: Method) -> Iterator[str]:
        """What the enclave and its host learn, and what to trust."""
        yield (
            "The server forwards ciphertext to the enclave. It learns who takes part, when, the length of ciphertexts, "
            f"and what the enclave releases: sums of at least {self.channel.min_clients} sites' messages, one a round."
        )
        yield "The enclave sees every message until the end of its round. Other sites learn the model."
        if self.channel.hardware:
            yield (
                "Every site verifies the enclave by its own policy before it trains. What is trusted: the vendor of "
                "the processor and its firmware, and the measured code. Physical attacks are not covered."
            )
        else:
            yield f"{self.channel.caveat} Nothing is proved about it: it must be trusted like the server."

    def survival(self, cohort: int, least: int) -> Survival:
        needed = self.channel.contributors(cohort)
        return Survival(messages=1, losses=max(cohort - needed, 0), colluding=needed - self.channel.min_clients)

    def at_server(self, sites: "EnrolledSites", randomness: Randomness, connect: Connect | None) -> "EnclaveHost":
        if configuration_of(sites.plan).seed is not None and randomness == "secret":
            raise UserError("The enclave's configuration has a seed, which makes its noise public. Configure it anew.")
        return EnclaveHost(self.channel, sites, connect or enclave_of(sites.plan).connect)

    def at_site(self, member: Member) -> "EnclaveSite":
        return EnclaveSite(self.channel, member)


def _policy_of(allow: "SitePolicy") -> AttestationPolicy:
    """Which enclaves a site accepts."""
    return convert(allow.attestation, AttestationPolicy, Source(label="allow.attestation"))


class EnclaveLink(Protocol):
    """A connection to an enclave."""

    def ask(self, request: bytes) -> bytes:
        """The enclave's reply; raises `EnclaveUnavailableError` if there is none."""

    def close(self) -> None:
        """Disconnect."""


class EnclaveHost(ServerHalf):
    """The server as the host of a plan's enclave.

    Args:
        channel: how many contributors it requires.
        sites: the enclave's clients.
        connect: connects to the enclave and verifies it by the server's own policy.
        idle: seconds without a request after which to reconnect, since the enclave may have disconnected.
        clock: seconds.
    """

    def __init__(
        self,
        channel: Enclave,
        sites: "EnrolledSites",
        connect: Callable[[], EnclaveLink],
        idle: float = TIMEOUT / 2,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._channel, self.sites, self._connect, self._idle, self._clock = channel, sites, connect, idle, clock
        self._link: EnclaveLink | None = None
        self._used = 0.0
        self._attested = math.inf
        self._heads: Heads = {}

    def validate(self) -> None:
        """Raise before any charge unless the enclave answers."""
        if self._link is None:
            self.open_link()
            self.close()

    def open_link(self) -> EnclaveLink:
        """The open connection, or a new one; raises `EnclaveUnavailableError` if nothing answers."""
        if self._link is not None and self._clock() > self._used + self._idle:
            self.close()
        if self._link is None:
            self._link, self._heads = self._connect(), {}  # it may have restarted: sites verify it again
            self._attested = math.inf
        self._used = self._clock()
        self._attested = min(self._attested, self._used)
        return self._link

    def close(self) -> None:
        """Disconnect."""
        if self._link is not None:
            self._link.close()
        self._link = None

    def draw(self, state: State, now: ServerRound) -> list[int] | None:
        """The enclave's cohort; empty if the enclave will release nothing.

        So it is if the cohort is too small, or if the enclave released this round to a server that then crashed.
        """
        method = self.sites.plan.method
        like = no_messages(method, broadcast(method, state, now), state, now)
        try:
            cohort = self._opened(state, like.rows.dim)
        except RoundOverError as error:
            self.sites.log("abandoned", round=state.round + 1, reason=str(error))
            return []
        needed, present = self._channel.contributors(len(cohort)), self.sites.present_of(cohort)
        if len(cohort) < needed:  # ends like a round without clients, as in a simulation
            return []
        if len(present) < needed:
            raise TooFewClientsError(
                f"Expected at least {needed} of the {len(cohort)} sites that the enclave drew, got {len(present)}. "
                f"{self.sites.explanation()}Nobody was asked. Start those that are absent, and resume the run."
            )
        return cohort

    def _opened(self, state: State, dim: int) -> list[int]:
        """The cohort of the next round: the same each time the round is opened."""
        request = enclave_messages.pack(MessageType.OPEN_ROUND, round_request(state, dim, _NO_MODEL).pack())
        reply = enclave_messages.read_reply(self._ask(request), MessageType.ROUND_OPENED)
        return list(enclave_messages.read_opened(reply)[1])

    def gather(
        self, state: State, now: ServerRound, asked: SiteRequest, like: Messages, conversation: Conversation
    ) -> RoundOutcome:
        """The enclave's release of the messages from the cohort's present sites."""
        return self._aggregate(state, like.rows.dim, asked, self.sites.present_of(asked.cohort))

    def _aggregate(self, state: State, dim: int, asked: SiteRequest, present: Iterable[int]) -> RoundOutcome:
        here, traffic = set(present), SiteBytes()
        if self._used > self._attested + RENEW:  # before the sites' acceptances expire
            self._heads, self._attested = {}, self._used

        def ask(requests: Requests) -> list[tuple[int, bytes]]:
            if ENCLAVE in requests:
                return [(ENCLAVE, self._ask(requests[ENCLAVE]))]
            reached = {number: request for number, request in requests.items() if number in here}
            kind = enclave_messages.unpack(next(iter(requests.values()))).kind
            if kind is MessageType.REQUEST_UPLOAD:
                return [*self._short(self.sites.ask_round(TRAIN, asked, reached, traffic), dim)]
            return [*self.sites.ask_before(asked, reached, traffic).items()]

        outcome = play(converse(round_request(state, dim, asked.session(TRAIN)), self._heads), ask)
        self._heads = outcome.heads
        self._note_rejected(outcome)
        release, phases = outcome.result.release, _phases(outcome, here)
        protocol = sum(phases.values(), Traffic())
        uploads = outcome.transcript.up[MessageType.UPLOAD]
        reached = len(here & outcome.transcript.down[MessageType.REQUEST_UPLOAD].keys())  # by the broadcast
        envelope = traffic.beyond(uploads.total() - OVERHEAD * len(uploads), asked, reached)
        phases["envelope"] = Traffic(envelope.up - protocol.up, envelope.down - protocol.down)
        return RoundOutcome(
            total=release.total,
            clients=release.contributors,
            overhead=phases,
            traffic=traffic,
            memory=release.memory,
        )

    def _short(self, uploads: Mapping[int, bytes], dim: int) -> Iterator[tuple[int, bytes]]:
        """The uploads that the enclave reads; it closes the connection to a host that forwards a longer one."""
        limit = HEADER + self._channel.message_format.max_size(dim)
        for number, upload in uploads.items():
            if len(upload) <= limit:
                yield number, upload
            else:
                self.sites.fail(number, f"expected an upload of at most {limit} bytes, got {len(upload)}")

    def _note_rejected(self, outcome: EnclaveOutcome) -> None:
        """Note the sites that the enclave rejected; absences and refusals are already noted."""
        transcript = outcome.transcript
        for number in transcript.up[MessageType.NONCE].keys() - transcript.down[MessageType.PRESENT_EVIDENCE].keys():
            self.sites.fail(number, "it remembers a release of the enclave that the enclave does not know")
        for number in transcript.up[MessageType.UPLOAD].keys() & transcript.unresponsive:
            self.sites.fail(number, "the enclave rejected its upload")

    def _ask(self, request: bytes) -> bytes:
        link = self.open_link()
        try:
            return link.ask(request)
        except EnclaveUnavailableError:
            self.close()
            raise
        finally:
            self._used = self._clock()


def _phases(outcome: EnclaveOutcome, present: set[int]) -> dict[str, Traffic]:
    """The protocol's bytes beyond messages, by phase, for the sites that were reached."""
    up, down = outcome.transcript.up, outcome.transcript.down

    def count_received(*kinds: MessageType) -> int:
        return sum(size for kind in kinds for number, size in down[kind].items() if number in present)

    attested = sum(up[kind].total() for kind in (MessageType.NONCE, MessageType.ENCLAVE_ACCEPTED))
    return {
        "attestation": Traffic(attested, count_received(MessageType.CHALLENGE, MessageType.PRESENT_EVIDENCE)),
        "deliver": Traffic(OVERHEAD * len(up[MessageType.UPLOAD]), count_received(MessageType.REQUEST_UPLOAD)),
    }


def round_request(state: State, dim: int, model: bytes) -> RoundRequest:
    """The host's announcement of the next round; `model` names everything that sites received."""
    return RoundRequest(state.round, model, dim, state.layers, mechanism_memory(state))


@dataclass(frozen=True)
class EnclaveSite(SiteHalf):
    """A site as a client of a plan's enclave."""

    channel: Enclave
    member: Member

    @property
    def _path(self) -> Path:
        return self.member.folder / "enclave"

    @property
    def _policy(self) -> AttestationPolicy:
        return enclave_of(self.member.plan).restrict(_policy_of(self.member.allow))

    @property
    def _state(self) -> EnclaveClientState:
        """The stored state; a change of policy revokes the acceptance of an enclave."""
        policy = self._policy
        if not self._path.exists():
            agreed, member = configuration_of(self.member.plan), self.member
            joined = join_run(agreed.run, member.number, agreed.digest, policy, member.identity, limit=agreed.rounds)
            return set_time(joined, int(time.time()))
        state = set_time(EnclaveClientState.from_bytes(files.read(self._path, limit=_MAX_BYTES)), int(time.time()))
        return state if state.policy == policy else replace(state, policy=policy, key=b"")

    def opens(self, verb: str) -> bool:
        return verb == TRAIN

    def validate(self, asked: SiteRequest, like: Messages, now: Round) -> None:
        state = self._state
        if asked.round <= state.last_round:
            raise RefusedError(
                "replay", f"This site has uploaded for round {asked.round + 1}; an enclave takes one upload per round."
            )
        nothing = PendingUpload(asked.round, asked.session(TRAIN), 1, weighted=False, plaintext=b"")
        answer(set_upload(state, nothing), asked.opening)

    def reply(self, asked: SiteRequest, messages: Messages, now: Round) -> SiteReply:
        """The site's message, encrypted to the enclave it accepted."""
        weighted, plaintext = self.member.plan.method.weighted, self.channel.message_format.pack(messages, 0, now)
        pending = PendingUpload(asked.round, asked.session(TRAIN), messages.rows.dim, weighted, plaintext)
        return SiteReply(self._step(set_upload(self._state, pending), asked.opening))

    def prepare(self, request: bytes) -> tuple[bytes, Mapping[str, str]]:
        """One step of attestation: the site's nonce, or its consent to the enclave's answer."""
        frame = enclave_messages.unpack(request, _MAX_BYTES)
        if frame.kind is MessageType.REQUEST_UPLOAD:
            raise RefusedError("malformed", "Expected a step of attestation: uploads are asked for with a round.")
        reply = self._step(self._state, request)
        if frame.kind is not MessageType.PRESENT_EVIDENCE:
            return reply, {}
        return reply, {"event": "accepted the enclave", "kind": Evidence.read(Reader(frame.body)).kind.label}

    def _step(self, state: EnclaveClientState, request: bytes) -> bytes:
        after, reply = answer(state, request)
        files.write(self._path, after.to_bytes(), private=True)
        return reply
