"""Medical tasks: outcomes of patients, with hospitals as clients.

They replace the proprietary Premier data of FL-TOP, with the same network (at another number of inputs), the same
80/20 split over all patients (by patient where one has several stays) and the same kind of features. Inputs are
limited to facts known at the time of the prediction; each factory lists the excluded ones. The split into training and
test rows is fixed; the seed changes which client owns which training row.

Features are in [0, 1]. Numbers are scaled by their minimum and maximum; a missing number becomes 0, and an indicator
column marks it. Categories become one column per value; a missing category is a value like any other. These constants
make an `Encoding`; the argument `encoding` chooses its source:

- `training`, the default, as in FL-TOP: from all training rows, with the values that at least `_RARE` of them have. The
  encoding then depends on the clients' rows, which no guarantee covers, and every guarantee states so.
- `public`: from the public rows alone (`public=N`), with all values that they have.
- a TOML file, which declares the constants to be public, as in the data set's documentation::

      [numbers]
      AGE = [16, 110]           # minimum and maximum; what is outside is clipped
      [categories]
      SEX = ["F", "M"]          # any other value sets no column
"""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy
from tacit.data.encoding import Encoding, Preprocessing
from tacit.data.tables import Table, parse_texts
from tacit.data.task import Population, Samples, Task
from tacit.errors import DataError, expect, one_of
from tacit.tasks import partition as partitions
from tacit.tasks.datasets import DataSet, read
from tacit.tasks.models import medical_net
from tacit.tasks.sources import COVID_MX, DIABETES, GUSTO, IST, SUPPORT2

_RARE = 100  # training rows
_MISSING = ("", "?")  # numbers; a missing category is a value like any other
Column = list[str] | NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class PatientTable:
    """A table of patients, and the role of its columns.

    Args:
        name: the task's name in reports.
        table: all columns.
        numbers, categories: the columns that are inputs.
        positive: for each row whether the outcome occurred.
        hospital: for each row the natural client; None if it is not published.
        person: for each row the patient, if a patient can have several rows.
        rows: the rows that are used; None for all.
    """

    name: str
    table: dict[str, Column]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    positive: NDArray[np.bool_]
    hospital: Column | None = None
    person: Column | None = None
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True)
class ClientSplit:
    """The split of the training rows among clients.

    Args:
        clients: number of virtual hospitals of equal size; None for the natural ones.
        public: number of public rows, which no client owns.
        balanced: drop rows of the more frequent outcome at random, until each client (and the public data) has as
            many of both.
        seed: seed of the split.
        encoding: where minima, maxima and categories come from: `training`, `public` or a TOML file.
    """

    clients: int | None
    public: int
    balanced: bool
    seed: int
    encoding: str = "training"


def covid_mx(
    clients: int | None = 5010, public: int = 356, balanced: bool = False, seed: int = 0, encoding: str = "training"
) -> Task:
    """COVID-19 patients of Mexico: death, from age, sex and earlier diseases.

    Excluded, as later than the first visit or not dated: DATE_DIED (the outcome), INTUBED, ICU, PATIENT_TYPE (sent home
    or admitted), CLASIFFICATION_FINAL (the laboratory's result) and PNEUMONIA.

    Args:
        clients: virtual hospitals of equal size; `none` for the 13 kinds of institution (MEDICAL_UNIT).
        public: number of public patients, which no client owns.
        balanced: downsample each client to as many deaths as survivors.
        seed: seed of the split into clients.
        encoding: minima, maxima and categories from `training` rows, `public` ones, or a TOML file that declares them.
    """
    table = _covid_table()
    diseases = ("DIABETES", "COPD", "ASTHMA", "INMSUPR", "HIPERTENSION", "OTHER_DISEASE", "CARDIOVASCULAR")
    patients = PatientTable(
        name="covid-mx",
        table=dict(table),
        numbers=("AGE",),
        categories=("SEX", "PREGNANT", *diseases, "OBESITY", "RENAL_CHRONIC", "TOBACCO"),
        positive=table["DATE_DIED"] != 99999999,
        hospital=table["MEDICAL_UNIT"],
    )
    return _make_task(patients, ClientSplit(clients, public, balanced, seed, encoding))


