"""An environment for each peer, made once under `.venvs/`: their requirements contradict each other."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Environment:
    """A name and what is installed; without requirements it is the environment that runs the benchmark."""

    name: str
    requirements: tuple[str, ...] = ()

    @property
    def home(self) -> Path:
        """Where it lives."""
        return ROOT / ".venvs" / self.name

    def program(self, name: str) -> str:
        """The path of a program in it."""
        return str((self.home if self.requirements else Path(sys.prefix)) / "bin" / name)

    def make(self) -> None:
        """Create and fill it, unless a stamp says that this was done with the same requirements."""
        stamp, wanted = self.home / "requirements.txt", "\n".join(self.requirements) + "\n"
        if not self.requirements or (stamp.exists() and stamp.read_text() == wanted):
            return
        print(f"Making .venvs/{self.name}: {', '.join(self.requirements)}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(self.home)], check=True)
        pip = [self.program("python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        constraints = ["--constraint", str(ROOT / "constraints.txt")]
        subprocess.run([*pip, *constraints, *self.requirements], check=True)
        stamp.write_text(wanted)


PROJECT = Environment("project")
FLOWER = Environment("flower", ("torch==2.13.0", "flwr[simulation]==1.41.*"))
PFL = Environment("pfl", ("torch==2.13.0", "pfl==0.6.*", "dp-accounting<0.6"))
OPENDP = Environment("opendp", ("opendp==0.16.*",))
