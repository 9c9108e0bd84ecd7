"""Aggregate in an enclave: configure and serve one, write its manifest for hardware, verify its quotes.

Examples:
  tacit enclave verify quote.bin --collateral collateral.json --policy policy.toml
  tacit enclave configure fedavg --set cohort=10 --population 100 --seed 0 --out enclave.json
  tacit enclave serve enclave.json --listen enclave.sock --insecure-simulation
  tacit enclave manifest enclave.json --listen 127.0.0.1:7070 --parameters 431080 --cohort 10
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, to_dict

if TYPE_CHECKING:
    import socket

    from tacit.core import Method
    from tacit.protocols.attestation import Attestor, Verdict
    from tacit.protocols.enclave import Configuration, EnclaveService


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    verbs = parser.add_subparsers(title="what to do", metavar="WHAT", required=True)
    _configure_verify(verbs.add_parser("verify", help="verify a quote off line, and say in words what it means"))
    _configure_configure(verbs.add_parser("configure", help="write what an enclave shall do, and print its digest"))
    _configure_serve(verbs.add_parser("serve", help="run the aggregator of a configuration as a process of its own"))
    _configure_manifest(verbs.add_parser("manifest", help="write the Gramine manifest for SGX hardware"))


def run(args: argparse.Namespace) -> int:
    """Do it."""
    return int(args.do(args))


def _configure_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("quote", type=Path, help="the quote, as the processor's software wrote it")
    parser.add_argument("--collateral", type=Path, help="the vendor's statements about the processor, as JSON")
    parser.add_argument("--policy", type=Path, required=True, help="what is allowed, as TOML")
    parser.add_argument(
        "--at", type=_time, metavar="TIME", help="for stored quotes: 2025-07-01T12:00:00Z; default: now"
    )
    parser.add_argument("--report-data", type=_hex, metavar="HEX", help="the 64 bytes that the quote must bind")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_verify)


def _configure_configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="a method's name; without an enclave of its own it gets one with usual settings")
    add_options(parser, "--set", "method")
    parser.add_argument("--population", type=int, required=True, help="how many clients there are")
    parser.add_argument("--directory", type=Path, help="the clients' Ed25519 public keys, as JSON: number to hex")
    parser.add_argument(
        "--seed", type=int, help="simulate: noise and identities come from this seed, and are no secret"
    )
    parser.add_argument("--out", type=Path, required=True, help="where to write the configuration")
    parser.set_defaults(do=_configure)


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="the configuration's file; - reads it from standard input")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--listen", metavar="ADDRESS", help="HOST:PORT, or the path of a local socket")
    where.add_argument("--descriptor", type=int, metavar="N", help="a connected socket that was inherited")
    parser.add_argument("--journal", type=Path, help="where to keep what was let out; on hardware, an encrypted mount")
    parser.add_argument("--collateral", type=Path, help="to be handed on with every quote")
    parser.add_argument(
        "--insecure-simulation", action="store_true", help="without hardware and without isolation, for tests"
    )
    parser.set_defaults(do=_serve)


def _configure_manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="the configuration's file, which becomes a measured file")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="where the enclave will listen")
    parser.add_argument("--parameters", type=int, required=True, help="how many numbers a row has")
    parser.add_argument("--cohort", type=int, required=True, help="the most clients in a round")
    parser.add_argument("--out", type=Path, help="where to write the manifest; default: standard output")
    parser.set_defaults(do=_manifest)


def _verify(args: argparse.Namespace) -> int:
    """0 if the quote is accepted, 1 if not."""
    from tacit.protocols.attestation import Policy, judge, kind_of

    quote = _read(args.quote, "quote")
    collateral = _read(args.collateral, "collateral") if args.collateral else b""
    now = args.at if args.at is not None else int(datetime.now(UTC).timestamp())
    verdict = judge(kind_of(quote), quote, collateral, Policy.load(args.policy), now, args.report_data)
    print(json.dumps(_table(verdict), indent=2) if args.json else "\n".join(verdict.lines()))
    return 0 if verdict.accepted else 1


def _configure(args: argparse.Namespace) -> int:
    """Write a configuration; its digest is what clients compare."""
    from tacit import methods

    methods.check(args.method, to_dict(args.set))  # before PyTorch is imported

    from tacit.core import files

    method = methods.make(args.method, to_dict(args.set))
    configuration = _configuration(args, method)
    files.write(args.out, configuration.to_bytes())
    print(f"configuration  {args.out}\ndigest         {configuration.digest.hex()}")
    if configuration.seed is not None:
        print(_simulated())
    return 0


def _serve(args: argparse.Namespace) -> int:
    """Serve until the host says that it is over."""
    import torch

    from tacit.errors import expect
    from tacit.pieces.channels import enclave_service
    from tacit.protocols.enclave import Configuration, Journal
    from tacit.runs.expressions import build

    torch.set_num_threads(1)  # sums then come out as everywhere else
    data = sys.stdin.buffer.read() if args.config == "-" else _read(Path(args.config), "configuration")
    configuration = Configuration.from_bytes(data)
    expect(
        args.insecure_simulation or configuration.seed is None, "a configuration without a seed: it gives noise away"
    )
    journal = Journal(args.journal) if args.journal else None
    keeper = enclave_service(configuration, build(configuration.method), _attestor(args), journal)
    if args.insecure_simulation:
        print(
            f"tacit: {_simulated()}: this process isolates nothing from whoever runs it.", file=sys.stderr, flush=True
        )
    if args.descriptor is not None:
        import socket

        from tacit.protocols.enclave import serve

        serve(socket.socket(fileno=args.descriptor), keeper.answer)
        return 0
    return _listen(args, configuration, keeper)


def _manifest(args: argparse.Namespace) -> int:
    """Write the manifest."""
    from tacit.core import files
    from tacit.protocols.enclave.manifest import render

    text = render(args.config, args.listen, args.parameters, args.cohort)
    if args.out is None:
        print(text, end="")
        return 0
    files.write(args.out, text.encode())
    print(f"manifest  {args.out}\nIt was never run on hardware. Sign it with gramine-manifest and gramine-sgx-sign.")
    return 0


def _configuration(args: argparse.Namespace, method: "Method") -> "Configuration":
    import secrets

    from tacit.errors import UserError, expect
    from tacit.pieces.channels import Enclave
    from tacit.protocols.enclave import Configuration, simulated

    method = method if isinstance(method.channel, Enclave) else replace(method, channel=Enclave())
    expect((args.seed is None) != (args.directory is None), "either --directory or --seed")
    if args.seed is not None:
        return simulated(method, args.population, args.seed)
    try:
        table = json.loads(_read(args.directory, "directory"))
        directory = {int(client): bytes.fromhex(key) for client, key in table.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"Expected a JSON table of clients' numbers and keys in hex in {args.directory}.") from error
    return Configuration(
        run=secrets.token_bytes(16), method=repr(method), population=args.population, directory=directory
    )


def _attestor(args: argparse.Namespace) -> "Attestor":
    from tacit.protocols.attestation import GramineAttestor, SimulationAttestor

    if args.insecure_simulation:
        return SimulationAttestor(insecure=True)
    return GramineAttestor(_read(args.collateral, "collateral") if args.collateral else b"")


def _listen(args: argparse.Namespace, configuration: "Configuration", keeper: "EnclaveService") -> int:
    from tacit.protocols.enclave import serve

    with _listener(args.listen) as listener:
        print(f"listening on   {args.listen}\nconfiguration  {configuration.digest.hex()}", flush=True)
        if args.insecure_simulation:
            print(_simulated(), flush=True)
        while True:
            connection, _ = listener.accept()
            if serve(connection, keeper.answer):
                return 0


def _listener(address: str) -> "socket.socket":
    import os
    import socket

    from tacit.errors import UserError

    host, colon, port = address.rpartition(":")
    try:
        if colon and port.isdigit():
            return socket.create_server((host, int(port)))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(address)
        os.chmod(address, 0o600)
        listener.listen()
        return listener
    except OSError as error:
        raise UserError(f"Could not listen on {address}: {error.strerror}. Choose another address.") from error


def _table(verdict: "Verdict") -> dict[str, object]:
    claims = verdict.claims and {
        **asdict(verdict.claims),
        "kind": verdict.claims.kind.label,
        "report_data": verdict.claims.report_data.hex(),
    }
    found = {"accepted": verdict.accepted, "against": verdict.against, "claims": claims, "bound": verdict.bound}
    return {**found, "caveat": _simulated()} if verdict.kind.label.startswith("SIM") else found


def _simulated() -> str:
    from tacit.protocols.attestation import SIMULATED

    return SIMULATED


def _read(path: Path, what: str) -> bytes:
    from tacit.errors import UserError

    try:
        return path.read_bytes()
    except OSError as error:
        raise UserError(f"Could not read the {what} {path}: {error.strerror}.") from error


def _time(text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a time like 2025-07-01T12:00:00Z, got {text!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected bytes in hex, got {text!r}") from None
