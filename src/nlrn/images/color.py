"""Colors of printing and of measuring become RGB, in which everything else works."""

import numpy as np

from nlrn.images.samples import Array, white


def from_cmyk(ink: Array, icc: bytes | None) -> tuple[Array, bytes | None, str]:
    """Ink [H, W, 4] -> (RGB of the same depth, its profile, a note).

    By the file's profile into sRGB; without one by what most programs do: light that the inks
    leave, in no known color space.
    """
    note = "CMYK becomes RGB"
    if icc is not None:
        rgb, profile = _into_srgb(ink, icc, "cmyk")
        if rgb is not None:
            return rgb, profile, note
    most = np.uint32(white(ink.dtype))
    light = most - ink.astype(np.uint32)
    rgb = (light[..., :3] * light[..., 3:] + most // 2) // most
    return rgb.astype(ink.dtype), None, f"{note} without a color profile: colors may be off"


def from_lab(lab: Array, *, signed: bool) -> tuple[Array, bytes | None, str]:
    """Lab [H, W, 3] as TIFF stores it -> (sRGB of the same depth, its profile, a note).

    Args:
        lab: uint8 or uint16.
        signed: whether a and b are two's complement (CIELAB) or begin at -128 (ICCLAB).
    """
    import imagecodecs

    deep = lab.dtype == np.uint16
    values = lab.astype(np.float64)
    values[..., 0] *= 100 / ((65535 if signed else 65280) if deep else 255)
    axes = lab[..., 1:].astype(np.float64) / (256 if deep else 1)
    values[..., 1:] = np.where(axes >= 128, axes - 256, axes) if signed else axes - 128
    # The color engine's own encoding: L of 0..100 and a, b of -128..127 over the whole range.
    encoded = values * [655.35, 257, 257] + [0, 128 * 257, 128 * 257]
    encoded = np.rint(encoded.clip(0, 65535)).astype(np.uint16)
    rgb, profile = _into_srgb(encoded, imagecodecs.cms_profile("lab4"), "lab")
    if rgb is None:
        raise ValueError("Lab cannot be converted")
    return (rgb if deep else _to_8_bits(rgb)), profile, "Lab becomes sRGB"


def _into_srgb(samples: Array, icc: bytes, space: str) -> tuple[Array | None, bytes | None]:
    """Samples of a profile as sRGB with its profile; (None, None) if the profile is broken."""
    import imagecodecs

    srgb = bytes(imagecodecs.cms_profile("srgb"))
    try:
        rgb = imagecodecs.cms_transform(
            np.ascontiguousarray(samples), icc, srgb, colorspace=space, outcolorspace="rgb"
        )
    except (RuntimeError, ValueError):
        return None, None
    return np.asarray(rgb), srgb


def _to_8_bits(samples: Array) -> Array:
    return ((samples.astype(np.uint32) + 128) // 257).astype(np.uint8)
