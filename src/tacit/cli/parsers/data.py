"""List, download and verify the data sets of the tasks, and convert Parquet files larger than memory.

Files are looked up in $TACIT_DATA, then in the cache folder (~/.cache/tacit), each as <data set>/<file>. Downloads are
stored in $TACIT_DATA if it is set, else in the cache folder. A file is used only if the checksum of its content is
correct. The tasks `digits` and `synthetic` need no files.

Examples:
  tacit data list                      all tasks and data sets, and which files are present
  tacit data list --json               the same as one JSON document
  tacit data fetch mnist               download the missing files of a data set
  tacit data fetch mnist-writers       the same for all data sets of a task
  tacit data verify                    verify the checksums of all present files
  TACIT_DATA=/data tacit data verify fashion-mnist
  tacit data look hospitals/ --target died --patient patient --draft encoding.toml
                                       every column, all doubts together, and a draft of its encoding
  tacit data convert visits/ --client patient --target died --out clients
                                       then: tacit run fedavg --data clients --target died
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_commands, does


def configure(parser: argparse.ArgumentParser) -> None:
    add_commands(parser, _list, _fetch, _verify, _look, _convert)


def _list(parser: argparse.ArgumentParser) -> None:
    """List tasks and data sets, and which files are present."""
    does(parser, "data:show")


def _fetch(parser: argparse.ArgumentParser) -> None:
    """Download missing files."""
    parser.add_argument("names", nargs="+", metavar="NAME", help="a data set or a task")
    does(parser, "data:fetch")


def _verify(parser: argparse.ArgumentParser) -> None:
    """Verify checksums."""
    parser.add_argument("names", nargs="*", metavar="NAME", help="a data set or a task (default: all present files)")
    does(parser, "data:verify")


def _look(parser: argparse.ArgumentParser) -> None:
    """Look at every column of a table: what it is taken for, and what is doubtful."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV or Parquet files, or folders of them")
    parser.add_argument("--client", metavar="COLUMN", help="the column of the client; none: every file is one")
    parser.add_argument("--target", metavar="COLUMN", help="the column to predict")
    parser.add_argument("--person", "--patient", metavar="COLUMN", help="the column of person ids")
    parser.add_argument("--draft", metavar="FILE.toml", type=Path, help="write a draft of the encoding")
    does(parser, "look:run")


def _convert(parser: argparse.ArgumentParser) -> None:
    """Write Parquet files as a population on disk, in bounded memory."""
    parser.add_argument("source", metavar="PATH", help="a Parquet file, or a folder of them (also hospital=3/...)")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="the new folder")
    parser.add_argument("--target", metavar="COLUMN", required=True, help="the column to predict")
    parser.add_argument("--client", metavar="COLUMN", help="the column of the client; none: every file is one")
    parser.add_argument(
        "--person", "--patient", metavar="COLUMN", help="the column of person ids: persons are protected"
    )
    parser.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns to leave out, such as names")
    parser.add_argument("--categories", metavar="COLUMN", nargs="+", default=[], help="numbers that are categories")
    parser.add_argument("--encoding", metavar="FILE", help="a TOML file that declares minima, maxima and categories")
    parser.add_argument("--public", metavar="FILE", help="public rows, whose minima, maxima and categories are used")
    parser.add_argument(
        "--kind", choices=("auto", "classes", "number"), default="auto", help="kind of the target (default: auto)"
    )
    parser.add_argument("--classes", metavar="VALUE", nargs="+", default=[], help="the values of the target")
    does(parser, "convert:run")
