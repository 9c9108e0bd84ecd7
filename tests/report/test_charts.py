from itertools import pairwise

import pytest

from tacit.report.charts import spread_out


@pytest.mark.parametrize("heights", [[0.9, 0.9, 0.9, 0.2], [0.1], [0.3, 0.29, 0.31, 0.3, 0.8]])
def test_names_are_kept_apart_and_in_order(heights):
    placed = spread_out(heights, 0.1)
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    assert all(placed[b] - placed[a] >= 0.0999 for a, b in pairwise(order))
