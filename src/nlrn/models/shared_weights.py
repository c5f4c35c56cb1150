"""Weights that all states share: cast once, their gradients added up in one go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


class OneForEachState:
    """A module with weights of its own for each state, over the same memory.

    Otherwise each of twelve states would cast ten tensors anew, and autograd would add as many
    gradients one by one: hundreds of kernels that take longer to start than to run.

    Args:
        module: whose weights all states share.
        states: how many there are.
        dtype: in which the weights are used.
    """

    def __init__(self, module: nn.Module, states: int, dtype: torch.dtype) -> None:
        self._module = module
        names, weights = zip(*module.named_parameters(), strict=True)
        given = _Shared.apply(states, dtype, *weights)
        rows = (given[t * len(names) : (t + 1) * len(names)] for t in range(states))
        self._weights = [dict(zip(names, row, strict=True)) for row in rows]

    def __call__(self, step: int) -> Callable[..., Any]:
        """The module as state `step` uses it."""
        return lambda *arguments: functional_call(self._module, self._weights[step], arguments)


class _Shared(torch.autograd.Function):
    """(states, dtype, tensors) -> the tensors in that dtype, once per state."""

    @staticmethod
    def forward(ctx: Any, states: int, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # what a stage leaves out has no gradient, not a zero one
        ctx.states, ctx.like = states, [t.detach() for t in tensors]
        cast = [t.to(dtype) for t in tensors]
        return tuple(t.detach() for _ in range(states) for t in cast)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        like, states = ctx.like, ctx.states
        of_state = [grads[t * len(like) : (t + 1) * len(like)] for t in range(states)]
        used = [any(g is not None for g in each) for each in zip(*of_state, strict=True)]
        kept = [t for t, is_used in zip(like, used, strict=True) if is_used]
        if not kept:
            return (None, None, *(None for _ in like))
        parts = [
            torch.zeros_like(t).flatten() if g is None else _flat(g, t)
            for row in of_state
            for g, t, is_used in zip(row, like, used, strict=True)
            if is_used
        ]
        sums = torch.cat(parts).view(states, -1).sum(0, dtype=like[0].dtype)
        flat = iter(sums.split([t.numel() for t in kept]))
        total = (
            _unflat(next(flat), t) if is_used else None
            for t, is_used in zip(like, used, strict=True)
        )
        return (None, None, *total)


def _memory_order(like: Tensor) -> list[int]:
    strides = like.stride()
    return sorted(range(like.ndim), key=lambda d: -strides[d])


def _flat(grad: Tensor, like: Tensor) -> Tensor:
    """The gradient in the order in which the weight lies in memory: no copy for its own layout."""
    return grad.permute(_memory_order(like)).reshape(-1)


def _unflat(flat: Tensor, like: Tensor) -> Tensor:
    order = _memory_order(like)
    back = sorted(range(like.ndim), key=order.__getitem__)
    return flat.view([like.shape[d] for d in order]).permute(back)
