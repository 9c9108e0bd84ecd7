"""Predict rows of a new table with the model of a run: probabilities of the classes, or values.

Only the run's directory is needed. The table has the input columns, with or without the target; missing values and
unknown categories are treated as in training. Other columns, such as ids, are passed through. Predictions are CSV, on
standard output or in a file.

Examples:
  tacit predict runs/private new.csv                          print the predictions
  tacit predict runs/private new.csv --out predictions.csv
  tacit predict runs/private new.parquet --json               needs pip install 'tacit-fl[data]'
  tacit predict runs/ifca-table-0 new.csv --model 1           of a run that trained several models
  tacit predict runs/mine new.csv --trust                     of a task in your own Python file
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_trust, does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="the directory of a finished run on a table")
    parser.add_argument("table", type=Path, metavar="TABLE", help="a CSV or Parquet file with new rows")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the CSV file (default: standard output)")
    parser.add_argument("--model", type=int, metavar="N", help="which model, from 0, if the run trained several")
    add_trust(parser)
    does(parser, "predict:run")
