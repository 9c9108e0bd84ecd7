"""Aggregation in an attested enclave as a channel: the server learns only what the enclave releases."""

from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import ceil
from typing import ClassVar

import torch

from tacit.core import DenseRows, Messages, Method, Round, State, Sum, Traffic, Turnout
from tacit.core.interfaces import AddNoise, Channel, Conversation, Reader, SumMessages
from tacit.core.prices import ClientUnits, Unit
from tacit.enclave.attestation.evidence import NO_CHANNEL
from tacit.enclave.attestation.simulated_quotes import SIMULATED
from tacit.enclave.attestation.verification import Attestor
from tacit.enclave.configuration import Configuration, Journal
from tacit.enclave.enclave_client import UPLOAD_REQUEST
from tacit.enclave.service import Charging, EnclaveService
from tacit.enclave.simulated_enclave import SimulatedEnclave
from tacit.enclave.uploads import OVERHEAD, UploadFormat
from tacit.errors import BudgetError, UserError, expect, whole, within
from tacit.wire.sparse import WireFormat


@dataclass(frozen=True, kw_only=True)
class Enclave(Channel):
    """Messages are encrypted to an attested process, which clips, sums and adds noise; it releases only the aggregate.

    A simulation isolates nothing, and every output of the run carries that warning.

    Args:
        wire: the wire format of rows, `Csr()` or `Compact()`, used where it is shorter; None: plain values.
        down: the wire format in which the server sends whole models, used where it is shorter.
        padding: uploads are padded to a multiple of this many bytes, so that sizes do not reveal how sparse rows are.
        least: nothing is released, and the model stays unchanged, unless at least this many honest clients
            contribute.
        colluding: the fraction of a cohort, rounded up to a number of clients, that may collude with the host. They are
            not counted as honest: a cohort of 10 needs `least` + 1 contributors.
        conversation: run the protocol with a separate process, including attestation; otherwise the same result is
            computed without it.
        hardware: clients verify by their own policies that the enclave is on hardware, as in a federation whose plan
            requires it; otherwise it is simulated, and every output says so.

    Formal guarantees: none by itself. With a mechanism that adds noise to sums, the noise is added inside. The enclave
    draws cohorts itself, and enforces number of rounds and budget. The host learns who takes part: sampling amplifies
    privacy against recipients of the models, not against the host. Not covered: within the method's `max_row_norm`, the
    mechanism's bound or the usual length of rows, a client may send any update, such as one with its sign flipped.

    Sees: the server outside, ciphertext, its length and time, who takes part, and what the enclave releases; the
    enclave, every message. An attacker with physical access to the processor, with an exploit against it, or who
    observes access patterns of sparse rows inside, possibly every message. In a simulation, the operator sees
    everything.
    """

    wire: WireFormat | None = None
    down: WireFormat | None = None
    padding: int = 1
    min_clients: int = 3
    colluding: float = 0.1
    conversation: bool = False
    hardware: bool = False
    messages_seen_by: ClassVar[Reader] = "enclave"

    def __post_init__(self) -> None:
        whole(1, padding=self.padding, min_clients=self.min_clients)
        within("[0, 1)", colluding=self.colluding)

    @property
    def bounded_for(self) -> tuple[Unit, ...]:
        """All units, unless the length of a message depends on its row, which the host sees."""
        return tuple(Unit) if self.wire is None else (Unit.CLIENT,)

    @property
    def caveat(self) -> str:
        return "" if self.hardware else SIMULATED

    def tolerates(self, cohort: int | None = None) -> str:
        colluding = f"{self.colluding:.0%} of the clients of a cohort"
        if cohort is not None:
            colluding = f"{ceil(self.colluding * cohort - 1e-9)} of a cohort of {cohort}"
        return (
            f"{colluding} may collude with the host: a sum is released only if at "
            f"least {self.min_clients} others contribute to it"
        )

    def discloses(self, cohort: int | None = None) -> Mapping[str, str]:
        attacker = "whoever breaks the enclave's hardware, or observes its memory accesses"
        return {
            "the host of the enclave": "ciphertext, its length and time, and who takes part",
            "the enclave": "every message",
            **({attacker: "possibly every message"} if self.hardware else {"the operator of this simulation": "all"}),
        }

    def contributors(self, cohort: int) -> int:
        """How many clients of a cohort must contribute, so that enough of them are honest."""
        return self.min_clients + ceil(self.colluding * cohort - 1e-9)

    @cached_property
    def message_format(self) -> UploadFormat:
        """How rows become plaintexts of uploads."""
        return UploadFormat(self.wire, self.padding)

    def overhead(self, now: Round, tolerated: int = 0) -> Mapping[str, Traffic]:
        """Headers, keys, signature and authentication tag of every upload, and the requests for them.

        Attestation is not included, nor are the entries of the release log since the client's last round, 64 bytes for
        every round; the transcript of the conversation has both.
        """
        return {"deliver": Traffic(OVERHEAD, UPLOAD_REQUEST) * now.cohort}

    @contextmanager
    def open(self, method: Method, population: int, seed: int | None = None) -> Generator["EnclaveConversation"]:
        """The conversation with the enclave's process, if this run has one.

        Raises `UserError` if no cohort of the run could be large enough for a release.
        """
        if seed is not None:
            expect(not self.hardware, "hardware=False in a simulation", "It has no enclave hardware: run a federation.")
            if self.conversation:
                self.check_messages(method)
            self.check_cohorts(method, population)
        if not self.conversation or seed is None:
            yield EnclaveConversation(self)
            return
        with closing(SimulatedEnclave(method, self.message_format, population, seed)) as process:
            yield EnclaveConversation(self, process)

    def check_messages(self, method: Method) -> None:
        """Raise `UserError` unless an enclave's process can add up what clients of this method send."""
        if method.aggregator.models != 1:
            raise UserError(f"Expected an aggregator of one model for an enclave's process, got {method.aggregator}.")
        if method.mechanism.bits is not None:
            raise UserError(
                f"Expected real-valued rows for an enclave's process, which adds up float32 numbers, but "
                f"{type(method.mechanism).__name__} sends integers. Use arithmetic=Reals(), or the channel SecureSum."
            )

    def check_cohorts(self, method: Method, population: int) -> None:
        """Raise `UserError` if no cohort of the run could be large enough for a release."""
        sizes = [method.sampler.sampling(population, index) for index in range(method.rounds)]
        fixed = [round(each.mean_cohort(population)) for each in sizes if each.kind != "poisson"]
        largest = max(fixed, default=population)
        needed = self.contributors(largest)
        expect(
            largest >= needed or len(fixed) < len(sizes),
            f"cohorts of at least {needed} clients for Enclave(min_clients={self.min_clients}, "
            f"colluding={self.colluding:g}), got {largest}",
            "No sum would be released: use larger cohorts, or declare fewer colluding or honest clients.",
        )


