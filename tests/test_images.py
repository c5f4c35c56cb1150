import io
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import tifffile

pytest.importorskip("hypothesis")
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from picture_files import (
    HEIGHT,
    WIDTH,
    assert_same,
    fitting,
    image,
    pillow_bytes,
    samples,
)

from nlrn import images
from nlrn.images import ExistsError, Image, ImageError, formats

# What each lossless format can hold, with what comes back: (suffix, dtype, channels).
LOSSLESS = [
    (suffix, dtype, channels)
    for suffix, dtypes, kinds in [
        (".png", ("uint8", "uint16"), (1, 2, 3, 4)),
        (".tif", ("uint8", "uint16", "float32", "float64"), (1, 2, 3, 4)),
        (".npy", ("uint8", "uint16", "float32", "float64"), (1, 2, 3, 4)),
        (".webp", ("uint8",), (3, 4)),
        (".bmp", ("uint8",), (1, 3)),
        (".jp2", ("uint8", "uint16"), (1, 2, 3, 4)),
        (".j2k", ("uint8", "uint16"), (1, 2, 3, 4)),
        (".tga", ("uint8",), (1, 2, 3, 4)),
        (".pgm", ("uint8", "uint16"), (1,)),
        (".ppm", ("uint8", "uint16"), (3,)),
        (".pnm", ("uint8", "uint16"), (1, 3)),
    ]
    for dtype in dtypes
    for channels in kinds
]


# Round trips


@pytest.mark.parametrize(("suffix", "dtype", "channels"), LOSSLESS)
def test_lossless_formats_give_back_every_sample(
    tmp_path: Path, suffix: str, dtype: str, channels: int
) -> None:
    before = image(dtype, channels)
    images.write(tmp_path / f"a{suffix}", before)
    after = images.read(tmp_path / f"a{suffix}")
    assert_same(before, after)
    assert after.exif is None
    assert after.icc is None
    assert (after.height, after.width) == (HEIGHT, WIDTH)
    assert after.pixels.flags.c_contiguous
    assert after.pixels.flags.writeable


def test_jpeg_is_written_at_quality_95_without_subsampling(tmp_path: Path) -> None:
    ramp = np.linspace(0, 255, HEIGHT * WIDTH).reshape(HEIGHT, WIDTH).astype(np.uint8)
    before = np.dstack([ramp, ramp[::-1], ramp[:, ::-1]])
    path = tmp_path / "a.jpg"
    images.write(path, Image(before))
    with PIL.Image.open(path) as picture:
        quantization = picture.quantization  # type: ignore[attr-defined]
        layers = picture.layer  # type: ignore[attr-defined]
    with PIL.Image.open(io.BytesIO(pillow_bytes(before, "JPEG", quality=95))) as reference:
        assert quantization == reference.quantization  # type: ignore[attr-defined]
    assert [layer[1:3] for layer in layers] == [(1, 1)] * 3  # sampling factors: 4:4:4
    error = images.read(path).pixels.astype(int) - before
    assert np.abs(error).mean() < 3


def test_jpeg_quality_is_an_argument(tmp_path: Path) -> None:
    for quality in (30, 95):
        images.write(tmp_path / f"{quality}.jpg", image(), quality=quality)
    assert (tmp_path / "30.jpg").stat().st_size < (tmp_path / "95.jpg").stat().st_size
    with pytest.raises(ValueError, match=r"quality must be in 1\.\.100, got 0"):
        images.write(tmp_path / "0.jpg", image(), quality=0)


def test_gray_jpeg_stays_gray(tmp_path: Path) -> None:
    images.write(tmp_path / "a.jpeg", Image(np.full((HEIGHT, WIDTH), 77, np.uint8)))
    after = images.read(tmp_path / "a.jpeg")
    np.testing.assert_array_equal(after.pixels, np.full((HEIGHT, WIDTH), 77))


@pytest.mark.parametrize("channels", [1, 2])
def test_gray_webp_comes_back_as_rgb(tmp_path: Path, channels: int) -> None:
    before = image("uint8", channels)
    images.write(tmp_path / "a.webp", before)
    after = images.read(tmp_path / "a.webp")
    assert_same(Image(np.dstack([before.pixels] * 3), before.alpha), after)


def test_opaque_webp_comes_back_without_alpha(tmp_path: Path) -> None:
    before = Image(samples("uint8", 3), np.full((HEIGHT, WIDTH), 255, np.uint8))
    images.write(tmp_path / "a.webp", before)
    assert_same(Image(before.pixels), images.read(tmp_path / "a.webp"))


def test_color_under_transparent_pixels_survives(tmp_path: Path) -> None:
    before = Image(samples("uint8", 3), np.zeros((HEIGHT, WIDTH), np.uint8))
    for suffix in (".png", ".webp", ".tif"):
        images.write(tmp_path / f"a{suffix}", before)
        assert_same(before, images.read(tmp_path / f"a{suffix}"))


