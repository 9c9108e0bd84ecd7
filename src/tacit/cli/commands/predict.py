"""`tacit predict`: what the model of a run says of new rows of a table."""

import argparse

from tacit.cli._console import answer, note
from tacit.core import files
from tacit.runs.predict import predict_from


def run(args: argparse.Namespace) -> int:
    """Write the predictions."""
    found = predict_from(args.run_directory, args.table, args.model, trusted=args.trust)
    note(*(f"Note: {remark}" for remark in found.remarks))
    shown = found.to_csv().removesuffix("\n").split("\n")
    if args.out is not None:
        files.write(args.out, found.to_csv().encode(), parents=True, private=True)
        shown = [f"Written: {args.out}, {found.rows} rows"]
    document = {"rows": found.rows, "columns": found.columns, "remarks": list(found.remarks)}
    return answer(args, document, shown)
