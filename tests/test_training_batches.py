"""Patches: which pieces of the images they are, their noise, and how they are drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from training_runs import make_root, write_config

from nlrn import training
from nlrn.degrade import imresize, mod_crop
from nlrn.models.nlrn import NLRN
from nlrn.training.batches import PatchSampler, repetition
from nlrn.training.config_tables import Data
from nlrn.training.parsing import TrainingError

pytestmark = pytest.mark.usefixtures("one_thread")

CPU = torch.device("cpu")


def ramps() -> list[np.ndarray]:
    """Two images in which every pixel has a value of its own; none square."""
    return [
        np.arange(9 * 13, dtype=np.uint8).reshape(9, 13),
        np.arange(130, 130 + 12 * 8, dtype=np.uint8).reshape(12, 8),
    ]


def test_patches_depend_on_seed_step_and_number_alone() -> None:
    patches = PatchSampler(ramps(), CPU, Data(sigma=25), seed=3)
    whole = patches.batch(7, 8, 6)
    patches.batch(8, 8, 6)  # what was asked for in between does not matter
    shares = [patches.batch(7, 8, 6, slice(0, 4)), patches.batch(7, 8, 6, slice(4, 8))]
    for part in (0, 1, 2):
        assert torch.equal(torch.cat([share[part] for share in shares]), whole[part])
    assert not torch.equal(PatchSampler(ramps(), CPU, Data(), seed=4).batch(7, 8, 6)[1], whole[1])
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
    patches = PatchSampler(ramps(), CPU, Data(), seed=0)
    clean = patches.batch(0, 3000, side).clean
    seen = {pieces[p.tobytes()] for p in (clean[:, 0] * 255).round().byte().numpy()}
    assert len(seen) > 0.95 * len(pieces)  # of all places and positions


def test_noise_has_its_sigma_and_is_not_clipped() -> None:
    flat = [np.full((40, 50), 250, dtype=np.uint8)]
    noisy, clean, _ = PatchSampler(flat, CPU, Data(sigma=30), seed=0).batch(1, 16, 32)
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
    patches = PatchSampler(images, CPU, Data(sigma=25, self_similar_fraction=0.25), seed=0)
    clean = patches.batch(3, 400, 32).clean
    repeats = repetition(clean[:, 0]) > 0.01
    assert 0.72 < repeats[:100].float().mean() < 0.82  # 1 - (5/6)**8 is 0.77
    assert 0.10 < repeats[100:].float().mean() < 0.23
    shares = [patches.batch(3, 400, 32, slice(n, n + 50))[0] for n in range(0, 400, 50)]
    assert torch.equal(torch.cat(shares), patches.batch(3, 400, 32)[0])
    with pytest.raises(TrainingError, match=r"self_similar_fraction must be in \[0, 1\], got -1"):
        Data(self_similar_fraction=-1)


def test_images_without_room_for_a_patch_are_left_out() -> None:
    patches = PatchSampler(
        [np.zeros((8, 90), np.uint8), np.full((20, 21), 9, np.uint8)], CPU, Data(sigma=1), seed=0
    )
    clean = patches.batch(0, 50, 10).clean
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
    patches = PatchSampler([image], CPU, Data(task="sr", factors=(2, 3)), seed=0)
    low, clean, sigma = patches.batch(0, 400, 10)
    assert not sigma.any()
    upright = 0
    for one, truth in zip(low[:, 0].numpy(), (clean[:, 0] * 255).byte().numpy(), strict=True):
        known = wanted.get(truth.tobytes(), [])  # the others have been turned or flipped
        upright += bool(known)
        assert not known or min(np.abs(one - k).max() for k in known) < 1e-3
    assert upright > 20


def test_a_share_of_the_luminance_is_stretched_to_the_full_range() -> None:
    image = np.tile(np.array([16, 235], np.uint8), (20, 10))
    one, half = (PatchSampler([image], CPU, Data(task="sr", factors=(2,), full_range=share), seed=0)
                 for share in (1.0, 0.5))  # fmt: skip
    low, clean, _ = one.batch(0, 8, 10)
    assert (clean * 255).round().unique().tolist() == [0, 255]
    plain = PatchSampler([image], CPU, Data(task="sr", factors=(2,)), seed=0).batch(0, 8, 10)[0]
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
    card = NLRN.from_pretrained(out / "weights.safetensors").card
    assert card.task == "sr" and card.factors == (2, 3, 4) and card.sigma is None
    assert card.validation_psnr is not None and card.validation_psnr > 15
    config.write_text(text.replace("'sr'", "'sharpen'"))
    with pytest.raises(TrainingError, match="task must be one of denoise, sr, got 'sharpen'"):
        training.run(config, data_root=root, out=tmp_path / "other")
    config.write_text(text.replace("sigma = 8", "factors = [9]"))
    with pytest.raises(TrainingError, match=r"factors must be whole numbers of 2\.\.8, got \[9"):
        training.run(config, data_root=root, out=tmp_path / "other")
    config.write_text(text.replace("sigma = 8", "factors = [2.5]"))
    with pytest.raises(TrainingError, match=r"'factors': every entry must be int, got 2\.5"):
        training.run(config, data_root=root, out=tmp_path / "other")


# --- color, levels, areas -----------------------------------------------------------------------


def colored() -> list[np.ndarray]:
    """Two images whose channels differ everywhere; none square."""
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, shape, dtype=np.uint8) for shape in ((9, 13, 3), (12, 8, 3))]


def test_patches_of_color_images_keep_their_channels_together() -> None:
    side, data = 5, Data(channels=3)
    pieces = set()
    for image in colored():
        for y in range(image.shape[0] - side + 1):
            for x in range(image.shape[1] - side + 1):
                piece = image[y : y + side, x : x + side]
                for position in range(8):
                    turned = piece.transpose(1, 0, 2) if position % 2 else piece
                    pieces.add(np.rot90(turned, position // 2).tobytes())
    noisy, clean, sigma = PatchSampler(colored(), CPU, data, seed=0).batch(0, 100, side)
    assert noisy.shape == clean.shape == (100, 3, side, side) and clean.is_contiguous()
    for patch in (clean.permute(0, 2, 3, 1) * 255).round().byte().numpy():
        assert patch.tobytes() in pieces
    assert sigma.tolist() == [25.0] * 100
    noise = (noisy - clean).transpose(0, 1).flatten(1)
    assert abs(float(torch.corrcoef(noise)[0, 1])) < 0.1  # each channel has noise of its own


def test_self_similar_patches_are_found_in_color_too() -> None:
    rng = np.random.default_rng(0)
    tiled = np.tile(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8), (5, 6, 1))
    noise = [rng.integers(0, 256, (40, 50, 3), dtype=np.uint8) for _ in range(5)]
    data = Data(channels=3, self_similar_fraction=0.5)
    clean = PatchSampler([tiled, *noise], CPU, data, seed=0).batch(3, 200, 32).clean
    repeats = repetition(clean.mean(1)) > 0.01
    assert repeats[:100].float().mean() > 0.65 > 0.3 > repeats[100:].float().mean()


def test_levels_are_drawn_from_the_range_one_for_each_patch() -> None:
    flat = [np.full((40, 50), 100, dtype=np.uint8)]
    sampler = PatchSampler(flat, CPU, Data(sigma_range=(10.0, 60.0)), seed=0)
    noisy, clean, sigma = sampler.batch(1, 300, 24)
    assert 10 <= sigma.min() < 12 and 58 < sigma.max() <= 60
    assert abs(float(sigma.mean()) - 35) < 2.5
    measured = ((noisy - clean) * 255).std((1, 2, 3))
    assert float((measured / sigma - 1).abs().max()) < 0.15
    shares = [sampler.batch(1, 300, 24, slice(n, n + 100)) for n in (0, 100, 200)]
    assert torch.equal(torch.cat([share.sigma for share in shares]), sigma)
    assert torch.equal(torch.cat([share.degraded for share in shares]), noisy)


def test_levels_are_drawn_after_all_else() -> None:
    """So that runs with one level see the patches and the noise that they always saw."""
    one, many = (
        PatchSampler(ramps(), CPU, Data(sigma_range=levels), seed=3).batch(7, 8, 6)
        for levels in ((), (0.0, 75.0))
    )
    assert torch.equal(one.clean, many.clean)
    noise = (many.degraded - many.clean) / (many.sigma / 255).view(-1, 1, 1, 1)
    torch.testing.assert_close(noise * 25 / 255, one.degraded - one.clean, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("by_area", "share"), [(False, 0.5), (True, 0.9)])
def test_large_images_are_drawn_more_often_by_area(by_area: bool, share: float) -> None:
    images = [np.full((20, 30), 10, np.uint8), np.full((60, 90), 200, np.uint8)]
    clean = PatchSampler(images, CPU, Data(by_area=by_area), seed=0).batch(0, 2000, 8).clean
    assert abs(float((clean[:, 0, 0, 0] > 0.5).float().mean()) - share) < 0.03
