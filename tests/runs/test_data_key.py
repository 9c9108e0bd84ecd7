"""Digests of private data: with a key that stays with their owner, so that nobody else can test candidates.

The attacker of these tests knows all rows but one, and everything that Tacit writes: the code, the run directory, the
page and the logs. A digest without a key would confirm the right candidate for the last row, whatever ε is.
"""

import hashlib
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tacit
from tacit.cli import main
from tacit.core import Key
from tacit.errors import RunError, StorageError, UserError
from tacit.report.page import run_page
from tacit.report.run_data import RunData
from tacit.runs import data_key
from tacit.runs.directory import MANIFEST, read_manifest
from tacit.runs.manifest import Manifest
from tacit.runs.round_logs import LogHeader

METHODS = [
    tacit.methods.fedavg(rounds=2, cohort=3),
    tacit.methods.geyer(rounds=2, cohort=3, noise=4.0, epsilon=30.0, delta=1e-3),
    tacit.methods.dp_sgd(rounds=2, cohort=3, noise=4.0, epsilon=30.0, delta=1e-3),
]


def make_task(last: float = 1.0) -> tacit.Task:
    x = torch.arange(60.0).view(20, 3) % 7
    x[-1, -1] = last  # what the attacker does not know
    y = torch.arange(20) % 2
    parts = [(x[begin : begin + 5], y[begin : begin + 5]) for begin in range(0, 20, 5)]
    return tacit.Task(model=lambda: nn.Linear(3, 2), clients=parts, test=(x[:4] + 0.5, y[:4]), name="table")


