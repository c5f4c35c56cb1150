"""Schedules, single steps, and gradients of shared weights."""

from __future__ import annotations

import copy
import dataclasses
import math
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter
from training_runs import make_root, write_config

from nlrn import training
from nlrn.models import TrainingMode
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.training import state
from nlrn.training.batches import Batch
from nlrn.training.config import Config
from nlrn.training.config_tables import OPTIMIZERS, Data, Optimizer, RuntimeConfig, Stage
from nlrn.training.parsing import TrainingError
from nlrn.training.report import read_metrics
from nlrn.training.schedule import Progress, ema_alpha, learning_rate
from nlrn.training.step import Step

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")
SMALL = NLRNConfig(steps=3, channels=4, embed=2, window=5)


class OneProcess:
    """As much of Fabric as a step needs."""

    world_size = 1

    def __init__(self, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        self.device, self.dtype = device, dtype

    def autocast(self) -> Any:
        return torch.autocast(self.device, self.dtype, enabled=self.dtype is not None)


# --- schedule -----------------------------------------------------------------------------------


def test_cosine_by_steps_and_by_time() -> None:
    stage = Stage(steps=100, lr=1e-3, lr_end=1e-5)
    assert learning_rate(stage, Progress(stage_step=0)) == pytest.approx(1e-3)
    assert learning_rate(stage, Progress(stage_step=50)) == pytest.approx(5.05e-4)
    timed = Stage(minutes=2, lr=1e-3, lr_end=1e-5)
    assert learning_rate(timed, Progress(stage_step=9, stage_seconds=60)) == pytest.approx(5.05e-4)
    assert learning_rate(timed, Progress(stage_step=9, stage_seconds=200)) == pytest.approx(1e-5)


def test_a_rate_that_is_held_falls_after() -> None:
    held = Stage(steps=100, lr=1e-3, lr_end=1e-5, hold=0.6)
    rates = [learning_rate(held, Progress(stage_step=k)) for k in range(101)]
    assert set(rates[:61]) == {1e-3}
    cosine = Stage(steps=40, lr=1e-3, lr_end=1e-5)
    assert rates[60:] == pytest.approx(
        [learning_rate(cosine, Progress(stage_step=k)) for k in range(41)]
    )


def test_the_papers_schedule_halves_five_times() -> None:
    stage = Stage(steps=500, lr=1e-3, schedule="halved")
    rates = [learning_rate(stage, Progress(stage_step=k)) for k in range(500)]
    changes = [k for k in range(1, 500) if rates[k] != rates[k - 1]]
    assert changes == [100, 200, 300, 400, 450]
    assert rates[-1] == pytest.approx(1e-3 / 32)


def test_warm_up_rises_evenly() -> None:
    stage = Stage(steps=100, lr=1.0, schedule="constant", warmup=3)
    rates = [learning_rate(stage, Progress(stage_step=k)) for k in range(5)]
    assert rates == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_young_average_follows_faster() -> None:
    assert ema_alpha(0.999, 0) == pytest.approx(0.9)
    assert ema_alpha(0.999, 10**6) == pytest.approx(0.001)
    assert ema_alpha(0.0, 5) == 1.0


# --- step and stages ----------------------------------------------------------------------------


def patches(degraded: Tensor, clean: Tensor, sigma: float = 25) -> Batch:
    return Batch(degraded, clean, torch.full((len(clean),), float(sigma), device=clean.device))


def make_step(
    stage: Stage, model: NLRNConfig = SMALL, *, attention: str = "auto", **options: Any
) -> tuple[state.TrainState, Step]:
    optimizer, runtime = Optimizer(**options), RuntimeConfig(attention=attention)
    config = Config("test", (stage,), model=model, runtime=runtime, optimizer=optimizer)
    learning = state.make(config, CPU)
    learning.model.load_state_dict(random_network(model).state_dict())
    learning.ema_model.load_state_dict(random_network(model).state_dict())
    state.enter_stage(learning, stage, is_new=True)
    return learning, Step(learning, config, stage, OneProcess())


def test_loss_is_half_the_squared_error_in_units_of_the_noise() -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True))
    noisy, clean = torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9)
    with torch.no_grad():
        expected = 0.5 * ((learning.model(noisy) - clean) * 255 / Data().sigma).square().mean()
    step(patches(noisy, clean), 1e-3, 0.1)
    assert step.pop_metrics().loss == pytest.approx(float(expected), rel=1e-5)


