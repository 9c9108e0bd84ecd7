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
    print(error)
"""


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_plain_federation_imports_no_enclave(tmp_path: Path) -> None:
    python(FEDERATION.format(tests=str(Path(__file__).parents[1]), folder=str(tmp_path)) + NO_ENCLAVE)


@pytest.mark.parametrize(("method", "rounds"), [("fedavg", "1"), ("esmfl", "1")])
def test_runs_do_not_need_the_library_for_quotes(tmp_path: Path, method: str, rounds: str) -> None:
    """Not even in a simulated enclave."""
    line = ["run", method, "--rounds", rounds, "--workers", "1", "--out", str(tmp_path / "run")]
    python(f"{BLOCKED}from tacit.cli import main\nraise SystemExit(main({line!r}))")


def test_a_run_without_an_enclave_imports_none(tmp_path: Path) -> None:
    line = ["run", "fedavg", "--rounds", "1", "--workers", "1", "--out", str(tmp_path / "run")]
    python(f"import tacit\nfrom tacit.cli import main\nassert main({line!r}) == 0\n{NO_ENCLAVE}")


def test_quotes_of_hardware_say_what_to_install() -> None:
    assert python(BLOCKED + QUOTE) == (
        "Quotes of hardware need dcap-qvl. Install it: pip install 'tacit-fl[enclave]'.\n"
    )
