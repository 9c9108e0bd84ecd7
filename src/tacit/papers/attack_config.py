"""How a study's file says what is attacked, from where."""

from tacit.attacks.dlg import Dlg
from tacit.attacks.scenario import Siege
from tacit.attacks.views import Vantage
from tacit.core.schema import call
from tacit.errors import UserError
from tacit.papers.files import Table

ATTACK = "attack"


def read_siege(study: Table, entry: Table, label: str) -> Siege | None:
    """What the study says about all rows, and over it the row's own word; None: nothing is attacked."""
    if ATTACK not in study:
        if ATTACK in entry:
            raise UserError(f"Expected no attack in {label}, whose file has no [{ATTACK}] for all rows.")
        return None
    options = {**study[ATTACK], **entry.get(ATTACK, {})}
    return call(_siege, f"attack of {label}", options)


def _siege(
    images: int = 20,
    batch: int = 1,
    vantage: Vantage = "server",
    cohort: int | None = None,
    after: int = 0,
    published: bool = False,
) -> Siege:
    attack = Dlg.published(batch) if published else Dlg.improved(batch)
    return Siege(images=images, vantage=vantage, cohort=cohort, after=after, attack=attack)
