"""Metrics on the sites' own held-out data: a sum through the channel, and never of few sites."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from federation.consortium import Consortium, server, transport
from tacit.core import Report
from tacit.data.encoding import Encoding, TargetColumn
from tacit.federation.metrics import DIM, HeldOut, pack_vector, read_vectors
from tacit.federation.plan.plan import FederationPlan
from tacit.federation.site.policy import reveals
from tacit.runs.training import follow

CHANNELS = {"plain": "Plain()", "secure": "SecureSum()"}


def trained(consortium: Consortium, plan: FederationPlan, *, seeded: bool = True) -> tuple[torch.nn.Module, Report]:
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites(seeded=seeded)), seeded=seeded)
    *_, run = follow(here.run_spec, source=here)
    return run.model, run.history[-1]


@pytest.mark.parametrize("channel", CHANNELS.values(), ids=CHANNELS)
def test_metrics_are_those_of_all_held_out_samples_together(tmp_path: Path, channel: str) -> None:
    consortium = Consortium.at(tmp_path, 5, held_out=0.4)
    plan = consortium.plan(args={"cohort": 5, "channel": channel}, evaluate_every=1)
    model, report = trained(consortium, plan)
    parts = [consortium.site(name).files.load_data(plan).held_out for name in consortium.names]
    x, y = (torch.cat([part[i] for part in parts if part is not None]) for i in range(2))
    with torch.no_grad():
        outputs = model(x)
    assert report.metrics["accuracy"] == pytest.approx(float((outputs.argmax(1) == y).double().mean()))
    assert report.metrics["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(outputs, y)), abs=1e-5)
    assert report.overhead["evaluate"].up > 0


def test_no_metrics_of_fewer_sites_than_min_cohort(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, held_out=0.4, min_cohort=4)
    for name in ("site-0", "site-1"):
        path = consortium.home(name) / "site.toml"
        path.write_text(path.read_text().replace('metrics = "plain"', 'metrics = "none"'))
    plan = consortium.plan(args={"cohort": 5}, evaluate_every=1, min_cohort=4)
    _, report = trained(consortium, plan)
    assert report.metrics == {}
    assert report.rejected == ()  # they train all the same


def test_a_site_sends_metrics_only_as_its_policy_allows(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 5, held_out=0.4, metrics="secure-sum")
    plain = consortium.plan(args={"cohort": 5}, evaluate_every=1)
    assert trained(consortium, plain)[1].metrics == {}
    secure = consortium.plan(args={"cohort": 5, "channel": "SecureSum()"}, evaluate_every=1)
    assert trained(consortium, secure)[1].metrics.keys() == {"accuracy", "loss"}


@pytest.mark.parametrize(("method", "exact"), [("fl-std", True), ("geyer", False)])
def test_a_rare_event_is_measured_by_counts_of_scores(tmp_path: Path, method: str, exact: bool) -> None:
    """AUROC and the like of all sites together; where noise is added, exact counts are not sent."""
    consortium = Consortium.at(tmp_path, 5, held_out=0.4)
    source = np.random.default_rng(0)
    for number, name in enumerate(consortium.names):
        x, y = source.normal(size=80), (source.random(80) < 0.06).astype(int)
        y[:3] = 1
        lines = [f"{value + 2 * outcome},{outcome}" for value, outcome in zip(x, y, strict=True)]
        (consortium.home(name) / "rows.csv").write_text("\n".join(["x,died", *lines]))
        consortium.change(name, f'data = "acme:load_{number}"', 'data = "rows.csv"')
    encoding = Encoding(numbers={"x": (-5.0, 5.0)}, indicators=(), target=TargetColumn("died", ("0", "1")))
    (tmp_path / "encoding.json").write_bytes(encoding.to_bytes())
    channel: dict[str, object] = (
        {"channel": "SecureSum()", "descent.lr": 4.0} if exact else {"noise": 2.0, "epsilon": 1e6}
    )
    plan = consortium.plan(
        method,
        args={"cohort": 5, "rounds": 10, **channel},
        model="logistic",
        encoding="encoding.json",
        evaluate_every=10,
    )
    model, report = trained(consortium, plan)
    if not exact:
        assert report.metrics.keys() == {"loss"}
        assert not any("which score" in sentence for sentence in reveals(plan))
        return
    assert any("which score" in sentence for sentence in reveals(plan))
    parts = [consortium.site(name).files.load_data(plan).held_out for name in consortium.names]
    inputs, outcomes = (torch.cat([part[i] for part in parts if part is not None]) for i in range(2))
    with torch.no_grad():
        scores = model(inputs).flatten()
    assert next(iter(report.metrics)) == "auroc"
    assert report.metrics["base_rate"] == pytest.approx(float(outcomes.mean()))
    assert report.metrics["auroc"] == pytest.approx(roc_auc_score(outcomes.flatten(), scores), abs=0.03)
    assert report.metrics["predicted_rate"] == pytest.approx(float(torch.sigmoid(scores).mean()), abs=0.02)


def test_rounds_between_evaluations_have_no_metrics(tmp_path: Path) -> None:
    consortium = Consortium.at(tmp_path, 3, held_out=0.4)
    plan = consortium.plan(args={"cohort": 3, "rounds": 5}, evaluate_every=2)
    consortium.accept(plan)
    here = server(plan, transport(consortium.sites()))
    *_, run = follow(here.run_spec, source=here)
    assert [bool(report.metrics) for report in run.history] == [False, True, False, True, True]
    assert "Held-out metrics" in str(run.spec.task.not_covered)


@pytest.mark.parametrize(
    "parts",
    [
        [HeldOut(1.5, 3, 7), HeldOut(2.25, 0, 1)],
        [HeldOut(-4.5, -1, 10), HeldOut(1.0, -1, 5)],
        [HeldOut(1e9, 10**9, 10**9)] * 60,
        [HeldOut(float("nan"), 0, 1), HeldOut(float("inf"), 1, 1)],
    ],
)
def test_sums_of_metrics_are_exact(parts: list[HeldOut]) -> None:
    total = HeldOut.of_sum(np.sum([part.to_vector() for part in parts], axis=0, dtype=np.uint32))
    assert total.count == sum(part.count for part in parts)
    assert total.correct == sum(part.correct for part in parts)
    finite = [part.loss if np.isfinite(part.loss) else 2.0**40 for part in parts]
    assert total.loss == sum(finite)


def test_other_bytes_are_not_metrics() -> None:
    known = HeldOut(0.5, 3, 4)
    replies = [bytes(4 * DIM - 1), pack_vector(known.to_vector()), b"", bytes(4 * DIM + 4)]
    assert [HeldOut.of_sum(vector) for vector in read_vectors(replies)] == [known]