def test_other_readers_see_what_was_written(tmp_path: Path) -> None:
    before = image("uint16", 4)
    images.write(tmp_path / "a.tif", before)
    assert before.alpha is not None
    np.testing.assert_array_equal(
        tifffile.imread(tmp_path / "a.tif"), np.dstack([before.pixels, before.alpha])
    )
    images.write(tmp_path / "a.png", image("uint8", 4))
    with PIL.Image.open(tmp_path / "a.png") as picture:
        np.testing.assert_array_equal(np.array(picture)[..., :3], image("uint8", 4).pixels)


def test_paths_may_be_strings_not_ascii_and_upper_case(tmp_path: Path) -> None:
    folder = tmp_path / "Ærø 写真"
    folder.mkdir()
    for suffix in images.SUFFIXES:
        path = str(folder / f"naïve файл{suffix.upper()}")
        images.write(path, fitting(suffix))
        assert images.read(path).pixels.shape[:2] == (HEIGHT, WIDTH)


# Writing

HOLD_ALPHA = "PNG, TIFF, WebP, AVIF, JPEG 2000, J2K, TGA or NPY"
DEEP = "PNG, TIFF, JPEG 2000, J2K"


@pytest.mark.parametrize(
    ("suffix", "dtype", "channels", "reason"),
    [
        (".jpg", "uint8", 4, f"JPEG cannot hold an alpha channel; {HOLD_ALPHA} can"),
        (".jpg", "uint16", 3, f"JPEG cannot hold uint16 samples; {DEEP}, PPM, PNM or NPY can"),
        (".jpg", "float32", 1, "JPEG cannot hold float32 samples; TIFF or NPY can"),
        (".png", "float32", 3, "PNG cannot hold float32 samples; TIFF or NPY can"),
        (".webp", "uint16", 4, f"WebP cannot hold uint16 samples; {DEEP} or NPY can"),
        (
            ".avif",
            "uint16",
            1,
            f"AVIF cannot hold uint16 samples; {DEEP}, PGM, PPM, PNM or NPY can",
        ),
        (".bmp", "uint8", 2, f"BMP cannot hold an alpha channel; {HOLD_ALPHA} can"),
        (".pgm", "uint16", 3, f"PGM cannot hold color; {DEEP}, PPM, PNM or NPY can"),
        (".bmp", "float64", 3, "BMP cannot hold float64 samples; TIFF or NPY can"),
    ],
)
def test_formats_refuse_what_they_cannot_hold(
    tmp_path: Path, suffix: str, dtype: str, channels: int, reason: str
) -> None:
    path = tmp_path / f"a{suffix}"
    with pytest.raises(ImageError) as caught:
        images.write(path, image(dtype, channels))
    assert str(caught.value) == f"{path}: {reason}"
    assert not list(tmp_path.iterdir())


def test_size_beyond_a_format(tmp_path: Path) -> None:
    wide = Image(np.zeros((1, 20000, 3), np.uint8))
    with pytest.raises(ImageError, match="cannot be written as WebP"):
        images.write(tmp_path / "a.webp", wide)
    assert not list(tmp_path.iterdir())


def test_existing_file_is_kept_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    images.write(path, image("uint8", 3))
    with pytest.raises(ExistsError, match="exists already; overwrite=True replaces it"):
        images.write(path, image("uint16", 3))
    assert_same(image("uint8", 3), images.read(path))
    images.write(path, image("uint16", 3), overwrite=True)
    assert_same(image("uint16", 3), images.read(path))
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def test_of_two_writers_one_wins(tmp_path: Path) -> None:
    outcomes = []
    start = threading.Barrier(4)

    def race() -> None:
        start.wait()
        try:
            images.write(tmp_path / "a.npy", image())
            outcomes.append("written")
        except ImageError as error:
            outcomes.append("refused" if "exists already" in str(error) else str(error))

    threads = [threading.Thread(target=race) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["refused"] * 3 + ["written"]
    assert_same(image(), images.read(tmp_path / "a.npy"))
    assert len(list(tmp_path.iterdir())) == 1


def test_a_name_taken_in_the_meantime_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    encode = formats.encode

    def slow(name: str, decoded: Any, quality: int) -> bytes:
        path.write_bytes(b"another program's")
        return encode(name, decoded, quality)

    monkeypatch.setattr(formats, "encode", slow)
    with pytest.raises(ImageError, match="exists already"):
        images.write(path, image())
    assert path.read_bytes() == b"another program's"
    assert [p.name for p in tmp_path.iterdir()] == ["a.png"]


def fail(*args: Any, **kwargs: Any) -> Any:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    "target", ["imagecodecs.png_encode", "os.fsync", "pathlib.Path.replace"], ids=str
)
def test_failed_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, overwrite: bool
) -> None:
    path = tmp_path / "a.png"
    if overwrite:
        path.write_bytes(b"old")
    monkeypatch.setattr(target, fail)
    with pytest.raises(ImageError, match="No space left on device") as caught:
        images.write(path, image(), overwrite=overwrite)
    assert str(caught.value).startswith(f"{path}: ")
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == (
        {"a.png": b"old"} if overwrite else {}
    )


