from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.testing import CompileCounter
from training_runs import make_root, write_config

from nlrn import training
from nlrn.degrade import imresize, mod_crop
from nlrn.models.nlrn import NLRN, NLRNConfig, random_network
from nlrn.training import learner, tied
from nlrn.training.batches import Patches, repetition
from nlrn.training.config import OPTIMIZERS, Config, Data, Machine, Optimizer, Stage, TrainingError
from nlrn.training.report import read_metrics
from nlrn.training.schedule import Progress, average_weight, learning_rate
from nlrn.training.step import Step

CPU = torch.device("cpu")
SMALL = NLRNConfig(steps=3, channels=4, embed=2, window=5)


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Networks this small only lose time to threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class OneProcess:
    """As much of Fabric as a step needs."""

    world_size = 1

    def __init__(self, device: str = "cpu", dtype: torch.dtype | None = None) -> None:
        self.device, self.dtype = device, dtype

    def autocast(self) -> Any:
        return torch.autocast(self.device, self.dtype, enabled=self.dtype is not None)


# --- batches ------------------------------------------------------------------------------------


def ramps() -> list[np.ndarray]:
    """Two images in which every pixel has a value of its own; none square."""
    return [
        np.arange(9 * 13, dtype=np.uint8).reshape(9, 13),
        np.arange(130, 130 + 12 * 8, dtype=np.uint8).reshape(12, 8),
    ]


def test_patches_depend_on_seed_step_and_number_alone() -> None:
    patches = Patches(ramps(), CPU, Data(sigma=25), seed=3)
    whole = patches.batch(7, 8, 6)
    patches.batch(8, 8, 6)  # what was asked for in between does not matter
    shares = [patches.batch(7, 8, 6, slice(0, 4)), patches.batch(7, 8, 6, slice(4, 8))]
    for part in (0, 1):
        assert torch.equal(torch.cat([share[part] for share in shares]), whole[part])
    assert not torch.equal(Patches(ramps(), CPU, Data(), seed=4).batch(7, 8, 6)[1], whole[1])
    assert not torch.equal(patches.batch(8, 8, 6)[1], whole[1])


