"""The curves of a boosted model, with the noise in each score."""

import numpy as np

from tacit.analyses.boosting import FINE_CELLS, BoostTerms, base_rate, merge_cells
from tacit.analyses.results import Shape
from tacit.analyses.sums import Z95, Released, Sums64
from tacit.data.encoding import Encoding, Scale


def read_shapes(query: BoostTerms, released: Released, encoding: Encoding) -> list[Shape]:
    """The scores of every column's bins or values, the last that of missing or other values.

    Scores are centred, so that a column's mean score over all persons is zero. A value whose persons cannot be told
    from none has NaN.
    """
    parts, names = query.parts, encoding.names
    counts, scores = released.total[parts.counts], released.total[parts.scores]
    spreads = Z95 * _noise_of_scores(query, released, counts)
    shapes = []
    inputs = [*([place] for place in query.columns.numbers), *(list(each) for each in query.columns.categories)]
    for number, (of_column, places) in enumerate(zip(query.columns.slices, inputs, strict=True)):
        own, persons, spread = scores[of_column], counts[of_column], spreads[of_column]
        own = own - float(own @ persons) / max(float(persons.sum()), 1.0)
        own = np.where(persons > query.step.merging, own, np.nan) if number >= len(query.columns.numbers) else own
        if number >= len(query.columns.numbers):
            column = _column_of(encoding, names[places[0]])
            labels = tuple(names[place][len(column) + 1 :] or "missing" for place in places)
            shapes.append(Shape(column, (), labels, tuple(own.tolist()), tuple(spread.tolist())))
            continue
        merged = merge_cells(persons, query.step.merging)
        own[-1] = own[-1] if persons[-1] > query.step.merging else np.nan
        firsts = [int(np.flatnonzero(merged == each)[0]) for each in range(int(merged.max()) + 1)]
        name = names[places[0]]
        scale = Scale.of(encoding.numbers[name], name)
        edges = tuple(scale.low + (scale.high - scale.low) * first / FINE_CELLS for first in firsts)
        shapes.append(Shape(name, edges, (), tuple(own[firsts].tolist()), tuple(spread[firsts].tolist())))
    return shapes


def _column_of(encoding: Encoding, name: str) -> str:
    """The categorical column of an input."""
    return max((each for each in encoding.categories if name.startswith(f"{each}=")), key=len)


def _noise_of_scores(query: BoostTerms, released: Released, counts: Sums64) -> Sums64:
    """The standard deviation of the noise in each score, as the rounds added it up."""
    base = base_rate(released.total)
    variance = np.zeros(query.parts.cells)
    for done in range(1, query.plan.fitted):
        groups = query.parts.groups(counts, done, query.step.merging)
        for of_column, group in zip(query.columns.slices, groups, strict=True):
            persons = np.bincount(group, counts[of_column], int(group.max()) + 1).astype(np.float64)
            moved = query.step.moves(base, persons, done) * released.noise.deviation
            variance[of_column] += (moved**2)[group]
    return np.asarray(np.sqrt(variance), dtype=np.float64)
