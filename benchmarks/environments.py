"""An environment for each peer, created once under `.venvs/`, because their requirements conflict.

They conflict with ours, too: `constraints.txt` is not for them. A peer that needs PyTorch pins its version itself,
since a range would fetch gigabytes of CUDA.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Environment:
    """A name and requirements; without requirements it is the environment in which the benchmark runs."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return ROOT / ".venvs" / self.name

    def program(self, name: str) -> str:
        """The path of a program in the environment."""
        return str((self.folder if self.requirements else Path(sys.prefix)) / "bin" / name)

    def create(self) -> None:
        """Create the environment, unless a file in it shows that it exists with the same requirements."""
        stamp, wanted = self.folder / "requirements.txt", "\n".join(self.requirements) + "\n"
        if not self.requirements or (stamp.exists() and stamp.read_text() == wanted):
            return
        print(f"Creating .venvs/{self.name}: {', '.join(self.requirements)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(self.folder)], check=True)
        subprocess.run([self.program("python"), *self.installation()], check=True)
        stamp.write_text(wanted)

    def installation(self, *options: str) -> list[str]:
        """The arguments with which Python installs the requirements."""
        return ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", *options, *self.requirements]


def source_of(tree: Path) -> Path:
    """The folder from which Python imports the Tacit of a tree. Without one, it would import the installed Tacit."""
    source = tree.resolve() / "src"
    if not (source / "tacit").is_dir():
        sys.exit(f"Expected a tree of Tacit, with src/tacit in it, got {tree}.")
    return source


PROJECT = Environment("project")
FLOWER = Environment("flower", ("torch==2.13.0", "flwr[simulation]==1.41.*"))
PFL = Environment("pfl", ("torch==2.13.0", "pfl==0.6.*", "dp-accounting<0.6"))
OPENDP = Environment("opendp", ("opendp==0.16.*",))
PEERS = (FLOWER, PFL, OPENDP)