def test_patches_are_pieces_of_the_images_in_all_eight_positions() -> None:
    side = 5
    pieces = {}
    for image in ramps():
        for y in range(image.shape[0] - side + 1):
            for x in range(image.shape[1] - side + 1):
                piece = image[y : y + side, x : x + side]
                for position in range(8):
                    turned = np.rot90(piece.T if position % 2 else piece, position // 2)
                    pieces[turned.tobytes()] = (image.shape, y, x, position)
    patches = Patches(ramps(), CPU, Data(), seed=0)
    _, clean = patches.batch(0, 3000, side)
    seen = {pieces[p.tobytes()] for p in (clean[:, 0] * 255).round().byte().numpy()}
    assert len(seen) > 0.95 * len(pieces)  # of all places and positions


def test_noise_has_its_sigma_and_is_not_clipped() -> None:
    flat = [np.full((40, 50), 250, dtype=np.uint8)]
    noisy, clean = Patches(flat, CPU, Data(sigma=30), seed=0).batch(1, 16, 32)
    noise = (noisy - clean) * 255
    assert abs(float(noise.std()) - 30) < 0.7 and abs(float(noise.mean())) < 0.7
    assert noisy.max() > 1.2


def test_repetition_is_the_mean_squared_correlation_over_the_shifts() -> None:
    patch = torch.rand(20, 20, dtype=torch.float64)
    detail = torch.empty_like(patch)
    for y in range(20):
        for x in range(20):
            near = patch[max(0, y - 4) : y + 5, max(0, x - 4) : x + 5]
            detail[y, x] = patch[y, x] - near.mean()
    squares = []
    for down in range(-10, 11):
        for right in range(-10, 11):
            if max(abs(down), abs(right)) < 5:
                continue
            one = detail[max(0, down) : 20 + min(0, down), max(0, right) : 20 + min(0, right)]
            two = detail[max(0, -down) : 20 - max(0, down), max(0, -right) : 20 - max(0, right)]
            energy = (one.square() + two.square()).sum() / 2 + 0.02**2 * one.numel()
            squares.append(max(0.0, float((one * two).sum() / energy)) ** 2)
    expected = torch.tensor([sum(squares) / len(squares)], dtype=torch.float64)
    torch.testing.assert_close(repetition(patch[None]), expected)


def test_repetition_finds_grids_and_neither_noise_nor_plain_areas() -> None:
    y, x = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    grid = ((y % 12 < 3) | (x % 10 < 3)).float()
    edge, flat = (x < 30).float(), torch.full((64, 64), 0.5)
    noise = torch.rand(64, 64, generator=torch.Generator().manual_seed(0))
    of_grid, of_edge, of_noise, of_flat = repetition(torch.stack([grid, edge, noise, flat]))
    assert of_grid > 3 * of_edge > 100 * of_noise and of_flat == 0


def test_a_share_of_the_patches_is_the_most_repeating_of_eight() -> None:
    rng = np.random.default_rng(0)
    tile = rng.integers(0, 256, (9, 9), dtype=np.uint8)
    noise = [rng.integers(0, 256, (40, 40), dtype=np.uint8) for _ in range(5)]
    images = [np.tile(tile, (5, 5)), *noise]  # every sixth patch repeats itself
    patches = Patches(images, CPU, Data(sigma=25, repeating=0.25), seed=0)
    _, clean = patches.batch(3, 400, 32)
    repeats = repetition(clean[:, 0]) > 0.01
    assert 0.72 < repeats[:100].float().mean() < 0.82  # 1 - (5/6)**8 is 0.77
    assert 0.10 < repeats[100:].float().mean() < 0.23
    shares = [patches.batch(3, 400, 32, slice(n, n + 50))[0] for n in range(0, 400, 50)]
    assert torch.equal(torch.cat(shares), patches.batch(3, 400, 32)[0])
    with pytest.raises(TrainingError, match=r"repeating must be in \[0, 1\], got -1"):
        Data(repeating=-1)


def test_images_without_room_for_a_patch_are_left_out() -> None:
    patches = Patches(
        [np.zeros((8, 90), np.uint8), np.full((20, 21), 9, np.uint8)], CPU, Data(sigma=1), seed=0
    )
    _, clean = patches.batch(0, 50, 10)
    assert (clean * 255).round().unique().tolist() == [9]
    with pytest.raises(TrainingError, match=r"no image has room for patches of 32 \(at most 20\)"):
        patches.batch(0, 1, 32)


def test_patches_of_low_resolution_are_those_of_the_whole_image() -> None:
    """Shrunk and enlarged as a whole by MATLAB's resize, then cut at the same place."""
    image = np.random.default_rng(0).integers(0, 256, (23, 31), dtype=np.uint8)
    wanted: dict[bytes, list[np.ndarray]] = {}
    for factor in (2, 3):
        cut = mod_crop(image, factor)
        enlarged = imresize(imresize(cut / 255, 1 / factor), factor)
        for y in range(cut.shape[0] - 9):
            for x in range(cut.shape[1] - 9):
                piece = cut[y : y + 10, x : x + 10]
                wanted.setdefault(piece.tobytes(), []).append(enlarged[y : y + 10, x : x + 10])
    patches = Patches([image], CPU, Data(task="sr", factors=(2, 3)), seed=0)
    low, clean = patches.batch(0, 400, 10)
    upright = 0
    for one, truth in zip(low[:, 0].numpy(), (clean[:, 0] * 255).byte().numpy(), strict=True):
        known = wanted.get(truth.tobytes(), [])  # the others have been turned or flipped
        upright += bool(known)
        assert not known or min(np.abs(one - k).max() for k in known) < 1e-3
    assert upright > 20


def test_a_share_of_the_luminance_is_stretched_to_the_full_range() -> None:
    image = np.tile(np.array([16, 235], np.uint8), (20, 10))
    one, half = (Patches([image], CPU, Data(task="sr", factors=(2,), full_range=share), seed=0)
                 for share in (1.0, 0.5))  # fmt: skip
    low, clean = one.batch(0, 8, 10)
    assert (clean * 255).round().unique().tolist() == [0, 255]
    plain, _ = Patches([image], CPU, Data(task="sr", factors=(2,)), seed=0).batch(0, 8, 10)
    torch.testing.assert_close(low, (plain * 255 - 16) / 219)
    brightest = (half.batch(0, 200, 10)[1].amax((1, 2, 3)) * 255).round()
    assert brightest.unique().tolist() == [235, 255] and 70 < int((brightest == 255).sum()) < 130
    with pytest.raises(TrainingError, match=r"full_range must be in \[0, 1\], got 2"):
        Data(task="sr", full_range=2.0)


def test_super_resolution_trains_and_says_what_it_is(tmp_path: Path) -> None:
    root = make_root(tmp_path / "data")
    config = write_config(tmp_path / "c.toml", "steps = 2\nlr = 1e-3\nbatch = 2\npatch = 12")
    text = config.read_text().replace("[data]\nsigma = 25", "[data]\ntask = 'sr'\nsigma = 8")
    config.write_text(text)
    out = training.run(config, data_root=root, out=tmp_path / "out")
    notes = NLRN.from_pretrained(out / "weights.safetensors").notes
    assert notes["task"] == "sr" and notes["factors"] == "2,3,4" and "sigma" not in notes
    assert float(notes["validation_psnr"]) > 15
    config.write_text(text.replace("'sr'", "'sharpen'"))
    with pytest.raises(TrainingError, match="task must be one of denoise, sr, got 'sharpen'"):
        training.run(config, data_root=root, out=tmp_path / "other")
    config.write_text(text.replace("sigma = 8", "factors = [2.5]"))
    with pytest.raises(TrainingError, match=r"factors must be whole numbers of 2\.\.8, got \[2\.5"):
        training.run(config, data_root=root, out=tmp_path / "other")


# --- schedule -----------------------------------------------------------------------------------


def test_cosine_by_steps_and_by_time() -> None:
    stage = Stage(steps=100, lr=1e-3, lr_end=1e-5)
    assert learning_rate(stage, Progress(stage_step=0)) == pytest.approx(1e-3)
    assert learning_rate(stage, Progress(stage_step=50)) == pytest.approx(5.05e-4)
    timed = Stage(minutes=2, lr=1e-3, lr_end=1e-5)
    assert learning_rate(timed, Progress(stage_step=9, stage_seconds=60)) == pytest.approx(5.05e-4)
    assert learning_rate(timed, Progress(stage_step=9, stage_seconds=200)) == pytest.approx(1e-5)


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
    assert average_weight(0.999, 0) == pytest.approx(0.9)
    assert average_weight(0.999, 10**6) == pytest.approx(0.001)
    assert average_weight(0.0, 5) == 1.0


# --- step and stages ----------------------------------------------------------------------------


def make_step(
    stage: Stage, model: NLRNConfig = SMALL, *, balance: float = 0.0, **machine: Any
) -> tuple[learner.Learner, Step]:
    optimizer = Optimizer(balance=balance)
    config = Config("test", (stage,), model=model, machine=Machine(**machine), optimizer=optimizer)
    learning = learner.make(config, CPU)
    learning.model.load_state_dict(random_network(model).state_dict())
    learning.average.load_state_dict(random_network(model).state_dict())
    learner.enter_stage(learning, stage, config, is_new=True)
    return learning, Step(learning, config, OneProcess())


def test_loss_is_half_the_squared_error_in_units_of_the_noise() -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True))
    noisy, clean = torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9)
    with torch.no_grad():
        expected = 0.5 * ((learning.model(noisy) - clean) * 255 / Data().sigma).square().mean()
    step(noisy, clean, 1e-3, 0.1)
    assert step.take()[0] == pytest.approx(float(expected), rel=1e-5)


