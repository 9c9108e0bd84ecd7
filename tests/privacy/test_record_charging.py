import json
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch
from torch import nn

import tacit
from record_trainers import NoisySteps, SumOfRecords
from tacit.core import Budget, DenseRows, Method, Report, Round, Rows, Turnout, View
from tacit.core.losses import RootMeanSquared
from tacit.core.neutral import Identity, Mean, NoNoise
from tacit.core.prices import ClientUnits, Gaussian, Release, Repeated, Sampling, Unit, Unproved
from tacit.data import Task
from tacit.errors import BudgetError, CompositionError, UserError
from tacit.pieces.aggregators import WeightedMean
from tacit.pieces.channels import Enclave, IdealSum, SecureSum
from tacit.pieces.codecs import FixedRandom, RandomK, Select, Sense, Size, TopK, Vote
from tacit.pieces.codecs.select import Selection
from tacit.pieces.mechanisms import (
    ByImportance,
    CentralGaussian,
    DistributedGaussian,
    FixedClip,
    Graded,
    Grid,
    Reals,
    RecordClip,
    WeightVariance,
)
from tacit.pieces.samplers import Everyone, FixedSize, Poisson
from tacit.pieces.trainers import BestOf, Sgd
from tacit.privacy.accountants import FAST_PLD, Accounting
from tacit.privacy.charging import Charges
from tacit.privacy.ledger import Ledger
from tacit.privacy.planned_charges import calibrate, planned_participations
from tacit.wire.sparse import Compact

SIZES = (40, 25, 100, 25)
UNITS = ClientUnits(SIZES)
LOCAL = Method(name="local", rounds=4, sampler=Everyone(), trainer=NoisySteps())
SHARES = DistributedGaussian(clip=RecordClip(1.0, records=30), noise_multiplier=2.0, arithmetic=Grid())
ACROSS = Method(
    name="across",
    rounds=4,
    sampler=Everyone(),
    trainer=SumOfRecords(),
    mechanism=SHARES,
    channel=SecureSum(),
)
SIZE = Size(ratio=0.5)


@dataclass(frozen=True)
class Signs(Identity):
    """A codec of your own: the signs of an update, which one record may all turn."""

    def encode(self, rows: Rows, view: View, now: Round) -> Rows:
        return DenseRows(rows.dense().sign())


class OwnSelection(RandomK):
    """A selection of your own, about which what it inherits says nothing."""


class OwnSelect(Select):
    """A codec of your own, too."""


class Halved(Mean):
    """An aggregator of your own."""

    sensitivity: ClassVar[float] = 0.5


class Silent(NoNoise):
    """A mechanism of your own, which sees the data of its client."""

    sensitivity: ClassVar[float] = 1.0


class OwnChannel(SecureSum):
    """A channel of your own."""


BOTH = replace(
    LOCAL,
    mechanism=DistributedGaussian(clip=FixedClip(1.0), noise_multiplier=3.0, arithmetic=Grid()),
    channel=SecureSum(),
)


def task(sizes: tuple[int, ...] = SIZES) -> Task:
    torch.manual_seed(0)
    parts = [(torch.randn(n, 3), torch.arange(n) % 2) for n in sizes]
    return Task(model=lambda: nn.Linear(3, 2), clients=parts)


def epsilon_of(rate: float, noise: float, steps: int) -> float:
    release = Release(Gaussian(noise), sampling=Sampling.at(rate, "poisson"))
    return Accounting.of(FAST_PLD).compose(release, steps).epsilon(1e-5)


def report(number: int, clients: tuple[int, ...], rejected: tuple[int, ...] = ()) -> Report:
    return Report(number, clients, rejected, (), (), None, None, None, {}, 0.0)


