from dataclasses import replace

import pytest

from tacit.core.prices import Gaussian, Release, Sampling
from tacit.errors import UserError
from tacit.privacy.accountants import Accounting, Rdp
from tacit.privacy.guarantee import Guarantee, LeakageGuarantee, delta_warning

RELEASE = Release(Gaussian(1.2), sampling=Sampling("poisson", 0.1))


def test_a_guarantee_states_what_it_depends_on():
    accounting = Accounting.of(Rdp()).compose(RELEASE, 7)
    found = accounting.guarantee(1e-5, [RELEASE]).excluding("The clip was tuned on the same data.", "")
    text = str(found)
    for part in ("1e-05", "every client", "add-or-remove", "7 rounds", "Poisson", "rdp", "server is trusted", "tuned"):
        assert part in text
    assert found.to_json()["guarantee"] is True
    assert found.to_json()["not_covered"] == ["The clip was tuned on the same data."]
    assert found.epsilon == accounting.epsilon(1e-5)


def test_a_guarantee_as_it_is_printed():
    release = Release(Gaussian(1.2), 1e-15, Sampling("poisson", 0.1))
    found = Accounting.of(Rdp()).compose(release, 8).guarantee(1e-5, [release], "anyone")
    printed = str(replace(found, server_epsilon=27.251, server_rounds=8, honest_clients=1).excluding("Tuning."))
    assert printed.splitlines() == [
        "(ε = 2.246, δ = 1e-05)-differential privacy for every client (add-or-remove), over 8 rounds, against anyone.",
        "Add-or-remove: What is released would be about as likely if the client were not in the population.",
        "Against the server, which knows who took part: ε = 27.25 (worst client, 8 rounds).",
        f"Sampling: {found.sampling}; ε assumes that who took part is secret. Accountant: rdp.",
        "δ includes 9e-14 for imperfect noise sampling (negligible).",
        "It assumes noise from at least 1 honest client in every round.",
        "Not covered:",
        "  Tuning.",
    ]


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
    noted = Guarantee.none("the median leaks").excluding("Nominal ε = 3.")
    assert str(noted) == "none: the median leaks.\nNote:\n  Nominal ε = 3."
    with pytest.raises(UserError, match="either an epsilon or the reason"):
        Guarantee(epsilon=1.0, reason="but")


def test_a_leakage_guarantee_as_it_is_printed():
    proved = LeakageGuarantee(leakage=2.4, per_round=0.4, radius=0.05, rounds=150, adversary="the server")
    amounts = "0.4 each time a client takes part, at most 2.4 for any client in 150 rounds"
    assert str(proved.excluding("", "Tuning.")).splitlines() == [
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
