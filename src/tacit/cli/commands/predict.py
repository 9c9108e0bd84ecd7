"""`tacit predict`: a run's predictions for new rows of a table."""

import argparse

from tacit.cli._console import answer, note
from tacit.core import files
from tacit.runs.predict import predict_from


def run(args: argparse.Namespace) -> int:
    """Write the predictions."""
    predictions = predict_from(args.run_directory, args.table, args.model, trusted=args.trust)
    note(*(f"Note: {remark}" for remark in predictions.remarks))
    if args.out is None and not args.json:
        print(predictions.to_csv(), end="")
        return 0
    lines = [f"{predictions.rows} rows"]
    if args.out is not None:
        files.write(args.out, predictions.to_csv().encode(), parents=True, private=True)
        lines = [f"Written: {args.out}, {predictions.rows} rows"]
    document = {"rows": predictions.rows, "columns": predictions.columns, "remarks": list(predictions.remarks)}
    return answer(args, document, lines)
