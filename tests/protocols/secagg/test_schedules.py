"""Random schedules: whatever is lost, duplicated or late, the sum is exact, or there is none.

The suite runs 120 schedules, and a hundred clients three times. A campaign runs more:
`python -m pytest --scale campaign tests/protocols/secagg/test_schedules.py`.
"""

import random
from collections import Counter
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
import pytest

from protocols.secagg.federation import Answers, Federation, exact_sum, opened_seeds, parameters, session
from scale import scaled
from tacit.errors import TooFewClientsError
from tacit.protocols.kit import ReplyStatus
from tacit.protocols.secagg import Parameters, Phase, ThreatModel, graph
from tacit.protocols.secagg.pads import Vector

SCHEDULES = scaled(120, campaign=10_000)
HUNDREDS = scaled(3, campaign=100)
REQUESTS = [phase for phase in Phase if phase < Phase.CLOSED]
COMPLETE = [phase for phase in REQUESTS if phase is not Phase.DRAW]


@dataclass
class BadNetwork:
    """Reorders replies, duplicates some, repeats old ones, and adds those of an unexpected sender."""

    chance: random.Random
    expected: Counter[ReplyStatus]

    def __post_init__(self) -> None:
        self.old: list[tuple[int, bytes]] = []

    def __call__(self, phase: Phase, replies: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
        duplicates = [reply for reply in replies if self.chance.random() < 0.2]
        late = [reply for reply in self.old if self.chance.random() < 0.2]
        invalid = [(10**9, data) for _, data in replies[:1]] + [(j, data[:-1]) for j, data in replies[:1]]
        self.old += replies
        self.expected += Counter({ReplyStatus.DUPLICATE: len(duplicates), ReplyStatus.LATE: len(late)})
        first = len(replies[:1])
        self.expected += Counter({ReplyStatus.UNEXPECTED_SENDER: first, ReplyStatus.MALFORMED: first})
        sent = replies + duplicates + late + invalid
        self.chance.shuffle(sent)
        return sent


def predict(p: Parameters, clients: frozenset[int], dropouts: dict[Phase, frozenset[int]]) -> frozenset[int] | None:
    """The survivors on a complete graph, or None for an abort."""
    left = clients - dropouts[Phase.ANNOUNCE]
    if len(left) < p.min_survivors:
        return None
    try:
        graph = p.graph(len(left))
    except TooFewClientsError:
        return None
    for phase in (Phase.SHARE, Phase.CHECK, Phase.CONFIRM, Phase.UPLOAD):
        left -= dropouts[phase]
        if len(left) < max(p.min_survivors, graph.threshold):
            return None
    survivors = left
    for phase in (Phase.AGREE, Phase.OPEN) if p.threat_model is ThreatModel.ACTIVE_SERVER else (Phase.OPEN,):
        left -= dropouts[phase]
        if len(left) < graph.threshold + graph.max_wrong * (phase is Phase.OPEN):  # fewer could contain a lie
            return None
    return survivors


def draw(chance: random.Random) -> tuple[Parameters, dict[int, Vector], dict[Phase, frozenset[int]]]:
    count = 3 + int(38 * chance.random() ** 10)  # 3 to 40; small ones are cheap, and more likely to fail
    p = parameters(
        count,
        chance.choice([1, 2, 7, chance.randint(1, 2000)]),
        bits=chance.choice([32, 32, 32, 16, 8, 20, 5]),
        threat_model=chance.choice(list(ThreatModel)),
        corrupt=Fraction(chance.randint(0, 10), 100),
        dropout=Fraction(chance.randint(0, 40), 100),
    )
    clients = chance.sample(range(1, 200), count)
    words = np.random.default_rng(chance.getrandbits(64))
    vectors = {j: words.integers(0, 1 << p.bits, p.dim, dtype=np.uint64).astype(np.uint32) for j in clients}
    rate = chance.choice([0.0, 0.01, 0.02, 0.04, 0.1])
    dropouts = {phase: frozenset(j for j in clients if chance.random() < rate) for phase in Phase}
    return p, vectors, dropouts


def test_random_schedules_give_the_exact_sum_or_a_clean_abort() -> None:
    """Only here do dropouts in several phases, all widths and a bad network occur together."""
    ends: Counter[str] = Counter()
    for index in range(SCHEDULES):
        chance = random.Random(index)
        p, vectors, dropouts = draw(chance)
        p = replace(p, surplus=max(p.cohort - p.min_survivors, index % 3) if index % 2 else 0)  # half with noise seeds
        network = BadNetwork(chance, Counter())
        federation = Federation(session(p, index=index), vectors, dropouts, network, seed=index)
        predicted = predict(p, frozenset(vectors), dropouts)
        if predicted is None:
            with pytest.raises(TooFewClientsError):
                federation.run()
        else:
            outcome = federation.run()
            assert outcome.clients == tuple(sorted(predicted))
            assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients, p.bits))
            assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
            assert outcome.transcript.rejected == network.expected
        ends["abort" if predicted is None else "sum" if len(predicted) == p.cohort else "smaller sum"] += 1
    assert all(ends[end] > SCHEDULES // 20 for end in ("abort", "sum", "smaller sum")), ends


@pytest.mark.parametrize("threat_model", ThreatModel)
def test_every_subset_of_six_dropping_out_in_every_phase_ends_as_predicted(threat_model: ThreatModel) -> None:
    """64 subsets in each phase: four of six must remain; who drops out after its upload is still in the sum.

    The only exhaustive test of dropouts: it would catch a set that random schedules miss.
    """
    p = parameters(6, 3, threat_model=threat_model, surplus=2)
    assert (p.min_survivors, p.graph(6).threshold) == (4, 4)
    vectors = {j: np.array([j, 2**32 - j, 1 << 4 * j], np.uint32) for j in range(1, 7)}
    answers: Answers = {}
    for phase in COMPLETE if threat_model is ThreatModel.ACTIVE_SERVER else set(COMPLETE) - {Phase.AGREE}:
        for bits in range(64):
            dropouts = frozenset(j for j in vectors if bits >> j - 1 & 1)
            federation = Federation(session(p), vectors, {phase: dropouts}, answers=answers)
            if len(dropouts) > 2:
                with pytest.raises(TooFewClientsError):
                    federation.run()
                continue
            outcome = federation.run()
            assert outcome.clients == tuple(j for j in vectors if j not in dropouts or phase > Phase.UPLOAD)
            assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
            assert outcome.noise_seeds == opened_seeds(p, outcome.clients)


@pytest.mark.parametrize("seed", range(HUNDREDS))
def test_a_hundred_clients_on_a_sparse_graph_with_thirty_dropouts(seed: int) -> None:
    """Always the exact sum, whenever the thirty drop out; only here is the sparse graph that of real parameters."""
    chance = random.Random(seed)
    threat_model = ThreatModel.ACTIVE_SERVER if seed % 3 == 2 else ThreatModel.SEMI_HONEST
    p = parameters(100, 50, threat_model=threat_model, corrupt=Fraction(1, 20), dropout=Fraction(3, 10), surplus=30)
    assert p.graph(100).degree < 99
    vectors = {j: np.full(50, j * 12345678901 % 2**32, np.uint32) for j in range(1, 101)}
    when = {j: chance.choice(REQUESTS) for j in chance.sample(range(1, 101), 30)}
    dropouts = {phase: frozenset(j for j, at in when.items() if at is phase) for phase in Phase}
    outcome = Federation(session(p), vectors, dropouts, serialised=False, seed=seed).run()
    assert outcome.clients == tuple(j for j in vectors if when.get(j, Phase.OPEN) > Phase.UPLOAD)
    assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
    assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))


