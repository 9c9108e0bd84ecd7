"""What an adversary gets: images from updates (dlg), or who took part in training (membership).

The round is really played, and the attack is given what the channel shows from a vantage point, and nothing else. A
failed attack is evidence about that attack alone; what is proved about a method stands on its card.

Examples:
  tacit attack dlg fl-std --set steps=1 --task digits --task-set model=digits-sigmoid-lenet --images 4
  tacit attack dlg fl-std --set steps=1 --task mnist --task-set model=sigmoid-lenet
  tacit attack dlg fl-std --set steps=1 --task mnist --task-set model=sigmoid-lenet --batch 8 --images 8
  tacit attack dlg fl-std-dp --set noise=1 epsilon=none clip=1        only a sum is seen: nothing to attack
  tacit attack membership fedavg --rounds 20 --level record
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, aligned, to_dict, track

if TYPE_CHECKING:
    from tacit.attacks.dlg import Likeness
    from tacit.attacks.membership import Inference
    from tacit.attacks.scenario import Siege
    from tacit.attacks.views import Observation
    from tacit.report.plots import Gallery
    from tacit.runs.experiment import Experiment

VANTAGES = ("server", "network", "client", "recipient")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the attacks and their arguments."""
    attacks = parser.add_subparsers(title="attacks", metavar="ATTACK", required=True)
    dlg = attacks.add_parser("dlg", help="images from updates", description=_dlg.__doc__)
    _common(dlg)
    dlg.add_argument("--images", type=int, default=20, metavar="N", help="how many are attacked (default: 20)")
    dlg.add_argument("--batch", type=int, default=1, metavar="B", help="images behind an update, 1 to 8 (default: 1)")
    dlg.add_argument("--vantage", choices=VANTAGES, default="server", help="where the adversary stands")
    dlg.add_argument(
        "--cohort", type=int, metavar="N", help="clients in a round with the victim (default: all victims)"
    )
    dlg.add_argument("--after", type=int, default=0, metavar="N", help="attack after N rounds of training (default: 0)")
    dlg.add_argument("--published", action="store_true", help="as first published: labels unknown, squared distance")
    dlg.add_argument("--steps", type=int, metavar="N", help="of L-BFGS per start (default: 300 for each image)")
    dlg.add_argument("--picture", type=Path, metavar="FILE", help="where to draw (default: below runs/attacks)")
    dlg.set_defaults(attack=_dlg)
    membership = attacks.add_parser("membership", help="who took part", description=_membership.__doc__)
    _common(membership)
    membership.add_argument("--rounds", metavar="N", help="how many rounds; short for --set rounds=N")
    membership.add_argument("--level", choices=("client", "record"), default="client", help="who is looked for")
    membership.add_argument("--models", type=int, default=16, metavar="N", help="how many are trained (default: 16)")
    membership.set_defaults(attack=_membership)


def run(args: argparse.Namespace) -> int:
    """Do the attack."""
    return int(args.attack(args))


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="a method's name; tacit methods lists them")
    parser.add_argument("--task", default="digits", help="what is learnt (default: digits)")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on stdout")


def _experiment(args: argparse.Namespace, **more: object) -> "Experiment":
    from tacit.runs.experiment import Experiment

    given = {**to_dict(args.set), **more}
    experiment = Experiment(method=args.method, task=args.task, args=given, task_args=to_dict(args.task_set))
    experiment.check_names()  # before PyTorch is imported
    return experiment


def _dlg(args: argparse.Namespace) -> int:
    """Deep leakage from gradients: find the images whose update is the one that was seen."""
    made = _experiment(args)

    from tacit.attacks.scenario import besieged, reconstructions

    siege = _siege(args)
    task, seen = besieged(made.build_method(), made.build_task(), siege, args.seed)
    attacked = sum(len(observation.single()) for observation in seen)
    steps = track(reconstructions(task, seen, siege, args.seed), attacked, f"attack {args.method}: client")
    found = list(steps) if attacked else []
    picture = _draw(args, found)
    if args.json:
        print(json.dumps(_summary(args, seen, found, picture), indent=2, allow_nan=False))
        return 0
    print("\n".join(_lines(seen, found)))
    if picture:
        print(f"Picture: {picture}")
    return 0


def _siege(args: argparse.Namespace) -> "Siege":
    from tacit.attacks.dlg import Dlg
    from tacit.attacks.scenario import Siege
    from tacit.errors import expect

    expect(1 <= args.batch <= 8, f"batch={args.batch} from 1 to 8")
    attack = Dlg.published(args.batch) if args.published else Dlg.improved(args.batch)
    if args.steps is not None:
        attack = replace(attack, steps=args.steps)
    return Siege(images=args.images, vantage=args.vantage, cohort=args.cohort, after=args.after, attack=attack)


