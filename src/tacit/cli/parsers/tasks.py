"""List the tasks that methods can be run on, or describe one with its options.

Examples:
  tacit tasks                          all tasks, and whether their data are present
  tacit tasks table                    the options of a task, for --task-set
  tacit run fedavg --task digits --task-set partition=shards clients=50
"""

import argparse

from tacit.cli.parsers._options import does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="a task's name")
    does(parser, "tasks:run")