def test_local_noise_is_charged_for_each_client_by_its_own_rate_and_rounds() -> None:
    charges = Charges.begin(LOCAL, UNITS, [report(1, (0, 1, 2, 3)), report(2, (0, 2))])
    assert charges.accounting.of_client(0).epsilon(1e-5) == pytest.approx(epsilon_of(10 / 40, 1.0, 2 * 4), abs=1e-3)
    assert charges.accounting.of_client(3).epsilon(1e-5) == pytest.approx(epsilon_of(10 / 25, 1.0, 3), abs=1e-3)
    found = charges.guarantee()
    assert found.worst_client == 0
    assert found.epsilon == pytest.approx(epsilon_of(10 / 40, 1.0, 8), abs=1e-3)
    assert found.unit is Unit.RECORD
    text = str(found)
    assert "for every record (add-or-remove), over 2 rounds, against whoever sees the messages of its client" in text
    assert "if the record were not among the data of its client" in text
    assert "Worst client: number 0, after 8 steps with noise" in text
    assert "Poisson batches, each record with probability 0.1 to 0.4, by the size of the client; ε assumes that" in text
    assert "The number of records of every client is public" in text
    assert "A person with several records is protected as that many records" in text
    assert "The last bits of a record's gradient can depend on the others of its batch" in text
    assert "Numbers of records in the method" not in text
    assert json.loads(json.dumps(found.to_json()))["unit"] == "record"


def test_sampling_of_clients_amplifies_nothing() -> None:
    for sampler in (Everyone(), FixedSize(2), Poisson(2)):
        charges = Charges.begin(replace(LOCAL, sampler=sampler), UNITS).reserve(cohort=[0])
        assert charges.epsilon == pytest.approx(epsilon_of(0.25, 1.0, 4), abs=1e-3)


