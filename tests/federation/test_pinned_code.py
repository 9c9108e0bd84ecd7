"""A pin covers what Python runs: bytecode, extensions, links, archives and later changes evade it nowhere."""

import importlib.util
import marshal
import os
import py_compile
import shutil
import struct
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tacit.errors import UserError
from tacit.federation.plan.entry_points import AllowedCode, check_defined, pin
from tacit.federation.plan.pinned_code import _FINDERS

NAME = "lungs.models:net"
WHAT = "the model"
EVIL = "def net():\n    return 'evil'\n"


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An installed package whose model imports a helper, now and when it is called."""
    folder = tmp_path / "installed" / "lungs"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "helper.py").write_text("WORD = 'honest'\n")
    (folder / "deep" / "late.py").write_text("WORD = 'late'\n")  # without __init__.py
    (folder / "models.py").write_text(
        "from lungs.helper import WORD\nfrom . import helper\n\n\n"
        "def net():\n    from lungs.deep.late import WORD as late\n    return f'{WORD} {helper.WORD} {late}'\n"
    )
    monkeypatch.syspath_prepend(str(folder.parent))
    yield folder
    forget("lungs")


def forget(name: str) -> None:
    finder = _FINDERS.pop(name, None)
    if finder is not None:
        sys.meta_path.remove(finder)
    for module in [each for each in sys.modules if each.partition(".")[0] == name]:
        del sys.modules[module]
    importlib.invalidate_caches()


def allowed(name: str = NAME) -> AllowedCode:
    return AllowedCode({name: pin(name, WHAT)})


def run(code: AllowedCode, name: str = NAME) -> str:
    return str(code.load(name, WHAT)())


def hostile_cache(source: Path, evil: str, mode: str) -> None:
    """Bytecode of another source in the cache: valid by its time and size, or by a hash that nobody checks."""
    code = marshal.dumps(compile(evil, str(source), "exec"))
    head = struct.pack("<LL", int(source.stat().st_mtime), source.stat().st_size)
    flags, rest = (0, head) if mode == "timestamp" else (1, bytes(8))
    cached = Path(importlib.util.cache_from_source(str(source)))
    cached.parent.mkdir(exist_ok=True)
    cached.write_bytes(importlib.util.MAGIC_NUMBER + struct.pack("<L", flags) + rest + code)


def test_a_pinned_function_runs(package: Path) -> None:
    assert run(allowed()) == "honest honest late"


@pytest.mark.parametrize("mode", ["timestamp", "unchecked"])
@pytest.mark.parametrize("module", ["__init__", "helper", "models", "deep/late"])
def test_bytecode_in_the_cache_is_not_run(package: Path, module: str, mode: str) -> None:
    code = allowed()
    evil = {"models": EVIL, "__init__": "raise SystemExit(77)"}.get(module, "WORD = 'evil'\n")
    hostile_cache(package / f"{module}.py", evil, mode)
    assert run(code) == "honest honest late"


def test_python_itself_would_run_it(package: Path) -> None:
    """So that the test above shows what it is for."""
    hostile_cache(package / "models.py", EVIL, "unchecked")
    assert importlib.import_module("lungs.models").net() == "evil"
    assert run(allowed()) == "honest honest late"


def test_a_module_that_was_imported_before_is_imported_again(package: Path) -> None:
    code = allowed()
    module = importlib.import_module("lungs.models")
    module.net = lambda: "evil"  # type: ignore[attr-defined]
    assert run(code) == "honest honest late"
    assert run(code) == "honest honest late"
    assert importlib.import_module("lungs.models") is importlib.import_module("lungs.models")


def test_what_is_written_after_the_check_is_not_run(package: Path) -> None:
    code = allowed()
    net = code.load(NAME, WHAT)
    (package / "deep" / "late.py").write_text("WORD = 'evil'\n")
    assert net() == "honest honest late"
    with pytest.raises(UserError, match="The installed code"):
        code.load(NAME, WHAT)
    assert net() == "honest honest late"


def test_another_pin_runs_the_code_that_it_covers(package: Path) -> None:
    assert run(allowed()) == "honest honest late"
    (package / "helper.py").write_text("WORD = 'new'\n")
    assert run(allowed()) == "new new late"


@pytest.mark.parametrize("change", ["helper.py", "deep/late.py", "data.json", "more.py", "deep/__init__.py", "_c.so"])
def test_every_file_changes_the_pin(package: Path, change: str) -> None:
    code = allowed()
    (package / change).write_text("WORD = 'evil'\n")
    assert "The installed code of lungs.models:net is sha256:" in code.function_problem(NAME, WHAT)


@pytest.mark.parametrize("kind", ["extension", "bytecode", "link"])
def test_modules_without_source_are_not_run(package: Path, tmp_path: Path, kind: str) -> None:
    """Also where the pin covers them, or would not notice them."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "__init__.py").write_text("WORD = 'evil'\n")
    if kind == "extension":
        shutil.copy(next(Path(struct.__file__).parent.glob("lib-dynload/*.so"), __file__), package / "late2.so")
    elif kind == "bytecode":
        py_compile.compile(str(tmp_path / "outside" / "__init__.py"), str(package / "late2.pyc"))
    else:
        (package / "late2").symlink_to(tmp_path / "outside")
    (package / "models.py").write_text("def net():\n    from lungs.late2 import WORD\n    return WORD\n")
    net = allowed().load(NAME, WHAT)
    with pytest.raises(ImportError, match=r"the pinned package lungs has no source of lungs\.late2"):
        net()