@dataclass(frozen=True, eq=False)
class EnclaveConversation(Conversation):
    """Rounds with an enclave.

    Attributes:
        channel: how many contributors it requires.
        process: the enclave; None: the same result is computed without it.
    """

    channel: Enclave
    process: SimulatedEnclave | None = None

    def aggregate(self, messages: Messages, state: State, now: Round, add: SumMessages) -> Sum:
        """The sum in the order of the clients' numbers; zero if there are too few contributors."""
        ordered = _sort_clients(messages)
        simulated = add(ordered)
        enough = messages.rows.count >= self.channel.contributors(now.cohort)
        if self.process is not None:
            self.process.seconds.clear()
            if enough:
                self.process.run_round(state, ordered, now)
        return simulated if enough else replace(simulated, total=torch.zeros_like(simulated.total), weight=0.0)

    def release(self, total: Sum, now: Round, add_noise: AddNoise) -> Sum:
        if total.weight == 0:
            return total
        if self.process is None:
            return add_noise(total)
        released = self.process.released  # noise was added inside
        return replace(released, total=released.total.to(total.total.device))

    def timings(self) -> Mapping[str, float]:
        return {} if self.process is None else dict(self.process.seconds)


def enclave_service(
    configuration: Configuration,
    method: Method,
    attestor: Attestor,
    journal: Journal | None = None,
    channel: bytes = NO_CHANNEL,
) -> EnclaveService:
    """The service that aggregates inside the enclave, for a method whose channel is `Enclave`.

    Args:
        configuration: what it does.
        method: that of the configuration.
        attestor: produces quotes.
        journal: the file of releases and charges.
        channel: the digest of the certificate with which its socket is served.
    """
    if not isinstance(method.channel, Enclave):
        raise UserError(f"Expected a method with the channel Enclave, got {method.channel}.")
    terms = method.terms
    charged = method.budget is not None and (Unit.CLIENT in terms.accounted or terms.record_bound is not None)
    charge = _open_charging(method, configuration.population, journal) if charged else None
    return EnclaveService(configuration, method, method.channel.message_format, attestor, journal, charge, channel)


def _open_charging(method: Method, population: int, journal: Journal | None) -> Charging:
    """Charges rounds to the method's budget, after those of the journal, and refuses those that exceed it.

    A round that was opened and not released is charged as planned.
    """
    from tacit.privacy.planned_charges import accountant_of, charge_of  # which imports dp_accounting
    from tacit.privacy.unit_accounting import UnitAccounting

    budget = method.budget
    assert budget is not None
    if method.terms.uncalibrated:
        raise UserError(f"Expected a mechanism with a noise multiplier, got {method.mechanism}. Configure it anew.")
    in_sum = method.terms.record_bound is not None  # the noise is for records, as if every client took part
    units = ClientUnits((1,) * population, Unit.RECORD) if in_sum else ClientUnits.whole(population)
    nothing = UnitAccounting.of(units.unit, (), accountant_of(method, units))

    def compose(before: UnitAccounting, index: int, turnout: Turnout | None) -> UnitAccounting:
        return before.compose(charge_of(method, units, index, (0,), turnout))

    rounds: dict[int, Turnout | None] = dict.fromkeys(sorted(journal.opened)) if journal else {}  # None: as planned
    rounds |= {entry.round: entry.turnout for entry in journal.entries} if journal else {}
    others, last = nothing, -1  # all rounds but the last one charged

    def charge(index: int, turnout: Turnout | None) -> None:
        nonlocal others, last
        if index not in rounds and last in rounds:
            others = compose(others, last, rounds[last])
        elif index != last:
            others = reduce(
                lambda sum_, each: compose(sum_, *each), ((k, v) for k, v in rounds.items() if k != index), nothing
            )
        last = index
        if not compose(others, index, turnout).epsilon(budget.delta) <= budget.epsilon:
            raise BudgetError(f"Round {index} would exceed the budget of {budget}: nothing is released.")
        rounds[index] = turnout

    return charge


def _sort_clients(messages: Messages) -> Messages:
    order = torch.argsort(messages.clients)
    samples = None if messages.samples is None else messages.samples[order]
    return replace(
        messages, clients=messages.clients[order], rows=DenseRows(messages.rows.dense()[order]), samples=samples
    )