def test_average_follows_the_weights() -> None:
    learning, step = make_step(Stage(steps=1))
    before = copy.deepcopy(learning.ema_model.state_dict())
    step(patches(torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9)), 1e-2, 0.25)
    for name, value in learning.ema_model.state_dict().items():
        if value.is_floating_point():
            expected = before[name].lerp(learning.model.state_dict()[name], 0.25)
            torch.testing.assert_close(value, expected)


def test_off_is_the_same_function_as_g_zero() -> None:
    model = random_network(SMALL)
    torch.nn.init.zeros_(model.cells[0].non_local.g.weight)  # type: ignore[union-attr, arg-type]
    torch.nn.init.zeros_(model.cells[0].non_local.g.bias)  # type: ignore[union-attr, arg-type]
    image = torch.rand(1, 1, 9, 7)
    torch.testing.assert_close(model(image, non_local=False), model(image))
    off = model.for_training(TrainingMode(non_local=False))
    torch.testing.assert_close(off(image), model(image))


@pytest.mark.filterwarnings("ignore")  # the compiler looks at gradients of tensors without one
@pytest.mark.parametrize("non_local", [False, True])
def test_the_cell_is_compiled_twice_whatever_the_number_of_states(non_local: bool) -> None:
    """For the first state, which has no correlation yet, and for all others."""
    stage = Stage(steps=1, patch=8, non_local=non_local)
    model = dataclasses.replace(SMALL, steps=12)
    learning, step = make_step(stage, model, attention="dense")
    torch.compiler.reset()
    counter = CompileCounter()
    for module in learning.model.repeated_modules():
        module.compile(dynamic=False, backend=counter)
    image = torch.rand(2, 1, 8, 8)
    step._restore[1](image).sum().backward()
    step._restore[1](image)
    torch.compiler.reset()
    assert counter.frame_count == 2


def test_a_compiler_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nhere")

    learning, step = make_step(Stage(steps=1))
    step._compiled = True
    for module in learning.model.repeated_modules():
        module._compiled_call_impl = broken
    for _ in range(2):
        step(patches(torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9)), 1e-3, 0.1)
    assert step.pop_metrics().loss > 0
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "(RuntimeError: no compiler here)" in warning


def test_half_precision_and_dense_attention_train_too(tmp_path: Path) -> None:
    stage = "steps = 4\nbatch = 2\npatch = 12"
    config = write_config(tmp_path / "c.toml", stage)
    text = config.read_text().replace(
        "[runtime]", "[runtime]\nprecision = 'bf16-mixed'\nattention = 'dense'"
    )
    config.write_text(text)
    out = training.run(config, data_root=make_root(tmp_path / "data"), out=tmp_path / "out")
    losses = [entry["loss"] for entry in read_metrics(out / "metrics.jsonl") if "loss" in entry]
    assert len(losses) == 2 and all(0.1 < loss < 1 for loss in losses)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("non_local", [False, True])
@pytest.mark.parametrize("method", OPTIMIZERS)
@pytest.mark.parametrize("skip_above", [0.0, 10.0])
def test_a_recorded_and_compiled_step_learns_what_a_plain_one_does(
    skip_above: float, method: str, non_local: bool
) -> None:
    stage = Stage(steps=1, patch=16, non_local=non_local)
    device = torch.device("cuda")
    optimizer = Optimizer(method=method, loss_balance=0.5, skip_above=skip_above)
    losses = []
    for fast in (False, True):
        runtime = RuntimeConfig(compile=fast, cuda_graph=fast)
        config = Config("test", (stage,), model=SMALL, runtime=runtime, optimizer=optimizer)
        learning = state.make(config, device)
        learning.model.load_state_dict(random_network(SMALL).state_dict())
        state.enter_stage(learning, stage, is_new=True)
        step = Step(learning, config, stage, OneProcess("cuda"))
        rng = torch.Generator(device).manual_seed(0)
        readings = []
        for _ in range(12):
            clean = torch.rand(4, 1, 16, 16, generator=rng, device=device)
            noisy = clean + 0.1 * torch.randn(clean.shape, generator=rng, device=device)
            step(patches(noisy, clean), 1e-3, 0.1)
            readings.append(step.pop_metrics().loss)
        assert bool(step._graphs) == fast
        losses.append(readings)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_patches_that_are_far_off_count_less_when_balanced(balance: float) -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True), loss_balance=balance)
    clean = torch.rand(3, 1, 12, 10)
    noisy = clean + torch.tensor([0.0, 0.03, 0.3]).view(3, 1, 1, 1)
    restored = learning.model.eval()(noisy).detach()
    expected = 0.0
    for after, before, target in zip(restored, noisy, clean, strict=True):
        was, now = (float(((x - target) * 255 / 25).square().mean()) for x in (before, after))
        expected += 0.5 * now / (was + 0.1) ** balance / 3
    step(patches(noisy, clean), 0.0, 0.0)
    assert step.pop_metrics().loss == pytest.approx(expected, rel=1e-4)


