"""`tacit tasks`: print all tasks, or one with its options."""

import argparse
from collections.abc import Iterator

from tacit.cli._console import align, answer
from tacit.core.schema import choose
from tacit.tasks.catalog import TASKS, CatalogEntry


def run(args: argparse.Namespace) -> int:
    """Print all tasks, or one."""
    if args.name is None:
        return answer(args, [summary(entry) for entry in TASKS.values()], _list())
    entry = choose(TASKS, args.name, "task")
    options, meanings = entry.definition.parameters, entry.definition.meanings
    described = [{"option": name, "default": options[name], "meaning": meanings.get(name, "")} for name in options]
    return answer(args, {**summary(entry), "options": described}, _describe(entry))


def summary(entry: CatalogEntry) -> dict[str, object]:
    """A task as plain values."""
    return {"task": entry.name, "ready": entry.ready, "clients": entry.clients, "summary": entry.summary}


def _list() -> Iterator[str]:
    rows = [(entry.name, "yes" if entry.ready else "no", str(entry.clients), entry.summary) for entry in TASKS.values()]
    yield from align([("task", "ready", "clients", "summary"), *rows], left=4)
    yield ""
    yield "Options of a task: tacit tasks TASK. Its data: tacit data list, tacit data fetch TASK."
    yield "Your own: tacit run METHOD --data FILE --client COLUMN --target COLUMN, or --task FILE.py:FUNCTION."


def _describe(entry: CatalogEntry) -> Iterator[str]:
    options, meanings = entry.definition.parameters, entry.definition.meanings
    yield from (entry.name, f"  {entry.summary}", "", "Options and their defaults (--task-set OPTION=VALUE)")
    rows = [(name, default, meanings.get(name, "")) for name, default in options.items()]
    yield from (f"  {line}" for line in align(rows, left=3))
    example = " --data FILE --client COLUMN --target COLUMN" if entry.name == "table" else f" --task {entry.name}"
    yield from ("", "Run it", f"  tacit run fedavg{example}")
    if not entry.ready:
        yield from ("", f"Its data are not here. Get them: tacit data fetch {entry.name}")
