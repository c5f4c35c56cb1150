"""The authors' protocol: overlapping patches, as plain loops would have it."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from small_networks import SMALL, picture, restore, restore_patches, strong_network
from torch import Tensor

from nlrn.inference import overlap
from nlrn.models.nlrn import NLRN, random_network


def patches_one_by_one(
    model: NLRN, image: Tensor, patch: int, stride: int, views: int = 1
) -> tuple[Tensor, Tensor]:
    """The authors' protocol as plain loops: the mean, and how many patches saw each pixel."""
    circular = random_network(dataclasses.replace(model.config, border="circular"))
    circular.load_state_dict(model.state_dict())
    height, width = image.shape[-2:]
    tall, wide = min(patch, height), min(patch, width)
    total, hits = torch.zeros_like(image), torch.zeros_like(image)
    for top in sorted({*range(0, height - tall, stride), height - tall}):
        for left in sorted({*range(0, width - wide, stride), width - wide}):
            rows, columns = slice(top, top + tall), slice(left, left + wide)
            total[..., rows, columns] += restore(
                circular, image[..., rows, columns], tile=0, views=views
            )
            hits[..., rows, columns] += 1
    return total / hits, hits


@pytest.mark.parametrize(
    ("size", "patch", "stride", "views"),
    [
        ((19, 26), 5, 3, 1),  # every pixel of a patch sees the whole patch
        ((16, 23), 9, 7, 1),
        ((7, 20), 9, 4, 2),  # lower than a patch
        ((4, 3), 9, 9, 1),  # smaller than a patch
        ((18, 13), 9, 9, 1),  # one side without overlap
    ],
    ids=str,
)
def test_patches_equal_loops(size: tuple[int, int], patch: int, stride: int, views: int) -> None:
    model, image = strong_network(), picture(2, 1, *size)
    expected, hits = patches_one_by_one(model, image, patch, stride, views)
    assert hits.min() >= 1
    for batch in (None, 3):
        result = restore_patches(model, image, patch=patch, stride=stride, views=views, batch=batch)
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)


def test_the_papers_protocol_has_68_rows_of_patches() -> None:
    corners = overlap._corners(torch.Size((512, 256)), (45, 45), 7, torch.device("cpu"))
    assert len(corners) == 68 * 32
    assert corners.max(0).values.tolist() == [512 - 45, 256 - 45]


def test_patches_of_colour_images_report_their_progress() -> None:
    config = dataclasses.replace(SMALL, in_channels=3, out_channels=3)
    model, image = strong_network(config), picture(1, 3, 10, 12)
    seen: list[tuple[int, int]] = []
    result = restore_patches(
        model, image, patch=7, stride=5, batch=3, views=2,
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    expected, _ = patches_one_by_one(model, image, 7, 5, views=2)
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-5)
    done, totals = zip(*seen, strict=True)
    assert set(totals) == {4 * 2 * SMALL.steps}
    assert done[-1] == totals[-1] and list(done) == sorted(done)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stride": 0}, r"stride must be between 1 and the patch \(45\), got 0"),
        ({"patch": 5}, r"stride must be between 1 and the patch \(5\), got 7"),
        ({"batch": 0}, "batch must be at least 1, got 0"),
        ({"views": 9}, "views must be between 1 and 8, got 9"),
    ],
)
def test_bad_patches_are_named(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        restore_patches(strong_network(), picture(1, 1, 8, 9), **options)
