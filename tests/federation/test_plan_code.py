"""Code that a plan names: nothing is imported or called before the plan's reader has allowed it.

Whoever writes a plan chooses the names in it. Every hostile name here leaves a marker when its code is executed.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from federation.consortium import MODEL, Consortium, send, table
from tacit import methods
from tacit.cli import main
from tacit.errors import UserError
from tacit.federation.channels.enclave import EnclaveTable
from tacit.federation.messages import REGISTER, Refusal, Registration, read_reply
from tacit.federation.plan import plan as plan_module
from tacit.federation.plan.entry_points import AllowedCode
from tacit.federation.plan.plan import FederationPlan, read_plan
from tacit.federation.site.files import Verdict, _verdict_statement, read_site
from tacit.protocols import crypto

MARK = "import pathlib\npathlib.Path({marker!r}).touch()\n"
FUNCTIONS = "".join(f"\ndef {name}(rounds=1, cohort=5):\n    raise SystemExit(77)\n" for name in ("net", "f", "theirs"))
COMMANDS = [
    ["site", "review", "site-0/site.toml", "plan.toml"],
    ["site", "review", "site-0/site.toml", "plan.toml", "--accept"],
    ["site", "review", "site-0/site.toml", "plan.toml", "--refuse"],
    ["federation", "explain", "plan.toml"],
    ["federation", "run", "plan.toml"],
    ["enclave", "configure", "--plan", "plan.toml", "--out", "enclave.json"],
]
HOSTILE = [
    {"method": "helper.py:f"},
    {"method": "helper.py"},
    {"method": "./helper.py:f"},
    {"method": "theirs"},
    {"model": "helper.py:f"},
    {"model": "helper:f"},
    {"model": "marked:net"},
    {"model": "marked.py:net"},
    {"model": "os:abort"},
    {"public": "marked:net"},
    {"public": "os:abort"},
]


class Folder:
    """The folder of a plan and of a site that reviews it, with files that leave a marker when they are executed."""

    def __init__(self, path: Path) -> None:
        self.path, self.marker = path, path / "executed"
        self.consortium = Consortium.at(path)
        code = MARK.format(marker=str(self.marker)) + FUNCTIONS
        (path / "helper.py").write_text(code)
        (path / "installed").mkdir()
        for name in ("marked", "their_package"):
            (path / "installed" / f"{name}.py").write_text(code)

    def plan(self, **changes: Any) -> None:
        args = {"rounds": 1, "cohort": 5}
        content = {"method": "fl-std", "args": args, "model": MODEL, "sites": "directory.toml", "evaluate_every": 0}
        enclave = changes.pop("enclave", {"address": "enclave.sock"})
        text = table({**content, **changes}) + "\n[enclave]\n" + table(enclave)
        (self.path / "plan.toml").write_text(text)

    def without_enclave(self) -> None:
        text = (self.path / "plan.toml").read_text()
        (self.path / "plan.toml").write_text(text.partition("\n[enclave]")[0])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    made = Folder(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # as `python -m` does
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    monkeypatch.setattr(os, "abort", made.marker.touch)
    points = [EntryPoint("theirs", "their_package:theirs", methods.GROUP)]
    monkeypatch.setattr(methods, "entry_points", lambda **_: points)
    methods.definitions.cache_clear()
    yield made
    monkeypatch.undo()
    methods.definitions.cache_clear()
    for name in ("helper", "marked", "their_package"):
        sys.modules.pop(name, None)


@pytest.mark.law
@pytest.mark.parametrize("line", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("names", HOSTILE, ids=str)
def test_no_command_runs_what_only_a_plan_names(
    folder: Folder, capsys: pytest.CaptureFixture[str], line: list[str], names: dict[str, str]
) -> None:
    folder.plan(**names)
    if line[0] != "enclave":
        folder.without_enclave()
    code = main(line)
    out, err = capsys.readouterr()
    assert not folder.marker.exists()
    # public data are loaded at the server only, so that a site accepts them; an explanation does not run them
    allowed = "public" in names if line[0] == "site" else line[1] == "explain" and "method" not in names
    assert (code == 0) is (allowed or ("--refuse" in line and not err)), out + err
    assert "Traceback" not in err
    if code == 2:
        assert err.startswith("tacit: ")
        assert err.count("\n") == 1


def test_trust_runs_it(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    """So that the tests above look for the marker where it appears."""
    for line in (["federation", "explain", "plan.toml"], ["enclave", "configure", "--plan", "plan.toml", "--out", "o"]):
        folder.plan(model="marked:net", **({"args": {"channel": "Enclave()", "cohort": 5}} if "--plan" in line else {}))
        if "--plan" not in line:
            folder.without_enclave()
        sys.modules.pop("marked", None)
        folder.marker.unlink(missing_ok=True)
        with pytest.raises(SystemExit, match="77"):
            main([*line, "--trust"])
        assert folder.marker.exists()
        capsys.readouterr()


def _hostile_texts() -> Iterator[str]:
    for name in ("helper.py:f", "helper:f", "marked:net", "os:abort", "marked"):
        yield name
        yield f"{name}()"
        yield f"Schedule('{name}')"
        yield f"FunctionLoss('{name}')"
        yield f"Sgd(lr=Schedule(function='{name}'))"
        yield f"Task(model='{name}', clients='.')"
    yield from ("marked.net", "marked.net()", "__import__('marked')", "__import__('marked').net()", "lambda: marked")
    yield from ("Schedule(marked.net)", "Schedule(lambda n: __import__('marked'))", "f'{__import__(\"marked\")}'")


def _fields(record: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The paths of all fields of a plan's file, those of its tables included."""
    for field in structs.fields(record):
        path = (*prefix, field.name)
        kinds = (field.type, *getattr(field.type, "__args__", ()))
        inner = [kind for kind in kinds if hasattr(kind, "__struct_fields__")]
        yield from (found for kind in inner for found in _fields(kind, path))
        if not inner:
            yield path


