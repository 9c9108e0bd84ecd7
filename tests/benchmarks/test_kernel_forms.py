from collections.abc import Callable
from types import ModuleType

import pytest
import torch


def test_a_form_and_what_it_is_compared_with_train_the_same(script: Callable[[str], ModuleType]) -> None:
    """Otherwise times would be compared of two computations that have nothing to do with each other."""
    forms = script("kernel_forms")
    for case in forms.CASES:
        workload = forms.replace(forms.ON[case.workload], clients=2, samples=10, epochs=1)
        mask = forms.MASKS[case.mask](workload)
        wave = forms.wave_of(workload, mask)
        ours = wave().dense()
        with forms.ExitStack() as stack:
            for (owner, name), value in case.simpler.items():
                stack.enter_context(forms.patch.object(owner, name, value))
            theirs = forms.wave_of(workload, mask)().dense()
        assert torch.linalg.norm(ours) > 0, case
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


def test_the_table_has_a_row_for_a_case(
    script: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    forms = script("kernel_forms")
    monkeypatch.setattr(forms, "WARM_UPS", 0)
    monkeypatch.setattr(forms, "CASES", [forms.replace(forms.CASES[0], clients=2)])
    forms.main(["--repeats=1"])
    assert "| GramLinear | DenseLinear | W3 | 2 | all weights | " in capsys.readouterr().out
