"""Print a script that completes commands, options, methods and tasks in your shell.

Examples:
  eval "$(tacit completion bash)"                            in ~/.bashrc
  eval "$(tacit completion zsh)"                             in ~/.zshrc, after compinit
  tacit completion fish > ~/.config/fish/completions/tacit.fish
"""

import argparse

from tacit.cli.parsers._options import does


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="your shell")
    does(parser, "completion:run", json=False)
