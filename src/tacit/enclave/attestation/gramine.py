"""Running in Intel SGX through Gramine: quotes of the enclave that this process runs in, and the enclave's manifest.

The manifest fixes arguments and environment, passes nothing on from the host, disables debugging, measures every file
that is loaded (interpreter, libraries, Tacit, configuration), and keeps the journal in an encrypted mount whose key
only the same code can obtain. Tests render and parse it; neither part has been run on hardware yet.
"""

import json
import os
import sys
import sysconfig
from pathlib import Path

from tacit.enclave.attestation.evidence import REPORT_DATA, QuoteKind
from tacit.errors import UserError, expect, whole

_DEVICE = Path("/dev/attestation")
_THREADS = 32  # 24 connections, the one that accepts them, and a few of the libraries
_GIB = 1 << 30
_INTERPRETER = os.path.realpath(sys.executable)
_LIBRARIES = ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu")


class GramineAttestor:
    """Requests DCAP quotes from Gramine, through its pseudo-files.

    Args:
        collateral: Intel's statements about this processor, as JSON, to be sent with every quote; empty if verifiers
            fetch them themselves.
        device: the directory of Gramine's pseudo-files.
    """

    kind = QuoteKind.SGX

    def __init__(self, collateral: bytes = b"", device: Path = _DEVICE) -> None:
        if not (device / "quote").exists():
            raise UserError(
                f"Expected to run inside Gramine with remote attestation, but there is no {device / 'quote'}. "
                "Start it by gramine-sgx with the manifest of `tacit enclave manifest`, or simulate an enclave "
                "with --insecure-simulation."
            )
        self.collateral, self._device = collateral, device

    def quote(self, report_data: bytes) -> bytes:
        expect(len(report_data) == REPORT_DATA, f"{REPORT_DATA} bytes of report data, got {len(report_data)}")
        (self._device / "user_report_data").write_bytes(report_data)
        return (self._device / "quote").read_bytes()


def render_manifest(config: Path, listen: str, parameters: int, cohort: int) -> str:
    """The Gramine manifest for this machine's interpreter and this installation of Tacit.

    Args:
        config: path of the configuration on the machine with the hardware.
        listen: HOST:PORT; an enclave has no local sockets.
        parameters: length of an update.
        cohort: maximum number of clients in a round; all their updates are in memory at once.
    """
    whole(1, parameters=parameters, cohort=cohort)
    if not listen.rpartition(":")[2].isdigit():
        raise UserError(f"Expected HOST:PORT to listen on, got {listen!r}: an enclave has no local sockets.")
    lines = (
        "# Written by `tacit enclave manifest` for Gramine 1.7 and SGX with DCAP. It was never run on hardware.",
        "# Next: gramine-manifest FILE enclave.manifest, gramine-sgx-sign, gramine-sgx enclave. The measurement that",
        "# gramine-sgx-sign prints (mr_enclave) belongs in the clients' policies.",
        'loader.entrypoint.uri = "file:{{ gramine.libos }}"',
        f"libos.entrypoint = {json.dumps(_INTERPRETER)}",
        f"loader.argv = {json.dumps(_arguments(config, listen))}",
        'loader.log_level = "error"',
        *(f"loader.env.{name} = {json.dumps(value)}" for name, value in _environment().items()),
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
        *(f"  {json.dumps(f'file:{path}' + '/' * os.path.isdir(path))}," for path in _roots(config)),
        "]",
        "sgx.allowed_files = []",
    )
    return "\n".join(lines) + "\n"


def _arguments(config: Path, listen: str) -> list[str]:
    serve = ["enclave", "serve", str(config.absolute()), "--listen", listen, "--journal", "/state/journal"]
    return [sys.executable, "-I", "-B", "-m", "tacit.cli", *serve]  # by this path Python finds its virtual environment


def _environment() -> dict[str, str]:
    paths = ":".join(("/lib", *_LIBRARIES))
    return {"LD_LIBRARY_PATH": paths, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "HOME": "/tmp"}


def _mounts(config: Path) -> list[str]:
    plain = [f"{{ path = {json.dumps(path)}, uri = {json.dumps(f'file:{path}')} }}" for path in _roots(config)]
    return [
        '{ path = "/lib", uri = "file:{{ gramine.runtimedir() }}" }',
        '{ path = "/tmp", type = "tmpfs" }',
        *plain,
        '{ path = "/state", uri = "file:state", type = "encrypted", key_name = "_sgx_mrenclave" }',
    ]


def _roots(config: Path) -> list[str]:
    """Everything that is loaded; a path inside another one is omitted."""
    paths = sysconfig.get_paths()
    roots = {_INTERPRETER, paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *_LIBRARIES}
    roots |= {str(Path(__file__).parents[2]), str(config.absolute())}
    if sys.prefix != sys.base_prefix:  # a virtual environment, which Python recognises by its pyvenv.cfg
        roots.add(sys.prefix)
    return [path for path in sorted(roots) if not any(path.startswith(other + "/") for other in roots)]


def _enclave_size(parameters: int, cohort: int) -> int:
    """A power of two: 1 GiB for the interpreter, the cohort's updates, and four vectors of working memory."""
    needed = _GIB + 4 * parameters * (cohort + 4)
    return 1 << (needed - 1).bit_length()