def test_random_schedules_on_sparse_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cohorts of 12 to 30, sparse from 11 on, under both threat models.

    Only here does a client lose all its neighbours.
    """
    monkeypatch.setattr(graph, "MAX_COMPLETE", 10)
    graph.graph_parameters.cache_clear()
    ends: Counter[str] = Counter()
    for seed in range(max(30, SCHEDULES // 10)):
        chance = random.Random(seed)
        count, threat_model = chance.randint(12, 30), chance.choice(list(ThreatModel))
        p = parameters(count, 3, threat_model=threat_model, dropout=Fraction(1, 5), surplus=count // 5)
        clients = range(1, p.cohort + 1)
        ends["sparse"] += p.graph(p.cohort).degree < p.cohort - 1
        vectors = {j: np.array([j, j << 20, 2**32 - j], np.uint32) for j in clients}
        rate = chance.choice([0.01, 0.03, 0.08])
        dropouts = {phase: frozenset(j for j in clients if chance.random() < rate) for phase in Phase}
        silent = frozenset[int]().union(*(dropouts[phase] for phase in Phase if phase <= Phase.UPLOAD))
        try:
            outcome = Federation(session(p), vectors, dropouts, BadNetwork(chance, Counter()), seed=seed).run()
        except TooFewClientsError:
            ends["abort"] += 1
            continue
        ends["sum"] += 1
        assert set(outcome.clients) <= set(clients) - silent
        assert outcome.noise_seeds == opened_seeds(p, outcome.clients)
        assert np.array_equal(outcome.result, exact_sum(vectors, outcome.clients))
    graph.graph_parameters.cache_clear()
    assert min(ends["abort"], ends["sum"], ends["sparse"]) >= 5, ends
