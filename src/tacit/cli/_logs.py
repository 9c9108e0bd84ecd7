"""The option `--log`, and the logs that it names."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tacit.runs.round_logs import RoundLog

LOGS = ("tensorboard", "mlflow")


def add_logs(parser: argparse.ArgumentParser) -> None:
    """Declare the flag, which may be repeated; `find_logs` are the logs that it names."""
    parser.add_argument(
        "--log",
        action="append",
        default=[],
        choices=LOGS,
        help="also write every round for TensorBoard or MLflow; may be repeated",
    )


def find_logs(names: Sequence[str]) -> "list[RoundLog]":
    """The logs with these names, each once."""
    if not names:
        return []
    from tacit.report.mlflow_log import MlflowLog
    from tacit.report.tensorboard_log import TensorBoardLog

    known: dict[str, type[RoundLog]] = {"tensorboard": TensorBoardLog, "mlflow": MlflowLog}
    return [known[name]() for name in dict.fromkeys(names)]
