"""List the tasks that methods can be run on, or describe one with its options.

Examples:
  tacit tasks                          all tasks, and whether their data are present
  tacit tasks table                    the options of a task, for --task-set
  tacit run fedavg --task digits --task-set partition=shards clients=50
"""

import argparse
from typing import TYPE_CHECKING

from tacit.cli._console import aligned, print_json

if TYPE_CHECKING:
    from tacit.tasks.catalog import CatalogEntry


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("name", nargs="?", help="a task's name")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def run(args: argparse.Namespace) -> int:
    """Print all tasks, or one."""
    from tacit.core.schema import choose
    from tacit.tasks.catalog import TASKS

    if args.name is not None:
        return _describe(choose(TASKS, args.name, "task"), as_json=args.json)
    if args.json:
        print_json([_summary(entry) for entry in TASKS.values()])
        return 0
    rows = [(entry.name, "yes" if entry.ready else "no", str(entry.clients), entry.summary) for entry in TASKS.values()]
    print("\n".join(aligned([("task", "ready", "clients", "summary"), *rows], left=4)))
    print("\nOptions of a task: tacit tasks TASK. Its data: tacit data list, tacit data fetch TASK.")
    print("Your own: tacit run METHOD --data FILE --client COLUMN --target COLUMN, or --task FILE.py:FUNCTION.")
    return 0


def _summary(entry: "CatalogEntry") -> dict[str, object]:
    return {"task": entry.name, "ready": entry.ready, "clients": entry.clients, "summary": entry.summary}


def _describe(entry: "CatalogEntry", *, as_json: bool) -> int:
    options = entry.definition.parameters
    meanings = {name: entry.definition.meanings.get(name, "") for name in options}
    if as_json:
        described = [{"option": name, "default": options[name], "meaning": meanings[name]} for name in options]
        print_json({**_summary(entry), "options": described})
        return 0
    print(entry.name)
    print(f"  {entry.summary}")
    print("\nOptions and their defaults (--task-set OPTION=VALUE)")
    print("\n".join(f"  {line}" for line in aligned([(n, options[n], meanings[n]) for n in options], left=3)))
    example = " --data FILE --client COLUMN --target COLUMN" if entry.name == "table" else f" --task {entry.name}"
    print(f"\nRun it\n  tacit run fedavg{example}")
    if not entry.ready:
        print(f"\nIts data are not here. Get them: tacit data fetch {entry.name}")
    return 0
