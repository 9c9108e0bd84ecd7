"""A campaign of random lies, by a server, by a site and by the host of an enclave: what never happens whoever lies.

No site sends what it did not agree to, nothing is sent that was not charged before, nobody but the liar is blamed, and
the logs tell what happened.
"""

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import msgspec
import pytest

from enclave.federation import COHORT, Federation, messages, rows
from enclave.test_hostile_host import budgeted
from federation.consortium import Consortium, server, signed_by_server
from federation.faulty import DP, Faulty, at, final
from scale import scaled
from tacit.enclave.configuration import Journal
from tacit.errors import EnclaveRefusedError, ProtocolError, TooFewClientsError, UserError
from tacit.federation import messages as wire
from tacit.federation.journal import read_journal
from tacit.federation.messages import CONTINUE, REGISTER, TRAIN, Answer, Refusal
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.transport.endpoints import Failure

ROUNDS = 3
POLICY: dict[str, Any] = {"epsilon": 90.0, "min_cohort": 3}


def federation(folder: Path) -> tuple[Consortium, FederationPlan]:
    args = {**DP, "rounds": ROUNDS}
    return at(folder, "fl-std-dp", args=args, policy=POLICY, public="acme:public", retries=40)


def reply_of(data: bytes) -> Answer | Refusal:
    found: Answer | Refusal = msgspec.msgpack.decode(data, type=Answer | Refusal)
    return found


class Liar:
    """Changes what passes, at random; it has all keys of the party that lies."""

    def __init__(self, seed: int) -> None:
        self.random, self.kept = random.Random(seed), list[tuple[str, str, bytes]]()

    def request(self, name: str, verb: str, data: bytes) -> bytes | Failure | None:
        """A request of the server, or a lie in its place: signed with its key, or taken from what was sent before."""
        self.kept.append((name, verb, data))
        if self.random.random() > 0.15:
            return data
        lies: list[Callable[[], bytes | None]] = [
            lambda: self.random.choice(self.kept)[2],
            lambda: self._changed_bytes(data),
            lambda: self._changed_field(name, verb, data),
            lambda: None,
        ]
        return self.random.choice(lies)()

    def _changed_bytes(self, data: bytes) -> bytes:
        place = self.random.randrange(len(data))
        return data[:place] + bytes([self.random.randrange(256)]) + data[place + 1 :]

    def _changed_field(self, name: str, verb: str, data: bytes) -> bytes:
        """Another value of one field, with a valid signature for that site."""
        request = wire.read_request(data, wire.REQUESTS[verb])
        field = self.random.choice([each for each in request.__struct_fields__ if each != "signature"])
        value: object = getattr(request, field)
        match value:
            case bytes():
                value = self._changed_bytes(value) if value else self.random.randbytes(3)
            case int():
                value = max(value + self.random.choice([-1, 1, 7, 1000]), 1)
            case tuple():
                value = tuple(self.random.sample(range(7), self.random.randrange(1, 6)))
        return signed_by_server(verb, msgspec.structs.replace(request, **{field: value}), name)

    def reply(self, consortium: Consortium, name: str, verb: str, data: bytes) -> bytes | None:
        """A reply of the lying site, or a lie in its place, signed with the site's key."""
        self.kept.append((name, verb, data))
        if self.random.random() > 0.5:
            return data
        answer = reply_of(data)
        number, identity = consortium.names.index(name), consortium.identity(name)
        body = answer.body if isinstance(answer, Answer) else b""
        others = (
            lambda: wire.sign_reply(
                verb, wire.Answer(number, answer.session, self._changed_bytes(body or b"0")), identity
            ),
            lambda: wire.sign_reply(verb, wire.Answer(number, self.random.randbytes(32), body), identity),
            lambda: wire.sign_reply(verb, wire.Refusal(number, answer.session, "error", "No.\n\x1b[2J"), identity),
            lambda: wire.Answer((number + 1) % 5, answer.session, body),
        )
        raw = (lambda: self.random.choice(self.kept)[2], lambda: self._changed_bytes(data), lambda: None)
        return self.random.choice([*(lambda make=make: wire.pack(make()) for make in others), *raw])()