def ist(
    clients: int | None = None,
    outcome: Literal["six-months", "fourteen-days"] = "six-months",
    public: int = 0,
    balanced: bool = False,
    seed: int = 0,
    encoding: str = "training",
    by: Literal["hospital", "country"] = "hospital",
    largest: int | None = None,
) -> Task:
    """International Stroke Trial: death, from what was known at randomisation; hospitals or countries are clients.

    Inputs are the R columns, age, sex, stroke type and the assigned treatment. Excluded are all D and F columns (14
    days and 6 months later), the trial's own predictions (EXPD...) and the date.

    Args:
        clients: virtual hospitals of equal size; `none` for the real ones.
        outcome: dead within six months, or within fourteen days.
        public: number of public patients, which no client owns.
        balanced: downsample each client to as many deaths as survivors.
        seed: seed of the split into clients.
        encoding: minima, maxima and categories from `training` rows, `public` ones, or a TOML file that declares them.
        by: what a client is, a `hospital` (466) or a `country` (36).
        largest: only the patients of this many clients, those with the most; none: all.
    """
    table = _read_csv(IST)
    one_of(("hospital", "country"), by=by)
    hospitals = np.array([int(number) for number in table["HOSPNUM"]])
    sites = hospitals if by == "hospital" else np.unique(np.asarray(table["COUNTRY"]), return_inverse=True)[1]
    deficits = tuple(f"RDEF{number}" for number in range(1, 9))
    early = ("RCONSC", "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3")
    died = table["DIED" if outcome == "six-months" else "ID14"]
    patients = PatientTable(
        name="ist",
        table=table,
        numbers=("AGE", "RDELAY", "RSBP"),
        categories=("SEX", *early, *deficits, "STYPE", "RXASP", "RXHEP"),
        positive=np.asarray(died) == "1",
        hospital=sites,
        rows=None if largest is None else _of_largest(sites, largest),
    )
    return _make_task(patients, ClientSplit(clients, public, balanced, seed, encoding))


def gusto(
    clients: int | None = None,
    groups: Literal["regl", "grpl", "grps"] = "regl",
    public: int = 0,
    balanced: bool = False,
    seed: int = 0,
    encoding: str = "training",
) -> Task:
    """GUSTO-I: death within 30 days of an infarction, from findings at admission; regions are clients.

    Excluded are the columns derived from others (sho, hig, hyp, hrt, ant, tpa) and the regions.

    Args:
        clients: virtual hospitals of equal size; `none` for the groups in the data.
        groups: the grouping: `regl` (16 regions), `grpl` (48) or `grps` (121).
        public: number of public patients, which no client owns.
        balanced: downsample each client to as many deaths as survivors.
        seed: seed of the split into clients.
        encoding: minima, maxima and categories from `training` rows, `public` ones, or a TOML file that declares them.
    """
    table = _read_csv(GUSTO)
    history = ("dia", "pmi", "htn", "smk", "pan", "fam", "prevcvd", "prevcabg")
    patients = PatientTable(
        name="gusto",
        table=table,
        numbers=("age", "pulse", "sysbp", "height", "weight", "ste"),
        categories=("sex", "Killip", "miloc", "ttr", *history, "tx"),
        positive=np.asarray(table["day30"]) == "1",
        hospital=np.array([int(number) for number in table[groups]]),
    )
    return _make_task(patients, ClientSplit(clients, public, balanced, seed, encoding))


