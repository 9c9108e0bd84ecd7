"""FL-TOP and its baselines as in the paper, and their differentially private forms."""

import inspect
import math
from pathlib import Path

import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core import Method
from tacit.core.prices import Adjacency, Gaussian, Release, Sampling, Unit
from tacit.data import Task
from tacit.engine import initial_state
from tacit.errors import CompositionError, UserError
from tacit.pieces.codecs.sensing import THRESHOLD
from tacit.pieces.mechanisms.arithmetic import INTEGER_DISTANCE
from tacit.privacy.cohorts import failure
from tacit.privacy.guarantee import Guarantee
from tacit.privacy.planned_charges import release_of
from tacit.report.cards import card
from tacit.runs.run import RunSpec
from tacit.runs.training import follow
from tacit.wire import frames

SCHEMES = {"fl-std", "fl-basic", "fl-bas-2", "fl-bas-3", "fl-bas-4", "fl-cs", "fl-top-bis", "fl-top"}
NOISE = ["epsilon", "delta", "noise", "clip"]
IDEAL = {"channel": "IdealSum()", "mechanism.arithmetic": "Reals()"}
each_scheme = pytest.mark.parametrize("name", sorted(SCHEMES))


def task() -> Task:
    return Task(model=zoo.softmax, clients=zoo.population([4] * 20), public=zoo.population([6], seed=3)[0])


def test_every_scheme_has_a_private_form() -> None:
    found = {name for name, entry in methods.definitions().items() if entry.module.endswith("fl_top")}
    assert found == SCHEMES | {f"{name}-dp" for name in SCHEMES}


@each_scheme
def test_the_private_form_has_the_same_arguments_and_pieces_otherwise(name: str) -> None:
    plain, private = methods.find(name), methods.find(f"{name}-dp")
    own, both = (list(inspect.signature(factory).parameters) for factory in (plain, private))
    assert both == own + NOISE
    a, b = plain(rounds=7), private(rounds=7)
    assert (b.name, b.rounds) == (f"{a.name}-dp", 7)
    assert (b.codec, b.trainer, b.aggregator, b.server) == (a.codec, a.trainer, a.aggregator, a.server)
    assert b.sampler == tacit.pieces.Poisson(100.0)
    assert (b.channel, distributed(b).arithmetic) == (tacit.pieces.SecureSum(), tacit.pieces.Grid())
    ideal = methods.make(f"{name}-dp", IDEAL)
    assert (ideal.channel, distributed(ideal).arithmetic) == (tacit.pieces.IdealSum(), tacit.pieces.Reals())
    assert b.budget == tacit.Budget(1.0, 1e-5)
    assert b.terms.uncalibrated
    defaults = {**{key: p.default for key, p in inspect.signature(private).parameters.items()}, "noise": 1.5}
    assert private(*defaults.values()) == private(noise=1.5)  # by position too


def distributed(method: Method) -> tacit.pieces.DistributedGaussian:
    assert isinstance(method.mechanism, tacit.pieces.DistributedGaussian)
    return method.mechanism


@each_scheme
@pytest.mark.parametrize("form", ["", "-dp"])
def test_repr_rebuilds_the_method_and_its_card_prints(name: str, form: str) -> None:
    args = {"noise": 1.2, "mechanism.dropouts": 0.1, "clip": 0.5} if form else {}
    method = methods.make(name + form, args)
    assert eval(repr(method), zoo.public_names()) == method
    shown = card(name + form, args)
    assert ("at most ε = 1 at δ = 1e-05" in shown.guarantee) == bool(form)
    assert ("only the sum" in shown.sees["the server"]) == bool(form)
    assert "Kerkouche" in shown.reference


@pytest.mark.parametrize(("args", "adjacency"), [({}, "add-or-remove"), (IDEAL, "add-or-remove")])
def test_a_card_and_a_run_name_the_same_adjacency(args: dict[str, str], adjacency: str) -> None:
    run = next(follow(RunSpec(method=methods.make("fl-top-dp", {"rounds": 1, "cohort": 20, **args}), task=task())))
    assert f"({adjacency})" in card("fl-top-dp", args).guarantee
    assert run.charges[Unit.CLIENT].accounting.adjacency == adjacency


