"""Muon: momentum whose matrices are made orthogonal before they are applied."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

# Of a polynomial whose five rounds bring every singular value above 1/700 of the norm to 0.7..1.2
# (Jordan, 2024); smaller ones grow 485 times.
_A, _B, _C = 3.4445, -4.7750, 2.0315
_ROUNDS = 5


class Muon(torch.optim.Optimizer):
    """For weights that are matrices: a convolution's is one of [outputs, inputs x kernel].

    The update of a matrix is its Nesterov momentum with all singular values moved near 1, scaled
    so that its mean square is about that of a usual step of Adam: one learning rate suits both.

    Args:
        parameters: weights of two or more dimensions.
        lr: learning rate; a tensor where steps are recorded and replayed.
        momentum: weight of the old direction at each step.
        weight_decay: share of a weight that each step takes away, times the learning rate. Updates
            of equal strength in all directions make a matrix grow where gradients are mere noise.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor],
        lr: float | Tensor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay}
        super().__init__(parameters, defaults)
        self.found_inf: Tensor | None = None  # 1 for a step that must change nothing

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update; weights without a gradient are left alone."""
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[Tensor]] = defaultdict(list)
            for weight in group["params"]:
                if weight.grad is not None:
                    rows, columns = len(weight), weight[0].numel()
                    alike[min(rows, columns), max(rows, columns)].append(weight)
            for weights in alike.values():
                self._update(weights, group)

    def _update(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        """Weights of one size in one batch of small products."""
        momentum, rate = group["momentum"], group["lr"]
        moves = []
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            grad, running = weight.grad, state["momentum"]
            assert grad is not None
            if self.found_inf is not None:
                grad = torch.where(self.found_inf > 0, running, grad)  # lerp to itself: no change
            running.lerp_(grad, 1 - momentum)
            move = grad.lerp(running, momentum).flatten(1)
            moves.append(move.T if len(move) > move.shape[1] else move)
        made = orthogonal(torch.stack(moves)) * (-0.2 * max(moves[0].shape) ** 0.5)
        scale = rate if self.found_inf is None else rate * (1 - self.found_inf)
        for weight, change in zip(weights, made, strict=True):
            wide = len(weight) <= weight[0].numel()
            if group["weight_decay"]:
                weight.mul_(1 - scale * group["weight_decay"])
            weight.add_((change if wide else change.T).reshape(weight.shape) * scale)


def orthogonal(matrices: Tensor) -> Tensor:
    """Matrices [N, rows, columns], rows <= columns, with singular values moved near 1."""
    x = matrices / matrices.norm(dim=(1, 2), keepdim=True).clamp(min=1e-20)
    for _ in range(_ROUNDS):
        gram = x @ x.mT
        x = _A * x + (_B * gram + _C * gram @ gram) @ x
    return x
