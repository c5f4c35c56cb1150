"""Recorded networks give what the network itself gives, for every size and in every order."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import Tensor, nn

from nlrn.inference import Engine, Settings, recorded
from nlrn.inference.recorded import MOST_BYTES, MOST_RECORDINGS, Recorded, Recording
from nlrn.models.nlrn_residual import ResidualConfig, random_residual
from nlrn.models.nlrn_sr import SuperResolutionConfig, random_super_resolution

CPU = torch.device("cpu")
SMALL = ResidualConfig(steps=4, channels=16, embed=8, window=5, cells=2, non_local_every=2)


class Halving(nn.Module):
    """Stands in for a network; counts what it computes itself, outside of recordings."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, image: Tensor, on_step: object = None) -> Tensor:
        self.calls += 1
        if callable(on_step):
            on_step()
            on_step()
        return image / 2


@pytest.fixture
def recorded_sizes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The sizes that are recorded; replaying is done by a stand-in for CUDA graphs."""
    sizes: list[tuple[int, ...]] = []

    def record(network: nn.Module, image: Tensor) -> Recording:
        sizes.append(tuple(image.shape))
        place, result = image.clone(), torch.empty_like(image)

        def replay() -> None:
            torch.div(place, 2, out=result)

        return Recording(place, result, replay, steps=2)

    monkeypatch.setattr(recorded, "record", record)
    return sizes


def test_a_size_that_comes_again_is_recorded(recorded_sizes: list[tuple[int, ...]]) -> None:
    network = Halving()
    run = Recorded(network, CPU, lambda height, width: height * width)
    first, second, third = (torch.rand(1, 1, 4, 6) for _ in range(3))
    assert torch.equal(run(first), first / 2) and not recorded_sizes
    result = run(second)
    assert recorded_sizes == [(1, 1, 4, 6)]
    calls, steps = network.calls, []
    assert torch.equal(run(third, lambda: steps.append(1)), third / 2)
    assert (network.calls, len(steps)) == (calls, 2)
    assert torch.equal(result, second / 2), "a replay wrote over an earlier result"


def test_views_of_two_sizes_in_turn_are_recorded(recorded_sizes: list[tuple[int, ...]]) -> None:
    run = Recorded(Halving(), CPU, lambda height, width: 0)
    for view in range(8):
        image = torch.rand((1, 1, 4, 6) if view % 2 else (1, 1, 6, 4))
        assert torch.equal(run(image), image / 2)
    assert len(recorded_sizes) == 2


def test_what_is_not_worth_it_stays_as_it_is(recorded_sizes: list[tuple[int, ...]]) -> None:
    large = Recorded(Halving(), CPU, lambda height, width: MOST_BYTES // 2 + 1)
    elsewhere = Recorded(Halving(), torch.device("cuda"), lambda height, width: 0)
    for _ in range(3):
        large(torch.rand(2, 1, 4, 6))  # two images are too much together
        elsewhere(torch.rand(1, 1, 4, 6))
    run = Recorded(Halving(), CPU, lambda height, width: 0)
    for width in range(3, 20):  # a folder in which no two pictures are alike
        run(torch.rand(1, 1, 4, width))
    assert not recorded_sizes


def test_only_the_last_sizes_are_kept(recorded_sizes: list[tuple[int, ...]]) -> None:
    run = Recorded(Halving(), CPU, lambda height, width: 0)
    widths = range(3, 4 + MOST_RECORDINGS)
    for width in widths:
        for _ in range(2):
            run(torch.rand(1, 1, 4, width))
    assert len(run._recordings) == MOST_RECORDINGS
    assert all(shape[-1] != widths[0] for shape, *_ in run._recordings)
    used = widths[1]  # the oldest of those that are left, until it is used
    for width in (used, 50, 50):
        run(torch.rand(1, 1, 4, width))
    assert any(shape[-1] == used for shape, *_ in run._recordings)
    run.forget()
    assert not run._recordings
    run(torch.rand(1, 1, 4, widths[-1]))
    assert len(recorded_sizes) == len(widths) + 1, "what was forgotten is new again"


@pytest.mark.parametrize(("sizes", "recordings"), [(1, 1), (4, 4), (5, 0), (8, 0)])
def test_sizes_in_turn_do_not_drive_each_other_out(
    sizes: int, recordings: int, recorded_sizes: list[tuple[int, ...]]
) -> None:
    run = Recorded(Halving(), CPU, lambda height, width: 0)
    for width in [*range(3, 3 + sizes)] * 6:
        run(torch.rand(1, 1, 4, width))
    assert len(recorded_sizes) == recordings <= MOST_RECORDINGS


@pytest.mark.parametrize("fault", ["raises", "differs", "is no number"])
def test_what_cannot_be_recorded_runs_all_the_same(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(network: nn.Module, image: Tensor) -> Recording:
        if fault == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        result = torch.full_like(image, 1 if fault == "differs" else torch.nan)
        return Recording(image.clone(), result, lambda: None, steps=2)

    monkeypatch.setattr(recorded, "record", record)
    run, image = Recorded(Halving(), CPU, lambda height, width: 0), torch.rand(1, 1, 4, 6)
    run(image)
    with pytest.warns(UserWarning, match="going on without"):
        assert torch.equal(run(image), image / 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(run(image), image / 2)


def test_on_a_cpu_nothing_is_recorded() -> None:
    engine = Engine(random_residual(SMALL), Settings(device="cpu"))
    assert not isinstance(engine.prepare(CPU, torch.float32), Recorded)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["residual", "enlarging"])
def test_a_gpu_gives_the_same_with_recordings(kind: str, dtype: str) -> None:
    enlarging = SuperResolutionConfig(steps=4, channels=16, embed=8, window=5, non_local_every=2)
    network = random_residual(SMALL) if kind == "residual" else random_super_resolution(enlarging)
    channels = network.in_channels + network.takes_noise_map
    engine = Engine(network, Settings(device="cuda", dtype=dtype))
    plain = network.for_inference(engine.settings.precision, "cuda")
    for turn in range(3):
        for size in ((64, 48), (33, 71)):
            image, steps = torch.rand(1, channels, *size), []
            result = engine(image, lambda done, total: steps.append((done, total)))  # noqa: B023
            torch.testing.assert_close(result, plain(image), rtol=0, atol=1e-3)
            assert steps[-1] == (network.steps, network.steps), turn
    run = engine.prepare(torch.device("cuda"), engine.settings.precision)
    assert isinstance(run, Recorded) and len(run._recordings) == 2
