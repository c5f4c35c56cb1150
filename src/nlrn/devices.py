"""Where to compute."""

from __future__ import annotations

import torch


def choose_device(device: str | torch.device) -> torch.device:
    """The device of this name; "auto" is CUDA, then Apple's MPS, then the CPU."""
    if device != "auto":
        try:
            chosen = torch.device(device)
        except (RuntimeError, TypeError) as error:
            known = "auto, cpu, cuda, cuda:1, mps or the like"
            raise ValueError(f"device must be {known}, got {device!r}") from error
        try:
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ValueError(f"device {str(device)!r} cannot be used: {reason}") from error
        return chosen
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
