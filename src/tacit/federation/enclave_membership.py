"""A site as a client of a plan's enclave: it verifies the enclave by its own policy, and remembers what it saw of it.

The release-log head, the number of participations and the last round are on its disk before it answers: an enclave that
was rolled back, and a round too many, are refused also after a restart of the site.
"""

import time
from dataclasses import replace
from pathlib import Path

from tacit.core import Messages, Method, Round, files
from tacit.federation.accepted_plan import RefusedError
from tacit.federation.messages import TRAIN, SiteRequest
from tacit.pieces.channels import Enclave
from tacit.protocols.attestation import AttestationPolicy, Evidence, QuoteKind
from tacit.protocols.tee import (
    Configuration,
    EnclaveClientState,
    MessageType,
    PendingUpload,
    answer,
    enclave_messages,
    join_run,
    set_time,
    set_upload,
)
from tacit.wire.packing import Reader

LIMIT = 1 << 24  # bytes of a state


class EnclaveMembership:
    """What a site has to do with one enclave.

    Args:
        path: the file of its state.
        configuration: what the site agreed to.
        number: the site's.
        identity: its secret key.
        policy: which enclaves it accepts.
    """

    def __init__(
        self, path: Path, configuration: Configuration, number: int, identity: bytes, policy: AttestationPolicy
    ) -> None:
        self._path, self._configuration, self._policy = path, configuration, policy
        self._number, self._identity = number, identity

    @property
    def state(self) -> EnclaveClientState:
        """As stored; an enclave that was accepted by another policy than the present one is not accepted any more."""
        if not self._path.exists():
            return self._join()
        found = EnclaveClientState.from_bytes(files.read(self._path, limit=LIMIT))
        return found if found.policy == self._policy else replace(found, policy=self._policy, key=b"")

    def _join(self) -> EnclaveClientState:
        agreed = self._configuration
        return join_run(agreed.run, self._number, agreed.digest, self._policy, self._identity, limit=agreed.rounds)

    def attest(self, request: bytes) -> bytes:
        """One step of attestation: the site's nonce, or its consent to the enclave that answers it."""
        if enclave_messages.unpack(request, LIMIT).kind is MessageType.REQUEST_UPLOAD:
            raise RefusedError("malformed", "Expected a step of attestation: uploads are asked for with a round.")
        return self._step(set_time(self.state, int(time.time())), request)

    def check(self, asked: SiteRequest) -> None:
        """Raise unless this site may upload in answer to this request: before it charges anything and trains."""
        if asked.round <= self.state.last_round:
            raise RefusedError(
                "replay", f"This site has uploaded for round {asked.round + 1}; an enclave takes one upload per round."
            )
        nothing = PendingUpload(asked.round, asked.session(TRAIN), 1, weighted=False, plaintext=b"")
        answer(set_upload(self.state, nothing), asked.talk)

    def upload(self, method: Method, found: Messages, asked: SiteRequest, now: Round) -> bytes:
        """The site's message, encrypted to the enclave that it has accepted."""
        assert isinstance(method.channel, Enclave)
        plaintext = method.channel.message_format.pack(found, 0, now)
        pending = PendingUpload(asked.round, asked.session(TRAIN), found.rows.dim, method.weighted, plaintext)
        return self._step(set_upload(self.state, pending), asked.talk)

    def _step(self, state: EnclaveClientState, request: bytes) -> bytes:
        after, reply = answer(state, request)
        files.write(self._path, after.to_bytes(), private=True)
        return reply


def accepted_kind(request: bytes) -> QuoteKind | None:
    """What kind of enclave has presented its evidence in this request; None: it presents none."""
    frame = enclave_messages.unpack(request, LIMIT)
    return Evidence.read(Reader(frame.body)).kind if frame.kind is MessageType.PRESENT_EVIDENCE else None
