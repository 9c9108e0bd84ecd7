"""The enclave is an extra: what does not name it imports neither its package nor the library for quotes."""

import subprocess
import sys
from pathlib import Path

import pytest

BLOCKED = "import sys; sys.modules['dcap_qvl'] = None\n"  # as if it were not installed
FEDERATION = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import tacit
from tacit import methods
from federation.consortium import Consortium, server, transport
from tacit.runs.training import follow
methods.make("fedavg", {{"channel": "Plain()"}})
consortium = Consortium.at(Path({folder!r}), 5)
plan = consortium.plan("fl-std", args={{"cohort": 5}})
consortium.accept(plan)
here = server(plan, transport(consortium.sites()))
*_, run = follow(here.run_spec, source=here)
assert run.state.round == 2
"""
NO_ENCLAVE = """
import sys
found = [name for name in sys.modules if name.startswith(("tacit.enclave", "dcap_qvl"))]
assert not found, found
"""
QUOTE = """
from tacit.enclave.attestation.dcap import _library
from tacit.errors import UserError
try:
    _library()
except UserError as error:
    print("QUOTE:", error)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run(method: str, folder: Path) -> str:
    line = ["run", method, "--rounds", "1", "--workers", "1", "--out", str(folder / method)]
    return f"from tacit.cli import main\nassert main({line!r}) == 0\n"


@pytest.mark.law("processes of an enclave")
def test_runs_and_federations_without_an_enclave_import_none(tmp_path: Path) -> None:
    """Takes seconds: only a new interpreter shows what is imported."""
    federation = FEDERATION.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path))
    python(f"import tacit\n{run('fedavg', tmp_path)}{NO_ENCLAVE}{federation}{NO_ENCLAVE}")


@pytest.mark.law("processes of an enclave")
def test_only_quotes_of_hardware_need_the_library_and_say_what_to_install(tmp_path: Path) -> None:
    """Not even a simulated enclave needs it. Takes seconds: it must be missing before Tacit is imported."""
    said = python(BLOCKED + run("fedavg", tmp_path) + run("esmfl", tmp_path) + QUOTE)
    advice = "Quotes of hardware need dcap-qvl. Install it: pip install 'tacit-fl[enclave]'."
    assert said.partition("QUOTE: ")[2] == f"{advice}\n"
