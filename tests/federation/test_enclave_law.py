"""Law *federation* in an enclave: in test mode, sites end bitwise where the simulation of the same method ends."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import acme
from federation.consortium import Consortium, server, transport
from federation.enclaves import SITES, LocalEnclave, enclave_plan
from federation.test_law import IN_ENCLAVES, arguments, simulated
from tacit.runs.training import follow

INSIDE = {"channel": "Enclave()"}
SHARES = {**INSIDE, "mechanism.arithmetic": "Reals()", "mechanism.dropouts": 0.0}
CASES: dict[str, tuple[str, Mapping[str, object]]] = {
    **{name: (name, {}) for name in IN_ENCLAVES},
    "geyer": ("geyer", {**INSIDE, "cohort": 4, "rounds": 4}),
    "geyer with a bound that adapts": ("geyer", {**INSIDE, "mechanism.clip": "QuantileClip(count_noise=2.0)"}),
    "fl-top": ("fl-top", INSIDE),
    "noise in shares": ("fl-std-dp", SHARES),
    "records": ("dp-fedsgd", SHARES),
}


@pytest.mark.law
@pytest.mark.parametrize(("name", "args"), CASES.values(), ids=CASES)
def test_sites_end_where_the_simulation_ends(tmp_path: Path, name: str, args: Mapping[str, object]) -> None:
    consortium = Consortium.at(tmp_path, 5, methods=[name], **SITES)
    needs: dict[str, Any] = {"public": "acme:public", "records": min(acme.SIZES)}
    plan = enclave_plan(consortium, name, seed=acme.SEED, args=arguments(name, args), **needs)
    consortium.accept(plan)
    enclave = LocalEnclave.of(plan)
    here = server(plan, transport(consortium.sites(seeded=True)), seeded=True, connect=enclave)
    *_, run = follow(here.run_spec, source=here)
    assert not here.sites.problems
    assert torch.equal(run.state.weights, simulated(plan))
    assert not torch.equal(run.state.weights, run.spec.simulation.initial_state.weights)
