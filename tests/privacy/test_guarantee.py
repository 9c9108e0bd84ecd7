from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from tacit.core.prices import Gaussian, Release, Repeated, Sampling, Unit
from tacit.errors import UserError
from tacit.privacy.accountants import Accountant, Accounting, Pld, Rdp
from tacit.privacy.guarantee import FALSE_ALARMS, Guarantee, LeakageGuarantee, delta_warning, detection_limit
from tacit.privacy.unit_accounting import Charge, UnitAccounting

RELEASE = Release(Gaussian(1.2), sampling=Sampling("poisson", 0.1))


def test_a_guarantee_states_what_it_depends_on():
    accounting = Accounting.of(Rdp()).compose(RELEASE, 7)
    found = accounting.guarantee(1e-5, [RELEASE]).with_limits("The clip was tuned on the same data.", "")
    text = str(found)
    for part in ("1e-05", "every client", "add-or-remove", "7 rounds", "Poisson", "rdp", "server is trusted", "tuned"):
        assert part in text
    assert found.to_json()["guarantee"] is True
    assert found.to_json()["not_covered"] == ["The clip was tuned on the same data."]
    assert found.epsilon == accounting.epsilon(1e-5)


def test_a_guarantee_as_it_is_printed():
    release = Release(Gaussian(1.2), 1e-15, Sampling("poisson", 0.1))
    found = Accounting.of(Rdp()).compose(release, 8).guarantee(1e-5, [release], "anyone")
    printed = str(replace(found, server_epsilon=27.251, server_rounds=8, honest_clients=1).with_limits("Tuning."))
    assert printed.splitlines() == [
        "(ε = 2.246, δ = 1e-05)-differential privacy for every client (add-or-remove), over 8 rounds, against anyone.",
        "Add-or-remove: What is released would be about as likely if the client were not in the population.",
        (
            "Against the server and the other clients of a round, who know who took part, sampling lowers nothing: "
            "ε = 27.25 (zero-out; worst client, 8 rounds). What is released would be about as likely if the client had "
            "sent zeros; that it took part is known."
        ),
        f"Sampling: {found.sampling}; ε assumes that who took part is secret. Accountant: rdp.",
        "δ includes 9e-14 for imperfect noise sampling (negligible).",
        (
            "It assumes noise from at least 1 honest client in every round: each client knows its own share, which is "
            "not counted against it."
        ),
        "Not covered:",
        "  Tuning.",
    ]


@pytest.mark.parametrize(
    ("honest", "sentence"),
    [
        (2, "It assumes noise from at least 2 honest clients in every round"),
        (1, "It assumes noise from at least 1 honest client in every round"),
        (0, "All noise of a round may be that of one client: it knows it, and nothing is claimed against it."),
    ],
)
def test_a_guarantee_says_whose_noise_it_rests_on(honest: int, sentence: str) -> None:
    assert sentence in str(Guarantee(epsilon=1.0, delta=1e-5, honest_clients=honest, adjacency="zero-out"))


def test_only_amplified_guarantees_assume_that_the_cohort_is_secret():
    everyone = Release(Gaussian(5.0))
    accounting = Accounting.of(Rdp(), [everyone, RELEASE])
    assert "Sampling: every client takes part. " in str(accounting.guarantee(1e-5, [everyone, everyone]))
    mixed = accounting.guarantee(1e-5, [RELEASE, everyone])  # cohorts that grow to everyone
    assert mixed.amplified
    stages = "in 1 round Poisson cohorts, each client with probability 0.1; in 1 round every client takes part"
    assert f"{stages}; ε assumes that who took part is secret" in str(mixed)


def test_without_a_proof_the_guarantee_is_none_with_the_reason():
    accounting = Accounting.of(Rdp())
    exposed = accounting.compose(Release(Gaussian(0.0)))
    for found in (
        accounting.guarantee(1e-5, []),
        exposed.guarantee(1e-5, [RELEASE]),
        Guarantee.none("the median leaks."),
    ):
        assert not found.proved
        assert str(found).startswith("none: ")
        assert str(found).endswith(".")
        assert not str(found).endswith("..")
        assert found.to_json()["epsilon"] is None
    noted = Guarantee.none("the median leaks").with_limits("Nominal ε = 3.")
    assert str(noted) == "none: the median leaks.\nNote:\n  Nominal ε = 3."
    with pytest.raises(UserError, match="either an epsilon or the reason"):
        Guarantee(epsilon=1.0, reason="but")