def diabetes_130(
    clients: int | None = 100, public: int = 0, balanced: bool = False, seed: int = 0, encoding: str = "training"
) -> Task:
    """Diabetic patients of 130 US hospitals: readmission within 30 days, from what is known at discharge.

    The hospital is not published, so clients are virtual. Stays that end in death or a hospice are excluded, since no
    readmission can follow. All stays of one patient are on the same side of the split.

    Args:
        clients: virtual hospitals of equal size.
        public: number of public stays, which no client owns.
        balanced: downsample each client to as many readmissions as others.
        seed: seed of the split into clients.
        encoding: minima, maxima and categories from `training` rows, `public` ones, or a TOML file that declares them.
    """
    table = _read_csv(DIABETES)
    names = list(table)
    numbers = tuple(name for name in names if name.startswith(("num", "time_in")))
    labels = {"encounter_id", "patient_nbr", "readmitted"}
    final = {"11", "13", "14", "19", "20", "21"}
    patients = PatientTable(
        name="diabetes-130",
        table=table,
        numbers=numbers,
        categories=tuple(name for name in names if name not in labels and name not in numbers),
        positive=np.asarray(table["readmitted"]) == "<30",
        person=table["patient_nbr"],
        rows=np.flatnonzero([where not in final for where in table["discharge_disposition_id"]]),
    )
    return _make_task(patients, ClientSplit(clients, public, balanced, seed, encoding))


def support2(
    clients: int | None = 40, public: int = 0, balanced: bool = False, seed: int = 0, encoding: str = "training"
) -> Task:
    """SUPPORT: death in hospital of the critically ill, from findings up to the third day.

    Excluded: later facts (death, slos, d.time, charges and costs, avtisst, sfdm2), other predictions (surv2m, surv6m,
    prg2m, prg6m, sps), orders not to resuscitate, and the questionnaires of daily living, whose absence reveals the
    outcome.

    Args:
        clients: virtual hospitals of equal size; the five real ones are not published.
        public: number of public patients, which no client owns.
        balanced: downsample each client to as many deaths as survivors.
        seed: seed of the split into clients.
        encoding: minima, maxima and categories from `training` rows, `public` ones, or a TOML file that declares them.
    """
    table = _read_csv(SUPPORT2)
    body = ("meanbp", "wblc", "hrt", "resp", "temp", "pafi", "alb", "bili", "crea", "sod", "ph", "glucose", "bun")
    patients = PatientTable(
        name="support2",
        table=table,
        numbers=("age", "num.co", "edu", "scoma", "aps", "hday", *body, "urine"),
        categories=("sex", "dzgroup", "income", "race", "diabetes", "dementia", "ca"),
        positive=np.asarray(table["hospdead"]) == "1",
    )
    return _make_task(patients, ClientSplit(clients, public, balanced, seed, encoding))


def _make_task(patients: PatientTable, split: ClientSplit) -> Task:
    train, test = _train_test_rows(patients)
    y = torch.from_numpy(patients.positive.astype(np.float32))[:, None]
    key = Key.from_seed(split.seed, "patients")
    public_rows, owned = _public_and_owned(len(train), split, key.child("public"))
    inputs = _inputs(patients)
    encoding = _encoding(inputs, patients, split.encoding, train, train[public_rows.numpy()])
    x = encoding.inputs(inputs)
    rows = torch.from_numpy(train)
    positive = y[rows].flatten() > 0.5
    parts = [owned[part] for part in _client_parts(patients, train[owned.numpy()], split, key)]
    if split.balanced:
        parts = [_downsample(part, positive, key.child("balance", i)) for i, part in enumerate(parts)]
        if len(public_rows):
            public_rows = _downsample(public_rows, positive, key.child("balance public"))
    public: Samples | None = (x[rows[public_rows]], y[rows[public_rows]]) if len(public_rows) else None
    return Task(
        model=partial(medical_net, inputs=x.shape[1]),
        clients=Population.split(x[rows], y[rows], parts),
        test=(x[torch.from_numpy(test)], y[torch.from_numpy(test)]),
        loss=BinaryCrossEntropy(),
        public=public,
        name=patients.name,
        preprocessing=encoding.preprocessing,
        test_overlap="coincidental",  # few columns: patients of both sides can have equal rows
    )


def _inputs(patients: PatientTable) -> Table:
    """The columns that are inputs: numbers, of which some may be missing, and texts or codes."""
    numbers = {name: _floats(patients.table[name]) for name in patients.numbers}
    categories = {name: _values(patients.table[name]) for name in patients.categories}
    return Table(patients.name, {**numbers, **categories})