def test_noise_is_sized_so_that_the_worst_client_fits() -> None:
    budget = Budget(2.0, 1e-5)
    uncalibrated = replace(LOCAL, trainer=NoisySteps(noise_multiplier=None), budget=budget)
    sized = calibrate(uncalibrated, UNITS)
    noise = sized.trainer.noise_multiplier  # type: ignore[attr-defined]
    epsilons = {size: epsilon_of(10 / size, noise, 4 * -(-size // 10)) for size in SIZES}
    assert max(epsilons.values()) == pytest.approx(2.0, abs=2e-3)
    assert max(epsilons.values()) <= 2.0
    assert max(epsilons, key=epsilons.__getitem__) == 25
    assert Charges.begin(sized, UNITS).rounds_allowed == 4
    assert not sized.terms.uncalibrated


def test_noise_for_a_sum_of_records_is_sized_by_their_rate_alone() -> None:
    mechanism = DistributedGaussian(clip=RecordClip(1.0, records=30), arithmetic=Grid())
    uncalibrated = replace(ACROSS, mechanism=mechanism, budget=Budget(1.0, 1e-5))
    sized = [calibrate(uncalibrated, ClientUnits(sizes)) for sizes in (SIZES, (1000, 1000, 1000))]
    noise = sized[0].mechanism.noise_multiplier  # type: ignore[attr-defined]
    assert sized[1].mechanism.noise_multiplier == noise  # type: ignore[attr-defined]
    assert epsilon_of(0.1, noise, 4) == pytest.approx(1.0, abs=2e-3)


def test_a_run_stops_before_the_round_that_exceeds_the_budget_for_any_participant() -> None:
    budget = Budget(epsilon_of(10 / 25, 1.0, 2 * 3) + 1e-3, 1e-5)
    run = tacit.train(replace(LOCAL, rounds=9, budget=budget), task(), workers=1)
    assert run.rounds == len(run.history) == 2
    assert Unit.CLIENT not in run.history[-1].epsilons
    assert run.history[-1].epsilons[Unit.RECORD] == run.epsilons[Unit.RECORD] <= budget.epsilon
    charges = Charges.begin(replace(LOCAL, sampler=FixedSize(1), budget=budget), UNITS)
    twice = charges.reserve(cohort=[1]).reserve(cohort=[1])
    with pytest.raises(BudgetError, match="for the records of client 1"):
        twice.reserve(cohort=[1])
    assert twice.reserve(cohort=[2]).reserve(cohort=[3]).epsilon == twice.epsilon


def test_noise_for_random_cohorts_is_sized_for_those_who_take_part_most_often() -> None:
    assert planned_participations(LOCAL, 4) == 4
    sampled = replace(LOCAL, rounds=100, sampler=FixedSize(100))
    assert planned_participations(sampled, 1000) == 25  # of 10 on average


def test_a_sum_of_records_is_amplified_by_their_batches_also_against_the_server() -> None:
    run = tacit.train(ACROSS, task(), workers=1)
    assert run.privacy.proved
    assert list(run.guarantees) == [Unit.RECORD]
    assert run.epsilons[Unit.RECORD] == pytest.approx(epsilon_of(0.1, 2.0, 4), abs=2e-3)
    text = str(run.privacy)
    assert "against anyone who receives the models or sees the sums, the server included" in text
    assert "Poisson batches, each record with probability 0.1; ε assumes that which records" in text
    assert "The number of records of every client is public" not in text
    assert "The last bits of a record's gradient can depend on the others of its batch" in text
    assert "Numbers of records in the method are public, also where they were counted in the data: 30 for" in text
    assert "Clients are assumed to add their shares of the noise." in text
    assert "It assumes noise from at least 3 honest clients in every round" in text  # of four, any one may be curious
    assert "trusted party" not in text
    ideal = replace(
        ACROSS, channel=IdealSum(), mechanism=DistributedGaussian(clip=RecordClip(1.0, 30), noise_multiplier=2.0)
    )
    assert "a trusted party adds up real numbers" in str(tacit.train(ideal, task(), workers=1).privacy)


def test_losses_beyond_the_provision_cost_records_more_but_leave_amplification() -> None:
    charges = Charges.begin(replace(ACROSS, channel=IdealSum()), UNITS).reserve(cohort=[0, 1, 2, 3])
    settled = charges.settle(Turnout(4, 2))
    assert settled.epsilon == pytest.approx(epsilon_of(0.1, 2.0 / 3**0.5, 1), abs=2e-3)
    assert charges.settle(Turnout(4, 4)) is charges
    with pytest.raises(BudgetError, match="no honest client delivered"):
        charges.settle(Turnout(4, 0))
    tight = replace(ACROSS, channel=IdealSum(), budget=Budget(charges.epsilon * 1.05, 1e-5))
    with pytest.raises(BudgetError, match="because too few clients delivered their noise"):
        Charges.begin(tight, UNITS).reserve(cohort=[0, 1, 2, 3]).settle(Turnout(4, 2))


def test_both_guarantees_stand_side_by_side_and_are_never_added(tmp_path: Path) -> None:
    run = tacit.train(replace(BOTH, budget=Budget(20.0, 1e-5)), task(), workers=1, out=tmp_path / "run")
    client, record = run.guarantees.values()
    assert (client.unit, record.unit) == (Unit.CLIENT, Unit.RECORD)
    assert run.privacy is client
    assert client.epsilon == pytest.approx(epsilon_of(1.0, 3.0, 4), abs=2e-3)  # type: ignore[union-attr]
    assert record.epsilon == pytest.approx(epsilon_of(0.4, 1.0, 4 * 3), abs=2e-3)  # type: ignore[union-attr]
    assert run.epsilons == {Unit.CLIENT: client.epsilon, Unit.RECORD: pytest.approx(record.epsilon)}  # type: ignore[union-attr]
    with Ledger.open(tmp_path / "run" / "ledger.db") as ledger:
        assert [entry.unit for entry in ledger.entries] == [Unit.RECORD, Unit.CLIENT] * 4
        assert all(entry.digest for entry in ledger.entries)
        assert ledger.accounts.clients.rounds == ledger.accounts[Unit.RECORD].rounds == 4
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["task"]["sizes"] == list(SIZES)


def test_an_interrupted_run_is_charged_once(tmp_path: Path) -> None:
    method, data = replace(LOCAL, budget=Budget(20.0, 1e-5)), task()
    runs = tacit.rounds(method, data, workers=1, ledger=tmp_path / "ledger.db")
    next(runs)
    runs.close()
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert (ledger.accounts[Unit.RECORD].rounds, ledger.accounts.clients.rounds) == (1, 0)
    assert len(tacit.train(method, data, workers=1, ledger=tmp_path / "ledger.db").history) == 4
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.accounts[Unit.RECORD].rounds == 5
        steps = Release(Gaussian(1.0), sampling=Sampling("poisson", 0.25))
        first, second = (each[Unit.RECORD] for each in ledger.accounts.runs.values())
        assert (first.released[0], second.released[0]) == (Counter({steps: 4}), Counter({steps: 4 * 4}))
        assert ledger.accounts[Unit.RECORD].epsilon(1e-5) >= epsilon_of(0.25, 1.0, 5 * 4)


def test_a_method_without_noise_for_records_says_nothing_about_them() -> None:
    plain = replace(LOCAL, trainer=Sgd(lr=0.1, steps=1))
    run = tacit.train(plain, task(), workers=1)
    assert list(run.guarantees) == [Unit.CLIENT]
    assert run.epsilons == {}
    assert plain.terms.price(Unit.RECORD, samples=10) is None
    assert ACROSS.terms.prices[Unit.CLIENT] == Unproved(
        "the noise is scaled to what one record adds to an update, and not to a whole update"
    )


def test_a_trainer_of_ones_own_proves_nothing() -> None:
    class Undeclared(NoisySteps):
        sensitivity = None  # type: ignore[assignment]

    price = replace(LOCAL, trainer=Undeclared()).terms.price(Unit.RECORD, samples=10)
    assert isinstance(price, Unproved)
    assert "Undeclared" in price.reason
    assert isinstance(LOCAL.terms.price(Unit.RECORD, samples=10), Repeated)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"aggregator": WeightedMean()}, "sends the number of every client's records, which has no noise. Use Mean."),
        ({"trainer": BestOf(NoisySteps())}, "BestOf does not protect records: every client chooses a hypothesis"),
        (
            {"mechanism": ACROSS.mechanism, "channel": SecureSum()},
            "adds noise for records itself, but DistributedGaussian",
        ),
        (
            {
                "mechanism": ByImportance(
                    base=DistributedGaussian(clip=FixedClip(0.3), noise_multiplier=0.5, single_draw=False),
                    importance=WeightVariance(),
                    allocation=Graded(3.0, "most"),
                    expects="updates",
                ),
                "channel": IdealSum(),
            },
            "ByImportance is bounded for clients only: it may read the records again",
        ),
        ({"mechanism": Silent()}, "Silent is bounded for clients only.*Use another mechanism"),
        ({"trainer": NoisySteps(noise_multiplier=None)}, "NoisySteps has no noise multiplier, and there is no budget"),
    ],
)
def test_what_cannot_be_proved_with_noise_of_the_trainer_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CompositionError, match=message):
        replace(LOCAL, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"trainer": Sgd(lr=0.1, steps=1)},
            "which Sgd does not bound. Use RecordGradient as the trainer, or FixedClip.",
        ),
        ({"trainer": BestOf(SumOfRecords())}, "which BestOf does not bound"),
        ({"trainer": SumOfRecords(clip=2.0)}, "clips every record to 2, but RecordClip declares 1. Give both the same"),
        (
            {"codec": Sense(size=Size(ratio=0.5))},
            "Sense is bounded for clients only: through it, one record may change a row by more. Use Identity",
        ),
        (
            {"codec": Select(Vote(size=SIZE))},
            r"Select\(Vote\) is bounded for clients only.*Use Identity, or Select with TopK, FixedRandom or RandomK.",
        ),
        ({"codec": Select(OwnSelection(size=SIZE))}, r"Select\(OwnSelection\) is bounded for clients only"),
        ({"codec": OwnSelect(RandomK(size=SIZE))}, r"OwnSelect\(RandomK\) is bounded for clients only"),
        ({"codec": Signs()}, "Signs is bounded for clients only"),
        ({"aggregator": Halved()}, "Halved is bounded for clients only.*Use Mean"),
        ({"channel": OwnChannel()}, "OwnChannel is bounded for clients only: the length of a message may depend"),
        (
            {"channel": Enclave(wire=Compact()), "mechanism": replace(SHARES, arithmetic=Reals())},
            "Enclave is bounded for clients only: the length of a message may depend on the row",
        ),
        (
            {"max_row_norm": 3.0},
            "max_row_norm=3 leaves out a client by the length of its row, which one record may decide",
        ),
    ],
)
def test_what_cannot_be_proved_with_noise_of_the_sum_is_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(CompositionError, match=message):
        replace(ACROSS, **change)  # type: ignore[arg-type]


