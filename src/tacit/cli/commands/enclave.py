"""`tacit enclave`: configure and run an enclave, write its manifest for hardware, verify its quotes."""

import argparse
import secrets
import socket
import sys
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from tacit import methods
from tacit.cli._console import answer
from tacit.core import Method, files
from tacit.core.code_digest import code_measurement
from tacit.core.prices import ClientUnits
from tacit.enclave.attestation.evidence import NO_CHANNEL, QuoteKind
from tacit.enclave.attestation.gramine import GramineAttestor, render_manifest
from tacit.enclave.attestation.simulated_quotes import SIMULATED, SimulatedAttestor
from tacit.enclave.attestation.verification import (
    AttestationPolicy,
    AttestationResult,
    Attestor,
    quote_kind,
    verify_quote,
)
from tacit.enclave.configuration import NO_MEMORY, PARAMETERS, Configuration, Journal, read_directory
from tacit.enclave.connection import EnclaveServer, listener
from tacit.enclave.connection import serve as serve_connection
from tacit.enclave.enclave_messages import memory_digest, read_memory
from tacit.enclave.secure_channel import ChannelIdentity, enclave_context, read_certificate
from tacit.enclave.simulated_enclave import simulated_configuration
from tacit.errors import ProtocolError, UserError, expect
from tacit.federation.channels.enclave import enclave_of, new_configuration
from tacit.federation.plan.plan import read_plan
from tacit.pieces.channels import Enclave, enclave_service
from tacit.privacy.planned_charges import calibrate
from tacit.wire.packing import Reader, pack_chunk


def verify(args: argparse.Namespace) -> int:
    """Exit code 0 if the quote is accepted, 1 if not."""
    quote = files.read(args.quote, "the quote")
    collateral = files.read(args.collateral, "the collateral") if args.collateral else b""
    now = args.at if args.at is not None else int(datetime.now(UTC).timestamp())
    policy = AttestationPolicy.load(args.policy)
    result = verify_quote(quote_kind(quote), quote, collateral, policy, now, args.report_data)
    answer(args, _table(result), result.lines())
    return 0 if result.accepted else 1


def configure(args: argparse.Namespace) -> int:
    """Write the configuration for a method, or for a plan."""
    if args.plan is not None:
        return _configure_plan(args)
    method = methods.make(args.method, dict(args.set))
    configuration = _configuration(args, method)
    return _write(args, configuration, {"caveat": SIMULATED} if configuration.seed is not None else {})


def _configure_plan(args: argparse.Namespace) -> int:
    """Write the configuration for a plan; creates the server's key as the enclave's host if it is missing."""
    conflicts = [name for name in _NOT_OF_A_PLAN if getattr(args, name)]
    expect(not conflicts, f"--plan alone, got also {', '.join(conflicts)}", "The plan decides: change it instead.")
    plan = read_plan(args.plan, configured=False, trusted=args.trust)
    expect(
        plan.arrangement is not None, f"a table [enclave] in {args.plan}", 'Add it, with address = "127.0.0.1:7070".'
    )
    plan.check_trusted(args.plan)
    configuration = new_configuration(plan)
    simulated = {"measurement": code_measurement(), "caveat": SIMULATED} if enclave_of(plan).simulated else {}
    return _write(args, configuration, simulated)


_NOT_OF_A_PLAN = ("method", "set", "population", "directory", "host", "parameters", "memory", "seed")


def _write(args: argparse.Namespace, configuration: Configuration, more: dict[str, str]) -> int:
    files.write(args.out, configuration.to_bytes())
    document = {"configuration": str(args.out), "digest": configuration.digest.hex(), **more}
    lines = (text if name == "caveat" else f"{name:13}  {text}" for name, text in document.items())
    return answer(args, document, lines)


def serve(args: argparse.Namespace) -> int:
    """Serve until the inherited connection ends, or until a signal."""
    torch.set_num_threads(1)  # so that sums equal a simulation's bitwise
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
    if journal is not None and journal.cut:
        print(
            f"tacit: The last line of {journal.path} was cut off, as by a crash, and is left out: nothing was released "
            "for it.",
            file=sys.stderr,
            flush=True,
        )
    identity = ChannelIdentity.fresh()
    channel = NO_CHANNEL if args.listen is None else identity.digest
    method = Method.from_canonical(configuration.method)
    service = enclave_service(configuration, method, _attestor(args), journal, channel)
    if args.insecure_simulation:
        print(f"tacit: {SIMULATED}", file=sys.stderr, flush=True)
    if args.descriptor is not None:
        serve_connection(socket.socket(fileno=args.descriptor), service.answer, service.max_frame)
        return 0
    context = enclave_context(identity, configuration.host)
    server = EnclaveServer(listener(args.listen), service.answer, context, limit=service.max_frame)
    print(f"listening on   {args.listen}\nconfiguration  {configuration.digest.hex()}", flush=True)
    print(f"certificate    {identity.digest.hex()}", flush=True)
    if args.insecure_simulation:
        print(SIMULATED, flush=True)
    server.serve_until_signalled()
    return 0


def manifest(args: argparse.Namespace) -> int:
    """Write the manifest, or print it."""
    text = render_manifest(args.config, args.listen, args.parameters, args.cohort)
    if args.out is not None:
        files.write(args.out, text.encode())
    document = {"manifest": text, "file": None if args.out is None else str(args.out)}
    written = [
        f"manifest  {args.out}",
        "It was never run on hardware. Sign it with gramine-manifest and gramine-sgx-sign.",
    ]
    return answer(args, document, text.splitlines() if args.out is None else written)


def _configuration(args: argparse.Namespace, method: Method) -> Configuration:
    method = method if isinstance(method.channel, Enclave) else replace(method, channel=Enclave())
    if method.terms.uncalibrated:
        method = calibrate(method, ClientUnits.whole(args.population))
    parameters = PARAMETERS if args.parameters is None else args.parameters
    expect((args.seed is None) != (args.directory is None), "either --directory or --seed")
    if args.seed is not None:
        return replace(simulated_configuration(method, args.population, args.seed), parameters=parameters)
    return Configuration(
        run=secrets.token_bytes(16),
        method=method.canonical,
        population=args.population,
        directory=read_directory(files.read(args.directory, "the directory"), str(args.directory)),
        rounds=method.rounds,
        parameters=parameters,
        memory=_memory(args.memory),
        host=_host(args.host),
    )


def _memory(path: Path | None) -> bytes:
    """The digest of the mechanism's memory in a file."""
    if path is None:
        return NO_MEMORY
    return memory_digest(read_memory(Reader(pack_chunk(files.read(path, "the mechanism's memory")))))


def _host(path: Path | None) -> bytes:
    """The host's certificate in a file."""
    if path is None:
        return b""
    try:
        return read_certificate(files.read(path, "the host's certificate"))
    except ProtocolError as error:
        raise UserError(f"{path}: {error}") from error


def _attestor(args: argparse.Namespace) -> Attestor:
    if args.insecure_simulation:
        return SimulatedAttestor(insecure=True)
    return GramineAttestor(files.read(args.collateral, "the collateral") if args.collateral else b"")


def _table(result: AttestationResult) -> dict[str, object]:
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
    return {**table, "caveat": SIMULATED} if result.kind is QuoteKind.SIMULATION else table
