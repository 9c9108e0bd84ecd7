"""What each command of `tacit` takes: one module per command, with argparse and nothing else.

A module's docstring is the command's help; its first line is the summary. `configure(parser)` declares the arguments
and, with `does`, what is called. What commands do is in `tacit.cli.commands`, imported only after a line was parsed.
"""
