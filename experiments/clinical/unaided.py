"""What `dp-fedsgd` learns from tables with ε alone to set, beside pooled logistic regression without privacy.

Every table is encoded with declared ranges and categories, held out by person, and trained by what is behind the
documented command: `tacit run dp-fedsgd --data TABLE --client … --target … --set epsilon=1`. The regression (L2, C = 1)
has the same rows of the same encoding, standardised without noise. `hospitals` is generated: 200,000 stays of 14
hospitals, some of the same patients, 2 % of which end in death, with 500 codes and laboratory values in wide ranges.

::

    python experiments/clinical/unaided.py adult ist diabetes-130 covid-mx hospitals --epsilon 1 3 --seeds 0 1 2
    python experiments/clinical/unaided.py gusto support2 other-hospitals

The constants of the public rule (`tacit.core.descent_rule`) were chosen on the tables of the first line; those of the
second were not looked at for it.
"""

import argparse
import gzip
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import tacit
from tacit.core.losses import auroc
from tacit.data.encoding import Encoding, TargetColumn
from tacit.data.tables import parse_texts
from tacit.tasks.datasets import data_folders, read
from tacit.tasks.sources import COVID_MX, DIABETES, GUSTO, IST, SUPPORT2

Columns = dict[str, Any]
RESULTS = Path(__file__).with_name("unaided.jsonl")
COMMON = 0.0005  # the part of the rows from which a category is declared


def adult() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Income, of 20 random groups."""
    file = next(folder / "adult" / "adult.csv.gz" for folder in data_folders() if (folder / "adult").exists())
    table: Columns = dict(parse_texts(gzip.decompress(file.read_bytes()), "adult"))
    table["site"] = _groups(len(table["age"]))
    ranges = {
        "age": (17.0, 100.0),
        "fnlwgt": (0.0, 1.5e6),
        "education-num": (1.0, 16.0),
        "capital-gain": (0.0, 1e5),
        "capital-loss": (0.0, 5e3),
        "hours-per-week": (0.0, 100.0),
    }
    return table, ranges, "site", "income-per-year", None


def ist() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Death within six months of a stroke, of 20 random groups, from what is known at randomisation."""
    every = parse_texts(read(IST.files[0]), "ist")
    early = [*(f"RDEF{n}" for n in range(1, 9)), "RCONSC", "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3"]
    table: Columns = {name: every[name] for name in ("AGE", "RDELAY", "RSBP", "SEX", "STYPE", "RXASP", "RXHEP", *early)}
    table["site"], table["DIED"] = _groups(len(every["AGE"])), every["DIED"]
    return table, {"AGE": (16.0, 110.0), "RDELAY": (0.0, 48.0), "RSBP": (60.0, 300.0)}, "site", "DIED", None


def diabetes_130() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Readmission at any time, of 20 random groups of patients."""
    table: Columns = dict(parse_texts(read(DIABETES.files[0]), "diabetes-130"))
    patients = np.unique(np.array(table["patient_nbr"]), return_inverse=True)[1]
    table["site"] = [f"G{each}" for each in np.random.default_rng(0).integers(20, size=patients.max() + 1)[patients]]
    table["again"] = [str(int(each != "NO")) for each in table.pop("readmitted")]
    del table["encounter_id"]
    highest = {"time_in_hospital": 14, "num_lab_procedures": 150, "num_procedures": 10, "num_medications": 100}
    highest |= {"number_outpatient": 50, "number_emergency": 100, "number_inpatient": 30, "number_diagnoses": 16}
    return table, {name: (0.0, float(high)) for name, high in highest.items()}, "site", "again", "patient_nbr"


def covid_mx() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Death of patients with COVID-19, of 13 kinds of institution."""
    every = parse_texts(read(COVID_MX.files[0]), "covid-mx")
    table: Columns = {name: column for name, column in every.items() if name != "DATE_DIED"}
    table["died"] = [str(int(not day.startswith("9999"))) for day in every["DATE_DIED"]]
    return table, {"AGE": (0.0, 120.0)}, "MEDICAL_UNIT", "died", None