def test_a_leakage_guarantee_as_it_is_printed():
    proved = LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=150, adversary="the server")
    amounts = "0.4 each time a client takes part, at most 2.4 for any client in 150 rounds"
    assert str(proved.with_limits("", "Tuning.")).splitlines() == [
        "d-privacy for every client, against the server.",
        f"Leakage between two models within the public radius 0.05: {amounts}.",
        "Leakage between two models at distance d: d / 0.05 times as much.",
        "Not covered:",
        "  Tuning.",
    ]


def test_a_leakage_guarantee_has_a_radius_or_a_reason():
    with pytest.raises(UserError, match="either a public radius or the reason"):
        LeakageGuarantee(leakage=1.0, per_round=1.0, radius=None, rounds=1)


def test_a_delta_that_permits_leaking_a_client_is_warned_about():
    assert delta_warning(1e-5, 6000) is delta_warning(1e-3, 100) is None
    assert "1/1000" in (delta_warning(1e-3, 1000) or "")
    assert "one random client" in (delta_warning(1e-3, 500) or "")
    assert "2 random clients" in (delta_warning(1e-3, 2000) or "")


# What a test of one unit detects at 1 % false alarms


@pytest.mark.parametrize("noise", [0.5, 1.265, 3.0])
@pytest.mark.parametrize("accountant", [Pld(), Rdp()], ids=["pld", "rdp"])
def test_the_detection_rate_is_that_of_the_trade_off_curve_and_not_of_one_epsilon(
    noise: float, accountant: Accountant
) -> None:
    """The best test of two Gaussians is known (Neyman and Pearson); ε = 3 alone would allow 20.1 %."""
    accounting = Accounting.of(accountant, [Release(Gaussian(noise))])
    true = float(norm.cdf(norm.ppf(FALSE_ALARMS) + 1 / noise))
    found = accounting.detection_limit(FALSE_ALARMS)
    assert true <= found * (1 + 1e-9)
    assert found <= true * (1.02 if accountant.name == "pld" else 1.6)
    by_epsilon = detection_limit(accounting.epsilon(1e-5), 1e-5, FALSE_ALARMS)
    assert found <= by_epsilon


def test_the_detection_rate_of_a_sampled_sum_is_never_below_that_of_the_best_test() -> None:
    """Likelihood ratios on a grid, in both directions: whether a client is in the data, or is not."""
    noise, rate = 1.0, 0.3
    x = np.linspace(-9, 10, 400_001)
    out, member = norm.pdf(x, 0, noise), (1 - rate) * norm.pdf(x, 0, noise) + rate * norm.pdf(x, 1, noise)
    found = Accounting.of(Pld(), [Release(Gaussian(noise), sampling=Sampling("poisson", rate))])
    limit = found.detection_limit(FALSE_ALARMS)
    best = []
    for null, other in ((out, member), (member, out)):
        order = np.argsort(-other / null)
        alarms = np.cumsum(null[order]) * (x[1] - x[0])
        rates = np.cumsum(other[order]) * (x[1] - x[0])
        best.append(float(np.interp(FALSE_ALARMS, alarms, rates)))
    assert max(best) <= limit * (1 + 1e-5)
    assert limit <= max(best) * 1.05


def test_a_guarantee_states_what_was_accounted_for() -> None:
    found = Guarantee(epsilon=3.0, delta=1e-5)
    assert found.detection_limit == pytest.approx(0.2009, abs=1e-4)
    assert replace(found, detection=0.054).detection_limit == 0.054
    assert replace(found, detection=0.9).detection_limit == pytest.approx(0.2009, abs=1e-4)
    assert Guarantee.none("nothing").detection_limit == 1.0


def test_the_detection_rate_for_records_is_that_of_the_client_where_it_is_largest() -> None:
    """Of two clients, one has the larger ε at a small δ, the other the larger detection rate at 1 % false alarms."""
    rare, always = Release(Gaussian(0.6), sampling=Sampling("poisson", 0.01)), Release(Gaussian(2.2))
    charge = Charge(Unit.RECORD, {0: Repeated(rare), 1: Repeated(always)})
    found = UnitAccounting(Unit.RECORD).compose(charge)
    worst = found.worst(1e-6)
    assert worst is not None
    assert worst.client == 0
    each = [found.of_client(client).detection_limit(FALSE_ALARMS) for client in (0, 1)]
    assert each[0] < each[1]
    assert found.detection_limit(FALSE_ALARMS) == pytest.approx(each[1], rel=1e-2)
