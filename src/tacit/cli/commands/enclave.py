"""Aggregate in an enclave: configure and run one, write its manifest for hardware, verify its quotes.

Examples:
  tacit enclave verify quote.bin --collateral collateral.json --policy policy.toml
  tacit enclave configure fedavg --set cohort=10 --population 100 --seed 0 --out enclave.json
  tacit enclave configure fedavg --population 100 --directory keys.json --host host.pem --out enclave.json
  tacit enclave configure --plan plan.toml --trust --out enclave.json       for the sites of a federation
  tacit enclave serve enclave.json --listen enclave.sock --insecure-simulation
  tacit enclave manifest enclave.json --listen 127.0.0.1:7070 --parameters 431080 --cohort 10
"""

import argparse
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import TRUST_PLAN, add_commands, add_options, add_trust, print_json, run_command, to_dict
from tacit.core import files

if TYPE_CHECKING:
    import socket

    from tacit.core import Method
    from tacit.enclave import ChannelIdentity, Configuration, EnclaveService
    from tacit.enclave.attestation import AttestationResult, Attestor


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_commands(
        parser,
        {
            "verify": ("verify a quote off line, and explain the result", _configure_verify),
            "configure": ("write an enclave's configuration, and print its digest", _configure_configure),
            "serve": ("run the enclave of a configuration", _configure_serve),
            "manifest": ("write the Gramine manifest for SGX hardware", _configure_manifest),
        },
    )


run = run_command


def _configure_verify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("quote", type=Path, help="file with the quote")
    parser.add_argument(
        "--collateral", type=Path, help="file with the vendor's statements about the processor, as JSON"
    )
    parser.add_argument("--policy", type=Path, required=True, help="file with the attestation policy, as TOML")
    parser.add_argument(
        "--at",
        type=_time,
        metavar="TIME",
        help="time of verification, such as 2025-07-01T12:00:00Z, for stored quotes; default: now",
    )
    parser.add_argument(
        "--report-data", type=_hex, metavar="HEX", help="the 64 bytes of report data that the quote must contain"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_verify)


def _configure_configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "method", nargs="?", help="name of a method; if its channel is not Enclave, it is replaced by Enclave()"
    )
    parser.add_argument(
        "--plan",
        type=Path,
        metavar="PLAN.toml",
        help="the plan of a federation, instead of all that follows: its method, its sites, and its server as the host",
    )
    add_trust(parser, f"with --plan: {TRUST_PLAN}")
    add_options(parser, "--set", "method")
    parser.add_argument("--population", type=int, help="number of clients")
    parser.add_argument(
        "--directory", type=Path, help="file with the clients' Ed25519 public keys, as JSON: client number to hex"
    )
    parser.add_argument(
        "--host", type=Path, help="file with the certificate of the host, which alone can reach the enclave's socket"
    )
    parser.add_argument(
        "--parameters", type=int, metavar="N", help="maximum length of an update and of the model; default: 2^26"
    )
    parser.add_argument(
        "--memory",
        type=Path,
        help="safetensors file with what the mechanism knows before the first round, such as a public clipping bound",
    )
    parser.add_argument(
        "--seed", type=int, help="for simulations: noise and identities follow from this seed, so they are not secret"
    )
    parser.add_argument("--out", type=Path, required=True, help="file to write the configuration to")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_configure)


def _configure_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="file with the configuration; - reads standard input")
    address = parser.add_mutually_exclusive_group(required=True)
    address.add_argument("--listen", metavar="ADDRESS", help="HOST:PORT, or the path of a local socket")
    address.add_argument(
        "--descriptor", type=int, metavar="N", help="file descriptor of an inherited, connected socket"
    )
    parser.add_argument("--journal", type=Path, help="file for the log of releases; on hardware, in an encrypted mount")
    parser.add_argument("--collateral", type=Path, help="file with the vendor's statements, sent with every quote")
    parser.add_argument(
        "--insecure-simulation", action="store_true", help="run without hardware and without isolation, for tests only"
    )
    parser.set_defaults(do=_serve)


