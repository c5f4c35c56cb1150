"""Removes noise without a network, by the classic non-local methods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn

from nlrn import classic, images
from nlrn.hardware import choose_device, free_memory
from nlrn.images import Image
from nlrn.inference.tiles import SMALLEST_TILE, cut, paste
from nlrn.progress import Progress, part_of
from nlrn.restoration.base import (
    WORTH_MEASURING,
    Announce,
    Restored,
    Sigma,
    batch_levels,
    check_batch,
    check_level,
    check_strength,
    noise_facts,
    noise_of,
)

METHODS: dict[str, Callable[..., np.ndarray]] = {
    "nlm": classic.denoise_nlm,
    "bm3d": classic.denoise_bm3d,
    "wnnm": classic.denoise_wnnm,
    "lssc": classic.denoise_lssc,
}
# Bytes that they take for each pixel, the most of all noise levels (benchmarks/classic.py).
MEMORY = {"nlm": 600, "bm3d": 3000, "wnnm": 6000, "lssc": 6000}
# Pixels that a tile of theirs reads around it: all that non-local means looks at by default; the
# groups of the others reach farther, but hardly any pixel depends on that.
HALO = {"nlm": 24, "bm3d": 64, "wnnm": 96, "lssc": 96}
SLOW, SAMPLE = ("wnnm", "lssc"), 48  # side of the noise that they are timed with


class ClassicDenoiser(nn.Module):
    """A denoiser without a network; called and used as `Denoiser` is.

    Args:
        method: "nlm", "bm3d", "wnnm" or "lssc".
        sigma: standard deviation of the noise on the 0..255 scale, where a call gives none; None
            estimates it for each image.
        strength: 1 for the full effect, 0 for none.
        device: "auto" takes a GPU where there is one.
    """

    def __init__(
        self,
        method: str = "bm3d",
        *,
        sigma: Sigma = None,
        strength: float = 1.0,
        device: str = "auto",
    ) -> None:
        super().__init__()
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        self.method, self.device = method, device
        self.sigma = None if sigma is None else check_level(sigma)
        self.strength = check_strength(strength)
        choose_device(device)  # one that is not there is refused before any work
        self._rate: float | None = None  # seconds for a pixel

    def restore(
        self,
        image: Image,
        sigma: Sigma = None,
        *,
        strength: float | None = None,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image without its noise; alpha and metadata stay. Arguments as `Denoiser.restore`."""
        strength = self.strength if strength is None else check_strength(strength)
        noise = noise_of(image, self.sigma if sigma is None else sigma)
        level, facts = noise.level, noise_facts(noise) | {"method": self.method}
        if strength == 0 or level == 0:
            return Restored(image.with_pixels(image.pixels.copy()), facts)
        if announce is not None and self.method in SLOW and image.pixels.size >= WORTH_MEASURING:
            announce(self._seconds(image.pixels.size, level))
        noisy = images.to_float(image.pixels)
        clean = self._clean(noisy, level, choose_device(self.device), progress)
        result = strength * clean + (1 - strength) * noisy
        return Restored(image.with_pixels(images.from_float(result, image.pixels.dtype)), facts)

    def forward(self, x: Tensor, sigma: float | Tensor | None = None) -> Tensor:
        """Images without their noise, on x's device and in its dtype; no gradients.

        Args:
            x: gray or RGB images [B, C, H, W] in [0, 1].
            sigma: noise level in the units of x: a number or [B]; None takes the denoiser's own.
        """
        check_batch(x)
        if sigma is None and self.sigma is not None:
            sigma = self.sigma / 255
        results = [
            self._clean_tensor(one, level)
            for one, level in zip(x, batch_levels(x, sigma), strict=True)
        ]
        return torch.stack(results).to(x.device, x.dtype)

    def _clean_tensor(self, x: Tensor, level: float) -> Tensor:
        """One image [C, H, W]."""
        noisy = x.detach().float().permute(1, 2, 0).cpu().numpy()  # H W C
        noisy = np.ascontiguousarray(noisy[..., 0] if len(x) == 1 else noisy)
        if self.strength == 0 or level == 0:
            return x.detach().float().cpu()
        device = x.device if x.is_cuda and self.device == "auto" else choose_device(self.device)
        clean = self._clean(noisy, level, device, None)
        result = torch.from_numpy(self.strength * clean + (1 - self.strength) * noisy)
        return torch.atleast_3d(result).permute(2, 0, 1)

    def _clean(
        self, noisy: np.ndarray, sigma: float, device: torch.device, progress: Progress | None
    ) -> np.ndarray:
        """The result for pixels [H, W] or [H, W, 3]: at once, or in tiles where memory is short."""
        height, width = noisy.shape[:2]
        method, needed, budget = METHODS[self.method], MEMORY[self.method], free_memory(device) // 2
        if height * width * needed <= budget:
            return method(noisy, sigma, device=device, progress=progress)
        halo = HALO[self.method]
        side = math.isqrt(budget // needed) - 2 * halo
        if side < SMALLEST_TILE:
            least = needed * (SMALLEST_TILE + 2 * halo) ** 2 / 2**20
            free = budget / 2**20
            raise ValueError(
                f"{self.method} needs {least:.0f} MiB at least, it may take {free:.0f} MiB"
            )
        tiles = cut((height, width), side, halo)
        result = torch.zeros(math.prod(noisy.shape[2:]), height, width)
        for number, tile in enumerate(tiles):
            tell = part_of(progress, number, len(tiles))
            part = method(noisy[tile.input], sigma, device=device, progress=tell)
            paste(result, torch.from_numpy(np.atleast_3d(part)).permute(2, 0, 1), tile)
        return result.permute(1, 2, 0).reshape(noisy.shape).numpy()

    def _seconds(self, pixels: int, sigma: float) -> float:
        """How long so many pixels will take here, by the time of a small sample."""
        if self._rate is None:
            sample = np.random.default_rng(0).random((SAMPLE, SAMPLE), np.float32)
            begin = time.perf_counter()
            METHODS[self.method](sample, sigma, device=choose_device(self.device))
            self._rate = (time.perf_counter() - begin) / sample.size
        return self._rate * pixels

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"method={self.method!r}, sigma={self.sigma}, strength={self.strength:g}"