def _lines(seen: "Sequence[Observation]", found: "Sequence[Likeness]") -> list[str]:
    said = [f"Seen by the {seen[0]}."]
    if not found:
        return [*said, "No single message is among it: there is nothing to attack."]
    rows = [["image", "", "MSE", "PSNR, dB", "SSIM", "label"]]
    every = [(*figures,) for like in found for figures in zip(like.mse, like.psnr, like.ssim, like.labels, strict=True)]
    for number, (mse, psnr, ssim, label) in enumerate(every, start=1):
        words = "right" if bool(label) else "wrong"
        rows.append([str(number), "", f"{float(mse):.2g}", f"{float(psnr):.1f}", f"{float(ssim):.3f}", words])
    return [*said, *aligned(rows), _summed_up(found)]


def _summed_up(found: "Sequence[Likeness]") -> str:
    from tacit.attacks.dlg import RECOVERED, UNRECOGNISABLE

    ssim = [float(value) for like in found for value in like.ssim]
    recovered, lost = sum(value > RECOVERED for value in ssim), sum(value < UNRECOGNISABLE for value in ssim)
    return (
        f"{recovered} of {len(ssim)} images recovered (SSIM > {RECOVERED}), {lost} beyond recognition "
        f"(SSIM < {UNRECOGNISABLE}); mean SSIM {sum(ssim) / len(ssim):.3f}."
    )


def _summary(
    args: argparse.Namespace, seen: "Sequence[Observation]", found: "Sequence[Likeness]", picture: Path | None
) -> dict[str, object]:
    def numbers(name: str) -> list[float | None]:
        values = [float(value) for like in found for value in getattr(like, name)]
        return [value if abs(value) < float("inf") else None for value in values]

    return {
        "method": args.method,
        "task": args.task,
        "vantage": args.vantage,
        "seen": str(seen[0]),
        "attacked": len(found),
        "images": sum(len(like.originals) for like in found),
        "recovered": sum(like.recovered for like in found),
        "mse": numbers("mse"),
        "psnr": numbers("psnr"),
        "ssim": numbers("ssim"),
        "labels": [bool(right) for like in found for right in like.labels],
        "picture": None if picture is None else str(picture),
    }


def _draw(args: argparse.Namespace, found: "Sequence[Likeness]") -> Path | None:
    """Originals above what was found; without the plotting library only a word about it."""
    if not found:
        return None
    from tacit.core.files import storage_errors, write
    from tacit.errors import UserError
    from tacit.report.figures import png
    from tacit.report.pictures import draw
    from tacit.report.style import require

    try:
        require()
    except UserError as error:
        print(f"tacit: No picture. {error}", file=sys.stderr)
        return None
    path = args.picture or Path("runs") / "attacks" / f"dlg-{args.method}-{args.task}-{args.vantage}-{args.seed}.png"
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write(path, png(draw(f"{args.method} on {args.task}, seen by the {args.vantage}", _gallery(found))))
    return Path(path)


def _gallery(found: "Sequence[Likeness]") -> "Gallery":
    import torch

    from tacit.report.plots import Gallery, Strip

    both = (("original", "originals"), ("found", "found"))
    images = {name: torch.cat([getattr(like, which) for like in found]).numpy() for name, which in both}
    return Gallery(strips=tuple(Strip.of(name, stack) for name, stack in images.items()))


def _membership(args: argparse.Namespace) -> int:
    """Membership inference: models are trained on random halves of the clients or records, and tell who was in."""
    more = {} if args.rounds is None else {"rounds": args.rounds}
    made = _experiment(args, **more)

    from tacit.attacks.scenario import members

    steps = members(made.build_method(), made.build_task(), args.level, args.models, args.seed)
    *_, models = track(steps, args.models, f"attack {args.method}: model")
    assert models is not None  # the last one is what all trainings lead to
    found = {"likelihood ratio": models.by_ratio(), "loss": models.by_loss()}
    if args.json:
        told = {"method": args.method, "task": args.task, "level": args.level, "models": args.models}
        print(json.dumps({**told, "tests": {name: asdict(test) for name, test in found.items()}}, indent=2))
        return 0
    print("\n".join(_table(found)))
    print(f"Against the final model, for every {args.level}; {args.models} models, each on half of all {args.level}s.")
    return 0


def _table(found: "dict[str, Inference]") -> list[str]:
    rows = [["test", "", "AUC", "advantage", "true positives at 1 % false"], ["guessing", "", "0.5", "0", "0.01"]]
    rows += [
        [name, "", f"{test.auc:.3f}", f"{test.advantage:.3f}", f"{test.at_one_percent:.3f}"]
        for name, test in found.items()
    ]
    return aligned(rows)
