"""BM3D: groups of similar patches are filtered together in a three-dimensional transform."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nlrn.classic import parallel, patches, planes, transforms
from nlrn.progress import Progress, part_of

Pair = tuple[int, int]
TRANSFORMS: dict[str, Callable[[int], Tensor]] = {
    "bior1.5": transforms.bior,
    "dct": transforms.dct,
    "haar": transforms.haar,
}
# Luminance first, then two colour differences, as in CBM3D.
OPPONENT = torch.tensor([[1 / 3, 1 / 3, 1 / 3], [0.5, 0, -0.5], [0.25, -0.5, 0.25]])
# Patches that are filtered at a time: 2 MB of coefficients stay in a CPU's cache.
PATCHES, PATCHES_ON_GPU = 8192, 2**18


@dataclass(frozen=True)
class Stage:
    """One of the two steps; the fields are those of `denoise_bm3d`, for this step alone."""

    patch: int
    step: int
    window: int
    group: int
    tau: float
    transform: str
    beta: float

    def __post_init__(self) -> None:
        planes.check_positive(patch=self.patch, step=self.step, group=self.group, tau=self.tau)
        planes.check_odd(window=self.window)
        planes.check_covers(self.step, self.patch)
        if not self.beta >= 0:
            raise ValueError(f"beta must be 0 or more, got {self.beta!r}")
        if self.group & (self.group - 1):
            raise ValueError(f"group must be a power of two, got {self.group}")
        if self.transform not in TRANSFORMS:
            known = ", ".join(TRANSFORMS)
            raise ValueError(f"transform must be one of {known}, got {self.transform!r}")
        if self.transform != "dct" and self.patch & (self.patch - 1):
            raise ValueError(
                f"patch must be a power of two for transform {self.transform!r}, got {self.patch}"
            )

    def matrices(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The two-dimensional transform of a flattened patch and its inverse [p*p, p*p]."""
        forward = transforms.separable(TRANSFORMS[self.transform](self.patch))
        return forward.to(like), torch.linalg.inv(forward).to(like)


def denoise_bm3d(
    image: np.ndarray,
    sigma: float,
    *,
    patch: int | Pair | None = None,
    step: int | Pair | None = None,
    window: int | Pair = 39,
    group: int | Pair | None = None,
    tau: float | tuple[float, float] | None = None,
    threshold: float | None = None,
    transform: str | tuple[str, str] = ("bior1.5", "dct"),
    beta: float | tuple[float, float] = 2.0,
    device: str | torch.device = "cpu",
    progress: Progress | None = None,
) -> np.ndarray:
    """The image without its noise, by block matching and collaborative filtering.

    Step 1 groups each reference patch with its matches C_i in the noisy image and keeps the large
    coefficients of the group; step 2 matches in the result of step 1, Y, and filters the noisy
    groups by Wiener's factors:

        Z_C = tau^-1(omega * tau(X_C)),   omega = [|tau(X_C)| > threshold sigma]   in step 1,
                                          omega = tau(Y_C)^2 / (tau(Y_C)^2 + sigma^2)   in step 2.

    tau is a two-dimensional transform of each patch and Haar's across the group, whose size is a
    power of two. Matching compares the patches after their transform. The groups are averaged with
    weight 1 / (sigma^2 |omega|^2), within a patch by a Kaiser window.

    A pair of values is for step 1 and step 2, one value for both; None takes the published ones for
    the noise level.
    O(q^2 p^2 / s^2) per pixel for a q x q window, p x p patches and step s, nearly all of it matrix
    products. Memory: about 4 p^2 values per pixel. In colour, groups are found in the luminance and
    used for it and two colour differences (CBM3D).

    Args:
        image: [H, W] or [H, W, 3]; uint8, uint16 or float on the [0, 1] scale.
        sigma: standard deviation of the noise on the 0..255 scale.
        patch: sides of the patches: (8, 8), above sigma 40 (8, 11).
        step: distances of the reference patches: (3, 3), above 40 (4, 6).
        window: odd sides of the search windows.
        group: most patches in a group, powers of two: (16, 32), above 40 (32, 32).
        tau: largest mean squared difference of a match, on the 0..255 scale: (3000, 400), above 40
            (25000, 3500).
        threshold: of the coefficients in step 1, in sigmas: 2.7, above 40 2.8.
        transform: of the patches, "bior1.5", "dct" or "haar"; only "dct" takes a side that is not a
            power of two.
        beta: of the Kaiser windows.
        device: where to compute. On a GPU sums are in no fixed order: the last digits vary.
        progress: called with (done, total).

    References:
        K. Dabov, A. Foi, V. Katkovnik, K. Egiazarian, "Image denoising by sparse 3-D
        transform-domain collaborative filtering", IEEE TIP 2007,
        https://doi.org/10.1109/TIP.2007.901238; for colour "Color image denoising via sparse 3D
        collaborative filtering with grouping constraint in luminance-chrominance space", ICIP 2007,
        https://doi.org/10.1109/ICIP.2007.4378954
    """
    sigma = planes.check(image, sigma)
    weak = sigma <= 40
    shapes = zip(
        _both(patch, (8, 8) if weak else (8, 11)),
        _both(step, (3, 3) if weak else (4, 6)),
        _both(window),
        _both(group, (16, 32) if weak else (32, 32)),
        _both(tau, (3000, 400) if weak else (25000, 3500)),
        _both(transform),
        _both(beta),
        strict=True,
    )
    first, second = (Stage(*values) for values in shapes)
    cut = threshold if threshold is not None else (2.7 if weak else 2.8)
    planes.check_positive(threshold=cut)

    def work(noisy: Tensor) -> Tensor:
        mix = OPPONENT.to(noisy) if len(noisy) == 3 else noisy.new_ones(1, 1)
        mixed = torch.einsum("dc,chw->dhw", mix, noisy)
        sigmas = (sigma / 255 * mix.norm(dim=1)).tolist()
        halves = [part_of(progress, half, 2) for half in (0, 1)]
        basic = _collaborate(mixed, None, sigmas, first, hard_threshold(cut), halves[0])
        final = _collaborate(mixed, basic, sigmas, second, wiener, halves[1])
        return torch.einsum("cd,dhw->chw", torch.linalg.inv(mix), final)

    return planes.restore(image, sigma, max(first.patch, second.patch), work, device)


