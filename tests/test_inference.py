"""Whole images, tiles, views and precision give the same picture."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from small_networks import SMALL, picture, restore, restore_patches, strong_network
from torch import Tensor

from nlrn.inference import Engine, Settings, engine, tiles
from nlrn.inference.tiles import plan
from nlrn.models.nlrn import CONFIGS, NLRN, NLRNConfig, random_network
from nlrn.models.nlrn_inference import NLRNInference
from nlrn.ops import attend

CPU = torch.device("cpu")


@pytest.mark.parametrize("size", [(61, 83), (97, 45), (30, 131)], ids=str)
@pytest.mark.parametrize("name", ["nlrn", "nlrn-every-2", "nlrn-embedded-dot", "rnn"])
def test_exact_tiles_equal_the_whole_image(name: str, size: tuple[int, int]) -> None:
    config = dataclasses.replace(CONFIGS[name], window=5, steps=3, channels=8, embed=4)
    model, image = strong_network(config), picture(1, 1, *size)
    whole = restore(model, image, tile=0)
    tiled = restore(model, image, tile=24, exact=True)
    assert len(plan(model, size, 24, True, torch.float32, 0)) > 1
    torch.testing.assert_close(tiled, whole, rtol=0, atol=1e-5)


def test_the_exact_halo_is_the_smallest() -> None:
    assert NLRNConfig().halo == 290
    model, image = strong_network().double(), picture(1, 1, 1, 80)
    halo, column = SMALL.halo, 40
    base = model.for_inference(torch.float64)(image.double())
    for distance, changes in ((halo, True), (halo + 1, False)):
        other = image.clone()
        other[..., column + distance] += 0.5
        moved = model.for_inference(torch.float64)(other.double())
        difference = (moved - base)[..., column].abs().max().item()
        assert (difference > 0) == changes, (distance, difference)


@pytest.mark.slow
def test_default_tiles_leave_no_seam() -> None:
    image = picture(1, 1, 150, 170)
    config = dataclasses.replace(SMALL, window=45)  # the halo is then no longer exact
    model = strong_network(config)
    whole = restore(model, image, tile=0)
    tiled = restore(model, image, tile=50)
    change = (whole - image).std()
    assert (tiled - whole).abs().max() < 0.02 * change


def test_neighboring_tiles_are_blended(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a halo far too small tiles disagree; where they meet, nothing may jump."""
    image = picture(1, 1, 40, 120)
    model = strong_network(dataclasses.replace(SMALL, window=45))
    whole = restore(model, image, tile=0)
    monkeypatch.setattr(tiles, "HALO", 10)

    def jump() -> float:
        error = restore(model, image, tile=60) - whole
        return (error[..., 60] - error[..., 59]).abs().mean().item()

    faded = jump()
    monkeypatch.setattr(tiles, "BLEND", 0)
    assert faded < 0.5 * jump()


def test_a_restoration_holds_one_copy_of_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state writes its scores over those of the state before."""
    storages = set()

    def watched(*arguments, **options):
        out, correlation = attend(*arguments, **options)
        if correlation is not None:
            storages.add(correlation.blocks.data_ptr())  # type: ignore[attr-defined]
        return out, correlation

    monkeypatch.setattr("nlrn.models.nlrn_inference.attend", watched)
    restore(strong_network(dataclasses.replace(SMALL, steps=5)), picture(1, 1, 30, 40))
    assert len(storages) == 1


def test_tiles_cover_every_pixel_once() -> None:
    for size, tile in [((50, 61), 16), ((17, 100), 17), ((1, 40), 8), ((33, 33), 1)]:
        cut = plan(NLRN(SMALL), size, tile, False, torch.float32, 0)
        covered = torch.zeros(size)
        blended = torch.zeros(1, *size)
        for t in cut:
            covered[t.output] += 1
            seen = torch.ones(1, *(s.stop - s.start for s in t.input))
            tiles.paste(blended, seen, t)
        assert (covered == 1).all()
        torch.testing.assert_close(blended, torch.ones(1, *size), rtol=0, atol=1e-6)


def test_memory_on_a_gpu_is_that_of_the_kernels_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    """T=12, q=45 at 1024 x 1024: under 12 GiB; images the kernels cannot index go in tiles."""
    gpu, network, half = torch.device("cuda"), NLRN(), torch.bfloat16
    monkeypatch.setattr("nlrn.ops.triton.backend.no_kernels", lambda device: None)
    scores = network.memory(1024, 1024, half, gpu) - 12 * 1024**2 * 128 * 2
    assert scores == 1024**2 * 48 * 64 * 2  # 48 rows of 64 keys for each pixel
    assert network.memory(1024, 1024, half, gpu) < 12 * 2**30
    for budget in (2**33, 2**60):
        tiles = plan(network, (5000, 3000), None, False, half, budget, gpu)
        assert len(tiles) > 1
        for rows, columns in (tile.input for tile in tiles):
            size = (rows.stop - rows.start, columns.stop - columns.start)
            assert network.memory(*size, half, gpu) <= budget
    monkeypatch.setattr("nlrn.ops.triton.backend.no_kernels", lambda device: "none here")
    blocks = network.memory(1000, 700, half, gpu)
    assert blocks == network.memory(1000, 700, half, CPU)


def test_auto_tiles_respect_the_memory_budget() -> None:
    network = NLRN()
    assert len(plan(network, (256, 256), None, False, torch.float32, 2**40)) == 1
    for budget in (2**30, 2**32):
        tiles = plan(network, (2000, 1500), None, False, torch.float32, budget)
        sizes = [(y.stop - y.start, x.stop - x.start) for y, x in (t.input for t in tiles)]
        largest = max(network.memory(*size, torch.float32, CPU) for size in sizes)
        assert 0.4 * budget < largest <= budget
    with pytest.raises(ValueError, match=r"halo of 290 pixels need .* GiB"):
        plan(network, (2000, 1500), None, True, torch.float32, 2**30)


def test_a_small_memory_budget_means_tiles() -> None:
    model, image = strong_network(), picture(1, 1, 150, 170)
    seen: list[int] = []
    result = restore(model, image, memory=2**20, progress=lambda done, total: seen.append(total))
    assert seen[0] > SMALL.steps  # more than one tile
    torch.testing.assert_close(result, restore(model, image, tile=0), rtol=0, atol=1e-5)


def test_memory_is_given_back_after_each_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of several sizes would otherwise leave holes that the next one does not fit into."""
    trims: list[None] = []

    @contextlib.contextmanager
    def keep() -> Iterator[None]:
        yield
        trims.append(None)

    monkeypatch.setattr(engine, "keep_freed_memory", keep)
    model, image = strong_network(), picture(1, 1, 70, 50)
    restore(model, image, tile=32, device="cpu")
    assert len(trims) == len(plan(model, (70, 50), 32, False, torch.float32, 0)) == 6