def check_site(consortium: Consortium, plan: FederationPlan, name: str, answered: list[tuple[str, bytes]]) -> None:
    """What a site did, by its log and its ledger, and what it has sent."""
    site = consortium.site(name)
    log = read_journal(site.files.log)  # whose chain is whole
    charged = [(entry["round"], entry["attempt"]) for entry in log if entry["event"] == "charged"]
    trained = [(entry["round"], entry["attempt"]) for entry in log if entry["event"] == "trained"]
    sent = [verb for verb, data in answered if isinstance(reply_of(data), Answer)]
    places = {entry: number for number, entry in enumerate(charged)}
    assert all(each in places for each in trained), "trained without a charge"
    assert sent.count(TRAIN) <= len(trained), "an answer without a round in the log"
    assert len(site.files.charges()) == len(charged) <= plan.max_answers
    assert {entry["plan"] for entry in log if entry["event"] in ("charged", "trained")} <= {plan.digest.hex()}
    refusals = sum(isinstance(reply_of(data), Refusal) for _, data in answered)
    assert refusals == sum(entry["event"] == "refused" for entry in log)


@pytest.mark.law
@pytest.mark.parametrize("seed", range(scaled(6, campaign=340)))
def test_a_server_that_lies_at_random(tmp_path: Path, seed: int) -> None:
    consortium, plan = federation(tmp_path)
    way, liar = Faulty(consortium.sites()), Liar(seed)
    way.before = liar.request
    with suppress(TooFewClientsError):
        final(server(plan, way))
    for name in consortium.names:
        check_site(consortium, plan, name, [(verb, reply) for whose, verb, _, reply in way.seen if whose == name])
    honest = Faulty(consortium.sites())
    with suppress(TooFewClientsError):  # unless lies have used up the attempts or the budget, an honest run goes on
        _, history = final(server(plan, honest))
        assert len(history) == ROUNDS


@pytest.mark.law
@pytest.mark.parametrize("seed", range(scaled(6, campaign=330)))
def test_a_site_that_lies_at_random(tmp_path: Path, seed: int) -> None:
    consortium, plan = federation(tmp_path)
    way, liar = Faulty(consortium.sites()), Liar(seed)

    def after(name: str, verb: str, data: bytes) -> bytes | None:
        lies = name == "site-2" and verb in (TRAIN, CONTINUE, REGISTER)
        return liar.reply(consortium, name, verb, data) if lies else data

    way.after = after
    here = server(plan, way)
    with suppress(TooFewClientsError):
        _, history = final(here)
        assert len(history) == ROUNDS
        assert all(set(report.rejected) <= {2} for report in history)
    blamed: Mapping[str, str] = here.sites.problems
    assert set(blamed) <= {"site-2"}, blamed
    assert all("\n" not in why and "\x1b" not in why for why in here.sites.explanation().splitlines()[:1])
    for name in consortium.names:
        check_site(consortium, plan, name, [(verb, reply) for whose, verb, _, reply in way.seen if whose == name])


@pytest.mark.law
@pytest.mark.parametrize("seed", range(scaled(20, campaign=330)))
def test_a_host_of_an_enclave_that_lies_at_random(tmp_path: Path, seed: int) -> None:
    """It restores, cuts and deletes the journal, restarts the enclave, skips rounds and loses uploads."""
    source, file, budget = random.Random(seed), tmp_path / "journal", 3
    host = Federation(replace(budgeted(budget), rounds=9), Journal(file))
    copies, released = [file.read_bytes()], dict.fromkeys(COHORT, 0)
    for index in range(9):
        kept = source.choice([6, 6, 6, 5, 2])
        with suppress(EnclaveRefusedError, ProtocolError, UserError):  # a client refuses, too
            sent = source.choice([index, index, max(index - 1, 0)])
            outcome = host.run_round(messages(rows(index)), sent, itemgetter(slice(kept)))
            for client in outcome.result.release.contributors:
                released[client] += 1
        copies.append(file.read_bytes())
        if source.random() < 0.6:
            whole = source.choice(copies)
            file.write_bytes(whole[: source.choice([len(whole), len(whole), source.randrange(len(whole)), 0])])
            host.journal = Journal(file)
            host.restart()
        if source.random() < 0.3:
            host.heads = {}
    assert max(released.values()) <= budget
    assert all(released[client] <= host.state(client).participations <= budget for client in COHORT)