def _both(value: Any, published: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """The values for the two steps."""
    if value is None and published is not None:
        return published
    return value if isinstance(value, tuple) else (value, value)


# (noisy group, the guide's group, sigma) -> (factors omega, sum of their squares), both of
# coefficients [G, K, p*p]
Shrinkage = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]


def hard_threshold(cut: float) -> Shrinkage:
    """Factor 1 for coefficients above cut sigma, 0 for the others."""

    def shrinkage(noisy: Tensor, guide: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
        kept = noisy.abs() > cut * sigma
        return kept, kept.sum(dim=(1, 2)).clamp(min=1)

    return shrinkage


def wiener(noisy: Tensor, guide: Tensor, sigma: float) -> tuple[Tensor, Tensor]:
    """Wiener's factors, the guide taken for the truth."""
    energy = guide.square()
    factors = energy / (energy + sigma**2)
    return factors, factors.square().sum(dim=(1, 2)).clamp(min=1e-6)  # a black group has none


def _collaborate(
    noisy: Tensor,
    guide: Tensor | None,
    sigmas: list[float],
    stage: Stage,
    shrinkage: Shrinkage,
    tell: Progress,
) -> Tensor:
    """One step for planes [C, H, W]; groups are found in the first plane.

    That of the guide is compared, or of the noisy image if there is no guide.
    """
    groups: list[Tensor] = []
    results = []
    for plane, sigma in enumerate(sigmas):
        given = spectra(noisy[plane], stage)
        guiding = given if guide is None else spectra(guide[plane], stage)
        groups = groups or list(matched_groups(guiding, stage))
        sums = _filter_groups(given, guiding, groups, sigma, shrinkage)
        results.append(aggregate(*sums, stage))
        tell(len(results), len(sigmas))
    return torch.stack(results)


def spectra(plane: Tensor, stage: Stage) -> Tensor:
    """The transform of each patch of a plane [H, W]: [H', W', p*p]."""
    forward, _ = stage.matrices(plane)
    return patches.extract(plane, stage.patch) @ forward.T


def matched_groups(given: Tensor, stage: Stage) -> Iterator[Tensor]:
    """Numbers of the patches in each group [G, K], the groups of one size together."""
    found = patches.match(given, stage.step, stage.window, stage.group)
    chunk = PATCHES if given.device.type == "cpu" else PATCHES_ON_GPU
    similar = (found.distance <= stage.tau * stage.patch**2 / 255**2).sum(dim=1)
    size = 1
    while size <= found.index.shape[1]:
        own = (similar >= size) & (similar < 2 * size)
        if own.any():
            yield from found.index[own, :size].split(max(1, chunk // size))
        size *= 2


def _filter_groups(
    noisy: Tensor, guide: Tensor, groups: list[Tensor], sigma: float, shrinkage: Shrinkage
) -> tuple[Tensor, Tensor]:
    """Weighted sum of the filtered spectra at each position, and of the weights [H', W']."""
    total, weights = torch.zeros_like(noisy), torch.zeros_like(noisy[..., 0])

    def filtered(index: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        haar = transforms.haar(index.shape[1]).to(noisy)
        group = haar @ noisy.flatten(0, 1)[index]  # G K p*p
        guiding = group if guide is noisy else haar @ guide.flatten(0, 1)[index]
        factors, energy = shrinkage(group, guiding, sigma)
        weight = 1 / (sigma**2 * energy)  # G
        clean = haar.T @ (group * factors * weight[:, None, None])
        return index.flatten(), clean.flatten(0, 1), weight.repeat_interleave(index.shape[1])

    for numbers, clean, weight in parallel.each(filtered, groups, noisy.device):
        total.flatten(0, 1).index_add_(0, numbers, clean)
        weights.flatten().index_add_(0, numbers, weight)
    return total, weights


def aggregate(total: Tensor, weights: Tensor, stage: Stage) -> Tensor:
    """The plane [H, W] from summed spectra [H', W', p*p] and weights [H', W']."""
    _, inverse = stage.matrices(total)
    kaiser = torch.kaiser_window(stage.patch, periodic=False, beta=stage.beta).to(total)
    window = (kaiser[:, None] * kaiser).flatten()[:, None]  # p*p 1
    # Inverse transform and window once per position, not once per group.
    sums = (inverse * window) @ total.flatten(0, 1).T  # p*p H'W'
    share = window * weights.flatten()

    def added(part: Tensor) -> Tensor:
        return patches.overlap_add(part.view(-1, *weights.shape), stage.patch)

    value, weight = parallel.each(added, (sums, share), total.device)
    return value / weight