def test_running_out_of_memory_shrinks_the_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = strong_network(), picture(1, 1, 90, 100)
    expected = restore(model, image)
    call, calls = NLRNInference.forward, []

    def limited(self, image, on_step=None):
        calls.append(image.shape[-2:])
        if image.shape[-1] > 60:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")
        return call(self, image, on_step)

    monkeypatch.setattr(NLRNInference, "forward", limited)
    torch.testing.assert_close(restore(model, image, memory=2**28), expected, rtol=0, atol=1e-5)
    assert len(calls) > 2
    with pytest.raises(ValueError, match="not enough memory for 100 x 90 pixels with tile 0"):
        restore(model, image, tile=0)


def test_without_any_memory_it_ends_with_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def never(self: object, image: Tensor, *_: object) -> Tensor:
        calls.append(image.shape[-2] * image.shape[-1])
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")

    monkeypatch.setattr(NLRNInference, "forward", never)
    for free in (0, 2**26, 2**34):
        calls.clear()
        monkeypatch.setattr(engine, "free_memory", lambda device, free=free: free)
        with pytest.raises(ValueError, match="not enough memory for 100 x 90 pixels"):
            restore(strong_network(), picture(1, 1, 90, 100))
        # Each attempt is with less, none is made twice.
        assert all(after <= 0.9 * before for before, after in pairwise(calls)), calls
    assert len(calls) > 1


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("std::bad_alloc"),
        RuntimeError("could not create a memory object"),
    ],
    ids=str,
)
def test_memory_runs_out_in_many_words(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> Tensor:
        raise error

    monkeypatch.setattr(NLRNInference, "forward", never)
    with pytest.raises(ValueError, match="not enough memory for 12 x 9 pixels"):
        restore(strong_network(), picture(1, 1, 9, 12))


def test_values_that_no_float_can_hold_are_an_error() -> None:
    image = picture(1, 1, 9, 12)
    image[0, 0, 4, 4] = 1e30
    with pytest.raises(ValueError, match="the result is not finite"):
        restore(strong_network(), image)


def test_border_and_bandwidth_reach_the_operator() -> None:
    image = picture(1, 1, 9, 12)
    config = dataclasses.replace(SMALL, affinity="euclidean", border="circular", bandwidth=1.7)
    model = strong_network(config)
    with torch.no_grad():
        expected = model(image)
    torch.testing.assert_close(restore(model, image), expected, rtol=0, atol=1e-5)
    for change in ({"border": "mask"}, {"bandwidth": 3.0}):
        other = strong_network(dataclasses.replace(config, **change))
        assert (restore(other, image) - expected).abs().max() > 1e-4


def test_views_average_flips_and_rotations() -> None:
    model, image = strong_network(), picture(1, 1, 21, 34)
    single = []
    for turns in range(4):
        for flip in (False, True):
            view = torch.rot90(image.flip(-1) if flip else image, turns, (-2, -1))
            back = torch.rot90(restore(model, view), -turns, (-2, -1))
            single.append(back.flip(-1) if flip else back)
    expected = torch.stack(single).mean(0)
    torch.testing.assert_close(restore(model, image, views=8), expected, rtol=0, atol=1e-6)
    flipped = restore(model, image.flip(-1), views=8).flip(-1)
    torch.testing.assert_close(flipped, expected, rtol=0, atol=1e-5)


def test_batches_go_one_by_one() -> None:
    model, images = strong_network(), picture(3, 1, 13, 20)
    together = restore(model, images)
    for one, result in zip(images, together, strict=True):
        torch.testing.assert_close(restore(model, one[None])[0], result, rtol=0, atol=0)


def test_bfloat16_is_close() -> None:
    model, image = strong_network(), picture(1, 1, 40, 30)
    exact, half = restore(model, image), restore(model, image, dtype="bf16")
    assert half.dtype == torch.float32
    assert (half - exact).std() < 0.03 * (exact - image).std()


def test_a_result_that_is_not_finite_is_computed_again_in_float32(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, image = strong_network(), picture(1, 1, 12, 15)
    call = NLRNInference.forward

    def overflow(self, image, on_step=None):
        result = call(self, image, on_step)
        return result * float("nan") if self.dtype == torch.bfloat16 else result

    monkeypatch.setattr(NLRNInference, "forward", overflow)
    with pytest.warns(UserWarning, match="computing in float32"):
        result = restore(model, image, dtype="bf16")
    torch.testing.assert_close(result, restore(model, image), rtol=0, atol=0)


def test_progress_counts_to_the_end() -> None:
    seen: list[tuple[int, int]] = []
    restore(strong_network(), picture(2, 1, 40, 40), tile=20, views=2,
            progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    total = 2 * 2 * 4 * SMALL.steps
    assert seen == [(i + 1, total) for i in range(total)]


def test_the_model_is_left_as_it_was() -> None:
    model = strong_network().train()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    restore(model, picture(1, 1, 10, 12))
    assert model.training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (torch.zeros(1, 2, 5, 6), {}, r"image must be \[B, 1, H, W\], got \(1, 2, 5, 6\)"),
        (torch.zeros(5, 6), {}, "image must be"),
        (torch.zeros(1, 1, 0, 6), {}, "image must be"),
        (torch.zeros(1, 1, 5, 6, dtype=torch.uint8), {}, "got torch.uint8"),
        (torch.zeros(1, 1, 5, 6), {"views": 9}, "views must be between 1 and 8, got 9"),
        (torch.zeros(1, 1, 5, 6), {"tile": 7}, "tile must be 0 or at least 16, got 7"),
        (torch.zeros(1, 1, 5, 6), {"device": "tpu"}, "device must be auto, cpu, .* got 'tpu'"),
    ],
)
def test_bad_arguments_are_named(image: Tensor, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        restore(strong_network(), image, **options)


def test_estimate_counts_the_overlap_of_tiles() -> None:
    network = strong_network()
    whole = Engine(network, Settings(tile=0)).planned_pixels((100, 120))
    assert whole == 100 * 120
    tiled = Engine(network, Settings(tile=20, exact=True, views=2)).planned_pixels((100, 120))
    assert tiled > 1.5 * 2 * whole
    one, three = (Engine(network).seconds((100, 120), images) for images in (1, 3))
    assert 0 < one < 3 * three and three < 30


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.mark.gpu
@needs_gpu
def test_gpu_gives_what_the_cpu_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model, image = strong_network(), picture(2, 1, 61, 83)
    for options in ({"tile": 0}, {"tile": 24, "exact": True}, {"views": 3}):
        wanted = restore(model, image, device="cpu", **options)  # type: ignore[arg-type]
        got = restore(model, image, device="cuda", **options)  # type: ignore[arg-type]
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)
    got, wanted = (restore_patches(model, image, patch=9, device=d) for d in ("cuda", "cpu"))
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")  # that it is new
@pytest.mark.gpu
@needs_gpu
def test_gpu_is_not_waited_for_and_can_be_recorded() -> None:
    """Nothing is read back between image and result, so a CUDA graph can hold the network."""
    network = strong_network().for_inference(torch.bfloat16, "cuda")
    image = picture(1, 1, 64, 48).cuda()
    wanted = network(image)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        network(image, lambda: None)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = network(image)
    graph.replay()
    torch.testing.assert_close(recorded, wanted, rtol=0, atol=2e-2)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_gpu_memory_is_what_was_planned(dtype: torch.dtype) -> None:
    config, size = dataclasses.replace(CONFIGS["nlrn"], steps=3), (500, 333)
    network = random_network(config)
    prepared, image = network.for_inference(dtype, "cuda"), picture(1, 1, *size).cuda()
    prepared(image)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    prepared(image)
    taken = torch.cuda.max_memory_allocated() - before
    planned = network.memory(*size, dtype, torch.device("cuda"))
    assert 0.5 * planned < taken <= planned
