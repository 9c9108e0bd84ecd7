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
from datetime import UTC, datetime
from pathlib import Path

from tacit.cli.parsers._options import TRUST_PLAN, add_commands, add_options, add_trust, does, reader


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _verify, _configure, _serve, _manifest)


def _verify(parser: argparse.ArgumentParser) -> None:
    """Verify a quote offline, and explain the result."""
    add = parser.add_argument
    add("quote", type=Path, help="file with the quote")
    add("--collateral", type=Path, help="file with the vendor's statements about the processor, as JSON")
    add("--policy", type=Path, required=True, help="file with the attestation policy, as TOML")
    add(
        "--at",
        type=reader(_time, "a time like 2025-07-01T12:00:00Z"),
        metavar="TIME",
        help="time of verification, such as 2025-07-01T12:00:00Z, for stored quotes; default: now",
    )
    add(
        "--report-data",
        type=reader(bytes.fromhex, "bytes in hex"),
        metavar="HEX",
        help="the 64 bytes of report data that the quote must contain",
    )
    does(parser, "enclave:verify")


def _configure(parser: argparse.ArgumentParser) -> None:
    """Write an enclave's configuration, and print its digest."""
    add = parser.add_argument
    add("method", nargs="?", help="name of a method; if its channel is not Enclave, it is replaced by Enclave()")
    add(
        "--plan",
        type=Path,
        metavar="PLAN.toml",
        help="the plan of a federation, instead of all that follows: its method, its sites, and its server as the host",
    )
    add_trust(parser, f"with --plan: {TRUST_PLAN}")
    add_options(parser, "--set", "method")
    add("--population", type=int, help="number of clients")
    add("--directory", type=Path, help="file with the clients' Ed25519 public keys, as JSON: client number to hex")
    add("--host", type=Path, help="file with the certificate of the host, which alone can reach the enclave's socket")
    add("--parameters", type=int, metavar="N", help="maximum length of an update and of the model; default: 2^26")
    add(
        "--memory",
        type=Path,
        help="safetensors file with what the mechanism knows before the first round, such as a public clipping bound",
    )
    add("--seed", type=int, help="for simulations: noise and identities follow from this seed, so they are not secret")
    add("--out", type=Path, required=True, help="file to write the configuration to")
    does(parser, "names:enclave_method", "enclave:configure")


def _serve(parser: argparse.ArgumentParser) -> None:
    """Run the enclave of a configuration."""
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
    does(parser, "enclave:serve", json=False)


def _manifest(parser: argparse.ArgumentParser) -> None:
    """Write the Gramine manifest for SGX hardware."""
    parser.add_argument("config", type=Path, help="file with the configuration; the manifest measures it")
    parser.add_argument("--listen", metavar="HOST:PORT", required=True, help="address of the enclave")
    parser.add_argument("--parameters", type=int, required=True, help="length of an update")
    parser.add_argument("--cohort", type=int, required=True, help="maximum number of clients in a round")
    parser.add_argument("--out", type=Path, help="file to write the manifest to; default: standard output")
    does(parser, "enclave:manifest")


def _time(text: str) -> int:
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