def test_packages_that_cannot_be_pinned_are_refused(package: Path, tmp_path: Path, monkeypatch) -> None:
    with zipfile.ZipFile(tmp_path / "z.zip", "w") as archive:
        archive.writestr("zipped/__init__.py", EVIL)
    monkeypatch.syspath_prepend(str(tmp_path / "z.zip"))
    (package.parent / "spaces" / "part").mkdir(parents=True)
    (package.parent / "spaces" / "part" / "m.py").write_text(EVIL)
    py_compile.compile(str(package / "models.py"), str(package.parent / "sourceless.pyc"))
    for name in ("zipped:net", "spaces.part.m:net", "sourceless:net", "os:abort", "sys:exit", "math:sin", "none:f"):
        problem = AllowedCode({name: "sha256:" + "0" * 64}).function_problem(name, WHAT)
        assert problem
        assert "The installed code" not in problem
        with pytest.raises(UserError):
            pin(name, WHAT)
    forget("zipped")


def test_a_single_module_is_pinned_alone(package: Path, tmp_path: Path) -> None:
    source = package.parent / "single.py"
    source.write_text("def net():\n    return 'honest'\n")
    code = allowed("single:net")
    hostile_cache(source, EVIL, "unchecked")
    assert run(code, "single:net") == "honest"
    source.write_text(EVIL)
    assert "is sha256:" in code.function_problem("single:net", WHAT)
    forget("single")


def test_a_package_of_the_same_name_earlier_on_the_path_is_refused(package: Path, tmp_path: Path, monkeypatch) -> None:
    code = allowed()
    shutil.copytree(package, tmp_path / "first" / "lungs")
    (tmp_path / "first" / "lungs" / "models.py").write_text(EVIL)
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    importlib.invalidate_caches()
    with pytest.raises(UserError, match="The installed code"):
        code.load(NAME, WHAT)


def test_errors_while_importing_are_sentences(package: Path) -> None:
    for source, expected in (("raise ValueError('no')", "ValueError: no"), ("def", "SyntaxError"), ("x = 1", "no")):
        (package / "models.py").write_text(source)
        with pytest.raises(UserError, match=f"Could not load the model .*{expected}"):
            run(allowed())
    (package / "models.py").write_bytes(b"\xff\x00")
    with pytest.raises(UserError, match="Expected Python in"):
        check_defined(NAME, WHAT)


def test_a_module_in_the_package_may_have_its_name(package: Path) -> None:
    (package / "lungs.py").write_text("def net():\n    return __name__\n")
    assert run(allowed("lungs.lungs:net"), "lungs.lungs:net") == "lungs.lungs"


def test_modules_know_their_place(package: Path) -> None:
    (package / "models.py").write_text("import os\n\ndef net():\n    return os.path.dirname(__file__), __package__\n")
    assert run(allowed()) == str((os.fspath(package), "lungs"))
