"""Reproduce a table or figure of a paper, and compare the results with the published numbers.

Without an argument, all studies are listed. Each row is run with each seed in its own directory below runs/reproduce.
Finished runs are not repeated; after Ctrl-C, a crash or a kill the same command resumes. The table reports misses as
plainly as hits, with the privacy guarantee of each row below it. Figures are drawn as PNG.

Studies are part of the package; your own are read from experiments/PAPER/WHAT.toml below the current folder.
Results are saved in experiments/PAPER/results/WHAT.json below the current folder, and read from there.

Examples:
  tacit reproduce                                       list all tables and figures
  tacit reproduce geyer/table-1 --fast                  the short version, in a minute
  tacit reproduce geyer/table-1 --rows "K=100 fixed bound" "K=100 quantile bound" --seeds 0,1
  tacit reproduce geyer/table-1 --save                  also save the results in experiments/geyer/results/table-1.json;
                                                        other rows and seeds already saved there are kept
  tacit reproduce geyer/table-1 --save results.json     also save the results in another file
  tacit reproduce geyer/figure-2                        run and draw
  tacit reproduce --from geyer/table-1                  print (and draw) saved results; runs nothing
  tacit reproduce --from results.json
"""

import argparse
from pathlib import Path

from tacit.cli.parsers._options import add_trust, add_workers, does, reader

DEFAULT = Path()  # --save without a file


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("study", nargs="?", metavar="PAPER/WHAT", help="for example geyer/table-1")
    parser.add_argument("--rows", nargs="+", default=[], metavar="NAME", help="only these rows")
    parser.add_argument("--fast", action="store_true", help="the short version, which only shows that the study runs")
    parser.add_argument(
        "--seeds",
        type=reader(_seeds, "whole numbers like 0,1"),
        default=(),
        metavar="N,N",
        help="other seeds, for example 0,1",
    )
    add_workers(parser, "worker processes; results do not depend on them")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/reproduce)")
    parser.add_argument(
        "--save",
        type=Path,
        nargs="?",
        const=DEFAULT,
        metavar="FILE",
        help="save the results as JSON (default: experiments/PAPER/results/WHAT.json)",
    )
    parser.add_argument("--from", dest="saved", metavar="FILE", help="print saved results: a file, or PAPER/WHAT")
    add_trust(parser)
    does(parser, "studies:run", "reproduce:run")


def _seeds(text: str) -> tuple[int, ...]:
    seeds = tuple(int(word) for word in text.split(","))
    if len(set(seeds)) < len(seeds):
        raise argparse.ArgumentTypeError(f"expected different seeds, got {text!r}")
    return seeds
