"""Attack a method: reconstruct images from updates (dlg), or infer who took part in training (membership).

Rounds are executed as in training, and the attack receives exactly what the adversary observes. A failed attack is
evidence about that attack alone; `tacit card METHOD` shows what is proved about a method.

Examples:
  tacit attack dlg fl-std --set descent.steps=1 --task digits --task-set model=digits-sigmoid-lenet --images 4
  tacit attack dlg fl-std --set descent.steps=1 --task mnist --task-set model=sigmoid-lenet
  tacit attack dlg fl-std --set descent.steps=1 --task mnist --task-set model=sigmoid-lenet --batch 8 --images 8
  tacit attack dlg fl-std-dp --set noise=1 epsilon=none clip=1   the server learns only a sum: nothing to attack
  tacit attack membership fedavg --rounds 20 --level record
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tacit.cli._console import add_options, aligned, print_json, to_dict, track

if TYPE_CHECKING:
    from tacit.attacks.dlg import Reconstruction
    from tacit.attacks.membership import MembershipScore
    from tacit.attacks.scenario import AttackConfig
    from tacit.attacks.views import Observation
    from tacit.report.pictures import Gallery
    from tacit.runs.experiment import Experiment

ADVERSARIES = ("server", "network", "client", "recipient")


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the attacks and their arguments."""
    attacks = parser.add_subparsers(title="attacks", metavar="ATTACK", required=True)
    dlg = attacks.add_parser("dlg", help="reconstruct images from updates", description=_dlg.__doc__)
    _add_common(dlg)
    dlg.add_argument("--images", type=int, default=20, metavar="N", help="images to attack (default: 20)")
    dlg.add_argument("--batch", type=int, default=1, metavar="B", help="images per client, 1 to 8 (default: 1)")
    dlg.add_argument("--adversary", choices=ADVERSARIES, default="server", help="who attacks (default: server)")
    dlg.add_argument("--cohort", type=int, metavar="N", help="victims per round (default: all in one round)")
    dlg.add_argument("--after", type=int, default=0, metavar="N", help="attack after N rounds of training (default: 0)")
    dlg.add_argument("--published", action="store_true", help="as first published: labels unknown, squared distance")
    dlg.add_argument(
        "--steps", type=int, metavar="N", help="L-BFGS steps per start (default: 300 per image of a batch)"
    )
    dlg.add_argument(
        "--picture", type=Path, metavar="FILE", help="where to save the picture (default: in runs/attacks)"
    )
    dlg.set_defaults(attack=_dlg)
    membership = attacks.add_parser("membership", help="infer who took part", description=_membership.__doc__)
    _add_common(membership)
    membership.add_argument("--rounds", metavar="N", help="training rounds; short for --set rounds=N")
    membership.add_argument(
        "--level", choices=("client", "record"), default="client", help="infer clients or records (default: client)"
    )
    membership.add_argument("--models", type=int, default=16, metavar="N", help="models to train (default: 16)")
    membership.set_defaults(attack=_membership)


def run(args: argparse.Namespace) -> int:
    """Run the chosen attack."""
    return int(args.attack(args))


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("method", help="name of a method; tacit methods lists them")
    parser.add_argument("--task", default="digits", help="name of a task; tacit data list lists them (default: digits)")
    add_options(parser, "--set", "method; tacit card METHOD shows them")
    add_options(parser, "--task-set", "task")
    parser.add_argument("--seed", type=int, default=0, help="seed of all randomness (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")


def _experiment(args: argparse.Namespace, **more: object) -> "Experiment":
    from tacit.runs.experiment import Experiment

    method_args = {**to_dict(args.set), **more}
    experiment = Experiment(method=args.method, task=args.task, args=method_args, task_args=to_dict(args.task_set))
    experiment.check_names()  # before PyTorch is imported
    return experiment


def _dlg(args: argparse.Namespace) -> int:
    """Deep leakage from gradients: reconstruct the images that caused the observed updates."""
    experiment = _experiment(args)

    from tacit.attacks.scenario import observe_victims, reconstructions

    config = _attack_config(args)
    task, observed = observe_victims(experiment.build_method(), experiment.build_task(), config, args.seed)
    clients = sum(len(observation.per_client()) for observation in observed)
    steps = track(reconstructions(task, observed, config, args.seed), clients, f"attack {args.method}: client")
    results = list(steps) if clients else []
    picture = _save_picture(args, results)
    if args.json:
        print_json(_dlg_document(args, observed, results, picture))
        return 0
    print("\n".join(_dlg_lines(observed, results)))
    if picture:
        print(f"Picture: {picture}")
    return 0


def _attack_config(args: argparse.Namespace) -> "AttackConfig":
    from tacit.attacks.dlg import Dlg
    from tacit.attacks.scenario import AttackConfig
    from tacit.errors import expect

    expect(1 <= args.batch <= 8, f"batch={args.batch} from 1 to 8")
    dlg = Dlg.published(args.batch) if args.published else Dlg.improved(args.batch)
    if args.steps is not None:
        dlg = replace(dlg, steps=args.steps)
    return AttackConfig(images=args.images, adversary=args.adversary, cohort=args.cohort, after=args.after, dlg=dlg)


