"""Take part in a federation as one of its sites: its file and key, plans, what was spent, and its log.

Examples:
  tacit site init site.toml                     write a commented file and the site's identity key; check the data
  tacit site pin acme.models:net                the pin of installed code, for models that a site allows
  tacit site review site.toml plan.toml         what this plan would cost and reveal here
  tacit site review site.toml plan.toml --accept
  tacit site serve site.toml                    keep the site connected; restarts by itself
  tacit site ledger site.toml                   what has been spent on these data, by whom
  tacit site log site.toml                      what the site received, answered, charged and refused
"""

import argparse

from tacit.cli._console import add_commands, run_command
from tacit.cli.commands._serving import configure_site_serve
from tacit.cli.commands._site_files import (
    configure_init,
    configure_ledger,
    configure_log,
    configure_pin,
    configure_review,
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    add_commands(
        parser,
        {
            "init": ("write the site's file and identity key, and check the data", configure_init),
            "pin": ("print the pin of installed code", configure_pin),
            "review": ("what a plan would cost and reveal here; accept or refuse it", configure_review),
            "serve": ("keep the site connected to the server", configure_site_serve),
            "ledger": ("what has been spent on the site's data", configure_ledger),
            "log": ("what the site received, answered, charged and refused", configure_log),
        },
    )


run = run_command
