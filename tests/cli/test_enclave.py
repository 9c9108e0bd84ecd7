import json
import os
import socket
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from protocols.attestation.genuine import HELLO, OUTDATED, SAMPLES, SGX, TDX, Sample
from tacit import cli, methods
from tacit.core import Method
from tacit.pieces.channels import Enclave
from tacit.protocols.attestation import Binding, Evidence, Policy, SimulationAttestor, code_measurement, verify
from tacit.protocols.enclave import Configuration, Link, Verb, frames

SIMULATED = "enclave: simulated (insecure)"
AT = "2025-07-01T12:00:00Z"


def policy_file(folder: Path, policy: Policy) -> Path:
    file = folder / "policy.toml"
    lists = ("measurements", "signers", "statuses", "rejected_advisories")
    lines = [f"{name} = {json.dumps(getattr(policy, name))}" for name in lists]
    file.write_text("\n".join([*lines, f"simulation = {str(policy.simulation).lower()}"]))
    return file


def judged(sample: Sample, folder: Path, *more: str) -> int:
    collateral, file = str(SAMPLES / f"{sample.name}_collateral.json"), policy_file(folder, sample.policy)
    line = [str(SAMPLES / sample.name), "--collateral", collateral, "--policy", str(file), *more]
    return cli.main(["enclave", "verify", *line])


@pytest.mark.parametrize("sample", [SGX, TDX], ids=["sgx", "tdx"])
def test_a_genuine_quote_is_accepted_in_words(sample: Sample, tmp_path: Path, capsys) -> None:
    assert judged(sample, tmp_path, "--at", AT) == 0
    out = capsys.readouterr().out
    assert out.startswith("accepted: a genuine processor vouches for this code")
    assert sample.policy.measurements[0] in out
    assert "bound to" in out
    assert "nothing: report data were not compared" in out


def test_report_data_can_be_compared(tmp_path: Path, capsys) -> None:
    assert judged(SGX, tmp_path, "--at", AT, "--report-data", HELLO.hex()) == 0
    assert "the expected report data" in capsys.readouterr().out
    assert judged(SGX, tmp_path, "--at", AT, "--report-data", bytes(64).hex()) == 1
    assert "bind another key" in capsys.readouterr().out


def test_refusals_say_why(tmp_path: Path, capsys) -> None:
    assert judged(OUTDATED, tmp_path, "--at", "2026-03-01") == 1
    assert "refused" in (out := capsys.readouterr().out)
    assert "No matching TCB level" in out
    assert judged(SGX, tmp_path) == 1  # today its collateral is out of date
    assert "xpired" in capsys.readouterr().out


def test_the_verdict_as_json(tmp_path: Path, capsys) -> None:
    assert judged(TDX, tmp_path, "--at", AT, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["accepted"], found["claims"]["kind"], found["bound"]) == (True, "tdx-dcap", False)


def test_a_simulated_quote_says_so_everywhere(tmp_path: Path, capsys) -> None:
    quote = tmp_path / "quote"
    quote.write_bytes(SimulationAttestor(insecure=True).quote(bytes(64)))
    strict = policy_file(tmp_path, Policy(measurements=(code_measurement(),)))
    assert cli.main(["enclave", "verify", str(quote), "--policy", str(strict)]) == 1
    assert SIMULATED in capsys.readouterr().out
    loose = policy_file(tmp_path, Policy(measurements=(code_measurement(),), simulation=True))
    for form in ([], ["--json"]):
        assert cli.main(["enclave", "verify", str(quote), "--policy", str(loose), *form]) == 0
        assert SIMULATED in capsys.readouterr().out


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (["verify", "none", "--policy", "p"], "Could not read the quote"),
        (["configure", "fedavg", "--population", "5", "--out", "x"], "either --directory or --seed"),
        (["configure", "fedvg", "--population", "5", "--seed", "1", "--out", "x"], "Did you mean 'fedavg'"),
        (["serve", "none", "--listen", "x"], "Could not read the configuration"),
        (["manifest", "x", "--listen", "socket", "--parameters", "3", "--cohort", "2"], "Expected HOST:PORT"),
        (["manifest", "x", "--listen", "h:1", "--parameters", "0", "--cohort", "2"], "parameters=0 >= 1"),
    ],
)
def test_bad_lines_get_a_sentence(line: list[str], why: str, tmp_path: Path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["enclave", *line]) == 2
    assert why in capsys.readouterr().err


def test_other_bytes_are_no_quote(tmp_path: Path, capsys) -> None:
    (tmp_path / "quote").write_bytes(b"hello")
    file = policy_file(tmp_path, Policy())
    assert cli.main(["enclave", "verify", str(tmp_path / "quote"), "--policy", str(file)]) == 2
    assert "Expected a quote" in capsys.readouterr().err


