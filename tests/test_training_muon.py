"""Muon against plain loops and singular values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nlrn.models.nlrn import NLRN, NLRNConfig
from nlrn.training import state
from nlrn.training.config import Config
from nlrn.training.config_tables import Optimizer, Stage
from nlrn.training.muon import Muon, orthogonal

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPES = [(6, 4, 3, 3), (6, 4, 3, 3), (4, 6), (6, 4, 1, 1), (9, 2), (5, 5)]


def polar(matrix: Tensor) -> Tensor:
    """The nearest matrix with orthonormal rows or columns."""
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    return left @ right


def test_orthogonal_moves_singular_values_near_one_and_leaves_directions() -> None:
    torch.manual_seed(0)
    for shape in [(3, 8, 20), (1, 5, 5), (4, 1, 7)]:
        given = torch.randn(shape, dtype=torch.float64) * 100
        made = orthogonal(given)
        values = torch.linalg.svdvals(made)
        assert values.min() > 0.6 and values.max() < 1.25
        torch.testing.assert_close(polar(made), polar(given), rtol=0, atol=1e-6)
    assert not orthogonal(
        torch.zeros(1, 3, 4)
    ).any()  # no gradient at all is no number to divide by


def slow_steps(
    weights: list[Tensor], grads: list[list[Tensor]], rate: float, momentum: float, decay: float
) -> list[Tensor]:
    """The same matrix by matrix, with the momentum written out."""
    results = []
    for number, weight in enumerate(weights):
        running = torch.zeros_like(weight)
        for grad in (step[number] for step in grads):
            running = momentum * running + (1 - momentum) * grad
            move = ((1 - momentum) * grad + momentum * running).reshape(len(weight), -1)
            x = move / move.pow(2).sum().sqrt()
            for _ in range(5):
                x = 3.4445 * x - 4.7750 * (x @ x.T @ x) + 2.0315 * (x @ x.T @ x @ x.T @ x)
            weight = (1 - rate * decay) * weight
            weight = weight - rate * 0.2 * max(move.shape) ** 0.5 * x.reshape(weight.shape)
        results.append(weight)
    return results


@pytest.mark.parametrize(("momentum", "decay"), [(0.95, 0.0), (0.99, 0.3)])
def test_steps_are_those_of_plain_loops(momentum: float, decay: float) -> None:
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(shape, dtype=torch.float64)) for shape in SHAPES]
    weights[1].data = weights[1].data.to(memory_format=torch.channels_last)
    grads = [[torch.randn_like(w) for w in weights] for _ in range(4)]
    expected = slow_steps([w.detach().clone() for w in weights], grads, 0.01, momentum, decay)
    muon = Muon(weights, lr=0.01, momentum=momentum, weight_decay=decay)
    for step in grads:
        for weight, grad in zip(weights, step, strict=True):
            weight.grad = grad
        muon.step()
    for weight, wanted in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.detach(), wanted)


def test_a_bad_step_and_a_missing_gradient_change_nothing() -> None:
    torch.manual_seed(0)
    good, idle = (nn.Parameter(torch.randn(4, 6)) for _ in range(2))
    muon = Muon([good, idle], lr=torch.tensor(0.1), weight_decay=0.5)
    good.grad = torch.randn(4, 6)
    muon.found_inf = torch.zeros(())
    muon.step()
    before = [t.clone() for t in (good.detach(), idle.detach(), muon.state[good]["momentum"])]
    good.grad = torch.full((4, 6), torch.nan)
    muon.found_inf = torch.ones(())
    muon.step()
    after = [good.detach(), idle.detach(), muon.state[good]["momentum"]]
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))
    assert not muon.state[idle]


def test_matrices_go_to_muon_and_the_rest_to_adam() -> None:
    optimizer = Optimizer(method="muon", momentum=0.9, weight_decay=0.1)
    config = Config("test", (Stage(steps=1),), optimizer=optimizer)
    learning = state.make(config, torch.device("cpu"))
    given = learning.optimizers[0].param_groups[0]
    assert (given["momentum"], given["weight_decay"]) == (0.9, 0.1)
    names = {parameter: name for name, parameter in learning.model.named_parameters()}
    muon, adam = (
        sorted(names[p] for group in optimizer.param_groups for p in group["params"])
        for optimizer in learning.optimizers
    )
    # but for the one that a softmax takes out
    assert set(names.values()) - set(muon + adam) == {"cells.0.non_local.psi.bias"}
    assert len(muon + adam) == len(names) - 1
    model = NLRN(NLRNConfig())
    sizes = {name: p.shape for name, p in model.named_parameters()}
    assert all(len(sizes[name]) == 4 and min(sizes[name][:2]) >= 64 for name in muon)
    assert "conv_in.weight" in adam and "conv_out.weight" in adam
    assert sum(sizes[name].numel() for name in muon) > 0.95 * sum(s.numel() for s in sizes.values())
