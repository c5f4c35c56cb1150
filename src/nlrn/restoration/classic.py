"""Removes noise without a network, by the classic non-local methods."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from nlrn import classic, images
from nlrn.hardware import Fallback, choose_device, free_memory
from nlrn.images import Image
from nlrn.inference.tiles import SMALLEST_TILE, cut, paste
from nlrn.noise import Tone
from nlrn.noise.tone import GRAY, shows_gray
from nlrn.progress import Progress, part_of
from nlrn.restoration.base import (
    AUTO,
    WORTH_MEASURING,
    Announce,
    Restored,
    Sigma,
    at_strength,
    batch_levels,
    check_batch,
    check_level,
    check_strength,
    keep_hidden,
    noise_facts,
    noise_of,
    tone_for,
    without_hidden,
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
SLOW = ("wnnm", "lssc")  # and channel by channel
SAMPLE = 48  # side of the noise that they are timed with


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
        self._fallback = Fallback()

    def restore(
        self,
        image: Image,
        sigma: Sigma = None,
        *,
        strength: float | None = None,
        tone: Tone | Literal["auto"] | None = AUTO,
        progress: Progress | None = None,
        announce: Announce | None = None,
    ) -> Restored:
        """The image without its noise; alpha and metadata stay. Arguments as `Denoiser.restore`."""
        strength = self.strength if strength is None else check_strength(strength)
        noise = noise_of(image, self.sigma if sigma is None else sigma)
        noise = (
            noise if self.method == "bm3d" else noise.one_by_one
        )  # it rotates color, they do not
        level, facts = noise.level, noise_facts(noise) | {"method": self.method}
        if strength == 0 or level == 0:
            return Restored(at_strength(image, None, strength), facts)
        tone = tone_for(image.pixels, tone)
        if announce is not None and self.method in SLOW and image.pixels.size >= WORTH_MEASURING:
            channels = 3 if image.pixels.ndim == 3 and tone is None else 1
            announce(self.seconds((image.height, image.width), level, channels))
        noisy = images.to_float(without_hidden(image))
        full = self._clean_toned(tone, noisy, level, choose_device(self.device), progress)
        keep_hidden(full, image)
        return Restored(at_strength(image, full, strength), facts, full)

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
        tone = GRAY if len(x) == 3 and shows_gray(noisy) else None
        clean = self._clean_toned(tone, noisy, level, device, None)
        result = torch.from_numpy(self.strength * clean + (1 - self.strength) * noisy)
        return torch.atleast_3d(result).permute(2, 0, 1)

    def _clean_toned(
        self,
        tone: Tone | None,
        noisy: np.ndarray,
        sigma: float,
        device: torch.device,
        progress: Progress | None,
    ) -> np.ndarray:
        """The result, of a picture of one tone by way of gray."""
        if tone is None:
            return self._clean(noisy, sigma, device, progress)
        gray = tone.gray(noisy)
        removed = gray - self._clean(gray, sigma / tone.strongest, device, progress)
        return noisy - tone.axis * removed[..., None]

    def _clean(
        self, noisy: np.ndarray, sigma: float, device: torch.device, progress: Progress | None
    ) -> np.ndarray:
        """The result for pixels [H, W] or [H, W, 3]: at once, or in tiles where memory is short."""
        height, width = noisy.shape[:2]
        needed, budget = MEMORY[self.method], free_memory(device) // 2
        if height * width * needed <= budget:
            return self._run(noisy, sigma, device, progress)
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
            part = self._run(noisy[tile.input], sigma, device, tell)
            paste(result, torch.from_numpy(np.atleast_3d(part)).permute(2, 0, 1), tile)
        return result.permute(1, 2, 0).reshape(noisy.shape).numpy()

    def _run(
        self, noisy: np.ndarray, sigma: float, device: torch.device, progress: Progress | None
    ) -> np.ndarray:
        """The method, on the CPU where the device cannot."""
        device = self._fallback.device(device)
        try:
            return METHODS[self.method](noisy, sigma, device=device, progress=progress)
        except (NotImplementedError, TypeError) as error:
            if not self._fallback.takes(error, device):
                raise
            return self._run(noisy, sigma, device, progress)

    def seconds(self, size: tuple[int, int], sigma: float, channels: int = 1) -> float:
        """How long an image of (H, W) and that many channels will take here, roughly."""
        if self._rate is None:
            sample = np.random.default_rng(0).random((SAMPLE, SAMPLE), np.float32)
            begin = time.perf_counter()
            self._run(sample, max(sigma, 1.0), choose_device(self.device), None)
            self._rate = (time.perf_counter() - begin) / sample.size
        planes = channels if self.method in SLOW else 1
        return self._rate * size[0] * size[1] * planes

    def extra_repr(self) -> str:
        """What `print` shows of it."""
        return f"method={self.method!r}, sigma={self.sigma}, strength={self.strength:g}"