def gusto() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Death within 30 days of an infarction, of 16 regions, from what is known at admission."""
    every = parse_texts(read(GUSTO.files[0]), "gusto")
    table: Columns = {name: column for name, column in every.items() if name not in ("grpl", "grps")}
    ranges = {"age": (18.0, 110.0), "pulse": (0.0, 220.0), "sysbp": (0.0, 280.0), "height": (120.0, 220.0)}
    return table, {**ranges, "weight": (30.0, 250.0), "ste": (0.0, 12.0)}, "regl", "day30", None


def support2() -> tuple[Columns, dict[str, tuple[float, float]], str, str, str | None]:
    """Death in hospital, of 5 random groups, from what is known up to the third day."""
    every = parse_texts(read(SUPPORT2.files[0]), "support2")
    ranges = {"age": (18.0, 110.0), "num.co": (0.0, 10.0), "edu": (0.0, 31.0), "scoma": (0.0, 100.0)}
    ranges |= {"meanbp": (0.0, 200.0), "wblc": (0.0, 200.0), "hrt": (0.0, 300.0), "resp": (0.0, 90.0)}
    ranges |= {"temp": (30.0, 43.0), "pafi": (0.0, 900.0), "alb": (0.0, 10.0), "bili": (0.0, 60.0)}
    ranges |= {"crea": (0.0, 25.0), "sod": (100.0, 190.0), "ph": (6.8, 8.0)}
    names = (*ranges, "sex", "dzgroup", "race", "income", "diabetes", "dementia", "ca", "hospdead")
    table: Columns = {name: [text.strip() for text in every[name]] for name in names}
    table["site"] = [f"G{each}" for each in np.random.default_rng(0).integers(5, size=len(every["age"]))]
    return table, ranges, "site", "hospdead", None


def hospitals(
    rows: int = 200_000, codes: int = 500, seed: int = 0
) -> tuple[Columns, dict[str, tuple[float, float]], str, str, str]:
    """Generated stays: repeated patients, missing laboratory values, 500 codes, 2 % deaths."""
    draw = np.random.default_rng(seed)
    persons = int(0.7 * rows)
    person = np.concatenate([np.arange(persons), draw.integers(persons, size=rows - persons)])
    frail, home = draw.normal(0, 0.6, persons), draw.choice(14, persons, p=draw.dirichlet(np.full(14, 3.0)))
    age = np.clip(draw.normal(62, 18, persons), 0, 104)[person]
    chance = 1 / np.arange(1, codes + 1)
    code = draw.choice(codes, rows, p=chance / chance.sum())
    values = {
        "creatinine": np.exp(draw.normal(0, 0.5, rows) + 0.3 * frail[person]),
        "crp": np.exp(draw.normal(2.5, 1.3, rows)),
        "troponin": np.exp(draw.normal(3, 1.6, rows)),
        "lactate": np.exp(draw.normal(0.4, 0.6, rows)),
        "pressure": draw.normal(130, 22, rows),
        "haemoglobin": draw.normal(13, 2, rows),
        "sodium": draw.normal(139, 4, rows),
        "weight": draw.normal(78, 17, rows),
    }
    admission = draw.integers(4, size=rows)
    score = -5.4 + 0.055 * (age - 62) + 0.7 * frail[person] + draw.normal(0, 0.8, codes)[code] + 0.6 * (admission == 0)
    score += (
        0.9 * np.log(values["creatinine"]) + 0.35 * (np.log(values["crp"]) - 2.5) - 0.018 * (values["pressure"] - 130)
    )
    score += 0.3 * (np.log(values["troponin"]) - 3) + 0.8 * (np.log(values["lactate"]) - 0.4)
    table: Columns = {"hospital": [f"H{each}" for each in home[person]], "patient": [f"P{each}" for each in person]}
    table["age"], table["sex"] = age, [("f", "m")[each] for each in draw.integers(2, size=persons)[person]]
    table["admission"], table["code"] = [f"A{each}" for each in admission], [f"I{each:03}" for each in code]
    for name, column in values.items():
        absent = draw.random(rows) < (0.25 if name in ("crp", "troponin", "lactate") else 0.03)
        table[name] = np.where(absent, np.nan, column)
    table["died"] = (draw.random(rows) < 1 / (1 + np.exp(-score))).astype(int)
    ranges = {"age": (0.0, 110.0), "creatinine": (0.0, 20.0), "crp": (0.0, 500.0), "troponin": (0.0, 1e4)}
    ranges |= {"lactate": (0.0, 30.0), "pressure": (40.0, 300.0), "haemoglobin": (3.0, 22.0), "sodium": (100.0, 180.0)}
    return table, {**ranges, "weight": (20.0, 300.0)}, "hospital", "died", "patient"


TABLES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "adult": adult,
    "ist": ist,
    "diabetes-130": diabetes_130,
    "covid-mx": covid_mx,
    "hospitals": hospitals,
    "gusto": gusto,
    "support2": support2,
    "other-hospitals": lambda: hospitals(120_000, 300, seed=1),
}


def make_task(name: str, folder: Path) -> tacit.Task:
    """The task of a table, with declared ranges, and categories of which a part of the rows are."""
    table, ranges, client, target, person = TABLES[name]()
    categories = {}
    for column in table:
        if column not in (*ranges, client, target, person):
            values, counts = np.unique(np.array(table[column], dtype=str), return_counts=True)
            known = values[counts >= COMMON * len(table[column])]
            categories[column] = tuple("" if value == "?" else str(value) for value in known)
    classes = tuple(sorted({str(value) for value in table[target]}))
    encoding = Encoding(numbers=ranges, categories=categories, target=TargetColumn(target, classes))
    file = folder / f"{name}.json"
    file.write_bytes(encoding.to_bytes())
    columns = {key: _with_gaps(column, key in ranges) for key, column in table.items()}
    return tacit.Task.from_table(columns, client=client, target=target, person=person, encoding=file, name=name)


def pooled(task: tacit.Task) -> float:
    """AUROC of logistic regression without privacy on all training rows."""
    from sklearn.linear_model import LogisticRegression

    assert task.test is not None
    x, y = task.population.x[task.population.sample_indices], task.population.y[task.population.sample_indices]
    mean, deviation = x.mean(0), x.std(0) + 1e-6
    fitted = LogisticRegression(max_iter=1000).fit(((x - mean) / deviation).numpy(), y.flatten().numpy())
    scores = torch.from_numpy(fitted.decision_function(((task.test[0] - mean) / deviation).numpy()))
    return auroc(scores, task.test[1].flatten() > 0.5)


def main() -> None:
    """Train and compare; one line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=[*TABLES])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[1.0, 3.0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    args = parser.parse_args()
    for name in args.tables:
        with TemporaryDirectory() as folder:
            task = make_task(name, Path(folder))
        best = pooled(task)
        for epsilon in args.epsilon:
            for seed in args.seeds:
                began = time.perf_counter(), time.process_time()
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    method = tacit.methods.dp_fedsgd(epsilon=epsilon, delta=1e-6 if name == "covid-mx" else 1e-5)
                    run = tacit.train(method, task, seed=seed, evaluate_every=1000)
                result = {
                    "table": name,
                    "units": int(task.population.unit_sizes.sum()),
                    "unit": str(task.population.unit),
                    "inputs": int(task.population.x.shape[1]),
                    "epsilon": run.privacy.epsilon,  # type: ignore[union-attr]
                    "seed": seed,
                    "rounds": len(run.history),
                    "auroc": round(run.metrics["auroc"], 4),
                    "pooled": round(best, 4),
                    "seconds": round(time.perf_counter() - began[0], 1),
                }
                with RESULTS.open("a") as stream:
                    stream.write(json.dumps(result) + "\n")
                print(json.dumps(result), flush=True)


def _groups(rows: int) -> list[str]:
    return [f"G{each}" for each in np.random.default_rng(0).integers(20, size=rows)]


def _with_gaps(column: Any, is_number: bool) -> NDArray[Any] | list[Any]:
    if not is_number:
        return [None if text in ("?", "") else text for text in column]
    return np.array([np.nan if text in ("?", "") else float(text) for text in column])


if __name__ == "__main__":
    main()
