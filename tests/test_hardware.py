"""Devices by name."""

from __future__ import annotations

import pytest
import torch

from nlrn.hardware import choose_device


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu")], ids=str)
def test_a_device_by_name(name: str | torch.device) -> None:
    assert choose_device(name) == torch.device("cpu")


def test_auto_is_one_that_works() -> None:
    torch.empty(1, device=choose_device("auto"))


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without MPS")
def test_a_device_that_is_missing_is_one_short_line() -> None:
    with pytest.raises(ValueError, match="device 'mps' cannot be used: ") as told:
        choose_device("mps")  # PyTorch's own message has 1400 characters
    assert len(str(told.value)) < 250 and "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["nowhere", "cuda:x", None], ids=str)
def test_no_device_at_all(name: str) -> None:
    with pytest.raises(ValueError, match=f"device must be auto, cpu, .* got {name!r}"):
        choose_device(name)