def _dlg_lines(observed: "Sequence[Observation]", results: "Sequence[Reconstruction]") -> list[str]:
    first = f"Observed by the {observed[0]}."
    if not results:
        return [first, "No message of a single client is observed, so there is nothing to attack."]
    rows = [["image", "", "MSE", "PSNR, dB", "SSIM", "label"]]
    images = [
        scores
        for result in results
        for scores in zip(result.mse, result.psnr, result.ssim, result.labels_correct, strict=True)
    ]
    for number, (mse, psnr, ssim, correct) in enumerate(images, start=1):
        label = "correct" if bool(correct) else "wrong"
        rows.append([str(number), "", f"{float(mse):.2g}", f"{float(psnr):.1f}", f"{float(ssim):.3f}", label])
    return [first, *aligned(rows), _dlg_conclusion(results)]


def _dlg_conclusion(results: "Sequence[Reconstruction]") -> str:
    from tacit.attacks.dlg import RECOVERED, UNRECOGNISABLE

    ssim = [float(value) for result in results for value in result.ssim]
    recovered, failed = sum(value > RECOVERED for value in ssim), sum(value < UNRECOGNISABLE for value in ssim)
    return (
        f"{recovered} of {len(ssim)} images recovered (SSIM > {RECOVERED}), {failed} unrecognisable "
        f"(SSIM < {UNRECOGNISABLE}); mean SSIM {sum(ssim) / len(ssim):.3f}."
    )


def _dlg_document(
    args: argparse.Namespace,
    observed: "Sequence[Observation]",
    results: "Sequence[Reconstruction]",
    picture: Path | None,
) -> dict[str, object]:
    def numbers(name: str) -> list[float]:
        return [float(value) for result in results for value in getattr(result, name)]

    return {
        "method": args.method,
        "task": args.task,
        "adversary": args.adversary,
        "observed": str(observed[0]),
        "attacked": len(results),
        "images": sum(len(result.originals) for result in results),
        "recovered": sum(result.recovered for result in results),
        "mse": numbers("mse"),
        "psnr": numbers("psnr"),
        "ssim": numbers("ssim"),
        "labels_correct": [bool(correct) for result in results for correct in result.labels_correct],
        "picture": None if picture is None else str(picture),
    }


def _save_picture(args: argparse.Namespace, results: "Sequence[Reconstruction]") -> Path | None:
    """Originals above reconstructions; without the plotting library only a note."""
    if not results:
        return None
    from tacit.core.files import write
    from tacit.errors import UserError
    from tacit.report.pictures import draw_gallery
    from tacit.report.style import require_matplotlib

    try:
        require_matplotlib()
    except UserError as error:
        print(f"tacit: No picture. {error}", file=sys.stderr)
        return None
    name = f"dlg-{args.method}-{args.task}-{args.adversary}-{args.seed}.png"
    path = args.picture or Path("runs") / "attacks" / name
    title = f"{args.method} on {args.task}, attacked by the {args.adversary}"
    write(path, draw_gallery(title, _gallery(results)), parents=True)
    return Path(path)


def _gallery(results: "Sequence[Reconstruction]") -> "Gallery":
    import torch

    from tacit.report.pictures import Gallery, Strip

    both = (("original", "originals"), ("reconstructed", "reconstructed"))
    images = {name: torch.cat([getattr(result, field) for result in results]).numpy() for name, field in both}
    return Gallery(strips=tuple(Strip.of(name, stack) for name, stack in images.items()))


def _membership(args: argparse.Namespace) -> int:
    """Membership inference: train models on random halves of the clients or records, and infer who was in which."""
    more = {} if args.rounds is None else {"rounds": args.rounds}
    experiment = _experiment(args, **more)

    from tacit.attacks.membership import ShadowModels
    from tacit.attacks.scenario import shadow_models

    steps = shadow_models(experiment.build_method(), experiment.build_task(), args.level, args.models, args.seed)
    models = ShadowModels.of(list(track(steps, args.models, f"attack {args.method}: model")))
    scores = {"likelihood ratio": models.likelihood_ratio_attack(), "loss": models.loss_attack()}
    if args.json:
        settings = {"method": args.method, "task": args.task, "level": args.level, "models": args.models}
        print_json({**settings, "attacks": {name: asdict(score) for name, score in scores.items()}})
        return 0
    print("\n".join(_membership_table(scores)))
    print(
        f"Each attack infers for every {args.level} whether it took part in training "
        f"({args.models} models, each trained on half of the {args.level}s)."
    )
    return 0


def _membership_table(scores: "dict[str, MembershipScore]") -> list[str]:
    rows = [["attack", "", "AUC", "advantage", "TPR at 1 % FPR"], ["random guess", "", "0.5", "0", "0.01"]]
    rows += [
        [name, "", f"{score.auc:.3f}", f"{score.advantage:.3f}", f"{score.tpr_at_1_percent_fpr:.3f}"]
        for name, score in scores.items()
    ]
    return aligned(rows)