PATHS = [*_fields(plan_module._Table), *_fields(EnclaveTable, ("enclave",))]


def test_all_fields_are_tried() -> None:
    assert {"method", "model", "public", "loss", "sites", "args", "unit"} <= {path[0] for path in PATHS}
    assert ("enclave", "configuration") in PATHS


@pytest.mark.law
@pytest.mark.parametrize("path", PATHS, ids=".".join)
def test_no_field_of_a_plan_names_code_that_is_run(
    folder: Folder, capsys: pytest.CaptureFixture[str], path: tuple[str, ...]
) -> None:
    keys = ["rounds", "lr", "sampler", "trainer", "codec", "mechanism", "channel", "aggregator", "server", "descent.lr",
            "budget", "patience", "max_row_norm", "trainer.lr", "sampler.size", "name"]  # fmt: skip
    for text in _hostile_texts():
        match path:
            case ["args"]:
                tries: list[dict[str, Any]] = [{"args": {key: text}} for key in (*keys, text)]
            case [name]:
                tries = [{name: text}]
            case [outer, inner]:
                tries = [{outer: {inner: text, **({"address": "a.sock"} if inner != "address" else {})}}]
            case _:
                tries = []
        for given in tries:
            folder.plan(**given)
            if path[0] != "enclave":
                folder.without_enclave()
            for line in (COMMANDS[0], COMMANDS[3]):
                main(line)
    capsys.readouterr()
    assert not folder.marker.exists()
    assert not {"marked", "helper", "their_package"} & {*sys.modules}


def test_a_method_of_another_package_is_run_where_a_site_allows_it(folder: Folder) -> None:
    folder.plan(method="theirs", args={})
    folder.without_enclave()
    plan, site = read_plan(folder.path / "plan.toml"), read_site(folder.consortium.home("site-0") / "site.toml")
    found = site.review(plan)
    assert not found.accepted
    assert "The method theirs is not among those that this site allows" in found.objections[0]
    assert (found.rounds, found.reveals) == (0, ())
    assert not folder.marker.exists()
    folder.consortium.change("site-0", '"fedavg", ', '"fedavg", "theirs", ')
    with pytest.raises(SystemExit):
        read_site(site.path).review(plan)
    assert folder.marker.exists()


def test_pins_are_checked_before_code_is_imported(folder: Folder) -> None:
    allowed = AllowedCode({"marked:net": f"sha256:{'0' * 64}"})
    for load in (allowed.load, AllowedCode().load):
        with pytest.raises(UserError, match="allowed"):
            load("marked:net", "the model")
    assert not folder.marker.exists()