def _configure_manifest(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", type=Path, help="file with the configuration; the manifest measures it")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="address of the enclave")
    parser.add_argument("--parameters", type=int, required=True, help="length of an update")
    parser.add_argument("--cohort", type=int, required=True, help="maximum number of clients in a round")
    parser.add_argument("--out", type=Path, help="file to write the manifest to; default: standard output")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(do=_manifest)


def _verify(args: argparse.Namespace) -> int:
    """Exit code 0 if the quote is accepted, 1 if not."""
    from tacit.enclave.attestation import AttestationPolicy, quote_kind, verify_quote

    quote = files.read(args.quote, "the quote")
    collateral = files.read(args.collateral, "the collateral") if args.collateral else b""
    now = args.at if args.at is not None else int(datetime.now(UTC).timestamp())
    policy = AttestationPolicy.load(args.policy)
    result = verify_quote(quote_kind(quote), quote, collateral, policy, now, args.report_data)
    if args.json:
        print_json(_table(result))
    else:
        print("\n".join(result.lines()))
    return 0 if result.accepted else 1


def _configure(args: argparse.Namespace) -> int:
    from tacit import methods
    from tacit.errors import expect

    if args.plan is not None:
        return _configure_plan(args)
    expect(args.method is not None and args.population is not None, "a method and --population, or --plan")
    methods.check(args.method, to_dict(args.set))  # before PyTorch is imported

    method = methods.make(args.method, to_dict(args.set))
    configuration = _configuration(args, method)
    return _write(args, configuration, {"caveat": _simulated()} if configuration.seed is not None else {})


def _configure_plan(args: argparse.Namespace) -> int:
    """The configuration for a plan's method, sites and server, whose key as the enclave's host is made if missing."""
    from tacit.enclave.attestation import code_measurement
    from tacit.errors import expect
    from tacit.federation.channels.enclave import enclave_of, new_configuration
    from tacit.federation.plan.plan import read_plan

    given = [name for name in _NOT_OF_A_PLAN if getattr(args, name)]
    expect(not given, f"--plan alone, got also {', '.join(given)}", "The plan decides: change it instead.")
    plan = read_plan(args.plan, configured=False, trusted=args.trust)
    expect(
        plan.arrangement is not None, f"a table [enclave] in {args.plan}", 'Add it, with address = "127.0.0.1:7070".'
    )
    plan.check_trusted(args.plan)
    configuration = new_configuration(plan)
    simulated = {"measurement": code_measurement(), "caveat": _simulated()} if enclave_of(plan).simulated else {}
    return _write(args, configuration, simulated)


_NOT_OF_A_PLAN = ("method", "set", "population", "directory", "host", "parameters", "memory", "seed")


def _write(args: argparse.Namespace, configuration: "Configuration", more: dict[str, str]) -> int:
    files.write(args.out, configuration.to_bytes())
    if args.json:
        print_json({"configuration": str(args.out), "digest": configuration.digest.hex(), **more})
        return 0
    lines = [f"configuration  {args.out}", f"digest         {configuration.digest.hex()}"]
    print(*lines, *(f"{name:13}  {text}" if name != "caveat" else text for name, text in more.items()), sep="\n")
    return 0


def _serve(args: argparse.Namespace) -> int:
    """Serve until the inherited connection ends, or until a signal."""
    import torch

    from tacit.enclave import ChannelIdentity, Configuration, Journal
    from tacit.enclave.attestation import NO_CHANNEL
    from tacit.errors import expect
    from tacit.pieces.channels import enclave_service
    from tacit.runs.expressions import build

    torch.set_num_threads(1)  # so that sums are bitwise those of a simulation
    data = sys.stdin.buffer.read() if args.config == "-" else files.read(Path(args.config), "the configuration")
    configuration = Configuration.from_bytes(data)
    expect(
        args.insecure_simulation or configuration.seed is None,
        "a configuration without a seed: a seed makes the noise public",
    )
    expect(
        args.listen is None or bool(configuration.host),
        "a configuration with the host's certificate",
        "Without it, anyone could reach the socket: configure the enclave with --host.",
    )
    expect(
        args.insecure_simulation or args.journal is not None,
        "--journal",
        "Without it, a restart would forget what was released and charged.",
    )
    journal = Journal(args.journal) if args.journal else None
    identity = ChannelIdentity.fresh()
    channel = NO_CHANNEL if args.listen is None else identity.digest
    service = enclave_service(configuration, build(configuration.method), _attestor(args), journal, channel)
    if args.insecure_simulation:
        print(f"tacit: {_simulated()}", file=sys.stderr, flush=True)
    if args.descriptor is not None:
        import socket

        from tacit.enclave import serve

        serve(socket.socket(fileno=args.descriptor), service.answer, service.max_frame)
        return 0
    return _listen(args, configuration, service, identity)


def _manifest(args: argparse.Namespace) -> int:
    from tacit.enclave.attestation import render_manifest

    text = render_manifest(args.config, args.listen, args.parameters, args.cohort)
    if args.out is not None:
        files.write(args.out, text.encode())
    if args.json:
        print_json({"manifest": text, "file": None if args.out is None else str(args.out)})
        return 0
    if args.out is None:
        print(text, end="")
        return 0
    print(f"manifest  {args.out}\nIt was never run on hardware. Sign it with gramine-manifest and gramine-sgx-sign.")
    return 0


def _configuration(args: argparse.Namespace, method: "Method") -> "Configuration":
    import secrets

    from tacit.enclave import PARAMETERS, Configuration, read_directory, simulated_configuration
    from tacit.errors import expect
    from tacit.pieces.channels import Enclave

    method = method if isinstance(method.channel, Enclave) else replace(method, channel=Enclave())
    if method.unsized:
        from tacit.privacy.charging import calibrate

        method = calibrate(method, args.population)
    parameters = PARAMETERS if args.parameters is None else args.parameters
    expect((args.seed is None) != (args.directory is None), "either --directory or --seed")
    if args.seed is not None:
        return replace(simulated_configuration(method, args.population, args.seed), parameters=parameters)
    return Configuration(
        run=secrets.token_bytes(16),
        method=repr(method),
        population=args.population,
        directory=read_directory(files.read(args.directory, "the directory"), str(args.directory)),
        rounds=method.rounds,
        parameters=parameters,
        memory=_memory(args.memory),
        host=_host(args.host),
    )


def _memory(path: Path | None) -> bytes:
    """The digest of the mechanism's memory in a file."""
    from tacit.enclave import NO_MEMORY, memory_digest
    from tacit.enclave.enclave_messages import read_memory
    from tacit.wire.packing import Reader, pack_chunk

    if path is None:
        return NO_MEMORY
    return memory_digest(read_memory(Reader(pack_chunk(files.read(path, "the mechanism's memory")))))


def _host(path: Path | None) -> bytes:
    """The host's certificate in a file."""
    from tacit.enclave.secure_channel import read_certificate
    from tacit.errors import ProtocolError, UserError

    if path is None:
        return b""
    try:
        return read_certificate(files.read(path, "the host's certificate"))
    except ProtocolError as error:
        raise UserError(f"{path}: {error}") from error


def _attestor(args: argparse.Namespace) -> "Attestor":
    from tacit.enclave.attestation import GramineAttestor, SimulatedAttestor

    if args.insecure_simulation:
        return SimulatedAttestor(insecure=True)
    return GramineAttestor(files.read(args.collateral, "the collateral") if args.collateral else b"")


def _listen(
    args: argparse.Namespace, configuration: "Configuration", service: "EnclaveService", identity: "ChannelIdentity"
) -> int:
    import signal
    import threading

    from tacit.enclave import EnclaveServer, enclave_context

    context = enclave_context(identity, configuration.host)
    server = EnclaveServer(_listener(args.listen), service.answer, context, limit=service.max_frame)
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: server.close())
    print(f"listening on   {args.listen}\nconfiguration  {configuration.digest.hex()}", flush=True)
    print(f"certificate    {identity.digest.hex()}", flush=True)
    if args.insecure_simulation:
        print(_simulated(), flush=True)
    server.serve_forever()
    return 0