def test_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        images.write(tmp_path / "a.png", image())
    assert not list(tmp_path.iterdir())


def test_missing_folder_unknown_suffix_and_directory(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"a\.png: folder .*nowhere does not exist"):
        images.write(tmp_path / "nowhere" / "a.png", image())
    (tmp_path / "file").touch()
    with pytest.raises(ImageError, match=r"a\.png: .*file is a file, not a folder"):
        images.write(tmp_path / "file" / "a.png", image())
    (tmp_path / "file").unlink()
    with pytest.raises(ImageError, match=r"unknown suffix '\.gif'"):
        images.write(tmp_path / "a.gif", image())
    (tmp_path / "b.png").mkdir()
    with pytest.raises(ImageError, match="Is a directory"):
        images.write(tmp_path / "b.png", image(), overwrite=True)
    assert [p.name for p in tmp_path.iterdir()] == ["b.png"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_unwritable_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ImageError, match="Permission denied"):
        images.write(tmp_path / "a.png", image())


def test_unwritable_folder_as_the_system_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(self: Path, mode: str) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "open", deny)
    path = tmp_path / "a.png"
    with pytest.raises(ImageError) as caught:
        images.write(path, image())
    assert str(caught.value) == f"{path}: Permission denied"


def test_written_files_have_usual_permissions(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    images.write(tmp_path / "a.png", image())
    assert (tmp_path / "a.png").stat().st_mode == (tmp_path / "plain").stat().st_mode


# The Image class and the conversions


def test_with_pixels_keeps_the_rest() -> None:
    before = image("uint16", 4, exif=b"e", icc=b"i")
    after = before.with_pixels(before.pixels // 2)
    assert after.alpha is before.alpha
    assert (after.exif, after.icc) == (b"e", b"i")
    larger = before.with_pixels(np.zeros((22, 34, 3), np.uint16), np.zeros((22, 34), np.uint16))
    assert (larger.height, larger.width) == (22, 34)


def test_with_pixels_refuses_another_kind() -> None:
    before = image("uint16", 4)
    with pytest.raises(ValueError, match="got uint8 with 3"):
        before.with_pixels(before.pixels.astype(np.uint8))
    with pytest.raises(ValueError, match="got uint16 with 2"):
        before.with_pixels(before.pixels[..., 0])
    with pytest.raises(ValueError, match=r"alpha must be uint16 \[22, 34\]"):
        before.with_pixels(np.zeros((22, 34, 3), np.uint16))


@pytest.mark.parametrize(
    "pixels", [np.zeros((5, 7), int), np.zeros((5, 7, 4), np.uint8), np.zeros((0, 7), np.uint8)]
)
def test_image_refuses_other_arrays(pixels: Any) -> None:
    with pytest.raises(ValueError, match="pixels must be"):
        Image(pixels)


INTEGERS = [np.uint8, np.uint16]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_integer_survives_the_way_through_float(dtype: Any) -> None:
    every = np.arange(np.iinfo(dtype).max + 1).astype(dtype)
    floats = images.to_float(every)
    assert floats.dtype == np.float32
    assert (floats.min(), floats.max()) == (0, 1)
    np.testing.assert_array_equal(images.from_float(floats, dtype), every)


@given(
    hnp.arrays(np.float32, (3, 5), elements=st.floats(-2, 3, width=32)),
    st.sampled_from(INTEGERS),
)
def test_from_float_gives_the_nearest_level(array: Any, dtype: Any) -> None:
    levels = images.from_float(array, dtype)
    assert levels.dtype == dtype
    white = np.iinfo(dtype).max
    distance = levels - np.clip(array.astype(np.float64), 0, 1) * white
    assert np.abs(distance).max() <= 0.5 + white * 2.0**-24


@given(hnp.arrays(np.float32, (3, 5), elements=st.floats(-10, 10, width=32)))
def test_floats_pass_unchanged(array: Any) -> None:
    np.testing.assert_array_equal(images.to_float(array), array)
    np.testing.assert_array_equal(images.from_float(array, np.float32), array)
    np.testing.assert_array_equal(images.to_float(images.from_float(array, "float64")), array)
    assert images.to_float(array) is not array


def test_conversions_refuse_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="got int64"):
        images.to_float(np.zeros((2, 3), np.int64))
    with pytest.raises(ValueError, match="got int16"):
        images.from_float(np.zeros((2, 3)), np.int16)
    with pytest.raises(ValueError, match="NaN cannot become uint8"):
        images.from_float(np.full((2, 3), np.nan), np.uint8)
    assert images.from_float(np.array([np.inf, -np.inf]), np.uint8).tolist() == [255, 0]


def test_import_is_light() -> None:
    heavy = {"torch", "PIL", "tifffile", "imagecodecs"}
    code = f"import sys, nlrn.images; print({heavy} & set(sys.modules))"
    environment = {**os.environ, "PYTHONPATH": str(Path(images.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    assert subprocess.check_output(command, env=environment, text=True).strip() == "set()"
