"""The gradients of weights that all states share, added up in one go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


def one_for_each_state(
    cell: nn.Module, states: int, dtype: torch.dtype
) -> Callable[[int], Callable[..., Any]]:
    """The cell of each state, counted from 0: the same weights, cast once to one dtype.

    Every state gets them as tensors of its own, over the same memory. Otherwise each of twelve
    states would cast ten tensors anew, and autograd would add as many gradients one by one:
    hundreds of kernels that take longer to start than to run.

    Args:
        cell: the module that all states share; to be asked for anew in every pass.
        states: how many there are.
        dtype: in which its parameters are to be used.
    """
    names, weights = zip(*cell.named_parameters(), strict=True)
    given = _OneForEachState.apply(states, dtype, *weights)
    per_state = [given[t * len(names) : (t + 1) * len(names)] for t in range(states)]

    def with_its_own(step: int) -> Callable[..., Any]:
        named = dict(zip(names, per_state[step], strict=True))
        return lambda *arguments: functional_call(cell, named, arguments)

    return with_its_own


class _OneForEachState(torch.autograd.Function):
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