def test_a_patch_that_explodes_pulls_no_more_than_others() -> None:
    """Its error counts by the logarithm, whose gradient does not grow with it."""
    norms = []
    for far in (1e3, 1e6):
        learning, step = make_step(Stage(steps=1, freeze_norm=True), robust_above=2.0)
        torch.nn.init.normal_(learning.model.conv_out.weight, std=0.01 * far)  # type: ignore
        clean = torch.rand(1, 1, 12, 10, generator=torch.Generator().manual_seed(0))
        restored = learning.model.eval()(clean).detach()
        error = float(((restored - clean) * 255 / 25).square().mean())
        step(patches(clean, clean), 0.0, 0.0)
        metrics = step.pop_metrics()
        assert metrics.loss == pytest.approx(float(np.log1p(error / 2)), rel=1e-4)
        norms.append(metrics.grad_norm)
    assert norms[1] < 2 * norms[0]


@pytest.mark.parametrize("method", OPTIMIZERS)
def test_a_step_whose_gradient_is_no_number_is_left_out(method: str) -> None:
    stage = Stage(steps=4, batch=2, patch=12, freeze_norm=True)
    optimizer = Optimizer(method=method)
    config = Config(name="t", model=SMALL, stages=(stage,), optimizer=optimizer)
    learning = state.make(config, CPU)
    state.enter_stage(learning, stage, is_new=True)
    step = Step(learning, config, stage, OneProcess())
    good = torch.rand(2, 1, 12, 12)
    bad = torch.full_like(good, torch.nan)
    before = copy.deepcopy(learning.model.state_dict())
    step(patches(bad, good), 1e-3, 0.1)
    for name, tensor in learning.model.named_parameters():
        assert torch.equal(tensor, before[name]), name
    assert math.isnan(step.pop_metrics().loss), "nothing was learned since the last look"
    step(patches(bad, good), 1e-3, 0.1)
    step(patches(good + 0.1, good), 1e-3, 0.1)  # a new network is the identity: an error of 0.1
    metrics = step.pop_metrics()
    assert metrics.loss == pytest.approx(0.5 * (0.1 * 255 / config.data.sigma) ** 2, rel=1e-4)
    assert metrics.skipped == 1


def usual_patches(seed: int) -> Batch:
    clean = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(seed))
    return patches(clean + 0.1, clean)


@pytest.mark.slow
@pytest.mark.parametrize("method", OPTIMIZERS)
def test_a_step_far_above_the_median_changes_nothing(method: str) -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True), method=method, skip_above=10)
    for seed in range(60):
        step(usual_patches(seed), 1e-6, 0.1)
    usual = step.pop_metrics()
    assert usual.skipped == 0 and learning.grad_norms.isfinite().sum() == 60
    before = copy.deepcopy(learning.model.state_dict())
    degraded, clean, sigma = usual_patches(60)
    step(Batch(degraded + 100, clean, sigma), 1e-3, 0.1)
    for name, tensor in learning.model.named_parameters():
        assert torch.equal(tensor, before[name]), name
    step(usual_patches(60), 1e-6, 0.1)
    metrics = step.pop_metrics()
    assert metrics.skipped == 1
    assert metrics.loss == pytest.approx(usual.loss, rel=0.3)  # of the step that learned alone
    assert learning.grad_norms[-2] > 10 * learning.grad_norms[-1]  # and yet it was noted
    step(Batch(degraded * torch.nan, clean, sigma), 1e-3, 0.1)
    assert step.pop_metrics().skipped == 1 and learning.grad_norms[-1].isfinite()


