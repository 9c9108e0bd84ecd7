import json
import os
import socket
import ssl
import subprocess
import sys
import time
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from enclave.attestation.genuine import HELLO, OUTDATED, SAMPLES, SGX, TDX, Sample
from enclave.federation import launch_in_thread
from tacit import Method, cli, methods
from tacit.core.code_digest import code_measurement
from tacit.enclave import enclave_messages, simulated_enclave
from tacit.enclave.attestation.evidence import Binding, Evidence
from tacit.enclave.attestation.simulated_quotes import SIMULATED, SimulatedAttestor
from tacit.enclave.attestation.verification import AttestationPolicy, verify_evidence
from tacit.enclave.configuration import NO_MEMORY, Configuration
from tacit.enclave.enclave_messages import MessageType, memory_digest
from tacit.enclave.secure_channel import ChannelIdentity, connect
from tacit.enclave.simulated_enclave import simulated_configuration, simulated_host
from tacit.errors import EnclaveUnavailableError
from tacit.pieces.channels import Enclave

AT = "2025-07-01T12:00:00Z"


def policy_file(folder: Path, policy: AttestationPolicy) -> Path:
    file = folder / "policy.toml"
    lists = ("measurements", "signers", "statuses", "rejected_advisories")
    lines = [f"{name} = {json.dumps(getattr(policy, name))}" for name in lists]
    file.write_text("\n".join([*lines, f"simulation = {str(policy.simulation).lower()}"]))
    return file


def verify(sample: Sample, folder: Path, *more: str) -> int:
    collateral, file = str(SAMPLES / f"{sample.name}_collateral.json"), policy_file(folder, sample.policy)
    line = [str(SAMPLES / sample.name), "--collateral", collateral, "--policy", str(file), *more]
    return cli.main(["enclave", "verify", *line])


@pytest.mark.parametrize("sample", [SGX, TDX], ids=["sgx", "tdx"])
def test_a_genuine_quote_is_accepted_and_explained(sample: Sample, tmp_path: Path, capsys) -> None:
    assert verify(sample, tmp_path, "--at", AT) == 0
    out = capsys.readouterr().out
    assert out.startswith("Accepted: a genuine processor confirms that it runs this code")
    assert sample.policy.measurements[0] in out
    assert "not compared: no expected value was given" in out


def test_report_data_can_be_compared(tmp_path: Path, capsys) -> None:
    assert verify(SGX, tmp_path, "--at", AT, "--report-data", HELLO.hex()) == 0
    assert "compared with the expected value" in capsys.readouterr().out
    assert verify(SGX, tmp_path, "--at", AT, "--report-data", bytes(64).hex()) == 1
    assert "bind a different key" in capsys.readouterr().out


def test_rejections_are_explained(tmp_path: Path, capsys) -> None:
    assert verify(OUTDATED, tmp_path, "--at", "2026-03-01") == 1
    assert "Rejected" in (out := capsys.readouterr().out)
    assert "No matching TCB level" in out
    assert verify(SGX, tmp_path) == 1  # by now its collateral has expired
    assert "xpired" in capsys.readouterr().out


def test_the_result_as_json(tmp_path: Path, capsys) -> None:
    assert verify(TDX, tmp_path, "--at", AT, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["accepted"], result["violations"], result["report_data_compared"]) == (True, [], False)
    assert result["claims"]["kind"] == "tdx-dcap"