def test_a_pin_is_computed_without_running_the_code(folder: Folder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["site", "pin", "marked:net"]) == 0
    assert capsys.readouterr().out.startswith('"marked:net" = "sha256:')
    missing = "Could not find the files"
    for wrong, words in (
        ("marked:nothing", "there is no nothing in"),
        ("sys:exit", missing),
        ("__main__:f", "Could not"),
    ):
        assert main(["site", "pin", wrong]) == 2
        assert words in capsys.readouterr().err
    assert main(["site", "pin", "tacit.tasks.images:load_digits"]) == 0
    assert not folder.marker.exists()


def _store(site: Path, content: dict[str, Any]) -> bytes:
    """Let a site have accepted a plan, as earlier versions did whatever it named; returns the plan's digest."""
    files = read_site(site)
    digest = crypto.digest("federation plan", json.dumps(content, sort_keys=True, separators=(",", ":")).encode())
    signature = crypto.sign(files.identity, _verdict_statement(digest, accepted=True))
    verdict = structs.asdict(Verdict(digest.hex(), True, signature.hex()))
    (files.state / "reviews").mkdir(parents=True, exist_ok=True)
    path = files.state / "reviews" / f"{digest.hex()[:32]}.json"
    path.write_text(json.dumps({**verdict, "content": content}))
    return digest


@pytest.mark.parametrize("names", [each for each in HOSTILE if "public" not in each], ids=str)
def test_a_stored_plan_runs_only_what_the_policy_allows_now(folder: Folder, names: dict[str, str]) -> None:
    content = {**json.loads(folder.consortium.plan("fl-std", args={"cohort": 5}).canonical), **names}
    if names.get("method") == "theirs":
        content["args"] = {}
    path = folder.consortium.home("site-0") / "site.toml"
    digest = _store(path, content)
    site, register = folder.consortium.site("site-0"), Registration(digest, bytes(16))
    reply = read_reply(
        send(site, REGISTER, register), REGISTER, register.session(REGISTER), 0, site.files.directory.by_number
    )
    assert not folder.marker.exists()
    assert isinstance(reply, Refusal)


def test_the_code_of_a_plan_is_no_part_of_what_parties_agree_on(folder: Folder) -> None:
    plan = folder.consortium.plan("fl-std", args={"cohort": 5})
    bare = replace(plan, code=AllowedCode())
    assert (plan.digest, plan) == (bare.digest, bare)
    assert FederationPlan.from_canonical(json.loads(plan.canonical)).refused_code
    with pytest.raises(UserError, match=r"The model acme:net is not among those that are allowed here: none\."):
        bare.run_spec()


# Real processes: what Python itself does with the current folder, and a call that ends the process


def _run(folder: Path, *line: str) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(folder / "installed"), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.law
@pytest.mark.parametrize("line", [COMMANDS[0], *COMMANDS[3:]], ids=" ".join)
def test_nothing_in_the_folder_of_a_plan_is_executed(tmp_path: Path, line: list[str]) -> None:
    """Only a process of its own shows what `python -m` finds in the current folder."""
    folder = Folder(tmp_path)
    for name in ("torch", "numpy", "msgspec", "acme"):
        (tmp_path / f"{name}.py").write_text((tmp_path / "helper.py").read_text())
    info = tmp_path / "evil-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{methods.GROUP}]\nevil = helper:f\n")
    for names in ({"model": "os:abort"}, {"method": "evil"}):
        folder.plan(**names)
        if line[0] != "enclave":
            folder.without_enclave()
        done = _run(tmp_path, sys.executable, "-m", "tacit.cli", *line)
        assert not folder.marker.exists(), done.stderr
        assert done.returncode in (0, 1, 2), done.stderr
        assert "Traceback" not in done.stderr


def test_the_process_of_a_site_does_not_import_from_the_current_folder(tmp_path: Path) -> None:
    """Only a process of its own shows where it finds its modules."""
    pytest.importorskip("grpc")
    from tacit.federation.transport.process import server_command, site_command

    folder = Folder(tmp_path)
    for name in ("torch", "grpc"):
        (tmp_path / f"{name}.py").write_text((tmp_path / "helper.py").read_text())
    for command in (
        server_command(tmp_path),
        site_command(tmp_path, tmp_path / "key", tmp_path / "site.toml", "acme:net"),
    ):
        python = command[: command.index("-m")]
        done = _run(tmp_path, *python, "-c", "import torch, grpc")
        assert (done.returncode, folder.marker.exists()) == (0, False), done.stderr
