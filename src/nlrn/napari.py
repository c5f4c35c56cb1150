"""The widget for napari, which makes its window from the signature of `denoise_layer`.

Nothing of napari is imported: it finds the function through napari.yaml and looks up the types.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    import napari


def denoise_layer(
    image: napari.layers.Image,
    sigma: float = 0.0,
    strength: float = 1.0,
    quality: Literal["fast", "balanced", "best"] = "balanced",
) -> napari.types.LayerDataTuple:
    """Returns a new layer without the noise of another; the planes of a stack one by one.

    Args:
        image: a layer of gray or RGB images [..., H, W] or [..., H, W, 3].
        sigma: standard deviation of the noise on the 0..255 scale of the layer's white; 0
            estimates it for every plane.
        strength: 1 for the full effect, 0 for none.
        quality: "fast", "balanced", or "best", which is slow.
    """
    data = np.asarray(image.data)
    result = _planes(data, bool(image.rgb), sigma or None, strength, quality)
    how = {"name": f"{image.name} denoised", "rgb": image.rgb, "scale": image.scale,
           "translate": image.translate, "contrast_limits": image.contrast_limits}  # fmt: skip
    return result, how, "image"


def _planes(
    data: np.ndarray, rgb: bool, sigma: float | None, strength: float, quality: str
) -> np.ndarray:
    """Every image of a stack without its noise, in the type of the stack."""
    from nlrn.restoration import denoise

    white = _white(data)
    last = 3 if rgb else 2
    stack = data.reshape(-1, *data.shape[data.ndim - last :])
    result = np.empty_like(stack)
    for one, out in zip(stack, result, strict=True):
        plane: Any = one if white is None else one.astype(np.float32) / white
        clean = denoise(plane, sigma, strength=strength, quality=quality)
        if white is not None:
            clean = clean * white
        out[...] = clean if out.dtype.kind == "f" or white is None else np.rint(clean)
    return result.reshape(data.shape)


def _white(data: np.ndarray) -> float | None:
    """What is to become 1; None where the type says it: 8 or 16 bits, or floats up to 1."""
    if data.dtype in (np.uint8, np.uint16):
        return None
    highest = float(data.max(initial=0))
    return None if data.dtype.kind == "f" and highest <= 1 else max(highest, 1.0)