def _listener(address: str) -> "socket.socket":
    import os
    import socket

    from tacit.enclave.connection import socket_address
    from tacit.errors import UserError

    found = socket_address(address)
    try:
        if not isinstance(found, str):
            return socket.create_server(found)
        listener = socket.socket(socket.AF_UNIX)
        _remove_abandoned(address)
        listener.bind(address)  # nobody can connect before `listen`
        os.chmod(address, 0o600)
        listener.listen()
        return listener
    except OSError as error:
        raise UserError(f"Could not listen on {address}: {error.strerror}. Choose another address.") from error


def _remove_abandoned(address: str) -> None:
    """Remove the local socket that a killed process left behind; one that answers stays."""
    import socket
    from contextlib import suppress

    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(address)
        except ConnectionRefusedError:
            with suppress(FileNotFoundError):
                Path(address).unlink()
        except OSError:  # there is none, or it is something else, which `bind` reports
            return


def _table(result: "AttestationResult") -> dict[str, object]:
    from tacit.enclave.attestation import QuoteKind

    claims = result.claims and {
        **asdict(result.claims),
        "kind": result.claims.kind.label,
        "report_data": result.claims.report_data.hex(),
    }
    table = {
        "accepted": result.accepted,
        "violations": result.violations,
        "claims": claims,
        "report_data_compared": result.compared,
    }
    return {**table, "caveat": _simulated()} if result.kind is QuoteKind.SIMULATION else table


def _simulated() -> str:
    from tacit.enclave.attestation import SIMULATED

    return SIMULATED


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
