"""A run in TensorBoard: one event per round, in files that `tensorboard --logdir` finds.

Every round is one event with all of its figures, so a kill leaves a round whole or absent. File names contain the time
but, unlike those of other writers, not the name of the machine.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tacit.core import Report, files
from tacit.core.discovery import need
from tacit.errors import UserError
from tacit.runs.round_logs import LogHeader, scalars

if TYPE_CHECKING:
    from tensorboard.compat.proto.event_pb2 import Event

_FOLDER = "tensorboard"


@dataclass(frozen=True)
class TensorBoardLog:
    """Writes the rounds of a run for TensorBoard. Needs `pip install 'tacit-fl[tensorboard]'`.

    Attributes:
        folder: where the event files go; None: `tensorboard` in the run's directory.
    """

    folder: Path | str | None = None
    label: ClassVar[str] = "TensorBoard"
    option: ClassVar[str] = "tensorboard"

    def validate(self, directory: Path | None) -> None:
        need(["tensorboard"], "tensorboard", self.label)
        if directory is None and self.folder is None:
            raise UserError("Expected a folder for TensorBoard, because the run has no directory. Give folder or out.")

    def open(self, header: LogHeader) -> "TensorBoardWriter":
        folder = Path(self.folder) if self.folder is not None else header.directory and header.directory / _FOLDER
        assert folder is not None, "check was called"
        return TensorBoardWriter(folder, header)


class TensorBoardWriter:
    """The event files of one run: earlier ones are read, and new events go to a new one."""

    def __init__(self, folder: Path, header: LogHeader) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        self.folder = folder
        self._rounds, self._texts = 0, set[str]()
        for event in _events(folder):
            for value in event.summary.value:
                if value.HasField("metadata") and value.metadata.plugin_data.plugin_name == "text":
                    self._texts.add(value.tag)
                else:
                    self._rounds = max(self._rounds, event.step)
        files.make_private(folder)
        file = folder / f"events.out.tfevents.{time.time_ns()}.tacit"
        with files.storage_errors(file):
            files.touch_private(file)
            self._file = file.open("ab")
        self._records = RecordWriter(self._file)
        self._add(file_version="brain.Event:2")
        settings = "".join(f"- {name}: {value}\n" for name, value in header.parameters.items())
        self._text("settings", settings)
        self._text("caveat", header.caveat)

    def write(self, reports: Sequence[Report]) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        for report in reports:
            if report.round > self._rounds:
                values = [Summary.Value(tag=name, simple_value=each) for name, each in scalars(report).items()]
                self._add(step=report.round, summary=Summary(value=values))
                self._rounds = report.round

    def finish(self, guarantee: str) -> None:
        self._text("guarantee", guarantee, step=self._rounds)

    def close(self) -> None:
        self._file.close()

    def _text(self, tag: str, text: str, step: int = 0) -> None:
        """Write a text, unless it was written before."""
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto

        name = f"{tag}/text_summary"
        if not text or name in self._texts:
            return
        shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=1)])
        tensor = TensorProto(dtype="DT_STRING", string_val=[text.encode()], tensor_shape=shape)
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        self._add(step=step, summary=Summary(value=[Summary.Value(tag=name, metadata=metadata, tensor=tensor)]))
        self._texts.add(name)

    def _add(self, **event: object) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), **event).SerializeToString())
        self._records.flush()


def _events(folder: Path) -> "Iterator[Event]":
    """The events in all files of a folder; of a truncated file, those before the cut."""
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

    for file in sorted(folder.glob("*tfevents*")):
        yield from EventFileLoader(str(file)).Load()
