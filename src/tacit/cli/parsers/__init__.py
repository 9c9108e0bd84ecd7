"""The parsers of `tacit`: one module per command, with argparse and nothing else.

A module's docstring is the command's help; its first line is the summary. `configure(parser)` declares the arguments
and, with `does`, the functions to call. These are in `tacit.cli.commands`, imported only after parsing.
"""
