from collections.abc import Callable
from types import ModuleType

from tacit.core.state import Report


def test_whole_models_are_never_pruned_and_the_others_after_the_first_round(
    script: Callable[[str], ModuleType],
) -> None:
    pruned = script("pruned_rounds")
    for name in (pruned.WHOLE, *pruned.KEEP):
        trainer = pruned.method_of(name, turns=3).trainer
        assert trainer.warm_up == (4 if name == pruned.WHOLE else 1)
        assert trainer.freeze_after > 4
    assert {name: sum(keep) for name, keep in pruned.KEEP.items()} == {"9.99 times": 43_093, "87 times": 4_950}


def test_parts_are_medians(script: Callable[[str], ModuleType]) -> None:
    reports = [
        Report(1, (0,), (), (2_000_000, 500_000), (), None, None, None, {}, seconds, timings={"train": seconds / 2})
        for seconds in (1.0, 9.0, 2.0)
    ]
    assert script("pruned_rounds")._medians(reports) == {"megabytes": 2.5, "round": 2.0, "train": 1.0}
