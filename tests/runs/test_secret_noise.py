"""Noise comes from a key that nobody else has, that is used once, and that is gone when the run ends."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import tacit
import zoo
from tacit import methods
from tacit.core import Key, Report
from tacit.core.keys import Ratchet, SecretKeys
from tacit.errors import LedgerError, RunError, UserError
from tacit.privacy.ledger import Ledger
from tacit.runs import directory as results
from tacit.runs.directory import CHECKPOINT, GUARANTEE, LEDGER, MANIFEST, MODEL, NOISE_KEY, read_manifest
from tacit.runs.run import RunSpec
from tacit.runs.training import follow

ROUNDS = 5


def task() -> tacit.Task:
    return tacit.Task(model=zoo.softmax, clients=zoo.population([4] * 20), test=zoo.population([30], seed=9)[0])


def private(rounds: int = ROUNDS, lr: float = 0.1) -> tacit.Method:
    return methods.geyer(
        cohort=5, noise=2.0, rounds=rounds, epsilon=100.0, delta=1e-3, descent=tacit.pieces.Sgd(lr=lr, steps=1)
    )


def everyone(lr: float) -> tacit.Method:
    """One round with everyone and much noise."""
    mechanism = tacit.pieces.CentralGaussian(clip=tacit.pieces.FixedClip(1.0), noise_multiplier=10.0)
    return replace(private(rounds=1, lr=lr), sampler=tacit.pieces.Everyone(), mechanism=mechanism)


def timeless(history: tuple[Report, ...]) -> list[Report]:
    """ε is left out: rounds that are composed one by one differ from those composed at once in the last digits."""
    return [replace(report, seconds=0.0, epsilons={}) for report in history]


def distance(one: tacit.Run, other: tacit.Run) -> float:
    return float((one.state.weights - other.state.weights).norm())


def started(path: Path, rounds: int = 2) -> Path:
    """A run that was stopped after some of its rounds."""
    steps = follow(RunSpec(method=private(), task=task()), workers=1, out=path)
    for _ in range(rounds + 1):
        next(steps)
    steps.close()
    return path


def resume(path: Path, **changes: object) -> tacit.Run:
    return tacit.train(private(), task(), workers=1, out=path, resume=True, **changes)  # type: ignore[arg-type]


def test_two_runs_with_one_seed_do_not_cancel_their_noise(tmp_path: Path) -> None:
    """Before, the difference of their models was that of the sums without noise, to 3e-6."""
    one, other = (tacit.train(everyone(lr), task(), workers=1, ledger=tmp_path / "shared.db") for lr in (0.1, 0.2))
    quiet = [replace(everyone(lr), mechanism=tacit.pieces.NoNoise(), budget=None) for lr in (0.1, 0.2)]
    without_noise = distance(*(tacit.train(method, task(), workers=1) for method in quiet))
    expected = 10.0 / 20 * (2 * one.state.dim) ** 0.5  # of two independent noises on the mean of 20 clients
    assert distance(one, other) > 0.5 * expected
    assert without_noise < 0.1 * expected
    assert torch.equal(one.spec.simulation.initial_state.weights, other.spec.simulation.initial_state.weights)


def test_seeded_noise_is_refused_by_a_ledger_that_knows_it(tmp_path: Path) -> None:
    ledger = tmp_path / "shared.db"
    tacit.train(everyone(0.1), task(), workers=1, ledger=ledger, randomness="seeded")
    with pytest.raises(
        LedgerError, match=r"knows the key of round 1 .* or with seeded noise another seed\. Nothing was"
    ):
        tacit.train(everyone(0.2), task(), workers=1, ledger=ledger, randomness="seeded")
    again = tacit.train(everyone(0.1), task(), workers=1, ledger=ledger, randomness="seeded")
    tacit.train(everyone(0.2), task(), workers=1, ledger=ledger, randomness="seeded", seed=1)
    with Ledger.open(ledger) as opened:
        assert opened.accounts.clients.rounds == 2  # the repetition is bitwise the same, and cost nothing
        assert len({entry.key for entry in opened.entries}) == 2
    assert again.state.round == 1


def test_every_run_has_its_own_key_and_its_own_charge(tmp_path: Path) -> None:
    ledger = tmp_path / "shared.db"
    runs = [tacit.train(private(), task(), workers=1, out=tmp_path / name, ledger=ledger) for name in "ab"]
    assert distance(*runs) > 0
    assert [report.clients for report in runs[0].history] != [report.clients for report in runs[1].history]
    with Ledger.open(ledger) as opened:
        assert opened.accounts.clients.rounds == 2 * ROUNDS
        assert len({entry.key for entry in opened.entries}) == 2 * ROUNDS
    one, other = (read_manifest(tmp_path / name) for name in "ab")
    assert one.randomness == other.randomness == "secret"
    assert one.key != other.key
    assert one.run != other.run


@pytest.mark.parametrize("seconds", [0.0, 3600.0], ids=["with a checkpoint", "before any checkpoint"])
@pytest.mark.parametrize("done", [0, 1, 3])
def test_a_killed_run_resumes_with_the_same_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, done: int
) -> None:
    """A copy of the directory between two rounds is what a kill leaves."""
    monkeypatch.setattr(results, "SECONDS_BETWEEN_CHECKPOINTS", seconds)
    steps = follow(RunSpec(method=private(), task=task()), workers=1, out=tmp_path / "run")
    for _ in range(done + 1):
        next(steps)
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "killed")
    *_, whole = steps
    resumed = resume(tmp_path / "elsewhere" / "killed")
    assert torch.equal(resumed.state.weights, whole.state.weights)
    assert timeless(resumed.history) == timeless(whole.history)
    with Ledger.open(tmp_path / "elsewhere" / "killed" / LEDGER) as ledger:
        assert ledger.accounts.clients.rounds == ROUNDS
    assert not (tmp_path / "elsewhere" / "killed" / NOISE_KEY).exists()


def test_a_kill_between_checkpoint_and_key_replays_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key may be older than the checkpoint: it is moved forward on resuming."""
    monkeypatch.setattr(results, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    steps = follow(RunSpec(method=private(), task=task()), workers=1, out=tmp_path / "run")
    next(steps)
    old = (tmp_path / "run" / NOISE_KEY).read_bytes()
    next(steps), next(steps)
    shutil.copytree(tmp_path / "run", tmp_path / "elsewhere" / "killed")
    (tmp_path / "elsewhere" / "killed" / NOISE_KEY).write_bytes(old)
    *_, whole = steps
    assert torch.equal(resume(tmp_path / "elsewhere" / "killed").state.weights, whole.state.weights)


def test_keys_of_complete_rounds_are_erased(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    start = Ratchet(0, Key.from_seed(0, "known to this test"))
    monkeypatch.setattr(Ratchet, "fresh", lambda: start)
    file = tmp_path / "run" / NOISE_KEY
    for step in follow(RunSpec(method=private(), task=task()), workers=1, out=tmp_path / "run"):
        if step.state.round == ROUNDS:
            break
        assert file.stat().st_mode & 0o777 == 0o600
        stored = json.loads(file.read_text())
        assert stored["round"] == step.state.round
        assert stored["key"] == start.forward(step.state.round).key.value.hex()
    keys = [start.forward(index).key.value for index in range(ROUNDS + 1)]
    assert len(set(keys)) == ROUNDS + 1


def test_a_finished_run_holds_no_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = Ratchet(0, Key.from_seed(0, "known to this test"))
    monkeypatch.setattr(Ratchet, "fresh", lambda: start)
    tacit.train(private(), task(), workers=1, out=tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").iterdir()} == {
        MANIFEST, "rounds.jsonl", CHECKPOINT, MODEL, LEDGER, f"{LEDGER}.head", GUARANTEE, "rounds.csv",
    }  # fmt: skip
    written = b"".join(path.read_bytes() for path in (tmp_path / "run").iterdir())
    for index in range(ROUNDS + 1):
        ratchet = start.forward(index)
        for key in (ratchet.key, SecretKeys(0, ratchet).keys(index).server):
            assert key.value not in written
            assert key.value.hex().encode() not in written
    assert resume(tmp_path / "run").state.round == ROUNDS  # a finished run needs no key


def forget(path: Path) -> None:
    path.unlink()


def publish(path: Path) -> None:
    path.chmod(0o640)


def replace_by_another(path: Path) -> None:
    shutil.copy(started(path.parent.with_name("another")) / NOISE_KEY, path)


def cut(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "key": "00ff"}))