@pytest.mark.parametrize("selection", [RandomK(size=SIZE), FixedRandom(size=SIZE), TopK(size=SIZE, lr=0.1)])
def test_public_coordinates_keep_the_bound_of_records(selection: Selection) -> None:
    assert replace(ACROSS, codec=Select(selection)).terms.prices[Unit.RECORD].accounted


def test_a_ballot_after_noise_of_the_trainer_is_post_processing() -> None:
    assert replace(LOCAL, codec=Select(Vote(size=SIZE))).terms.prices[Unit.RECORD].accounted


def test_a_piece_of_ones_own_declares_that_it_keeps_the_bound_of_records() -> None:
    @dataclass(frozen=True)
    class Doubtless(Signs):
        bounded_for: ClassVar[tuple[Unit, ...]] = tuple(Unit)

    price = replace(ACROSS, codec=Doubtless()).terms.price(Unit.RECORD, samples=10)
    assert isinstance(price, Unproved)  # it is not refused, but nobody has proved anything about it
    assert "Doubtless" in price.reason


def test_no_row_of_records_is_left_out_for_its_length() -> None:
    """Which the length of a row, with a share of the noise, would decide."""
    large = replace(SHARES, clip=RecordClip(1e6, records=30), noise_multiplier=1e3)
    method = replace(ACROSS, mechanism=large, trainer=SumOfRecords(clip=1e6))
    assert method.max_norm(40) > 30e6 + 40**0.5 * 1e3 * 1e6


