"""Papers' tables and figures as data, run here and set beside the paper's numbers.

::

    experiments/<paper>/<what>.toml     the rows of a table or the lines of a figure (`studies`)
    experiments/<paper>/expected.toml   the paper's numbers and their place in it
    runs/reproduce/<paper>/<what>/...   a run directory per row and seed (`jobs`)
    a `Comparison`                      what came of them beside the paper's numbers (`outcomes`)
"""
