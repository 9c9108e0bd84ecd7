"""`tacit data convert`: write Parquet files larger than memory as a population on disk."""

import argparse
from collections.abc import Iterator
from pathlib import Path

from tacit.cli._console import answer
from tacit.data.encoding import ENCODING, Encoding
from tacit.data.parquet_population import OPTIONS, convert_parquet


def run(args: argparse.Namespace) -> int:
    """Convert, and print a summary."""
    options = {name: getattr(args, name) for name in OPTIONS}
    population = convert_parquet(args.out, args.source, target=args.target, client=args.client, **options)
    encoding = Encoding.read(Path(args.out) / ENCODING)
    document = {
        "folder": args.out,
        "clients": len(population),
        "samples": len(population.x),
        "inputs": population.x.shape[1],
        "target": args.target,
        "classes": list(encoding.known_target.classes),
        "preprocessing": encoding.preprocessing.source,
    }
    return answer(args, document, _lines(document, encoding.preprocessing.not_covered))


def _lines(summary: dict[str, object], not_covered: str) -> Iterator[str]:
    yield f"{summary['folder']}: {summary['clients']} clients, {summary['samples']} rows, {summary['inputs']} inputs."
    if not_covered:
        yield f"Not covered by any guarantee: {not_covered}"
    yield f"Next: tacit run fedavg --data {summary['folder']} --target {summary['target']}"