def configured(folder: Path) -> Path:
    file = folder / "enclave.json"
    line = ["configure", "geyer", "--set", "cohort=4", "--population", "9", "--seed", "3", "--out", str(file)]
    assert cli.main(["enclave", *line]) == 0
    return file


def test_a_configuration_is_written_with_its_digest(tmp_path: Path, capsys) -> None:
    configuration = Configuration.from_bytes(configured(tmp_path).read_bytes())
    out = capsys.readouterr().out
    assert configuration.digest.hex() in out
    assert SIMULATED in out
    assert "channel=Enclave(" in configuration.method


def test_a_directory_makes_a_configuration_for_hardware(tmp_path: Path, capsys) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"0": "ab" * 32, "4": "cd" * 32}))
    line = ["configure", "fedavg", "--population", "5", "--directory", str(tmp_path / "keys.json")]
    assert cli.main(["enclave", *line, "--out", str(tmp_path / "c.json")]) == 0
    assert SIMULATED not in capsys.readouterr().out
    configuration = Configuration.from_bytes((tmp_path / "c.json").read_bytes())
    assert (configuration.seed, sorted(configuration.directory)) == (None, [0, 4])


def test_serving_needs_the_flag_and_is_reached_through_attestation_only(tmp_path: Path, capsys) -> None:
    file, address = configured(tmp_path), str(tmp_path / "socket")
    configuration = Configuration.from_bytes(file.read_bytes())
    command = [sys.executable, "-m", "tacit.cli", "enclave", "serve", str(file), "--listen", address]
    with subprocess.Popen(
        [*command, "--insecure-simulation"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(3)]
        assert said[2].strip() == SIMULATED
        assert configuration.digest.hex() in said[1]
        assert os.stat(address).st_mode & 0o777 == 0o600
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(address)
        link, nonce = Link(connection), bytes(range(32))
        reply = frames.unpack(link.ask(frames.pack(Verb.ATTEST, nonce + bytes(32))))
        evidence = Evidence.read(reply.reader(Verb.EVIDENCE))
        policy = Policy(measurements=(code_measurement(),), simulation=True)
        assert verify(evidence, nonce, policy, int(time.time())).accepted
        assert evidence.config == configuration.digest
        assert Binding(evidence.key, nonce, evidence.config, evidence.head) == evidence.binding(nonce)
        link.close()
        _, talk = process.communicate(timeout=60)
    assert process.returncode == 0
    assert talk.count(SIMULATED) == 1


def test_the_manifest_is_strict(tmp_path: Path, capsys) -> None:
    file = configured(tmp_path)
    capsys.readouterr()
    line = ["manifest", str(file), "--listen", "127.0.0.1:7070", "--parameters", "431080", "--cohort", "10"]
    assert cli.main(["enclave", *line]) == 0
    text = capsys.readouterr().out
    assert "never run on hardware" in text
    found = tomllib.loads(text)
    assert (found["sgx"]["debug"], found["sgx"]["remote_attestation"]) == (False, "dcap")
    assert found["sgx"]["allowed_files"] == []
    assert found["sgx"]["enclave_size"] == "2G"
    assert "insecure" not in text
    trusted = found["sgx"]["trusted_files"]
    assert f"file:{file}" in trusted
    assert any("tacit" in path or "site-packages" in path for path in trusted)
    arguments = found["loader"]["argv"]
    assert arguments[-5:] == [str(file), "--listen", "127.0.0.1:7070", "--journal", "/state/journal"]
    (state,) = [mount for mount in found["fs"]["mounts"] if mount.get("type") == "encrypted"]
    assert state["key_name"] == "_sgx_mrenclave"
    assert cli.main(["enclave", *line, "--out", str(tmp_path / "enclave.manifest.template")]) == 0
    assert (tmp_path / "enclave.manifest.template").read_text() == text


def test_a_run_says_it_and_how_long_each_part_took(tmp_path: Path, capsys, monkeypatch) -> None:
    """`tacit run` of a method whose channel is played, message by message."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tacit.methods._CATALOG", {"played": played})
    assert cli.main(["run", "played", "--rounds", "2", "--workers", "1", "--task-set", "clients=6"]) == 0
    shown = capsys.readouterr()
    assert SIMULATED in shown.out
    assert shown.err.count(SIMULATED) >= 1
    for part in ("train", "attestation", "encryption", "transfer", "load", "aggregate", "publish"):
        assert f"{part} " in shown.out[shown.out.index("Time by part") :]


def played(rounds: int = 2) -> Method:
    """Federated averaging through an enclave."""
    return replace(methods.fedavg(rounds=rounds, cohort=4), channel=Enclave(conversation=True))
