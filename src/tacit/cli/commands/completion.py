"""`tacit completion`: print a script that completes commands, options, methods and tasks."""

import argparse

from tacit.cli import make_parser
from tacit.methods import definitions
from tacit.tasks.catalog import TASKS

BASH = """_tacit() {{
  local words="{commands}" word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  [ "$before" = --task ] && words="{tasks}"
  [ "$COMP_CWORD" = 1 ] && words="{commands}"
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  [ ${{#COMPREPLY[@]}} = 0 ] && COMPREPLY=($(compgen -f -- "$word"))
}}
complete -F _tacit tacit"""


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    words = _options(make_parser())
    for name in ("run", "card", "audit", "probe"):
        words[name] += definitions()
    words["tasks"] += TASKS
    print(_fish(words) if args.shell == "fish" else _bash(words, list(TASKS), zsh=args.shell == "zsh"))
    return 0


def _options(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """The options of every command, as its parser declares them."""
    commands = next(action.choices for action in parser._actions if action.choices)
    return {
        name: [option for option in command._option_string_actions if option.startswith("--")]
        for name, command in dict(commands).items()
    }


def _bash(words: dict[str, list[str]], tasks: list[str], *, zsh: bool) -> str:
    cases = "\n".join(f'    {name}) words="{" ".join(completions)}" ;;' for name, completions in words.items())
    script = BASH.format(commands=" ".join([*words, "--version", "--help"]), cases=cases, tasks=" ".join(tasks))
    return f"autoload -U +X bashcompinit && bashcompinit\n{script}" if zsh else script


def _fish(words: dict[str, list[str]]) -> str:
    lines = [f"complete -c tacit -n __fish_use_subcommand -a '{' '.join(words)}'"]
    for name, completions in words.items():
        seen = f"'__fish_seen_subcommand_from {name}'"
        lines += [f"complete -c tacit -n {seen} -l {word[2:]}" for word in completions if word.startswith("--")]
        plain = " ".join(word for word in completions if not word.startswith("--"))
        lines += [f"complete -c tacit -n {seen} -a '{plain}'"] if plain else []
    return "\n".join(lines)