def test_a_simulated_quote_always_carries_the_warning(tmp_path: Path, capsys) -> None:
    quote = tmp_path / "quote"
    quote.write_bytes(SimulatedAttestor(insecure=True).quote(bytes(64)))
    strict = policy_file(tmp_path, AttestationPolicy(measurements=(code_measurement(),)))
    assert cli.main(["enclave", "verify", str(quote), "--policy", str(strict)]) == 1
    assert SIMULATED in capsys.readouterr().out
    loose = policy_file(tmp_path, AttestationPolicy(measurements=(code_measurement(),), simulation=True))
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
        (
            ["configure", "fedavg", "--population", "1", "--directory", "k.json", "--host", "k.json", "--out", "x"],
            "k.json: Expected an X.509 certificate in PEM or DER",
        ),
        (["manifest", "x", "--listen", "socket", "--parameters", "3", "--cohort", "2"], "Expected HOST:PORT"),
        (["manifest", "x", "--listen", "h:1", "--parameters", "0", "--cohort", "2"], "parameters=0 >= 1"),
    ],
)
def test_invalid_command_lines_have_a_clear_error(
    line: list[str], why: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("k.json").write_text(json.dumps({"0": "ab" * 32}))
    assert cli.main(["enclave", *line]) == 2
    assert why in capsys.readouterr().err


def test_other_bytes_are_not_a_quote(tmp_path: Path, capsys) -> None:
    (tmp_path / "quote").write_bytes(b"hello")
    file = policy_file(tmp_path, AttestationPolicy())
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
    assert type(Method.from_canonical(configuration.method).channel).__name__ == "Enclave"


def test_a_directory_gives_a_configuration_for_hardware(tmp_path: Path, capsys) -> None:
    (tmp_path / "keys.json").write_text(json.dumps({"0": "ab" * 32, "1": "cd" * 32}))
    (tmp_path / "host.pem").write_text(ssl.DER_cert_to_PEM_cert(simulated_host(3).certificate))
    bound = {"mechanism/bound": torch.tensor(0.5)}
    safetensors.torch.save_file(bound, tmp_path / "memory.safetensors")
    files = ["--directory", "keys.json", "--host", "host.pem", "--memory", "memory.safetensors"]
    options = [str(tmp_path / each) if each[0] != "-" else each for each in files]
    line = ["configure", "fedavg", "--set", "cohort=2", "--population", "2", *options, "--parameters", "99"]
    assert cli.main(["enclave", *line, "--out", str(tmp_path / "c.json")]) == 0
    assert SIMULATED not in capsys.readouterr().out
    configuration = Configuration.from_bytes((tmp_path / "c.json").read_bytes())
    assert (configuration.seed, sorted(configuration.directory)) == (None, [0, 1])
    assert (configuration.host, configuration.parameters) == (simulated_host(3).certificate, 99)
    assert configuration.memory == memory_digest(bound)


def test_the_noise_is_that_of_the_budget(tmp_path: Path) -> None:
    """A configuration without a noise multiplier could release nothing."""
    options = ["--set", "cohort=4", "epsilon=8", "delta=0.01", "rounds=3", "--population", "9", "--seed", "3"]
    assert cli.main(["enclave", "configure", "geyer", *options, "--out", str(tmp_path / "c.json")]) == 0
    method = Method.from_canonical(Configuration.from_bytes((tmp_path / "c.json").read_bytes()).method)
    assert not method.terms.uncalibrated
    assert method.budget is not None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Expected keys.json to be JSON"),
        ("[]", "Expected keys.json to be a table, got []."),
        ('{"0": "ab", "1": "xy"}', "Expected 1 of keys.json to be bytes in hex, got 'xy'."),
        ('{"0": "ab", "one": "ab"}', "Expected keys of keys.json to be the number of a client, got 'one'."),
        ('{"0": "abcd"}', "Expected identities of 32 bytes"),
    ],
)
def test_another_directory_is_refused_with_the_entry_that_is_wrong(
    content: str, why: str, tmp_path: Path, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("keys.json").write_text(content)
    line = ["configure", "fedavg", "--population", "5", "--directory", "keys.json", "--out", "c.json"]
    assert cli.main(["enclave", *line]) == 2
    assert why in capsys.readouterr().err


def test_an_enclave_is_served_to_its_host_and_ends_by_a_signal(tmp_path: Path, capsys) -> None:
    file, address = configured(tmp_path), tmp_path / "socket"
    configuration = Configuration.from_bytes(file.read_bytes())
    line = ["enclave", "serve", str(file), "--listen", str(address), "--insecure-simulation"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tacit.cli", *line], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        printed = [process.stdout.readline() for _ in range(4)]
        assert os.stat(address).st_mode & 0o777 == 0o600
        policy = AttestationPolicy(measurements=(code_measurement(),), simulation=True)
        now, digest = int(time.time()), configuration.digest
        with pytest.raises(EnclaveUnavailableError):
            connect(connected(address), ChannelIdentity.fresh(), digest, policy, now)
        idle = connected(address)
        host = connect(connected(address), simulated_host(3), digest, policy, now)
        nonce = bytes(range(32))
        reply = host.ask(enclave_messages.pack(MessageType.ATTEST, nonce + bytes(32)))
        evidence = Evidence.read(enclave_messages.read_reply(reply, MessageType.EVIDENCE))
        assert verify_evidence(evidence, nonce, policy, now).accepted
        assert evidence.config == digest
        binding = Binding(evidence.key, nonce, evidence.config, evidence.head, evidence.channel)
        assert binding == evidence.binding(nonce)
        assert evidence.channel.hex() in printed[2]
        host.close()
        idle.close()
        assert process.poll() is None
        process.terminate()
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert (process.returncode, out) == (0, "")
    assert digest.hex() in printed[1]
    assert printed[3].strip() == SIMULATED
    assert err.count(SIMULATED) == 1


def connected(address: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    return connection


def test_serving_needs_a_host_and_a_journal(tmp_path: Path, capsys) -> None:
    """Without its certificate anyone could connect; without a journal a restart would forget the charges."""
    configuration = Configuration.from_bytes(configured(tmp_path).read_bytes())
    file = tmp_path / "other.json"
    file.write_bytes(replace(configuration, host=b"").to_bytes())
    listen = ["--listen", str(tmp_path / "socket")]
    assert cli.main(["enclave", "serve", str(file), *listen, "--insecure-simulation"]) == 2
    assert "configure the enclave with --host" in capsys.readouterr().err
    file.write_bytes(replace(configuration, seed=None, memory=NO_MEMORY).to_bytes())
    assert cli.main(["enclave", "serve", str(file), *listen]) == 2
    assert "forget what was released and charged" in capsys.readouterr().err


@pytest.mark.parametrize("seeded", [True, False])
def test_serving_needs_hardware_or_the_insecure_flag(seeded: bool, tmp_path: Path, capsys) -> None:
    configuration = Configuration.from_bytes(configured(tmp_path).read_bytes())
    file = tmp_path / "other.json"
    file.write_bytes(replace(configuration, seed=3 if seeded else None, memory=NO_MEMORY).to_bytes())
    line = ["enclave", "serve", str(file), "--listen", str(tmp_path / "socket"), "--journal", str(tmp_path / "j")]
    assert cli.main(line) == 2
    expected = "without a seed: a seed makes the noise public" if seeded else "Expected to run inside Gramine"
    assert expected in capsys.readouterr().err


def test_a_configuration_of_something_else_is_not_served(tmp_path: Path, capsys) -> None:
    configuration = simulated_configuration(replace(methods.fedavg(), channel=Enclave()), 9, 3)
    file = tmp_path / "enclave.json"
    file.write_bytes(replace(configuration, method="Sgd(lr=0.1, steps=1)").to_bytes())
    line = ["enclave", "serve", str(file), "--listen", str(tmp_path / "socket"), "--insecure-simulation"]
    assert cli.main(line) == 2
    assert "Expected the canonical form of a method" in capsys.readouterr().err


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


def test_a_run_carries_the_warning_and_reports_the_time_of_each_part(tmp_path: Path, capsys, monkeypatch) -> None:
    """`tacit run` of a method whose channel exchanges all messages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(simulated_enclave, "launch", launch_in_thread)
    options = ["--rounds", "2", "--set", "cohort=4", "epochs=1", "compression=10", "--workers", "1"]
    assert cli.main(["run", "esmfl", *options]) == 0
    shown = capsys.readouterr()
    assert SIMULATED in shown.out
    assert shown.err.count(SIMULATED) >= 1
    for part in ("train", "attestation", "encryption", "transfer", "load", "aggregate", "publish"):
        assert f"{part} " in shown.out[shown.out.index("Time: ") :]
