"""Arrays, PIL images and tensors become images and come back as what they were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch

from nlrn import images
from nlrn.images import Image, ImageError, as_array, as_image

HEIGHT, WIDTH = 7, 9


def samples(channels: int, dtype: Any = np.uint8) -> np.ndarray:
    """Random [H, W], or [H, W, C] for more than one channel."""
    shape = (HEIGHT, WIDTH, channels)[: 2 if channels == 1 else 3]
    values = np.random.default_rng(channels).random(shape)
    return images.from_float(values, dtype)


def inverted(image: Image) -> Image:
    """A result that differs from the image everywhere and has the same alpha."""
    return image.with_pixels(
        images.from_float(1 - images.to_float(image.pixels), image.pixels.dtype)
    )


# Arrays


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_an_array_comes_back_with_its_axes_and_type(channels: int, dtype: str) -> None:
    given = samples(channels, dtype)
    image = as_image(given)
    assert image.pixels.shape == ((HEIGHT, WIDTH, 3) if channels > 2 else (HEIGHT, WIDTH))
    assert (image.alpha is None) == (channels in (1, 3))
    back = as_array(image, given)
    assert back.dtype == given.dtype
    np.testing.assert_array_equal(back, given)


def test_gray_with_alpha_and_a_single_channel() -> None:
    pair = samples(2)
    image = as_image(pair)
    assert image.notes == ("the second of two channels is taken for alpha, not restored",)
    assert as_image(PIL.Image.fromarray(pair)).notes == ()
    np.testing.assert_array_equal(image.pixels, pair[..., 0])
    assert image.alpha is not None
    np.testing.assert_array_equal(image.alpha, pair[..., 1])
    single = samples(1)[..., None]
    assert as_image(single).pixels.shape == (HEIGHT, WIDTH)
    assert as_array(as_image(single), single).shape == (HEIGHT, WIDTH, 1)


def test_half_floats_are_computed_in_float32() -> None:
    given = samples(3, "float32").astype(np.float16)
    assert as_image(given).pixels.dtype == np.float32
    back = as_array(as_image(given), given)
    assert back.dtype == np.float16
    np.testing.assert_array_equal(back, given)


def test_views_with_odd_strides() -> None:
    given = samples(4)[::-1, ::2]
    np.testing.assert_array_equal(as_array(as_image(given), given), given)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((7, 9, 5), np.uint8), r"\[H, W\] or \[H, W, 1 to 4\], got \(7, 9, 5\)"),
        (np.zeros((2, 7, 9, 3), np.uint8), r"got \(2, 7, 9, 3\)"),
        (np.zeros(9), r"got \(9,\)"),
        (np.zeros((0, 9)), r"got \(0, 9\)"),
        (np.zeros((7, 9, 0)), r"got \(7, 9, 0\)"),
        (np.zeros((7, 9), bool), "got bool"),
        (np.zeros((7, 9), np.int32), r"got int32: divide it by its white \(image / 255\)"),
        (np.full((7, 9), 4000, np.int16), r"got int16: divide it by its white \(image / 4095\)"),
        (np.ma.masked_equal(np.zeros((7, 9)), 0), r"masked values: .* \(image.filled\(0\)\)"),
        (np.zeros((7, 9), np.complex64), "got complex64"),
        (np.full((7, 9), np.nan), "NaN or infinite"),
        (np.full((7, 9), np.inf, np.float16), "NaN or infinite"),
        ([[0.5]], "image must be a NumPy array .* a PIL image, a tensor or a path, got list"),
        (None, "got NoneType"),
    ],
)
def test_arrays_that_are_no_images(array: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_image(array)


def test_subclasses_of_arrays_are_plain_arrays_here() -> None:
    given = samples(3)
    for odd in (np.ma.array(given), given.view(np.recarray)):
        image = as_image(odd)
        assert type(image.pixels) is np.ndarray
        np.testing.assert_array_equal(image.pixels, given)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_to_float_refuses_what_is_not_finite(bad: float, dtype: Any) -> None:
    array = np.full((2, 3), 0.5, dtype)
    array[1, 2] = bad
    with pytest.raises(ValueError, match="NaN or infinite"):
        images.to_float(array)


def test_to_float_refuses_values_beyond_float32() -> None:
    assert images.to_float(np.array([[3e38, -3e38]])).dtype == np.float32
    with pytest.raises(ValueError, match="image has values that float32 cannot hold"):
        images.to_float(np.array([[0.5, -1e39]]))


# PIL


@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA"])
def test_a_pil_image_comes_back_in_its_mode(mode: str) -> None:
    given = PIL.Image.fromarray(samples(len(mode)))
    assert given.mode == mode
    image = as_image(given)
    np.testing.assert_array_equal(image.samples, np.asarray(given))
    back = as_array(inverted(image), given)
    assert isinstance(back, PIL.Image.Image)
    assert (back.mode, back.size) == (mode, (WIDTH, HEIGHT))
    np.testing.assert_array_equal(np.asarray(back), inverted(image).samples)


def test_sixteen_bits_of_pil() -> None:
    given = PIL.Image.fromarray(samples(1, np.uint16))
    assert given.mode == "I;16"
    image = as_image(given)
    assert image.pixels.dtype == np.uint16
    back = as_array(image, given)
    assert back.mode == "I;16"
    np.testing.assert_array_equal(np.asarray(back), samples(1, np.uint16))


def test_one_bit_becomes_gray() -> None:
    given = PIL.Image.fromarray(samples(1)).convert("1")
    image = as_image(given)
    assert set(np.unique(image.pixels)) == {0, 255}
    assert as_array(image, given).mode == "L"


def test_a_palette_becomes_rgb() -> None:
    given = PIL.Image.fromarray(samples(3)).quantize(16)
    assert given.mode == "P"
    np.testing.assert_array_equal(as_image(given).pixels, np.asarray(given.convert("RGB")))
    assert as_array(as_image(given), given).mode == "RGB"


@pytest.mark.parametrize("transparency", [3, bytes([0, 128, 255])], ids=["index", "table"])
def test_a_palette_with_transparency_becomes_rgba(transparency: Any) -> None:
    given = PIL.Image.fromarray(samples(3)).quantize(16)
    given.info["transparency"] = transparency
    image = as_image(given)
    assert image.alpha is not None and image.alpha.min() == 0 and image.alpha.max() == 255
    back = as_array(image, given)
    assert back.mode == "RGBA"
    assert "transparency" not in back.info


def test_a_transparent_color_becomes_alpha_as_in_files() -> None:
    given = PIL.Image.fromarray(samples(3))
    given.info["transparency"] = tuple(samples(3)[2, 5].tolist())
    image = as_image(given)
    assert image.alpha is not None
    assert np.argwhere(image.alpha == 0).tolist() == [[2, 5]]


def test_a_pil_image_keeps_its_profile_and_is_not_turned(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[274] = 6
    PIL.Image.fromarray(samples(3)).save(tmp_path / "a.png", exif=exif, icc_profile=b"profile")
    with PIL.Image.open(tmp_path / "a.png") as given:
        back = as_array(as_image(given), given)
    assert back.size == (WIDTH, HEIGHT)
    assert back.info["icc_profile"] == b"profile"
    assert back.getexif()[274] == 6


@pytest.mark.parametrize("mode", ["CMYK", "F", "I", "LAB", "YCbCr"])
def test_other_modes_are_refused(mode: str) -> None:
    with pytest.raises(ValueError, match=f"mode 1, L, LA, P, RGB, RGBA, I;16, got {mode}$"):
        as_image(PIL.Image.new(mode, (5, 4)))


def test_an_empty_pil_image_is_refused() -> None:
    with pytest.raises(ValueError, match=r"got \(5, 0\)"):
        as_image(PIL.Image.new("L", (0, 5)))


# Tensors


LAYOUTS = [(7, 9), (7, 9, 1), (7, 9, 3), (7, 9, 4), (1, 7, 9), (3, 7, 9), (4, 7, 9), (3, 4, 9)]
DTYPES = [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tensor(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    values = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    return (values * 255).to(dtype) if dtype == torch.uint8 else values.to(dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", LAYOUTS, ids=str)
def test_a_tensor_comes_back_with_its_layout_and_type(
    shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    given = tensor(shape, dtype)
    before = given.clone()
    image = as_image(given)
    back = as_array(image, given)
    assert (back.shape, back.dtype, back.device) == (given.shape, given.dtype, given.device)
    assert torch.equal(back, given)
    assert back.is_contiguous() and back.data_ptr() != given.data_ptr()
    back.zero_()
    assert torch.equal(given, before)


def test_channels_first_is_told_from_channels_last() -> None:
    given = tensor((3, 7, 9))
    image = as_image(given)
    np.testing.assert_array_equal(image.pixels, given.permute(1, 2, 0).numpy())
    np.testing.assert_array_equal(as_image(given.permute(1, 2, 0)).pixels, image.pixels)


def test_a_larger_result_has_the_layout_of_the_tensor() -> None:
    given = tensor((3, 7, 9))
    larger = Image(np.zeros((14, 4, 3), np.float32))  # 4 columns: nothing to be told apart now
    assert as_array(larger, given).shape == (3, 14, 4)
    assert as_array(Image(np.zeros((14, 18), np.float32)), tensor((1, 7, 9))).shape == (1, 14, 18)


def test_a_tensor_that_needs_gradients() -> None:
    given = torch.nn.Parameter(tensor((3, 7, 9)))
    back = as_array(as_image(given), given)
    assert not back.requires_grad
    assert torch.equal(back, given.detach())


def test_a_tensor_with_odd_strides() -> None:
    given = tensor((3, 14, 27))[:, ::2, ::3].flip(1)
    assert torch.equal(as_array(as_image(given), given), given)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_tensor_on_a_gpu() -> None:
    given = tensor((3, 7, 9)).cuda()
    back = as_array(as_image(given), given)
    assert back.device == given.device
    assert torch.equal(back, given)


@pytest.mark.parametrize("shape", [(3, 50, 3), (1, 50, 1), (4, 5, 3), (1, 9, 4)], ids=str)
def test_a_tensor_that_could_be_either_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"\[C, H, W\] or \[H, W, C\]: permute .* or index"
    ) as told:
        as_image(torch.zeros(shape))
    assert str(list(shape)) in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            torch.zeros(2, 3, 7, 9),
            r"got \[2, 3, 7, 9\]; nlrn\.Denoiser and nlrn\.Upscaler take batches",
        ),
        (torch.zeros(1, 1, 7, 9), r"nlrn\.Denoiser and nlrn\.Upscaler take batches"),
        (torch.zeros(5, 7, 9), r"\[C, H, W\] with C 1, 3 or 4, got \[5, 7, 9\]"),
        (torch.zeros(7, 9, 5), r"got \[7, 9, 5\]"),
        (torch.zeros(9), r"got \[9\]"),
        (torch.zeros(()), r"got \[\]"),
        (torch.zeros(2, 2, 3, 7, 9), r"got \[2, 2, 3, 7, 9\]"),
        (torch.zeros(0, 9), r"got \(0, 9\)"),
        (torch.zeros(3, 0, 9), r"got \(0, 9, 3\)"),
        (torch.zeros(7, 9, dtype=torch.bool), r"floats or uint8, got torch\.bool"),
        (torch.zeros(7, 9).to_sparse(), "a dense tensor with values, got a sparse_coo one"),
        (torch.zeros(7, 9, device="meta"), "a dense tensor with values, got a meta one"),
        (torch.zeros(7, 9, dtype=torch.int64), r"got torch\.int64"),
        (torch.zeros(7, 9, dtype=torch.complex64), r"got torch\.complex64"),
        (torch.full((7, 9), torch.nan), "NaN or infinite"),
        (torch.full((7, 9), torch.inf, dtype=torch.bfloat16), "NaN or infinite"),
    ],
    ids=lambda x: f"{x.dtype} {list(x.shape)}" if isinstance(x, torch.Tensor) else "",
)
def test_tensors_that_are_no_images(given: torch.Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        as_image(given)


# Files, and what is not loaded


def test_a_path_gives_the_array_of_the_file(tmp_path: Path) -> None:
    images.write(tmp_path / "a.png", as_image(samples(4)))
    for path in (tmp_path / "a.png", str(tmp_path / "a.png")):
        np.testing.assert_array_equal(as_array(as_image(path), path), samples(4))
    with pytest.raises(ImageError, match="No such file"):
        as_image(tmp_path / "b.png")


def test_arrays_load_neither_torch_nor_pillow() -> None:
    code = (
        "import sys, numpy as np; from nlrn.images import as_array, as_image; a = np.zeros((7, 9));"
        "as_array(as_image(a), a); print({'torch', 'PIL'} & set(sys.modules))"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