def _encoding(
    inputs: Table, patients: PatientTable, encoding: str, train: NDArray[np.int64], public: NDArray[np.int64]
) -> Encoding:
    """The encoding of the inputs, and the source of its constants."""
    names = patients.numbers, patients.categories
    if encoding == "training":
        detail = "minima, maxima and categories are those of all training rows. encoding=public or a file avoids it."
        return replace(Encoding.of(inputs, *names, train, _RARE), preprocessing=Preprocessing("private", detail))
    if encoding == "public":
        expect(len(public) > 0, "public rows for encoding=public, got none", "Set public to their number.")
        detail = f"Minima, maxima and categories are those of {len(public)} public rows."
        constants = Encoding.of(inputs, *names, public)
        return replace(constants, indicators=None, preprocessing=Preprocessing("public", detail))
    return Encoding.read(encoding).for_inputs([*inputs.columns], patients.name, Path(encoding))


def _train_test_rows(patients: PatientTable) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows for training (80 %) and testing, the same for every seed; all rows of a person are on one side."""
    rows = np.arange(len(patients.positive)) if patients.rows is None else patients.rows
    persons = rows if patients.person is None else np.unique(np.asarray(patients.person)[rows], return_inverse=True)[1]
    distinct = np.unique(persons)
    key = Key.from_seed(0, f"split {patients.name}")
    chosen = key.public_numpy().permutation(distinct)[: round(0.8 * len(distinct))]
    trains = np.isin(persons, chosen)
    return rows[trains].astype(np.int64), rows[~trains].astype(np.int64)


def _public_and_owned(count: int, split: ClientSplit, key: Key) -> tuple[Tensor, Tensor]:
    """The public training rows, and those that belong to clients."""
    expect(0 <= split.public < count, f"0 <= public={split.public} < {count}")
    order = torch.randperm(count, generator=key.public_generator())
    return order[: split.public], order[split.public :].sort().values


def _client_parts(patients: PatientTable, rows: NDArray[np.int64], split: ClientSplit, key: Key) -> partitions.RowParts:
    """Virtual hospitals of equal size, or the natural ones."""
    if split.clients is not None:
        return partitions.iid(len(rows), split.clients, key.child("clients"))
    if patients.hospital is None:
        raise DataError(f"Expected clients=<number> for {patients.name}: its hospitals are not published.")
    return partitions.by_key(np.asarray(patients.hospital)[rows])


def _of_largest(sites: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """The rows of the sites with the most rows; of equally large ones, the first."""
    sizes = np.bincount(sites)
    expect(1 <= count <= len(sizes), f"largest={count} in 1, ..., {len(sizes)}")
    return np.isin(sites, np.argsort(-sizes, kind="stable")[:count]).nonzero()[0]


def _downsample(part: Tensor, positive: Tensor, key: Key) -> Tensor:
    """Equally many rows of both outcomes; a client with only one outcome keeps one row."""
    shuffled = part[torch.randperm(len(part), generator=key.public_generator())]
    yes, no = shuffled[positive[shuffled]], shuffled[~positive[shuffled]]
    each = max(1, min(len(yes), len(no)))
    return torch.cat([yes[:each], no[:each]])


def _read_csv(data: DataSet) -> dict[str, Column]:
    file = data.files[0]
    return dict(parse_texts(read(file), file.path))


def _floats(column: Column) -> NDArray[np.float64]:
    return np.array([np.nan if value in _MISSING else float(value) for value in column])


def _values(column: Column) -> NDArray[Any]:
    return np.array(column, dtype=object) if isinstance(column, list) else column


def _covid_table() -> dict[str, NDArray[np.int64]]:
    """The table as integers; dates lose their separators, so that 9999-99-99 is 99999999."""
    file = COVID_MX.files[0]
    header, _, body = read(file).partition(b"\n")
    names = header.decode().strip().split(",")
    plain = body.replace(b"\r", b"").strip().translate(bytes.maketrans(b"\n", b","), delete=b"/-")
    cells = np.fromstring(plain.decode("ascii"), dtype=np.int64, sep=",")
    if len(cells) % len(names):
        raise DataError(f"Expected rows of {len(names)} whole numbers in {file.path}, got {len(cells)} cells.")
    return dict(zip(names, cells.reshape(-1, len(names)).T, strict=True))
