"""What is published: its name, its metadata, and what a reader of the package index sees."""

import re
import subprocess
import tomllib
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tacit
from tacit import cli

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
TEXTS = {".cff", ".ipynb", ".lock", ".md", ".py", ".sh", ".toml", ".txt", ".yml"}
STRANGER = re.compile(  # the distribution `tacit` is another project
    r"""pip\ install\s+(?:-\S+\s+)*['"]?tacit(?!-fl)\b   # pip install tacit
    |   (?<![\w./-])tacit\\?\[[a-z{]                     # tacit[extra]
    |   \btacit-\d[-\w.]*\.whl                           # a wheel of that name
    |   version\(["']tacit["']\)                         # the installed version of that name""",
    re.VERBOSE,
)


def files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [
        ROOT / name
        for name in listed.stdout.splitlines()
        if Path(name).suffix in TEXTS or name in ("Makefile", ".ci/run")
    ]


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("pip install 'tacit[ray]'", True),
        ("pip install -U tacit", True),
        ("the extra tacit[data]", True),
        ("r'tacit\\[ray\\]'", True),
        ("wheels/tacit-0.1.0-py3-none-any.whl", True),
        ("version('tacit')", True),
        ("pip install 'tacit-fl[ray]'", False),
        ("pip install 'dist/tacit_fl-0.1.0-py3-none-any.whl[ray]'", False),
        ("tacit run fedavg", False),
    ],
)
def test_the_wrong_name_is_recognised(line: str, wrong: bool) -> None:
    assert bool(STRANGER.search(line)) == wrong


def test_nobody_is_sent_to_the_project_that_has_our_name() -> None:
    if not (found := files()):
        pytest.skip("needs the repository's list of files")
    places = {path: STRANGER.search(path.read_text()) for path in found if path.is_file() and path != Path(__file__)}
    assert {str(path.relative_to(ROOT)): match[0] for path, match in places.items() if match} == {}


def test_the_name_and_the_version_are_everywhere_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert PROJECT["name"] == "tacit-fl"
    with pytest.raises(SystemExit):
        cli.main(["--version"])
    assert "".join(capsys.readouterr()) == f"tacit {tacit.__version__}\n"
    assert f"\nversion: {tacit.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    for path in files():
        assert set(re.findall(r"tacit_fl-(\d[\d.]*)-py3", path.read_text())) <= {tacit.__version__}, path
    assert f"\n## {tacit.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_tools_of_development_include_every_extra() -> None:
    (own,) = (each for each in EXTRAS["dev"] if each.startswith("tacit-fl["))
    included = set(own.removeprefix("tacit-fl[").rstrip("]").split(","))
    assert included == set(EXTRAS) - {"dev", "mlflow"}  # for tests, the small distribution of MLflow


def test_the_extras_are_documented() -> None:
    page = (ROOT / "docs" / "installing.md").read_text()
    assert [extra for extra in EXTRAS if f"`{extra}`" not in page] == []


def test_the_page_of_the_package_index_links_to_nothing_that_is_missing_there() -> None:
    assert re.findall(r"\]\((?!https:)[^)]*\)", (ROOT / PROJECT["readme"]).read_text()) == []


def test_versions_are_locked_without_hosts_and_paths() -> None:
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    pinned = re.findall(r"^[\w-]+==[\w.]+$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert set(pinned) <= set(lines)
    locked = {re.sub(r"[-_.]+", "-", line.split("==")[0]).lower() for line in lines}
    needed = [*PROJECT["dependencies"], *(each for extra in EXTRAS.values() for each in extra)]
    names = {re.split(r"[\[<>=]", each)[0] for each in needed} - {"tacit-fl", "mlflow"}
    assert names <= locked, names - locked


def test_every_change_since_the_release_is_a_fragment() -> None:
    """A file of `changes/` is one entry of the next changelog: its kind is in its name."""
    kinds = ("added", "changed", "corrected", "fixed", "removed", "security")
    for path in (ROOT / "changes").glob("*.md"):
        if path.name != "README.md":
            assert re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(kinds)})\.md", path.name), path.name
            assert path.read_text().strip(), path.name


def test_the_lock_of_a_federation_has_hashes_and_one_package_more_than_tacit_alone() -> None:
    """Its versions are those of the environment in which Tacit is tested."""

    def versions(text: str) -> dict[str, str]:
        rows = re.findall(r"^([\w.-]+)==([\w.]+)(\+cpu)?", text, re.MULTILINE)
        return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version, _ in rows}

    text = (ROOT / "requirements-federation.lock").read_text()
    locked, tested = versions(text), versions((ROOT / "requirements.lock").read_text())
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE)) == len(locked)
    assert {name: tested.get(name, version) for name, version in locked.items()} == locked
    own = [*PROJECT["dependencies"], *EXTRAS["federation"]]
    needed, names = set(), [re.sub(r"[-_.]+", "-", re.split(r"[<>=!~ ]", each)[0]).lower() for each in own]
    while names:
        name = names.pop()
        if name not in needed:
            needed.add(name)
            requires = (Requirement(line) for line in distribution(name).requires or [])
            names += [canonicalize_name(each.name) for each in requires if _is_needed(each)]
    assert set(locked) == needed
    assert [each.split(">")[0] for each in EXTRAS["federation"]] == ["grpcio"]


def _is_needed(requirement: Requirement) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({"extra": ""})
