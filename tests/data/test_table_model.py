"""Built-in models for tables: sizes that a stranger's file may name."""

import pytest

from tacit.data.table_task import MAX_WEIGHTS, TableModel
from tacit.errors import UserError


@pytest.mark.parametrize("name", ["logistic", "mlp"])
def test_a_model_that_would_not_fit_into_memory_is_refused(name):
    with pytest.raises(UserError, match=f"at most {MAX_WEIGHTS} weights"):
        TableModel(name, hidden=1 << 17, inputs=1 << 17, outputs=1 << 17)