def test_average_follows_the_weights() -> None:
    learning, step = make_step(Stage(steps=1))
    before = copy.deepcopy(learning.average.state_dict())
    step(torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9), 1e-2, 0.25)
    for name, value in learning.average.state_dict().items():
        if value.is_floating_point():
            expected = before[name].lerp(learning.model.state_dict()[name], 0.25)
            torch.testing.assert_close(value, expected)


def test_off_is_the_same_function_as_g_zero() -> None:
    off, _ = make_step(Stage(steps=1, non_local=False))
    on, _ = make_step(Stage(steps=1))
    torch.nn.init.zeros_(on.model.cells[0].non_local.g.weight)  # type: ignore[union-attr, arg-type]
    torch.nn.init.zeros_(on.model.cells[0].non_local.g.bias)  # type: ignore[union-attr, arg-type]
    image = torch.rand(1, 1, 9, 7)
    torch.testing.assert_close(off.model.eval()(image), on.model.eval()(image))


@pytest.mark.filterwarnings("ignore")  # the compiler looks at gradients of tensors without one
@pytest.mark.parametrize("non_local", [False, True])
def test_the_cell_is_compiled_twice_whatever_the_number_of_states(non_local: bool) -> None:
    """For the first state, which has no correlation yet, and for all others."""
    stage = Stage(steps=1, patch=8, non_local=non_local)
    model = dataclasses.replace(SMALL, steps=12)
    learning, _ = make_step(stage, model, attention="dense")
    torch.compiler.reset()
    counter = CompileCounter()
    for cell in learning.model.cells:
        cell.compile(dynamic=False, backend=counter)
    image = torch.rand(2, 1, 8, 8)
    learning.model(image).sum().backward()
    learning.model(image)
    torch.compiler.reset()
    assert counter.frame_count == 2


def test_a_compiler_that_fails_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no compiler\nhere")

    learning, step = make_step(Stage(steps=1))
    step._compiled = True
    for cell in learning.model.cells:
        cell._compiled_call_impl = broken
    for _ in range(2):
        step(torch.rand(2, 1, 9, 9), torch.rand(2, 1, 9, 9), 1e-3, 0.1)
    assert step.take()[0] > 0
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1 and "(RuntimeError: no compiler here)" in warning