def test_a_loss_that_mixes_the_records_of_a_batch_is_refused() -> None:
    parts = [(torch.randn(8, 3), torch.randn(8, 1))]
    mixed = Task(model=lambda: nn.Linear(3, 1), clients=parts, loss=RootMeanSquared())
    with pytest.raises(CompositionError, match="RootMeanSquared is a function of the mean loss of a batch"):
        tacit.train(LOCAL, mixed, workers=1)
    with pytest.raises(CompositionError, match="RootMeanSquared is a function of the mean loss of a batch"):
        tacit.train(ACROSS, mixed, workers=1)


def test_record_clip_belongs_to_noise_in_shares() -> None:
    with pytest.raises(UserError, match="Use it in DistributedGaussian"):
        CentralGaussian(clip=RecordClip(1.0, 30), noise_multiplier=1.0)
    huge = DistributedGaussian(clip=RecordClip(1.0, 10**6), noise_multiplier=1.0, arithmetic=Grid())
    with pytest.raises(UserError, match=r"do not fit 32 bits\. Use smaller batches or fewer clients\."):
        tacit.train(replace(ACROSS, mechanism=huge), task(), workers=1)


def test_a_second_attempt_at_a_round_is_another_charge_for_records_too(tmp_path: Path) -> None:
    once, twice = (epsilon_of(0.25, 1.0, 4 * count) for count in (1, 2))
    with Ledger.open(tmp_path / "ledger.db", Budget(20.0, 1e-5)) as ledger:
        first = Charges.begin(LOCAL, UNITS, ledger=ledger, run="run").reserve("key 1", [0])
        assert first.rounds == 1
        assert first.epsilon == pytest.approx(once, abs=1e-3)
        again = first.fail().reserve("key 2", [0])
        assert (again.rounds, again.retries) == (1, 1)
        assert again.epsilon == pytest.approx(twice, abs=1e-3)
        crashed = Charges.begin(LOCAL, UNITS, ledger=ledger, run="run").reserve("key 2", [0])
        assert (crashed.rounds, crashed.retries) == (1, 1)
        assert crashed.epsilon == pytest.approx(twice, abs=1e-3)
        assert ledger.accounts[Unit.RECORD].epsilon(1e-5) == pytest.approx(twice, abs=1e-3)
        crashed.release(tacit.State(1, torch.zeros(3)))
        assert [entry.digest is not None for entry in ledger.entries] == [False, True]
        resumed = Charges.begin(LOCAL, UNITS, [report(1, (0,))], ledger, "run")
        assert (resumed.rounds, resumed.retries) == (1, 1)
        assert resumed.epsilon == pytest.approx(twice, abs=1e-3)
        assert "ε includes 1 further attempt at rounds that failed or were interrupted" in str(resumed.guarantee())