@pytest.mark.parametrize(
    ("name", "selection", "masked"),
    [
        ("fl-basic", tacit.pieces.RandomK, True),
        ("fl-bas-2", tacit.pieces.RandomK, False),
        ("fl-bas-3", tacit.pieces.FixedRandom, True),
        ("fl-bas-4", tacit.pieces.FixedRandom, False),
        ("fl-top-bis", tacit.pieces.TopK, False),
        ("fl-top", tacit.pieces.TopK, True),
    ],
)
def test_schemes_differ_in_what_is_sent_and_what_is_trained(name: str, selection: type, masked: bool) -> None:
    method = methods.make(name, {"ratio": 0.01})
    assert isinstance(method.codec, tacit.pieces.Select)
    assert isinstance(method.codec.selection, selection)
    assert method.codec.selection.size == tacit.pieces.Size(ratio=0.01)
    assert method.trainer.masked == masked
    other = methods.make(name, {"codec.selection.size": "Size(number=12)"}).codec
    assert isinstance(other, tacit.pieces.Select)
    assert other.selection.size == tacit.pieces.Size(number=12)


def test_the_bound_is_a_median_only_if_coordinates_are_redrawn() -> None:
    clips = {name: distributed(methods.make(f"{name}-dp")).clip for name in SCHEMES}
    median = {name for name, clip in clips.items() if isinstance(clip, tacit.pieces.PublicClip) and clip.draws > 1}
    assert median == {"fl-basic", "fl-bas-2", "fl-cs"}
    assert distributed(methods.fl_top_dp(clip=0.61)).clip == tacit.pieces.FixedClip(0.61)


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ({"noise": 0.0}, UserError, "noise=0.0 > 0.*Without noise nothing is proved"),
        ({"epsilon": None}, CompositionError, "no noise multiplier, and there is no budget to compute it from"),
        ({"sampler": "uniform"}, UserError, "sampler of method fl-top-dp to be Sampler, got 'uniform'"),
        ({"sampler": "Mean()"}, UserError, "sampler of method fl-top-dp to be Sampler"),
        ({"descent": "Mean()"}, UserError, "descent of method fl-top-dp to be Sgd"),
        ({"descent": 3}, UserError, "descent of method fl-top-dp to be Sgd"),
        ({"codec.selection": "Votes(size=Size(ratio=0.1))"}, UserError, "Did you mean 'Vote'"),
        ({"mechanism.dropouts": 0.6, "mechanism.colluding": 0.4}, UserError, "dropouts . colluding"),
    ],
)
def test_wrong_arguments_get_advice(args: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        methods.make("fl-top-dp", args)


def test_cohorts_of_fixed_size_are_accounted_as_such() -> None:
    fixed = methods.make("fl-top-dp", {"noise": 1.54, "sampler": "FixedSize(100)", **IDEAL})
    assert fixed.sampler == tacit.pieces.FixedSize(100)
    assert release_of(fixed, 6000, 0) == Release(Gaussian(1.54), sampling=Sampling("fixed", 100 / 6000))
    poisson = methods.make("fl-top-dp", {"noise": 1.54, **IDEAL})
    drawn = Sampling("poisson", 1 / 60)
    assert release_of(poisson, 6000, 0) == Release(Gaussian(1.54), sampling=drawn)
    for release in (release_of(fixed, 6000, 0), release_of(poisson, 6000, 0)):
        assert release is not None
        assert release.amplification == release.sampling
        assert release.adjacencies[0] is Adjacency.ADD_OR_REMOVE
    near = release_of(methods.fl_top_dp(noise=1.54), 6000, 0)
    assert near == Release(Gaussian(1.54), INTEGER_DISTANCE, drawn, failure=failure(drawn, 6000, 3))


@pytest.mark.parametrize("name", ["fl-top", "fl-basic", "fl-bas-4", "fl-top-bis", "fl-cs"])
def test_clients_send_the_given_number_of_values(name: str) -> None:
    size = "codec.size" if name == "fl-cs" else "codec.selection.size"
    run = tacit.train(
        methods.make(name, {"rounds": 1, "cohort": 5, size: "Size(number=7)"}), task(), workers=1, randomness="seeded"
    )
    assert set(run.history[0].up) == {frames.size({frames.Part.ROW: torch.zeros(7)})}


@pytest.mark.parametrize("name", ["fl-top-dp", "fl-bas-2-dp", "fl-cs-dp"])
def test_a_private_run_uses_its_budget_in_all_its_rounds(name: str) -> None:
    args = {"rounds": 4, "cohort": 12, "epsilon": 3.0, "delta": 1e-3, "ratio": 0.05}
    run = tacit.train(methods.make(name, args), task(), workers=1, randomness="seeded")
    assert run.state.round == 4
    assert isinstance(run.privacy, Guarantee)
    assert run.privacy.epsilon is not None
    assert 2.99 < run.privacy.epsilon <= 3.0
    assert any("their shares of the noise" in sentence for sentence in run.privacy.not_covered)
    assert run.privacy.server_rounds == max(
        sum(client in report.clients for report in run.history) for client in range(20)
    )
    assert run.privacy.server_epsilon is not None
    assert run.privacy.server_epsilon > run.privacy.epsilon


def test_fl_cs_chooses_its_threshold_under_the_noise_that_is_added() -> None:
    """It was chosen without noise."""
    args = {"cohort": 12, "ratio": 0.3}
    without = initial_state(methods.make("fl-cs", args), task()).memory
    noisy = initial_state(methods.make("fl-cs-dp", {**args, "noise": 1.0}), task()).memory
    assert float(without[THRESHOLD]) != float(noisy[THRESHOLD])
    uncalibrated = initial_state(methods.make("fl-cs-dp", args), task())  # the noise is not known yet
    assert THRESHOLD not in uncalibrated.memory


def test_the_noise_of_the_mean_is_the_paper_s() -> None:
    """S·σ/100 per coordinate, and its norm: 0.0094 and 0.86 for TOP 0.5 %, 0.0154 and 6.3 for TOP 10 %."""
    for bound, count, deviation, norm in (
        (0.61, 8316, 0.0094, 0.86),
        (1.0, 166_337, 0.0154, 6.3),
        (2.4, 1_663_370, 0.037, 47.7),
    ):
        mechanism = methods.fl_top_dp(clip=bound, noise=1.54).mechanism
        now = tacit.core.SimulatedRound.of(0, 6000, 100.0, 93, tacit.core.Key.from_seed(0), tacit.core.Key.from_seed(1))
        zero = tacit.core.Sum(torch.zeros(count), 93.0, tacit.core.Bound((bound,)))
        noise = mechanism.after_sum(zero, now).total / 100
        assert float(noise.std()) == pytest.approx(deviation, rel=0.03)
        assert float(noise.norm()) == pytest.approx(norm, rel=0.03)
        assert math.isclose(float(noise.norm()), bound * 1.54 / 100 * math.sqrt(count), rel_tol=0.03)


@pytest.mark.parametrize("name", ["fl-top", "fl-top-dp", "fl-bas-3", "fl-basic-dp"])
def test_a_resumed_run_is_bitwise_the_same(name: str, tmp_path: Path) -> None:
    noise = {"cohort": 16, "noise": 3.0, "epsilon": 9.0}
    args = {"rounds": 4, "cohort": 5, "ratio": 0.05, **(noise if "-dp" in name else {})}
    method = methods.make(name, args)
    whole = tacit.train(method, task(), workers=1, randomness="seeded")
    steps = follow(RunSpec(method=method, task=task(), randomness="seeded"), workers=1, out=tmp_path / "run")
    for _ in range(3):
        next(steps)
    steps.close()
    resumed = tacit.train(method, task(), workers=1, out=tmp_path / "run", resume=True, randomness="seeded")
    assert torch.equal(resumed.state.weights, whole.state.weights)
    assert [report.down for report in resumed.history] == [report.down for report in whole.history]
    assert isinstance(resumed.privacy, Guarantee)
    assert isinstance(whole.privacy, Guarantee)
    assert resumed.privacy.epsilon == pytest.approx(whole.privacy.epsilon)
