"""What is not computed again, and what `torch.compile` does not look into."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import TypeVar, TypeVarTuple

import torch
from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., object])
Key = TypeVarTuple("Key")


def kept(most: int) -> Callable[[Callable[[*Key], Tensor]], Callable[[*Key], Tensor]]:
    """Computes each tensor once and keeps `most` of them; a tracer's stand-in is not kept."""

    def decorate(make: Callable[[*Key], Tensor]) -> Callable[[*Key], Tensor]:
        tensors: dict[tuple[*Key], Tensor] = {}

        @wraps(make)
        def once(*key: *Key) -> Tensor:
            if torch.compiler.is_compiling():
                return make(*key)
            if (known := tensors.get(key)) is not None:
                return known
            with torch.inference_mode(False):  # it may be needed for gradients later
                made = make(*key)
            if type(made) is Tensor:
                if len(tensors) == most:
                    tensors.clear()
                tensors[key] = made
            return made

        return once

    return decorate


def constant(function: Function) -> Function:
    """Marks a function whose result the compiler takes as it is, without looking into it.

    As `torch.compiler.assume_constant_result` does, which loads the compiler itself to do so: two
    seconds for everybody who restores one image.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function
