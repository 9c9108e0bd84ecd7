"""Studies of papers: tables and figures as TOML files, run here and compared with the published numbers.

::

    tacit/papers/studies/<paper>/<what>.toml      rows of a table or lines of a figure (`study`)
    tacit/papers/studies/<paper>/expected.toml    the published numbers and their place in the paper
    runs/reproduce/<paper>/<what>/...             one run directory per row and seed (`jobs`)
    a `Comparison`                                measured and published numbers (`outcomes`, `comparison`)
    experiments/<paper>/results/<what>.json       a saved `Comparison`
"""
