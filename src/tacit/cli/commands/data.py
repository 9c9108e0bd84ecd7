"""`tacit data`: list, download and verify the data sets of the tasks."""

import argparse
from collections.abc import Iterable, Iterator

from tacit.cli._console import align, answer, note, print_json
from tacit.cli.commands.tasks import summary
from tacit.core.schema import choose
from tacit.errors import DataError
from tacit.report.labels import size
from tacit.tasks import downloads
from tacit.tasks.catalog import TASKS
from tacit.tasks.datasets import DataSet, File, locate, read
from tacit.tasks.sources import DATA_SETS


def show(args: argparse.Namespace) -> int:
    """Print all tasks and data sets, and which files are present."""
    tasks = [
        {**summary(entry), "data": [data.name for data in entry.data], "preprocessing": entry.preprocessing}
        for entry in TASKS.values()
    ]
    return answer(args, {"tasks": tasks, "data": [_describe(data) for data in DATA_SETS.values()]}, _lines())


def _lines() -> Iterator[str]:
    rows = [
        (task.name, "yes" if task.ready else "no", str(task.clients), task.preprocessing, task.summary)
        for task in TASKS.values()
    ]
    yield from align([("task", "ready", "clients", "preprocessing", "summary"), *rows], left=5)
    yield "Private preprocessing uses ranges or categories of the clients' rows, which no guarantee covers; the"
    yield "argument encoding of these tasks takes public ones instead."
    yield ""
    header = ("data set", "files present", "size", "records", "licence", "source")
    yield from align([header, *(_row(data) for data in DATA_SETS.values())], left=6)
    if not all(task.ready for task in TASKS.values()):
        yield from ("", "To download the files of a task that is not ready: tacit data fetch TASK")


def fetch(args: argparse.Namespace) -> int:
    """Download the missing files."""
    new = []
    for data in _data_sets(args.names):
        paths = downloads.fetch(data)
        new += [{"data": data.name, "path": str(path)} for path in paths]
        result = f"downloaded {len(paths)} of {len(data.files)} files" if paths else "all files are present"
        note(f"{data.name}: {result}")
    if args.json:
        print_json({"fetched": new})
    return 0


def verify(args: argparse.Namespace) -> int:
    """Verify the checksums of present files."""
    data_sets = _data_sets(args.names) if args.names else list(DATA_SETS.values())
    results = [(data, file, _status(file)) for data in data_sets for file in data.files]
    document = [{"data": data.name, "file": file.path, "status": status} for data, file, status in results]
    rows = [("file", "status"), *((file.path, status) for _, file, status in results)]
    answer(args, {"checked": document}, align(rows))
    invalid = [status for _, _, status in results if status not in ("ok", "missing")]
    absent = [file.path for data, file, status in results if status == "missing" and file.path not in data.optional]
    if invalid:
        raise DataError(f"{len(invalid)} of {len(results)} files are invalid: {invalid[0]}")
    if absent and args.names:
        raise DataError(f"{len(absent)} of {len(results)} files are missing: {', '.join(absent)}.")
    return 0


def _status(file: File) -> str:
    """`ok`, `missing`, or an error."""
    if locate(file) is None:
        return "missing"
    try:
        read(file)
    except DataError as error:
        return str(error)
    return "ok"


def _data_sets(names: Iterable[str]) -> list[DataSet]:
    """The data sets of these names; a task's name stands for all of its data sets."""
    by_name = {name: entry.data for name, entry in TASKS.items()} | {name: (data,) for name, data in DATA_SETS.items()}
    data_sets = [data for name in names for data in choose(by_name, name, "data set or task")]
    return list(dict.fromkeys(data_sets))


def _describe(data: DataSet) -> dict[str, object]:
    """A data set as plain values."""
    present = [file.path for file in data.files if locate(file)]
    return {
        "data": data.name,
        "present": present,
        "missing": [file.path for file in data.files if file.path not in present],
        "bytes": sum(file.size for file in data.files),
        "records": data.records,
        "licence": data.licence,
        "source": data.source,
        "urls": sorted({url for file in data.files for url in file.urls}),
    }


def _row(data: DataSet) -> tuple[str, ...]:
    present = sum(locate(file) is not None for file in data.files)
    total = sum(file.size for file in data.files)
    return data.name, f"{present} of {len(data.files)}", size(total), data.records, data.licence, data.source
