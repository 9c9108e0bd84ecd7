"""`tacit attack`: attack a method, and print how much it recovers."""

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path

import torch

from tacit.attacks.dlg import RECOVERED, UNRECOGNISABLE, Dlg, Reconstruction
from tacit.attacks.membership import MembershipScore, ShadowModels
from tacit.attacks.scenario import AttackConfig, observe_victims, reconstructions, shadow_models
from tacit.attacks.views import Observation
from tacit.cli._console import align, answer, note
from tacit.cli._progress import track
from tacit.core.files import write
from tacit.errors import UserError, whole
from tacit.report.pictures import Gallery, Strip, draw_gallery
from tacit.report.style import require_matplotlib


def dlg(args: argparse.Namespace) -> int:
    """Deep leakage from gradients: reconstruct the images that caused the observed updates."""
    config = _attack_config(args)
    task, observed = observe_victims(args.experiment.build_method(), args.experiment.build_task(), config, args.seed)
    clients = sum(len(observation.per_client()) for observation in observed)
    steps = track(reconstructions(task, observed, config, args.seed), clients, f"attack {args.method}: client")
    results = list(steps) if clients else []
    picture = _save_picture(args, results)
    lines = [*_dlg_lines(observed, results), *([f"Picture: {picture}"] if picture else [])]
    return answer(args, _dlg_document(args, observed, results, picture), lines)


def membership(args: argparse.Namespace) -> int:
    """Membership inference: train models on random halves of the clients or records, and infer who was in which."""
    method, task = args.experiment.build_method(), args.experiment.build_task()
    steps = shadow_models(method, task, args.level, args.models, args.seed)
    models = ShadowModels.of(list(track(steps, args.models, f"attack {args.method}: model")))
    scores = {"likelihood ratio": models.likelihood_ratio_attack(), "loss": models.loss_attack()}
    settings = {name: getattr(args, name) for name in ("method", "task", "level", "models")}
    meaning = (
        f"Each attack infers for every {args.level} whether it took part in training "
        f"({args.models} models, each trained on half of the {args.level}s)."
    )
    return answer(
        args,
        {**settings, "attacks": {name: asdict(score) for name, score in scores.items()}},
        [*_membership_table(scores), meaning],
    )


def _attack_config(args: argparse.Namespace) -> AttackConfig:
    whole(1, 8, batch=args.batch)
    attack = Dlg.as_published(args.batch) if args.published else Dlg.with_improvements(args.batch)
    if args.steps is not None:
        attack = replace(attack, steps=args.steps)
    return AttackConfig(images=args.images, adversary=args.adversary, cohort=args.cohort, after=args.after, dlg=attack)


def _dlg_lines(observed: Sequence[Observation], results: Sequence[Reconstruction]) -> list[str]:
    first = f"Observed by the {observed[0]}."
    if not results:
        return [first, "No message of a single client is observed, so there is nothing to attack."]
    rows = [["image", "", "MSE", "PSNR, dB", "SSIM", "label"]]
    of_each = (zip(result.mse, result.psnr, result.ssim, result.labels_correct, strict=True) for result in results)
    for number, (mse, psnr, ssim, correct) in enumerate(chain.from_iterable(of_each), start=1):
        label = "correct" if bool(correct) else "wrong"
        rows.append([str(number), "", f"{float(mse):.2g}", f"{float(psnr):.1f}", f"{float(ssim):.3f}", label])
    return [first, *align(rows), _dlg_conclusion(results)]


def _dlg_conclusion(results: Sequence[Reconstruction]) -> str:
    ssim = [float(value) for result in results for value in result.ssim]
    recovered, failed = sum(value > RECOVERED for value in ssim), sum(value < UNRECOGNISABLE for value in ssim)
    return (
        f"{recovered} of {len(ssim)} images recovered (SSIM > {RECOVERED}), {failed} unrecognisable "
        f"(SSIM < {UNRECOGNISABLE}); mean SSIM {sum(ssim) / len(ssim):.3f}."
    )


def _dlg_document(
    args: argparse.Namespace, observed: Sequence[Observation], results: Sequence[Reconstruction], picture: Path | None
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


def _save_picture(args: argparse.Namespace, results: Sequence[Reconstruction]) -> Path | None:
    """Originals above reconstructions; without the plotting library only a note."""
    if not results:
        return None
    try:
        require_matplotlib()
    except UserError as error:
        note(f"tacit: No picture. {error}")
        return None
    name = f"dlg-{args.method}-{args.task}-{args.adversary}-{args.seed}.png"
    path = args.picture or Path("runs") / "attacks" / name
    title = f"{args.method} on {args.task}, attacked by the {args.adversary}"
    write(path, draw_gallery(title, _gallery(results)), parents=True)
    return Path(path)


def _gallery(results: Sequence[Reconstruction]) -> Gallery:
    both = (("original", "originals"), ("reconstructed", "reconstructed"))
    images = {name: torch.cat([getattr(result, field) for result in results]).numpy() for name, field in both}
    return Gallery(strips=tuple(Strip.of(name, stack) for name, stack in images.items()))


def _membership_table(scores: dict[str, MembershipScore]) -> list[str]:
    rows = [["attack", "", "AUC", "advantage", "TPR at 1 % FPR"], ["random guess", "", "0.5", "0", "0.01"]]
    rows += [
        [name, "", f"{score.auc:.3f}", f"{score.advantage:.3f}", f"{score.tpr_at_1_percent_fpr:.3f}"]
        for name, score in scores.items()
    ]
    return align(rows)
