"""The enclave as a process of its own, `tacit enclave serve`: the law, and a process that is killed and restarted."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from msgspec import structs

import acme
from federation.consortium import Consortium, server, transport
from federation.enclaves import ATTESTATION, MEASUREMENT, SITES
from federation.test_law import arguments, simulated
from tacit.cli import main
from tacit.enclave.attestation.verification import AttestationPolicy
from tacit.enclave.configuration import Configuration
from tacit.errors import EnclaveUnavailableError, ProtocolError
from tacit.federation.channels.enclave import enclave_of
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.runs.training import follow


@contextmanager
def served(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """The plan's enclave, as its operator starts it."""
    command = [sys.executable, "-m", "tacit.cli", "enclave", "serve", "enclave.json", "--listen", "enclave.sock"]
    more = ["--journal", "enclave.journal", "--insecure-simulation"]
    with subprocess.Popen([*command, *more], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("listening on")
        try:
            yield process
        finally:
            process.terminate()


def configured_by_command(folder: Path, capsys: pytest.CaptureFixture[str], seed: int) -> FederationPlan:
    path, out = folder / "plan.toml", folder / "enclave.json"
    assert main(["enclave", "configure", "--plan", str(path), "--trust", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    configuration = Configuration.from_bytes(out.read_bytes())
    assert configuration.digest.hex() in printed
    assert MEASUREMENT in printed
    assert "Simulated enclave (insecure)" in printed
    assert configuration.seed is None
    assert (folder / "host.key").stat().st_mode & 0o777 == 0o600
    out.write_bytes(replace(configuration, seed=seed).to_bytes())  # for the comparison with a simulation
    return read_plan(path, trusted=True)


@pytest.mark.law("processes of an enclave")
def test_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path is short
    consortium = Consortium.at(tmp_path, 5, methods=["esmfl"], **SITES)
    named = {"address": "enclave.sock", "simulated": True, "attestation": ATTESTATION}
    consortium.write_plan("esmfl", args=arguments("esmfl", {"rounds": 3}), enclave=named)
    plan = configured_by_command(tmp_path, capsys, acme.SEED)
    consortium.accept(plan)
    sites = transport(consortium.sites(seeded=True))
    with served(tmp_path) as process:
        here = server(plan, sites, seeded=True)
        steps = follow(here.run_spec, out=tmp_path / "run", source=here)
        next(steps)
        assert next(steps).state.round == 1
        refuses_other_code(plan)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        with pytest.raises(EnclaveUnavailableError, match="Restart the enclave"):
            next(steps)
    with served(tmp_path):
        again = server(plan, sites, seeded=True)
        *_, run = follow(again.run_spec, out=tmp_path / "run", resume=True, source=again)
    assert [report.turnout.delivered for report in run.history] == [5, 5, 5]
    assert torch.equal(run.state.weights, simulated(plan))
    assert run.spec.manifest.caveat.startswith("Simulated enclave (insecure)")


def refuses_other_code(plan: FederationPlan) -> None:
    """The server, too, accepts only the code that it was told to."""
    enclave = enclave_of(plan)
    assert enclave.access is not None
    strict = structs.replace(enclave.access, attestation=AttestationPolicy(measurements=("ab" * 32,), simulation=True))
    with pytest.raises(ProtocolError, match="The code's measurement is"):
        replace(enclave, access=strict).connect()
