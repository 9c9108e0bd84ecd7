"""Medical tasks: outcomes of patients, with hospitals as clients.

They stand in for the proprietary Premier data of FL-TOP, with the same network at its own number of inputs,
the same 80/20 split over all patients (by patient where one has several stays) and the same kind of features
(`tacit.tasks.encoding`). Only what is known when the prediction is made is an input; each factory says what is
left out. The split into training and test rows is fixed; the seed changes who owns which training row.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.core.keys import Key
from tacit.core.losses import BinaryCrossEntropy
from tacit.core.task import Population, Samples, Task
from tacit.errors import DataError, expect
from tacit.tasks import partition as split
from tacit.tasks.datasets import DataSet, read
from tacit.tasks.encoding import Column, encode
from tacit.tasks.formats import parse_csv
from tacit.tasks.models import medical_net
from tacit.tasks.sources import COVID_MX, DIABETES, GUSTO, IST, SUPPORT2


@dataclass(frozen=True, kw_only=True)
class Study:
    """A table of patients, and which of its columns are inputs.

    Args:
        name: what reports call the task.
        table: all columns.
        numbers, categories: the columns that are inputs.
        positive: for each row whether the outcome happened.
        hospital: for each row the natural client; none if it is not published.
        person: for each row who it is about, where one person has several rows.
        rows: the rows that count; all if left out.
    """

    name: str
    table: dict[str, Column]
    numbers: tuple[str, ...]
    categories: tuple[str, ...]
    positive: NDArray[np.bool_]
    hospital: Column | None = None
    person: Column | None = None
    rows: NDArray[np.int64] | None = None


@dataclass(frozen=True, kw_only=True)
class Deal:
    """Who owns the training rows.

    Args:
        clients: number of virtual hospitals of equal size; none for the natural ones.
        public: rows that everybody may see and no client owns.
        balanced: leave out rows of the more frequent outcome at random, until each client (and the public
            data) has as many of both.
        seed: of all this.
    """

    clients: int | None
    public: int
    balanced: bool
    seed: int


def covid_mx(clients: int | None = 5010, public: int = 356, balanced: bool = False, seed: int = 0) -> Task:
    """COVID-19 patients of Mexico: death, from age, sex and earlier diseases.

    Left out as later than the first visit, or not dated: DATE_DIED (the outcome), INTUBED, ICU, PATIENT_TYPE
    (sent home or kept), CLASIFFICATION_FINAL (the laboratory's answer) and PNEUMONIA.

    Args:
        clients: virtual hospitals of equal size; `none` for the 13 kinds of institution (MEDICAL_UNIT).
        public: patients that everybody may see.
        balanced: downsample each client to as many deaths as survivors.
        seed: of the split into clients.
    """
    table = _covid_table()
    sick = ("DIABETES", "COPD", "ASTHMA", "INMSUPR", "HIPERTENSION", "OTHER_DISEASE", "CARDIOVASCULAR")
    study = Study(
        name="covid-mx",
        table=dict(table),
        numbers=("AGE",),
        categories=("SEX", "PREGNANT", *sick, "OBESITY", "RENAL_CHRONIC", "TOBACCO"),
        positive=table["DATE_DIED"] != 99999999,
        hospital=table["MEDICAL_UNIT"],
    )
    return _task(study, Deal(clients=clients, public=public, balanced=balanced, seed=seed))


def ist(
    clients: int | None = None,
    outcome: Literal["six-months", "fourteen-days"] = "six-months",
    public: int = 0,
    balanced: bool = False,
    seed: int = 0,
) -> Task:
    """International Stroke Trial: death, from what was known at randomisation; hospitals are clients.

    Inputs are the R columns, age, sex, stroke type and the allotted treatment. Left out are all D and F
    columns (14 days and 6 months later), the trial's own predictions (EXPD...) and the date.

    Args:
        clients: virtual hospitals of equal size; `none` for the real ones.
        outcome: dead within six months, or within fourteen days.
        public: patients that everybody may see.
        balanced: downsample each client to as many deaths as survivors.
        seed: of the split into clients.
    """
    table = _csv(IST)
    deficits = tuple(f"RDEF{number}" for number in range(1, 9))
    early = ("RCONSC", "RSLEEP", "RATRIAL", "RCT", "RVISINF", "RHEP24", "RASP3")
    died = table["DIED" if outcome == "six-months" else "ID14"]
    study = Study(
        name="ist",
        table=table,
        numbers=("AGE", "RDELAY", "RSBP"),
        categories=("SEX", *early, *deficits, "STYPE", "RXASP", "RXHEP"),
        positive=_equals(died, "1"),
        hospital=np.array([int(number) for number in table["HOSPNUM"]]),
    )
    return _task(study, Deal(clients=clients, public=public, balanced=balanced, seed=seed))


def gusto(
    clients: int | None = None,
    groups: Literal["regl", "grpl", "grps"] = "regl",
    public: int = 0,
    balanced: bool = False,
    seed: int = 0,
) -> Task:
    """GUSTO-I: death within 30 days of an infarction, from findings at admission; regions are clients.

    Left out are the columns derived from others (sho, hig, hyp, hrt, ant, tpa) and the regions.

    Args:
        clients: virtual hospitals of equal size; `none` for the groups of the data.
        groups: which ones: `regl` (16 regions), `grpl` (48) or `grps` (121).
        public: patients that everybody may see.
        balanced: downsample each client to as many deaths as survivors.
        seed: of the split into clients.
    """
    table = _csv(GUSTO)
    history = ("dia", "pmi", "htn", "smk", "pan", "fam", "prevcvd", "prevcabg")
    study = Study(
        name="gusto",
        table=table,
        numbers=("age", "pulse", "sysbp", "height", "weight", "ste"),
        categories=("sex", "Killip", "miloc", "ttr", *history, "tx"),
        positive=_equals(table["day30"], "1"),
        hospital=np.array([int(number) for number in table[groups]]),
    )
    return _task(study, Deal(clients=clients, public=public, balanced=balanced, seed=seed))


def diabetes_130(clients: int | None = 100, public: int = 0, balanced: bool = False, seed: int = 0) -> Task:
    """Diabetics of 130 US hospitals: back within 30 days, from what is known at discharge.

    The hospital is not published, so clients are virtual. Stays that end in death or a hospice are left out,
    since nobody comes back from there. All stays of one patient are on the same side of the split.

    Args:
        clients: virtual hospitals of equal size.
        public: stays that everybody may see.
        balanced: downsample each client to as many returns as not.
        seed: of the split into clients.
    """
    table = _csv(DIABETES)
    names = list(table)
    numbers = tuple(name for name in names if name.startswith(("num", "time_in")))
    labels = {"encounter_id", "patient_nbr", "readmitted"}
    final = {"11", "13", "14", "19", "20", "21"}
    study = Study(
        name="diabetes-130",
        table=table,
        numbers=numbers,
        categories=tuple(name for name in names if name not in labels and name not in numbers),
        positive=_equals(table["readmitted"], "<30"),
        person=table["patient_nbr"],
        rows=np.flatnonzero([where not in final for where in table["discharge_disposition_id"]]),
    )
    return _task(study, Deal(clients=clients, public=public, balanced=balanced, seed=seed))


def support2(clients: int | None = 40, public: int = 0, balanced: bool = False, seed: int = 0) -> Task:
    """SUPPORT: death in hospital of the critically ill, from findings up to the third day.

    Left out: later facts (death, slos, d.time, charges and costs, avtisst, sfdm2), other predictions (surv2m,
    surv6m, prg2m, prg6m, sps), orders not to resuscitate, and the questionnaires of daily living, whose
    absence tells the outcome.

    Args:
        clients: virtual hospitals of equal size; the five real ones are not published.
        public: patients that everybody may see.
        balanced: downsample each client to as many deaths as survivors.
        seed: of the split into clients.
    """
    table = _csv(SUPPORT2)
    body = ("meanbp", "wblc", "hrt", "resp", "temp", "pafi", "alb", "bili", "crea", "sod", "ph", "glucose", "bun")
    study = Study(
        name="support2",
        table=table,
        numbers=("age", "num.co", "edu", "scoma", "aps", "hday", *body, "urine"),
        categories=("sex", "dzgroup", "income", "race", "diabetes", "dementia", "ca"),
        positive=_equals(table["hospdead"], "1"),
    )
    return _task(study, Deal(clients=clients, public=public, balanced=balanced, seed=seed))


def _task(study: Study, deal: Deal) -> Task:
    """Split, encode, and deal the training rows out."""
    train, test = _split(study)
    x = encode(study.table, study.numbers, study.categories, train).x
    y = torch.from_numpy(study.positive.astype(np.float32))[:, None]
    key = Key.from_seed(deal.seed, "patients")
    shown, owned = _public_and_owned(len(train), deal, key.child("public"))
    rows = torch.from_numpy(train)
    positive = y[rows].flatten() > 0.5
    parts = [owned[part] for part in _parts(study, train[owned.numpy()], deal, key)]
    if deal.balanced:
        parts = [_balanced(part, positive, key.child("balance", i)) for i, part in enumerate(parts)]
        shown = _balanced(shown, positive, key.child("balance public")) if len(shown) else shown
    public: Samples | None = (x[rows[shown]], y[rows[shown]]) if len(shown) else None
    return Task(
        model=partial(medical_net, inputs=x.shape[1]),
        clients=Population.split(x[rows], y[rows], parts),
        test=(x[torch.from_numpy(test)], y[torch.from_numpy(test)]),
        loss=BinaryCrossEntropy(),
        public=public,
        name=study.name,
    )


def _split(study: Study) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row numbers for training (80 %) and testing, the same for every seed; persons stay together."""
    rows = np.arange(len(study.positive)) if study.rows is None else study.rows
    people = rows if study.person is None else np.unique(np.asarray(study.person)[rows], return_inverse=True)[1]
    names = np.unique(people)
    chosen = Key.from_seed(0, f"split {study.name}").numpy().permutation(names)[: round(0.8 * len(names))]
    trains = np.isin(people, chosen)
    return rows[trains].astype(np.int64), rows[~trains].astype(np.int64)


def _public_and_owned(count: int, deal: Deal, key: Key) -> tuple[Tensor, Tensor]:
    """Which training rows are public, and which belong to clients."""
    expect(0 <= deal.public < count, f"0 <= public={deal.public} < {count}")
    order = torch.randperm(count, generator=key.torch())
    return order[: deal.public], order[deal.public :].sort().values


def _parts(study: Study, rows: NDArray[np.int64], deal: Deal, key: Key) -> split.Parts:
    """Virtual hospitals of equal size, or the natural ones."""
    if deal.clients is not None:
        return split.iid(len(rows), deal.clients, key.child("clients"))
    if study.hospital is None:
        raise DataError(f"Expected clients=<number> for {study.name}: its hospitals are not published.")
    return split.by_key(np.asarray(study.hospital)[rows])


def _balanced(part: Tensor, positive: Tensor, key: Key) -> Tensor:
    """As many rows of both outcomes; a client that has only one outcome keeps one row."""
    shuffled = part[torch.randperm(len(part), generator=key.torch())]
    yes, no = shuffled[positive[shuffled]], shuffled[~positive[shuffled]]
    each = max(1, min(len(yes), len(no)))
    return torch.cat([yes[:each], no[:each]])


def _csv(data: DataSet) -> dict[str, Column]:
    file = data.files[0]
    return dict(parse_csv(read(file), file.path))


def _equals(column: Column, value: str) -> NDArray[np.bool_]:
    return np.array([cell == value for cell in column])


def _covid_table() -> dict[str, NDArray[np.int64]]:
    """The million rows as whole numbers; dates lose their separators, so 9999-99-99 is 99999999."""
    file = COVID_MX.files[0]
    header, _, body = read(file).partition(b"\n")
    names = header.decode().strip().split(",")
    plain = body.replace(b"\r", b"").strip().translate(bytes.maketrans(b"\n", b","), delete=b"/-")
    cells = np.fromstring(plain.decode("ascii"), dtype=np.int64, sep=",")
    if len(cells) % len(names):
        raise DataError(f"Expected rows of {len(names)} whole numbers in {file.path}, got {len(cells)} cells.")
    return dict(zip(names, cells.reshape(-1, len(names)).T, strict=True))