@pytest.mark.slow
def test_gradients_that_stay_large_are_accepted_after_a_while() -> None:
    _, step = make_step(Stage(steps=1, freeze_norm=True), skip_above=10)
    for seed in range(100):
        step(usual_patches(seed), 1e-6, 0.1)
    assert step.pop_metrics().skipped == 0
    skipped = []
    for _ in range(70):
        degraded, clean, sigma = usual_patches(7)
        step(Batch(degraded + 100, clean, sigma), 1e-9, 0.1)
        metrics = step.pop_metrics()
        assert metrics.loss > 1000  # nothing learned, but no reason for the run to stop
        skipped.append(metrics.skipped)
    assert skipped == [1] * 50 + [0] * 20


def test_without_the_option_no_finite_step_is_left_out() -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True))
    for seed in range(60):
        step(usual_patches(seed), 1e-6, 0.1)
    degraded, clean, sigma = usual_patches(60)
    step(Batch(degraded + 100, clean, sigma), 1e-6, 0.1)
    assert step.pop_metrics().skipped == 0 and learning.grad_norms.isinf().all()


def test_a_new_stage_forgets_what_gradients_were_like() -> None:
    stage = Stage(steps=1, freeze_norm=True)
    learning, step = make_step(stage, skip_above=10)
    step(usual_patches(0), 1e-6, 0.1)
    state.enter_stage(learning, stage, is_new=False)
    assert learning.grad_norms.isfinite().sum() == 1
    state.enter_stage(learning, stage, is_new=True)
    assert learning.grad_norms.isinf().all()


def test_the_network_is_told_the_level_of_every_patch() -> None:
    model = dataclasses.replace(SMALL, unshuffle=2, noise_map=True)
    learning, step = make_step(Stage(steps=1, freeze_norm=True, non_local=False), model)
    given: list[Tensor] = []

    def restore(inputs: Tensor) -> Tensor:
        given.append(inputs)
        return cast(Tensor, learning.model(inputs))

    step._restore[1] = restore
    clean = torch.rand(2, 1, 8, 10)
    step(Batch(clean + 0.1, clean, torch.tensor([0.0, 51.0])), 1e-3, 0.1)
    levels = torch.tensor([0.0, 0.2]).view(2, 1, 1).expand(2, 8, 10)
    torch.testing.assert_close(given[0][:, 1], levels)


def test_a_result_of_another_shape_is_refused() -> None:
    _, step = make_step(Stage(steps=1, freeze_norm=True))
    step._restore[1] = lambda inputs: inputs[:, :, 1:]
    with pytest.raises(TrainingError, match=r"another shape .* \(2, 1, 8, 9\) for \(2, 1, 9, 9\)"):
        step(patches(torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9)), 1e-3, 0.1)


@pytest.mark.parametrize("every", [0, 1, 3])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_gradients_of_shared_weights_are_those_of_autograd(
    every: int, layout: torch.memory_format
) -> None:
    config = NLRNConfig(steps=4, channels=8, embed=4, window=5, non_local_every=every)
    model = random_network(config).double().to(memory_format=layout)  # type: ignore[call-overload]
    image = torch.rand(2, 1, 9, 11, dtype=torch.float64)
    model(image).square().sum().backward()
    wanted = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    shared = model.for_training(TrainingMode(dtype=torch.float64))
    shared(image).square().sum().backward()
    for name, parameter in model.named_parameters():
        if wanted[name] is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-12, atol=1e-12)
            assert parameter.grad.stride() == parameter.stride(), name


def test_networks_without_shared_weights_train_as_well() -> None:
    model = random_network(NLRNConfig(steps=2, channels=8, embed=4, window=5, tied=False))
    image = torch.rand(1, 1, 7, 8)
    shared = model.for_training(TrainingMode(dtype=torch.float32))
    torch.testing.assert_close(shared(image), model(image))
