"""The task `table`: a file or a folder of your own, as the command line describes it."""

from typing import Literal

from tacit.data.table_task import HIDDEN, TableModel
from tacit.data.task import Task
from tacit.errors import expect


def table(
    data: str = "",
    target: str = "",
    client: str | None = None,
    test: float = 0.2,
    public: str | None = None,
    drop: str = "",
    categories: str = "",
    encoding: str | None = None,
    split: Literal["rows", "clients"] = "rows",
    kind: Literal["auto", "classes", "number"] = "auto",
    classes: str = "",
    person: str | None = None,
    model: Literal["mlp", "logistic", "standardised"] | None = None,
    hidden: int | None = None,
    seed: int = 0,
) -> Task:
    """Your own table: a CSV or Parquet file with a column that names the client, or a folder with one file per client.

    Args:
        data: the file or the folder.
        target: the column to predict.
        client: the column that names the client; not for a folder.
        test: the fraction of each client's rows (or of the clients) that is held out.
        public: a file with public rows of the same columns; none: random rows, which depend on no data.
        drop: columns that are left out, separated by commas.
        categories: columns of numbers that are categories, separated by commas.
        encoding: a TOML file that declares minima, maxima and categories; `public`: those of the public rows; none:
            those of the clients' rows, which no guarantee covers.
        split: hold out `rows` of each client, or whole `clients`.
        kind: whether the target is one of several `classes` or a `number`; `auto`: by its values.
        classes: the values of a target with classes, separated by commas; empty: those in the rows, which no guarantee
            covers.
        person: the column that says which rows are one person's; none: every row is a person of its own.
        model: `mlp` has one hidden layer; `logistic` is linear; `standardised` is linear, with inputs that the first
            round of dp-fedsgd standardises. None: one that suits the method, linear where noise is added.
        hidden: units of the hidden layer of `mlp`, which is then the model; None: 32, if it is.
        seed: seed of the split.
    """
    expect(hidden is None or hidden >= 1, f"hidden={hidden} >= 1", "For a linear model, set model=logistic.")
    chosen = model is not None or hidden is not None
    expect(data != "", "a CSV or Parquet file or a folder of them", "Add --data FILE --client COLUMN --target COLUMN.")
    expect(target != "", f"the column of {data} to predict", "Add --target COLUMN.")
    return Task.from_table(
        data,
        client=client,
        target=target,
        test=test,
        public=public,
        model=TableModel(model or "mlp", hidden or HIDDEN, chosen=chosen),
        drop=_names(drop),
        categories=_names(categories),
        encoding=encoding,
        split=split,
        kind=kind,
        classes=_names(classes),
        person=person,
        name="table",
        seed=seed,
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]
