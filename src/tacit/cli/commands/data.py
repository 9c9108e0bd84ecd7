"""List, download and check the data sets of the tasks, and convert Parquet files that are larger than memory.

Files are looked up in $TACIT_DATA, then in the cache folder (~/.cache/tacit), each as <data set>/<file>. Downloads are
stored in $TACIT_DATA if it is set, else in the cache folder. A file is used only if the checksum of its content is
correct. The tasks `digits` and `synthetic` need no files.

Examples:
  tacit data list                      all tasks and data sets, and which files are present
  tacit data list --json               the same as one JSON document
  tacit data fetch mnist               download the missing files of a data set
  tacit data fetch mnist-writers       or of all data sets that a task needs
  tacit data check                     verify the checksums of all files that are present
  TACIT_DATA=/data tacit data check fashion-mnist
  tacit data convert visits/ --client patient --target died --out clients
                                       then: tacit run fedavg --data clients --target died
"""

import argparse
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import aligned, print_json
from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.tasks.datasets import DataSet, File


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the actions."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="list|fetch|check|convert")
    listing = actions.add_parser("list", help="tasks and data sets, and which files are present")
    fetching = actions.add_parser("fetch", help="download missing files")
    checking = actions.add_parser("check", help="verify checksums")
    fetching.add_argument("names", nargs="+", metavar="NAME", help="a data set or a task")
    checking.add_argument("names", nargs="*", metavar="NAME", help="a data set or a task (default: all present files)")
    converting = actions.add_parser("convert", help="write Parquet files as a population on disk, in bounded memory")
    _configure_convert(converting)
    for action in (listing, fetching, checking, converting):
        action.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _configure_convert(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", metavar="PATH", help="a Parquet file, or a folder of them (also hospital=3/...)")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="the new folder")
    parser.add_argument("--target", metavar="COLUMN", required=True, help="the column to predict")
    parser.add_argument("--client", metavar="COLUMN", help="the column of the client; none: every file is one")
    parser.add_argument("--patient", metavar="COLUMN", help="the column that says whose row it is: protects persons")
    parser.add_argument("--drop", metavar="COLUMN", nargs="+", default=[], help="columns to leave out, such as names")
    parser.add_argument("--categories", metavar="COLUMN", nargs="+", default=[], help="numbers that are categories")
    parser.add_argument("--encoding", metavar="FILE", help="a TOML file that declares minima, maxima and categories")
    parser.add_argument("--public", metavar="FILE", help="public rows, whose minima, maxima and categories are used")
    parser.add_argument("--kind", choices=("auto", "classes", "number"), default="auto", help="of the target")
    parser.add_argument("--classes", metavar="VALUE", nargs="+", default=[], help="the values of the target")


def run(args: argparse.Namespace) -> int:
    """Run the chosen action."""
    actions: dict[str, Callable[[argparse.Namespace], int]] = {
        "list": _list,
        "fetch": _fetch,
        "check": _check,
        "convert": _convert,
    }
    return actions[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from tacit.tasks.catalog import TASKS
    from tacit.tasks.sources import DATA_SETS

    if args.json:
        tasks = [
            {
                "task": entry.name,
                "ready": entry.ready,
                "clients": entry.clients,
                "data": [data.name for data in entry.data],
                "summary": entry.summary,
                "preprocessing": entry.preprocessing,
            }
            for entry in TASKS.values()
        ]
        data_sets = [_describe(data) for data in DATA_SETS.values()]
        print_json({"tasks": tasks, "data": data_sets})
        return 0
    rows = [
        (task.name, "yes" if task.ready else "no", str(task.clients), task.preprocessing, task.summary)
        for task in TASKS.values()
    ]
    print("\n".join(aligned([("task", "ready", "clients", "preprocessing", "summary"), *rows], left=5)))
    print(
        "Private preprocessing uses ranges or categories of the clients' rows, which no guarantee covers; the argument"
    )
    print("encoding of these tasks takes public ones instead.")
    print()
    header = ("data set", "files present", "size", "records", "licence", "source")
    print("\n".join(aligned([header, *(_row(data) for data in DATA_SETS.values())], left=6)))
    if not all(task.ready for task in TASKS.values()):
        print("\nTo download the files of a task that is not ready: tacit data fetch TASK")
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from tacit.tasks.downloads import fetch

    new = []
    for data in _data_sets(args.names):
        paths = fetch(data)
        new += [{"data": data.name, "path": str(path)} for path in paths]
        result = f"downloaded {len(paths)} of {len(data.files)} files" if paths else "all files are present"
        print(f"{data.name}: {result}", file=sys.stderr)
    if args.json:
        print_json({"fetched": new})
    return 0


def _check(args: argparse.Namespace) -> int:
    from tacit.errors import DataError
    from tacit.tasks.sources import DATA_SETS

    data_sets = _data_sets(args.names) if args.names else list(DATA_SETS.values())
    results = [(data, file, _status(file)) for data in data_sets for file in data.files]
    if args.json:
        document = [{"data": data.name, "file": file.path, "status": status} for data, file, status in results]
        print_json({"checked": document})
    else:
        print("\n".join(aligned([("file", "status"), *((file.path, status) for _, file, status in results)])))
    invalid = [status for _, _, status in results if status not in ("ok", "missing")]
    absent = [file.path for data, file, status in results if status == "missing" and file.path not in data.optional]
    if invalid:
        raise DataError(f"{len(invalid)} of {len(results)} files are invalid: {invalid[0]}")
    if absent and args.names:
        raise DataError(f"{len(absent)} of {len(results)} files are missing: {', '.join(absent)}.")
    return 0


def _convert(args: argparse.Namespace) -> int:
    from tacit.data.encoding import Encoding
    from tacit.data.parquet_population import ENCODING, OPTIONS, convert_parquet

    options = {name: getattr(args, name) for name in OPTIONS}
    population = convert_parquet(args.out, args.source, target=args.target, client=args.client, **options)
    found = Encoding.read(Path(args.out) / ENCODING)
    clients, samples, inputs = len(population), len(population.x), population.x.shape[1]
    if args.json:
        print_json(
            {
                "folder": args.out,
                "clients": clients,
                "samples": samples,
                "inputs": inputs,
                "target": args.target,
                "classes": list(found.known_target.classes),
                "preprocessing": found.preprocessing.source,
            }
        )
        return 0
    print(f"{args.out}: {clients} clients, {samples} rows, {inputs} inputs.")
    if found.preprocessing.not_covered:
        print(f"Not covered by any guarantee: {found.preprocessing.not_covered}")
    print(f"Next: tacit run fedavg --data {args.out} --target {args.target}")
    return 0


def _status(file: "File") -> str:
    """`ok`, `missing`, or what is wrong."""
    from tacit.errors import DataError
    from tacit.tasks.datasets import locate, read

    if locate(file) is None:
        return "missing"
    try:
        read(file)
    except DataError as error:
        return str(error)
    return "ok"


def _data_sets(names: Iterable[str]) -> list["DataSet"]:
    """The data sets of these names; the name of a task stands for all data sets that it needs."""
    from tacit.core.schema import choose
    from tacit.tasks.catalog import TASKS
    from tacit.tasks.sources import DATA_SETS

    by_name = {name: entry.data for name, entry in TASKS.items()} | {name: (data,) for name, data in DATA_SETS.items()}
    found = [data for name in names for data in choose(by_name, name, "data set or task")]
    return list(dict.fromkeys(found))


def _describe(data: "DataSet") -> dict[str, object]:
    """A data set as plain values."""
    from tacit.tasks.datasets import locate

    return {
        "data": data.name,
        "present": [file.path for file in data.files if locate(file)],
        "missing": [file.path for file in data.files if not locate(file)],
        "bytes": sum(file.size for file in data.files),
        "records": data.records,
        "licence": data.licence,
        "source": data.source,
        "urls": sorted({url for file in data.files for url in file.urls}),
    }


def _row(data: "DataSet") -> tuple[str, ...]:
    from tacit.tasks.datasets import locate

    present = sum(locate(file) is not None for file in data.files)
    total = sum(file.size for file in data.files)
    return data.name, f"{present} of {len(data.files)}", size(total), data.records, data.licence, data.source
