"""A run in MLflow: a run of an experiment, with the settings as parameters and a step of metrics per round.

`MLFLOW_TRACKING_URI`, or MLflow's default, decides where it is stored. MLflow's own telemetry is switched off.
"""

import os
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tacit.core import Report
from tacit.core.discovery import need
from tacit.errors import UserError
from tacit.runs.round_logs import LogHeader, scalars

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

IDENTITY = "tacit.run"
_AT_ONCE = 50  # rounds of one request; MLflow accepts a thousand metrics
_TIMEOUTS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2", "MLFLOW_HTTP_REQUEST_TIMEOUT": "20"}  # unless the user sets them


@dataclass(frozen=True)
class MlflowLog:
    """Writes the rounds of a run to MLflow. Needs `pip install 'tacit-fl[mlflow]'`.

    Attributes:
        experiment: the experiment to which the run belongs; it is created if there is none.
        uri: where MLflow stores it; None: at `MLFLOW_TRACKING_URI`, or MLflow's default.
    """

    experiment: str = "tacit"
    uri: str | None = None
    label: ClassVar[str] = "MLflow"
    option: ClassVar[str] = "mlflow"

    def validate(self, directory: Path | None) -> None:
        need(["mlflow"], "mlflow", self.label)
        try:
            self._client().get_experiment_by_name(self.experiment)
        except ImportError as error:  # mlflow-skinny, and no server
            raise UserError(
                f"Expected {error.name} to be installed, which MLflow needs to store runs on this machine. Install it "
                "with: pip install 'tacit-fl[mlflow]', or set MLFLOW_TRACKING_URI to a server."
            ) from error
        except Exception as error:  # of MLflow, its store or the network
            where = self.uri or os.environ.get("MLFLOW_TRACKING_URI") or "its default store"
            reason = next(iter(str(error).splitlines()), type(error).__name__).rstrip(".")
            raise UserError(f"Could not open MLflow at {where}: {reason}. Correct MLFLOW_TRACKING_URI.") from error

    def open(self, header: LogHeader) -> "MlflowWriter":
        client = self._client()
        existing = client.get_experiment_by_name(self.experiment)
        experiment = client.create_experiment(self.experiment) if existing is None else existing.experiment_id
        return MlflowWriter(client, str(experiment), header)

    def _client(self) -> "MlflowClient":
        for name, value in _TIMEOUTS.items():
            os.environ.setdefault(name, value)
        os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
        from mlflow.tracking import MlflowClient

        return MlflowClient(self.uri)


class MlflowWriter:
    """One run in MLflow: the one whose tag identifies this run of Tacit, or a new one."""

    def __init__(self, client: "MlflowClient", experiment: str, header: LogHeader) -> None:
        from mlflow.entities import Param, RunTag

        self._client, self._finished = client, False
        matches = client.search_runs([experiment], f"tags.`{IDENTITY}` = '{header.identity}'", max_results=1)
        run = matches[0] if matches else client.create_run(experiment, run_name=header.name)
        self._id, self._last = run.info.run_id, dict.fromkeys(run.data.metrics, 0)
        for name in self._last:
            self._last[name] = max(metric.step for metric in client.get_metric_history(self._id, name))
        if matches:
            client.update_run(self._id, status="RUNNING")
            return
        tags = {IDENTITY: header.identity, **({"caveat": header.caveat} if header.caveat else {})}
        client.log_batch(
            self._id,
            params=[Param(_sanitize(name), value) for name, value in header.parameters.items()],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )

    def write(self, reports: Sequence[Report]) -> None:
        for begin in range(0, len(reports), _AT_ONCE):
            self._write(reports[begin : begin + _AT_ONCE])

    def finish(self, guarantee: str) -> None:
        self._client.set_tag(self._id, "guarantee", guarantee)
        self._finished = True

    def close(self) -> None:
        self._client.set_terminated(self._id, "FINISHED" if self._finished else "KILLED")

    def _write(self, reports: Sequence[Report]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [
            Metric(_sanitize(name), float(value), now, report.round)
            for report in reports
            for name, value in scalars(report).items()
            if report.round > self._last.get(_sanitize(name), 0)
        ]
        if metrics:
            self._client.log_batch(self._id, metrics=metrics)
        self._last |= {metric.key: metric.step for metric in metrics}


def _sanitize(name: str) -> str:
    """A name without the characters that MLflow rejects."""
    return re.sub(r"[^\w./ :-]", "_", name)