def test_half_precision_and_dense_attention_train_too(tmp_path: Path) -> None:
    stage = "steps = 4\nbatch = 2\npatch = 12"
    config = write_config(tmp_path / "c.toml", stage)
    text = config.read_text().replace(
        "[machine]", "[machine]\nprecision = 'bf16-mixed'\nattention = 'dense'"
    )
    config.write_text(text)
    out = training.run(config, data_root=make_root(tmp_path / "data"), out=tmp_path / "out")
    losses = [entry["loss"] for entry in read_metrics(out / "metrics.jsonl") if "loss" in entry]
    assert len(losses) == 2 and all(0.1 < loss < 1 for loss in losses)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("non_local", [False, True])
@pytest.mark.parametrize("method", OPTIMIZERS)
def test_a_recorded_and_compiled_step_learns_what_a_plain_one_does(
    method: str, non_local: bool
) -> None:
    stage = Stage(steps=1, patch=16, non_local=non_local)
    device = torch.device("cuda")
    optimizer = Optimizer(method=method, balance=0.5)
    losses = []
    for fast in (False, True):
        machine = Machine(compile=fast, cuda_graph=fast)
        config = Config("test", (stage,), model=SMALL, machine=machine, optimizer=optimizer)
        learning = learner.make(config, device)
        learning.model.load_state_dict(random_network(SMALL).state_dict())
        learner.enter_stage(learning, stage, config, is_new=True)
        step = Step(learning, config, OneProcess("cuda"))
        rng = torch.Generator(device).manual_seed(0)
        readings = []
        for _ in range(12):
            clean = torch.rand(4, 1, 16, 16, generator=rng, device=device)
            noisy = clean + 0.1 * torch.randn(clean.shape, generator=rng, device=device)
            step(noisy, clean, 1e-3, 0.1)
            readings.append(step.take()[0])
        assert (step._graph is not None) == fast
        losses.append(readings)
    np.testing.assert_allclose(losses[1], losses[0], rtol=2e-3)


@pytest.mark.parametrize("balance", [0.5, 1.0])
def test_patches_that_are_far_off_count_less_when_balanced(balance: float) -> None:
    learning, step = make_step(Stage(steps=1, freeze_norm=True), balance=balance)
    clean = torch.rand(3, 1, 12, 10)
    noisy = clean + torch.tensor([0.0, 0.03, 0.3]).view(3, 1, 1, 1)
    restored = learning.model.eval()(noisy).detach()
    expected = 0.0
    for after, before, target in zip(restored, noisy, clean, strict=True):
        was, now = (float(((x - target) * 255 / 25).square().mean()) for x in (before, after))
        expected += 0.5 * now / (was + 0.1) ** balance / 3
    step(noisy, clean, 0.0, 0.0)
    assert step.take()[0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("method", OPTIMIZERS)
def test_a_step_whose_gradient_is_no_number_is_left_out(method: str) -> None:
    stage = Stage(steps=4, batch=2, patch=12, freeze_norm=True)
    optimizer = Optimizer(method=method)
    config = Config(name="t", model=SMALL, stages=(stage,), optimizer=optimizer)
    learning = learner.make(config, CPU)
    learner.enter_stage(learning, stage, config, is_new=True)
    step = Step(learning, config, OneProcess())
    good = torch.rand(2, 1, 12, 12)
    bad = torch.full_like(good, torch.nan)
    before = copy.deepcopy(learning.model.state_dict())
    step(bad, good, 1e-3, 0.1)
    for name, tensor in learning.model.named_parameters():
        assert torch.equal(tensor, before[name]), name
    assert math.isnan(step.take()[0]), "nothing was learned since the last look"
    step(bad, good, 1e-3, 0.1)
    step(good + 0.1, good, 1e-3, 0.1)  # a new network is the identity: an error of 0.1
    assert step.take()[0] == pytest.approx(0.5 * (0.1 * 255 / config.data.sigma) ** 2, rel=1e-4)


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
    tied.forward(model, image, torch.float64).square().sum().backward()
    for name, parameter in model.named_parameters():
        if wanted[name] is None:
            assert parameter.grad is None, name
        else:
            torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-12, atol=1e-12)
            assert parameter.grad.stride() == parameter.stride(), name


def test_networks_without_shared_weights_train_as_well() -> None:
    model = random_network(NLRNConfig(steps=2, channels=8, embed=4, window=5, tied=False))
    image = torch.rand(1, 1, 7, 8)
    torch.testing.assert_close(tied.forward(model, image, torch.float32), model(image))
