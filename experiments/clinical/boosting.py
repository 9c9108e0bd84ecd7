"""Figures of `tacit regress --family ebm`: AUROC on Adult, beside InterpretML's DP-EBM on the same splits.

    TACIT_DATA=... python experiments/clinical/boosting.py interpretml.json

It reads `settings/boosting.toml` and writes `boosting.json` beside itself. The file is the output of
`interpretml_reference.py`, which runs in an environment of its own. Clients are 20 random groups. Rounds and noise are
those of the method that the command runs; noise of its deviation is added to exact sums.
"""

import json
import sys
import tomllib
from pathlib import Path

import numpy as np
import torch

from tacit.analyses.boosting import BoostTerms, base_rate
from tacit.analyses.fit_rule import plan_boosting
from tacit.analyses.questions import BoostQuestion
from tacit.analyses.sums import SumRelease, Sums64
from tacit.core.losses import auroc
from tacit.data.encoding import Encoding
from tacit.data.tables import read_table
from tacit.engine.learners.records.term_sums import term_sum

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from clinical.regression import deviation_of  # noqa: E402
from clinical.unaided import TABLES, _with_gaps  # noqa: E402

SETTINGS = tomllib.loads((HERE / "settings" / "boosting.toml").read_text())


def scores_of(query: BoostTerms, state: Sums64, x: torch.Tensor) -> torch.Tensor:
    """The scores of rows by a fitted model."""
    return torch.from_numpy(state[query.parts.scores])[query.columns.cells(x)].sum(1)


def boost(query: BoostTerms, x: torch.Tensor, noise: float, random: np.random.Generator) -> Sums64:
    """The state after all rounds but the last, by counting in cells; the first sums are compared with the query's."""
    cells, outcome = query.columns.cells(x).numpy(), x[:, query.target].numpy() > 0.5
    parts, state = query.parts, np.zeros(query.length)
    for done in range(query.plan.fitted):
        total = np.zeros(query.length)
        if done == 0:
            total[parts.counts] = query.start_scale * np.bincount(cells.ravel(), minlength=parts.cells)
            total[1] = query.start_scale * outcome.sum()
        else:
            base = base_rate(state)
            scores = state[parts.scores][cells].sum(1) + np.log(base / (1 - base))
            residual = 1 / (1 + np.exp(-scores)) - outcome
            groups = parts.groups(state[parts.counts], done, query.step.merging)
            of_cell = np.concatenate([each.start + one for each, one in zip(query.columns.slices, groups, strict=True)])
            weights = np.repeat(residual, cells.shape[1])
            total[parts.scores] = np.bincount(of_cell[cells].ravel(), weights, minlength=parts.cells)
        if done < 2:
            assert np.allclose(total, term_sum(query, torch.from_numpy(state), x, x, None).numpy(), atol=1e-6)
        state = query.step.step(state, total + noise * random.standard_normal(len(total)))
    return state


def main(reference: str) -> None:
    """Fit to four fifths of the rows, and compare on the others."""
    columns, ranges, client, target, _ = TABLES[SETTINGS["table"]]()
    categories = {}
    for name in columns:
        if name not in (*ranges, target, client):
            values, counts = np.unique(np.array(columns[name], dtype=str), return_counts=True)
            common = values[counts >= SETTINGS["common"] * len(columns[name])]
            categories[name] = tuple("" if value == "?" else str(value) for value in common)
    table = read_table({name: _with_gaps(each, name in ranges) for name, each in columns.items() if name != client})
    question = BoostQuestion(target=f"{target}={SETTINGS['event']}")
    encoding = question.encode(table, Encoding(numbers=ranges, categories=categories))
    x, any_plan = encoding.inputs(table), question.query(encoding)
    contestant = json.loads(Path(reference).read_text())
    results: dict[str, object] = {"rows": len(x), "columns": any_plan.columns.count}
    for epsilon in (None, *SETTINGS["epsilons"]):
        reached = []
        for split in range(1 if epsilon is None else SETTINGS["splits"]):
            random = np.random.default_rng(split)
            test = torch.from_numpy(random.random(len(x)) < 0.2)
            counts = np.unique(np.array(columns[client])[~test.numpy()], return_counts=True)[1]
            release = SumRelease(
                epsilon=epsilon, delta=SETTINGS["delta"], clients=len(counts), units=int(counts.max()),
                persons=float(counts.sum()),
            )  # fmt: skip
            query = plan_boosting(any_plan, release)
            noise = 0.0 if epsilon is None else deviation_of(query, release)
            state = boost(query, x[~test], noise, random)
            reached.append(auroc(scores_of(query, state, x[test]), x[test, query.target] > 0.5))
        results[f"epsilon {epsilon}"] = outcome = {
            "auroc": [round(each, 4) for each in reached],
            "mean": round(float(np.mean(reached)), 4),
            "rounds": query.plan.releases,
        }
        if str(epsilon) in contestant["auroc"]:
            other = contestant["auroc"][str(epsilon)]
            outcome |= {"interpretml": other, "mean of interpretml": round(float(np.mean(other)), 4)}
            outcome["reached"] = bool(np.mean(reached) >= np.mean(other))
        print(epsilon, json.dumps(outcome), flush=True)
    results["version of interpretml"] = contestant["interpretml"]
    (HERE / "boosting.json").write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