def run_ahead(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "round": 4}))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (
            forget,
            "noise.key is missing, so that the run cannot resume with the same noise. Restore it, or start a new run",
        ),
        (publish, "noise.key can be read by others (mode 640), and whoever has its key can subtract the noise"),
        (replace_by_another, "noise.key is the key of another run"),
        (cut, "noise.key is not the key of a run: it was cut or changed. Start a new run."),
        (run_ahead, "noise.key is the key after 4 rounds, but the checkpoint is of round 2"),
    ],
)
def test_a_key_that_is_not_this_runs_secret_is_refused(tmp_path: Path, damage, sentence: str) -> None:
    run = started(tmp_path / "run")
    damage(run / NOISE_KEY)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    with pytest.raises(RunError, match=re.escape(sentence)):
        resume(run)
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before


def test_a_run_keeps_its_kind_of_noise(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="another randomness: secret, not seeded"):
        resume(started(tmp_path / "run"), randomness="seeded")
    with pytest.raises(UserError, match="Expected randomness='lucky' to be 'secret' or 'seeded'"):
        tacit.train(private(), task(), randomness="lucky")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="Expected randomness='lucky' to be 'secret' or 'seeded'"):
        tacit.rounds(private(), task(), randomness="lucky")  # type: ignore[arg-type]


def test_the_key_of_a_complete_round_is_gone_from_memory() -> None:
    keys = SecretKeys(0)
    first = keys.keys(0)
    assert keys.keys(0) == first
    assert keys.keys(2) != first
    with pytest.raises(UserError, match="The key of round 1 was erased"):
        keys.keys(0)


def test_a_round_has_other_keys_in_another_attempt() -> None:
    run = tacit.core.RunKeys.from_seed(0)
    once, again = run.at(3), run.at(3, attempt=1)
    assert once.shared == again.shared
    assert once.server != again.server
    assert once.clients.of(5) != again.clients.of(5)


def test_rounds_draw_fresh_noise_unless_they_are_seeded() -> None:
    def last(**options: object) -> torch.Tensor:
        *_, (state, _) = tacit.rounds(private(rounds=2), task(), workers=1, **options)  # type: ignore[arg-type]
        return state.weights

    assert not torch.equal(last(), last())
    assert torch.equal(last(randomness="seeded"), last(randomness="seeded"))


def test_a_guarantee_of_seeded_noise_says_so() -> None:
    secret, seeded = (tacit.train(private(), task(), workers=1, randomness=each) for each in ("secret", "seeded"))
    assert "simulation with reproducible noise" not in str(secret.privacy)
    assert "simulation with reproducible noise" in str(seeded.privacy)
    assert "holds only for a secret key" in str(seeded.privacy)
    quiet = tacit.train(methods.fedavg(rounds=1, cohort=2), task(), workers=1, randomness="seeded")
    assert "reproducible" not in str(quiet.privacy)
