"""The Gramine manifest of an aggregator on SGX hardware. Rendered and read back by tests; never run on hardware.

What it insists on: arguments and environment are fixed in it, nothing is taken over from the host, debug is off, every
file that is loaded is measured (interpreter, libraries, Tacit, configuration), and the journal lies in an encrypted
mount whose key only this very code gets.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path

from tacit.errors import UserError, expect

_THREADS = 16
_GIB = 1 << 30
_LIBRARIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")


def render(config: Path, listen: str, parameters: int, cohort: int) -> str:
    """The manifest for this machine's interpreter and this installation of Tacit.

    Args:
        config: the configuration's file, as it will lie on the machine with the hardware.
        listen: HOST:PORT. Local sockets do not leave an enclave.
        parameters: how many numbers a row has.
        cohort: the most clients in a round; all their rows are in memory at once.
    """
    expect(parameters >= 1, f"parameters={parameters} >= 1")
    expect(cohort >= 1, f"cohort={cohort} >= 1")
    if not listen.rpartition(":")[2].isdigit():
        raise UserError(f"Expected HOST:PORT to listen on, got {listen!r}: local sockets do not leave an enclave.")
    lines = (
        "# Written by `tacit enclave manifest` for Gramine 1.7 and SGX with DCAP. It was never run on hardware.",
        "# Next: gramine-manifest FILE enclave.manifest, gramine-sgx-sign, gramine-sgx enclave. The measurement that",
        "# gramine-sgx-sign prints (mr_enclave) belongs into the clients' policies.",
        'loader.entrypoint.uri = "file:{{ gramine.libos }}"',
        f"libos.entrypoint = {_text(_interpreter())}",
        f"loader.argv = {_texts(_arguments(config, listen))}",
        'loader.log_level = "error"',
        *(f"loader.env.{name} = {_text(value)}" for name, value in _environment().items()),
        "fs.mounts = [",
        *(f"  {mount}," for mount in _mounts(config)),
        "]",
        f'sgx.enclave_size = "{_enclave_size(parameters, cohort) // _GIB}G"',
        f"sgx.max_threads = {_THREADS}",
        "sgx.debug = false",
        'sgx.remote_attestation = "dcap"',
        "sgx.trusted_files = [",
        '  "file:{{ gramine.libos }}",',
        '  "file:{{ gramine.runtimedir() }}/",',
        *(f"  {_text(f'file:{path}')}," for path in _trusted(config)),
        "]",
        "sgx.allowed_files = []",
    )
    return "\n".join(lines) + "\n"


def _arguments(config: Path, listen: str) -> list[str]:
    serve = ["enclave", "serve", str(config.absolute()), "--listen", listen, "--journal", "/state/journal"]
    return [sys.executable, "-I", "-B", "-m", "tacit.cli", *serve]  # by this name Python finds its environment


def _environment() -> dict[str, str]:
    paths = ":".join(("/lib", *_LIBRARIES))
    return {"LD_LIBRARY_PATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HOME": "/tmp"}


def _mounts(config: Path) -> list[str]:
    plain = [f"{{ path = {_text(path)}, uri = {_text(f'file:{path}')} }}" for path in _roots(config)]
    return [
        '{ path = "/lib", uri = "file:{{ gramine.runtimedir() }}" }',
        '{ path = "/tmp", type = "tmpfs" }',
        *plain,
        '{ path = "/state", uri = "file:state", type = "encrypted", key_name = "_sgx_mrenclave" }',
    ]


def _trusted(config: Path) -> list[str]:
    """Files as they are, directories with a slash at their end."""
    return [path + "/" if os.path.isdir(path) else path for path in _roots(config)]


def _roots(config: Path) -> list[str]:
    """Everything that is loaded; what lies in another one's directory is not named again."""
    paths = sysconfig.get_paths()
    wanted = {_interpreter(), paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *_LIBRARIES}
    wanted |= {str(Path(__file__).parents[2]), str(config.absolute())}
    if sys.prefix != sys.base_prefix:  # a virtual environment, which Python knows by its pyvenv.cfg
        wanted.add(sys.prefix)
    return [path for path in sorted(wanted) if not any(path.startswith(other + "/") for other in wanted)]


def _interpreter() -> str:
    return os.path.realpath(sys.executable)


def _enclave_size(parameters: int, cohort: int) -> int:
    """A power of two: a gigabyte for the interpreter, the cohort's rows, and four vectors to work with."""
    needed = _GIB + 4 * parameters * (cohort + 4)
    return 1 << (needed - 1).bit_length()


def _text(value: str) -> str:
    return json.dumps(value)


def _texts(values: list[str]) -> str:
    return json.dumps(values)