def digest_without_key(*tensors: Tensor) -> str:
    found = hashlib.blake2b(digest_size=16)
    for tensor in tensors:
        found.update(f"{tensor.dtype} {tuple(tensor.shape)}\n".encode())
        found.update(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()


def tensors_of(task: tacit.Task) -> list[Tensor]:
    population = task.population
    return [population.x, population.y, population.sample_indices, population.offsets, *task.test]


def unkeyed(task: tacit.Task) -> Iterator[bytes]:
    """Digests that an attacker can compute of a candidate, as texts and as bytes."""
    tensors = tensors_of(task)
    subsets = chain.from_iterable(combinations(tensors, count) for count in range(1, len(tensors) + 1))
    for some in subsets:
        yield digest_without_key(*some).encode()
        content = b"".join(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in some)
        for name in ("md5", "sha1", "sha256", "sha512", "blake2b", "blake2s", "sha3_256"):
            found = hashlib.new(name, content)
            yield from (found.digest(), found.hexdigest().encode(), found.hexdigest()[:16].encode())
        yield from (hashlib.blake2b(content, digest_size=size).hexdigest().encode() for size in (8, 16, 20, 32))
        yield f'"{zlib.crc32(content)}"'.encode()


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_untestable(folder: Path, digests: Sequence[bytes]) -> None:
    for path, content in contents(folder).items():
        assert not [found for found in digests if found in content], path


def other_owner(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv(data_key.VARIABLE, str(file))


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("randomness", ["secret", "seeded"])
def test_no_file_of_a_run_confirms_a_candidate(
    tmp_path: Path, method: tacit.Method, randomness: tacit.core.Randomness
) -> None:
    task = make_task()
    for folder, stop in ((tmp_path / "whole", False), (tmp_path / "begun", True)):
        tacit.train(method, task, workers=1, randomness=randomness, out=folder, on_round=lambda *_, stop=stop: stop)
        assert main(["report", str(folder)]) == 0
        assert main(["export", str(folder), "--to", "csv", "--out", str(folder / "exported.csv")]) == 0
    manifest = read_manifest(tmp_path / "begun")
    before = replace(manifest, task=replace(manifest.task, data=digest_without_key(*tensors_of(task))))
    digests = [*unkeyed(task), before.run.encode(), bytes.fromhex(before.run)]
    digests += [LogHeader.of(before, folder).identity.encode() for folder in (tmp_path / "whole", tmp_path / "begun")]
    assert_untestable(tmp_path, digests)
    identity = LogHeader.of(manifest, tmp_path / "begun").identity
    assert identity.encode() not in digests


def test_the_attack_works_without_a_key(tmp_path: Path) -> None:
    """So that the test above looks for the right thing: planted digests are found."""
    tacit.train(METHODS[0], make_task(), workers=1, out=tmp_path / "run")
    candidates = {value: digest_without_key(*tensors_of(make_task(value))) for value in (0.0, 1.0, 2.0)}
    content = json.loads((tmp_path / "run" / MANIFEST).read_text())
    content["task"]["data"] = candidates[1.0]
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(content))
    with pytest.raises(AssertionError):
        assert_untestable(tmp_path, [*unkeyed(make_task())])
    assert [value for value, found in candidates.items() if found == content["task"]["data"]] == [1.0]


def test_a_digest_is_the_same_for_one_owner_and_another_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests: list[Manifest] = []
    for name, owner, last in (("a", "one", 1.0), ("b", "one", 1.0), ("c", "one", 2.0), ("d", "two", 1.0)):
        other_owner(monkeypatch, tmp_path / owner / "data.key")
        tacit.train(METHODS[1], make_task(last), workers=1, randomness="seeded", out=tmp_path / name)
        manifests.append(read_manifest(tmp_path / name))
    first, again, changed, elsewhere = (manifest.task.data for manifest in manifests)
    assert first == again
    assert len({first, changed, elsewhere}) == 3
    assert len({manifest.run for manifest in manifests}) == 3  # the name in a ledger, which includes it
    assert data_key.key_name(first) == data_key.key_name(changed) != data_key.key_name(elsewhere)
    assert first in run_page(RunData.read(tmp_path / "a"))
    bare = [replace(manifest, task=replace(manifest.task, data=""), ledger=None) for manifest in manifests]
    assert bare[0] == bare[2]  # nothing else of the manifest depends on the last row


def test_every_bit_of_the_key_matters() -> None:
    key, x = Key.from_seed(0), torch.zeros(3)
    whole = int.from_bytes(key.value, "big")
    others = {data_key.data_digest(Key((whole ^ (1 << bit)).to_bytes(32, "big")), x) for bit in range(256)}
    assert len(others | {data_key.data_digest(key, x)}) == 257


def test_the_key_is_private_and_in_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(data_key.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run")
    file = tmp_path / "home" / ".local" / "state" / "tacit" / "data.key"
    assert data_key.place() == file
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = data_key.load().value
    assert_untestable(tmp_path / "run", [secret, secret.hex().encode(), Key(secret).child("data").value])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert data_key.place() == tmp_path / "state" / "tacit" / "data.key"
    monkeypatch.setenv("XDG_STATE_HOME", "state")  # not absolute: it would be in whatever folder a run was started in
    assert data_key.place() == file


def test_changed_data_are_noticed_and_the_same_data_resume(tmp_path: Path) -> None:
    tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run", on_round=lambda *_: True)
    with pytest.raises(RunError, match="another task"):
        tacit.train(METHODS[1], make_task(2.0), workers=1, out=tmp_path / "run", resume=True)
    assert tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run", resume=True).state.round == 2


def test_a_lost_key_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run", on_round=lambda *_: True)
    before = contents(tmp_path / "run")
    with monkeypatch.context() as patch:
        other_owner(patch, tmp_path / "new.key")
        with pytest.raises(RunError, match=r"started with the data key .* Restore that key, or set TACIT_DATA_KEY"):
            tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    assert tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run", resume=True).state.round == 2


def test_without_a_home_there_is_a_clear_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv(data_key.VARIABLE)
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", nowhere)
    with pytest.raises(UserError, match=r"Expected a home folder for the data key.* Set TACIT_DATA_KEY to a file"):
        tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert len(tacit.train(METHODS[1], make_task(), workers=1).history) == 2  # without files, no digest is needed
    (tmp_path / "file").write_text("")
    other_owner(monkeypatch, tmp_path / "file" / "data.key")
    with pytest.raises(
        StorageError, match=r"data\.key.* could not be made.* set TACIT_DATA_KEY to a file in a folder of your own"
    ):
        tacit.train(METHODS[1], make_task(), workers=1, out=tmp_path / "run")


def test_a_key_that_others_can_read_or_that_is_none_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_owner(monkeypatch, tmp_path / "data.key")
    data_key.load()
    (tmp_path / "data.key").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        data_key.load()
    (tmp_path / "data.key").chmod(0o600)
    (tmp_path / "data.key").write_text("secret")
    with pytest.raises(UserError, match="to hold the data key, of 64 hexadecimal digits"):
        data_key.load()


def test_processes_that_start_together_have_one_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other_owner(monkeypatch, tmp_path / "state" / "data.key")
    with ThreadPoolExecutor(16) as threads:
        found = [*threads.map(lambda _: data_key.load(), range(64))]
    assert len(set(found)) == 1


@pytest.mark.parametrize("data", ["", "00" * 16])
def test_a_manifest_with_a_digest_without_a_key_is_refused(tmp_path: Path, data: str) -> None:
    tacit.train(METHODS[0], make_task(), workers=1, out=tmp_path)
    manifest = read_manifest(tmp_path)
    (tmp_path / MANIFEST).write_bytes(replace(manifest, task=replace(manifest.task, data=data)).to_bytes())
    with pytest.raises(RunError, match=r"Expected data of the manifest .* to be a digest with a key.*new run"):
        RunData.read(tmp_path)


NUMBERS = (1237, 1451, 1613)  # of records; each person has one, and they add up to 4301


@pytest.mark.parametrize("persons", [False, True])
@pytest.mark.parametrize(
    ("method", "public"),
    [
        (tacit.methods.geyer(rounds=1, cohort=3, noise=4.0, epsilon=30.0, delta=1e-6), False),
        (tacit.methods.dp_fedsgd(rounds=1, size=1000, noise=4.0, epsilon=None, delta=1e-6), False),
        (tacit.methods.dp_sgd(rounds=1, cohort=3, noise=4.0, epsilon=30.0, delta=1e-6), True),
    ],
    ids=["geyer", "dp-fedsgd", "dp-sgd"],
)
def test_only_numbers_that_the_guarantee_lists_stand_in_what_a_run_writes(
    tmp_path: Path, method: tacit.Method, public: bool, persons: bool
) -> None:
    """Whoever knows all persons but one tests by an exact number whether there is one more."""
    torch.manual_seed(0)
    ids = [[f"{client}-{row}" for row in range(count)] for client, count in enumerate(NUMBERS)] if persons else None
    parts = [(torch.randn(count, 2), torch.arange(count) % 2) for count in NUMBERS]
    task = tacit.Task(model=lambda: nn.Linear(2, 2), clients=parts, person=ids)
    run = tacit.train(method, task, workers=1, out=tmp_path / "run")
    listed = any("of every client is public" in sentence for sentence in run.privacy.not_covered)
    assert listed == public
    texts = [file.read_text() for file in (tmp_path / "run").iterdir() if file.suffix in (".json", ".jsonl", ".csv")]
    texts.append(str(run_page(RunData.read(tmp_path / "run"))))
    texts += [str(each) for each in run.guarantees.values()]
    for number in (*NUMBERS, sum(NUMBERS)):
        shown = any(re.search(rf"(?<![\d.]){number}(?!\d)|{number:,}", text) for text in texts)
        assert shown == (public and number in NUMBERS)
    assert RunData.read(tmp_path / "run").guarantees
