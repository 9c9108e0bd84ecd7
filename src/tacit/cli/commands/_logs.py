"""The logs that `--log` and `tacit export --to` name."""

from collections.abc import Sequence

from tacit.report.mlflow_log import MlflowLog
from tacit.report.tensorboard_log import TensorBoardLog
from tacit.runs.round_logs import RoundLog

KNOWN_LOGS: dict[str, type[RoundLog]] = {TensorBoardLog.option: TensorBoardLog, MlflowLog.option: MlflowLog}


def find_logs(names: Sequence[str]) -> list[RoundLog]:
    """The logs with these names, each once."""
    return [KNOWN_LOGS[name]() for name in dict.fromkeys(names)]
