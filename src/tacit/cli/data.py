"""Data sets with checksums: what there is, get it, check it.

Files are looked for in $TACIT_DATA, then in the cache folder (~/.cache/tacit), each as <data set>/<file>.
Fetching writes to $TACIT_DATA if it is set, else to the cache folder. A file counts only if the checksum of
its content is right. The tasks `digits` and `synthetic` need no files.

Examples:
  tacit data list                      every task and data set, and what is present
  tacit data list --json               the same as one JSON document
  tacit data fetch mnist               download what is missing of a data set
  tacit data fetch mnist-writers       or of all data sets that a task needs
  tacit data check                     recompute the checksums of all files that are present
  TACIT_DATA=/data tacit data check fashion-mnist
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from tacit.report.labels import size

if TYPE_CHECKING:
    from tacit.tasks.datasets import DataSet, File


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the three verbs."""
    verbs = parser.add_subparsers(dest="action", required=True, metavar="list|fetch|check")
    listing = verbs.add_parser("list", help="tasks and data sets, and what is present")
    fetching = verbs.add_parser("fetch", help="download what is missing")
    checking = verbs.add_parser("check", help="recompute checksums")
    fetching.add_argument("names", nargs="+", metavar="NAME", help="a data set, or a task")
    checking.add_argument("names", nargs="*", metavar="NAME", help="a data set, or a task (default: all present)")
    for verb in (listing, fetching, checking):
        verb.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Do what one of the verbs says."""
    verbs: dict[str, Callable[[argparse.Namespace], int]] = {"list": _list, "fetch": _fetch, "check": _check}
    return verbs[args.action](args)


def _list(args: argparse.Namespace) -> int:
    from tacit.tasks.catalog import TASKS
    from tacit.tasks.sources import DATA_SETS

    tasks = [
        {
            "task": entry.name,
            "ready": entry.ready,
            "clients": entry.clients,
            "data": [data.name for data in entry.data],
            "about": entry.summary,
        }
        for entry in TASKS.values()
    ]
    sets = [_described(data) for data in DATA_SETS.values()]
    if args.json:
        print(json.dumps({"tasks": tasks, "data": sets}, indent=2, ensure_ascii=False))
        return 0
    yes_or_no = {True: "yes", False: "no"}
    lines = [(t["task"], yes_or_no[bool(t["ready"])], t["clients"], t["about"]) for t in tasks]
    print(_table(("task", "ready", "clients", "about"), lines))
    print()
    print(_table(("data set", "files", "unpacked", "records", "licence", "source"), [_line(row) for row in sets]))
    return 0


def _fetch(args: argparse.Namespace) -> int:
    from tacit.tasks.fetch import fetch

    new = []
    for data in _named(args.names):
        paths = fetch(data)
        new += [{"data": data.name, "path": str(path)} for path in paths]
        count = f"{len(paths)} of {len(data.files)} files fetched" if paths else "nothing to fetch, all present"
        print(f"{data.name}: {count}", file=sys.stderr)
    if args.json:
        print(json.dumps({"fetched": new}, indent=2))
    return 0


def _check(args: argparse.Namespace) -> int:
    from tacit.errors import DataError
    from tacit.tasks.sources import DATA_SETS

    sets = _named(args.names) if args.names else list(DATA_SETS.values())
    results = [(data, file, _verdict(file)) for data in sets for file in data.files]
    if args.json:
        document = [{"data": data.name, "file": file.path, "verdict": said} for data, file, said in results]
        print(json.dumps({"checked": document}, indent=2))
    else:
        print(_table(("file", "verdict"), [(file.path, said) for _, file, said in results]))
    wrong = [said for _, _, said in results if said not in ("right", "missing")]
    absent = [f.path for d, f, said in results if said == "missing" and args.names and f.path not in d.optional]
    if wrong:
        raise DataError(f"{len(wrong)} of {len(results)} files are wrong: {wrong[0]}")
    if absent:
        raise DataError(f"{len(absent)} of {len(results)} files are missing: {', '.join(absent)}.")
    return 0


def _verdict(file: "File") -> str:
    """`right`, `missing`, or what is wrong."""
    from tacit.errors import DataError
    from tacit.tasks.datasets import locate, read

    if locate(file) is None:
        return "missing"
    try:
        read(file)
    except DataError as error:
        return str(error)
    return "right"


def _named(names: Iterable[str]) -> list["DataSet"]:
    """The data sets of these names; a task stands for all it needs."""
    from tacit.core.schema import choose
    from tacit.tasks.catalog import TASKS
    from tacit.tasks.sources import DATA_SETS

    needs = {name: entry.data for name, entry in TASKS.items()} | {n: (d,) for n, d in DATA_SETS.items()}
    found = [data for name in names for data in choose(needs, name, "data set or task")]
    return list(dict.fromkeys(found))


def _described(data: "DataSet") -> dict[str, object]:
    """A data set in plain values."""
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


def _line(row: dict[str, object]) -> tuple[object, ...]:
    """A described data set as a line of the table."""
    present, missing = row["present"], row["missing"]
    assert isinstance(present, list)
    assert isinstance(missing, list)
    files = f"{len(present)} of {len(present) + len(missing)}"
    return row["data"], files, size(int(str(row["bytes"]))), row["records"], row["licence"], row["source"]


def _table(header: Sequence[object], lines: Iterable[Sequence[object]]) -> str:
    """Aligned columns without colour; the last one may be of any length."""
    rows = [tuple(map(str, row)) for row in (header, *lines)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
