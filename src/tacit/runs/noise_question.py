"""Noise, ε and rounds before a run: two are given, for a unit and a way to draw cohorts, and the third follows."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tacit.core import Budget
from tacit.core.interfaces import Sampler
from tacit.core.prices import Gaussian, Release, Unit, check_delta, check_rounds
from tacit.errors import UserError, expect, positive, whole, within
from tacit.pieces.samplers import Everyone, FixedSize, Growing, Poisson
from tacit.privacy.accountants import MAX_FOUND_ROUNDS, Accountant, accountant_by_name
from tacit.privacy.calibration import CohortSampling, check_noise
from tacit.privacy.guarantee import delta_warning


@dataclass(frozen=True, kw_only=True)
class NoiseQuestion:
    """Known quantities of a run. For records and persons, steps are rounds, and batches are cohorts.

    Attributes:
        delta: the δ of ε.
        epsilon: the privacy budget.
        noise: the noise multiplier.
        rounds: the number of rounds; with a schedule and without it, all of them.
        sampling: how cohorts are drawn: poisson, fixed or everyone.
        rate: a client's sampling rate.
        population: the number of clients.
        cohort: the (expected) number of clients per round.
        schedule: stages of rounds and cohort sizes.
        unit: whose privacy is protected: client, record or person.
        size: for records: how many the client has.
        batch: for records: how many a batch has on average.
        epochs: for records: passes over them, in all rounds together.
        steps: for records: local steps in all rounds together, instead of epochs.
        accountant: its name; None: the tight one, where it applies.
        adjacency: None: add-or-remove, and zero-out with dropouts.
        dropouts: whether clients add noise in shares, and more than tolerated may drop out.
    """

    delta: float
    epsilon: float | None = None
    noise: float | None = None
    rounds: int | None = None
    sampling: str = "poisson"
    rate: float | None = None
    population: int | None = None
    cohort: float | None = None
    schedule: list[tuple[int, float]] | None = None
    unit: str = "client"
    size: int | None = None
    batch: float | None = None
    epochs: float | None = None
    steps: int | None = None
    accountant: str | None = None
    adjacency: str | None = None
    dropouts: bool = False

    def answer(self) -> dict[str, object]:
        """All quantities by name; with noise and rounds given for clients, also ε after every round."""
        self._check()
        accountant = accountant_by_name(self._accountant_name, self._adjacency)
        result: dict[str, Any] = {
            "accountant": accountant.name,
            "adjacency": accountant.adjacency.value,
            "sampling": self.sampling,
            "amplified": self.sampling != "everyone" and not self.dropouts,
            "delta": self.delta,
            **self._result(accountant),
        }
        if self.unit == "client":
            return result
        steps, (size, batch) = result.pop("rounds"), self._records
        of_records = {"unit": self.unit, "size": size, "rate": batch / size, "epochs": steps * batch / size}
        return {**of_records, **result, "steps": steps}

    @property
    def warning(self) -> str | None:
        """Why δ is too large for this many units; None: it is not, or their number is unknown."""
        units = self._units
        return None if units is None else delta_warning(self.delta, units, Unit(self.unit))

    @property
    def _units(self) -> int | None:
        return self.population if self.unit == "client" else self.size

    @property
    def _adjacency(self) -> str:
        return self.adjacency or ("zero-out" if self.dropouts else "add-or-remove")

    @property
    def _accountant_name(self) -> str:
        """The tight accountant, except where its bound is that of a client that is replaced."""
        loose = self.sampling == "fixed" and self._adjacency == "zero-out" and not self.dropouts
        return self.accountant or ("rdp" if loose else "pld")

    @cached_property
    def _rounds(self) -> int | None:
        """The number of rounds that is given, also by a schedule, or by epochs of records."""
        if self.unit != "client":
            if self.epochs is None:
                return self.steps
            positive(epochs=self.epochs)
            size, batch = self._records
            return math.ceil(self.epochs * max(1, round(size / batch)))  # as DpSgd counts them
        if self.schedule and self.rounds is None and (self.epsilon is None or self.noise is None):
            return sum(rounds for rounds, _ in self.schedule)
        return self.rounds

    @property
    def _records(self) -> tuple[int, float]:
        """How many records a client has, and how many of them a batch."""
        assert self.size is not None
        assert self.batch is not None
        return self.size, min(self.batch, self.size)

    def _check(self) -> None:
        """Raise `UserError` unless exactly two of the three quantities are given."""
        check_delta(self.delta)
        if self.unit != "client":
            self._check_records()
        names = [name for name in ("epsilon", "noise") if getattr(self, name) is not None]
        names += ["rounds"] * (self._rounds is not None)
        third = "--rounds" if self.unit == "client" else "--epochs (or --steps)"
        got = "all three" if len(names) == 3 else ", ".join(f"--{name}" for name in names) or "none of them"
        expect(len(names) == 2, f"two of --epsilon, --noise and {third}, got {got}")
        if self._rounds is not None:
            check_rounds(self._rounds, "rounds" if self.unit == "client" else "steps")

    def _check_records(self) -> None:
        for name in ("rate", "population", "cohort", "schedule", "rounds"):
            expect(getattr(self, name) is None, f"--size, --batch and --epochs or --steps for records, got --{name}")
        expect(self.sampling == "poisson" and not self.dropouts, "Poisson batches: for records nothing else is proved")
        expect(self.size is not None and self.batch is not None, "--size and --batch for records")
        expect((self.size or 0) >= 1, f"size={self.size} >= 1")
        expect((self.batch or 0) > 0, f"batch={self.batch:g} > 0")
        expect(self.epochs is None or self.steps is None, "either --epochs or --steps, got both")

    @property
    def _sampler(self) -> Sampler:
        """How units are drawn; from a population of 1, if only a rate is given."""
        if self.unit != "client":
            return Poisson(self._records[1])
        if self.sampling == "everyone":
            expect(
                not (self.rate or self.cohort or self.schedule),
                "no --rate, --cohort or --schedule with --sampling everyone",
            )
            return Everyone()
        if self.rate is not None:
            expect(self.sampling == "poisson", "--population and --cohort for cohorts of fixed size, got --rate")
            expect(not (self.cohort or self.schedule), "either --rate or a cohort size, got both")
            within("(0, 1]", rate=self.rate)
            return self._make_sampler(self.rate * (self.population or 1))
        return self._of_population()

    def _of_population(self) -> Sampler:
        if self.population is None:
            raise UserError("Expected --rate, or --population with --cohort or --schedule.")
        whole(1, population=self.population)
        expect((self.cohort is None) != (self.schedule is None), "either --cohort or --schedule")
        stages = [(rounds, self._make_sampler(size)) for rounds, size in self.schedule or [(1, self.cohort or 0.0)]]
        for _, sampler in stages:
            sampler.sampling(self.population, 0)  # refuses a cohort that exceeds the population
        return Growing(tuple(stages)) if self.schedule else stages[0][1]

    def _make_sampler(self, size: float) -> Poisson | FixedSize:
        if self.sampling == "poisson":
            return Poisson(size)
        expect(size == int(size), f"cohorts of fixed size={size:g} to be a whole number")
        return FixedSize(int(size))

    def _result(self, accountant: Accountant) -> dict[str, Any]:
        """The missing quantity, and the resulting ε; if ε is missing, after every round."""
        cohorts = CohortSampling(self._sampler, self._units or 1, Release(Gaussian(1.0), constant=not self.dropouts))
        noise, rounds = self.noise or 0.0, self._rounds or 0
        if self.noise is not None:
            check_noise(noise)
        if self.epsilon is None and self.unit == "client":
            epsilons = cohorts.epsilons(noise, rounds, self.delta, accountant)
            return {"noise": noise, "rounds": rounds, "epsilon": epsilons[-1], "epsilons": epsilons}
        budget = None if self.epsilon is None else Budget(self.epsilon, self.delta)
        if budget is not None and self.noise is None:
            noise = cohorts.noise_for(budget, rounds, accountant)
        elif budget is not None:
            rounds = cohorts.rounds_within(budget, noise, accountant)
            if rounds == 0:
                raise UserError(f"Not even one round with noise {noise:g} stays within {budget}. Use more noise.")
        epsilon = cohorts.epsilon(noise, rounds, self.delta, accountant)
        limit = {} if budget is None else {"budget": budget.epsilon}
        flags = {"or_more": True} if self._rounds is None and rounds == MAX_FOUND_ROUNDS else {}
        return {**limit, "noise": noise, "rounds": rounds, "epsilon": epsilon, **flags}
