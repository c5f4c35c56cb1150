"""GIF, WebP and PNG that move: every frame, its duration, the number of loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
from stack_files import HEIGHT, WIDTH, Darker, Twice, copy, darker, samples

from nlrn.images import ImageError
from nlrn.restoration import restore_stack
from nlrn.stacks import is_stack, open_stack

DURATIONS = [40, 120, 300, 70]


def frames_file(path: Path, frames: np.ndarray, loop: int | None = 0, **how: Any) -> None:
    pictures = [PIL.Image.fromarray(frame) for frame in frames]
    options = how | ({} if loop is None else {"loop": loop})
    if path.suffix == ".webp":
        options |= {"lossless": True, "exact": True}
    pictures[0].save(path, save_all=True, append_images=pictures[1:],
                     duration=DURATIONS[: len(frames)], **options)  # fmt: skip


def shown(path: Path, mode: str = "RGB") -> tuple[np.ndarray, list[int], int | None]:
    """All frames, their durations and the loops, by Pillow."""
    found, durations = [], []
    with PIL.Image.open(path) as picture:
        for number in range(getattr(picture, "n_frames", 1)):
            picture.seek(number)
            picture.load()
            found.append(np.array(picture.convert(mode)))
            durations.append(round(picture.info["duration"]))
        return np.stack(found), durations, picture.info.get("loop")


@pytest.mark.parametrize("suffix", [".webp", ".png"])
@pytest.mark.parametrize("channels", [3, 4])
def test_every_frame_is_restored(tmp_path: Path, suffix: str, channels: int) -> None:
    source, target = tmp_path / f"a{suffix}", tmp_path / f"b{suffix}"
    frames = samples(4, dtype="uint8", color=True)
    if channels == 4:
        alpha = samples(4, dtype="uint8", seed=1)[..., None]
        frames = np.concatenate([frames, alpha], axis=-1)
    frames_file(source, frames, loop=5)
    assert is_stack(source)
    with open_stack(source) as stack:
        assert (stack.axes, stack.shape) == ("TYXS", (4, HEIGHT, WIDTH, channels))
        facts = restore_stack(stack, target, Darker())
    assert facts["pages"] == 4 and facts["warnings"] == []
    found, durations, loop = shown(target, "RGBA")
    assert (durations, loop) == (DURATIONS, 5)
    solid = frames[..., -1] > 0 if channels == 4 else ...
    np.testing.assert_array_equal(found[solid][..., :3], darker(frames[solid][..., :3]))
    if channels == 4:
        np.testing.assert_array_equal(found[..., 3], frames[..., 3])


def test_gray_png_stays_gray(tmp_path: Path) -> None:
    frames = samples(3, dtype="uint8")
    frames_file(tmp_path / "a.png", frames)
    with open_stack(tmp_path / "a.png") as stack:
        assert stack.axes == "TYX"
        restore_stack(stack, tmp_path / "b.png", Twice())
    found, durations, loop = shown(tmp_path / "b.png", "L")
    assert found.shape == (3, 2 * HEIGHT, 2 * WIDTH) and (durations, loop) == (DURATIONS[:3], 0)


@pytest.mark.parametrize("loop", [None, 0, 3])
def test_gif(tmp_path: Path, loop: int | None) -> None:
    gray = samples(4, dtype="uint8") // 4 * 4  # few enough colors to be kept
    frames_file(tmp_path / "a.gif", gray, loop)
    with open_stack(tmp_path / "a.gif") as stack:
        facts = restore_stack(stack, tmp_path / "b.gif", Darker())
    assert facts["warnings"] == ["a GIF has 256 colors in each frame; .webp and .png keep all"]
    found, durations, plays = shown(tmp_path / "b.gif")
    assert (durations, plays) == (DURATIONS, loop)
    np.testing.assert_array_equal(found[..., 1], darker(gray))


def test_gif_with_holes(tmp_path: Path) -> None:
    frames = np.full((3, HEIGHT, WIDTH, 4), 255, np.uint8)
    for number, frame in enumerate(frames):
        frame[..., number] = 40
        frame[number : number + 9, 5:17, 3] = 0
    frames_file(tmp_path / "a.gif", frames, disposal=2)
    copy(tmp_path / "a.gif", tmp_path / "b.gif")
    found = shown(tmp_path / "b.gif", "RGBA")[0]
    np.testing.assert_array_equal(found[..., 3], frames[..., 3])
    solid = frames[..., 3] > 0
    np.testing.assert_array_equal(found[solid], frames[solid])


@pytest.mark.parametrize(("loop", "plays"), [(None, 1), (0, 0), (3, 4)])
@pytest.mark.parametrize("suffix", [".webp", ".png"])
def test_gif_becomes_another_kind_and_back(
    tmp_path: Path, suffix: str, loop: int | None, plays: int
) -> None:
    frames = samples(4, dtype="uint8") // 4 * 4
    frames_file(tmp_path / "a.gif", frames, loop)
    copy(tmp_path / "a.gif", tmp_path / f"b{suffix}")
    copy(tmp_path / f"b{suffix}", tmp_path / "c.gif")
    assert shown(tmp_path / f"b{suffix}")[1:] == (DURATIONS, plays)
    found, durations, again = shown(tmp_path / "c.gif")
    assert (durations, again) == (DURATIONS, loop)
    np.testing.assert_array_equal(found[..., 0], frames)


@pytest.mark.parametrize("suffix", [".webp", ".png"])
def test_profile_and_exif_are_kept(tmp_path: Path, suffix: str) -> None:
    from PIL import ImageCms

    icc = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    exif = PIL.Image.Exif()
    exif[315] = "A. Painter"
    frames = samples(3, dtype="uint8", color=True)
    frames_file(tmp_path / f"a{suffix}", frames, icc_profile=icc, exif=exif)
    copy(tmp_path / f"a{suffix}", tmp_path / f"b{suffix}")
    with PIL.Image.open(tmp_path / f"b{suffix}") as picture:
        assert picture.info["icc_profile"] == icc and picture.getexif()[315] == "A. Painter"
        assert getattr(picture, "n_frames", 1) == 3


def test_the_still_picture_of_a_png_is_no_frame(tmp_path: Path) -> None:
    frames = samples(4, dtype="uint8", color=True)
    pictures = [PIL.Image.fromarray(frame) for frame in frames]
    pictures[0].save(tmp_path / "a.png", save_all=True, append_images=pictures[1:],
                     duration=DURATIONS[:3], default_image=True)  # fmt: skip
    with open_stack(tmp_path / "a.png") as stack:
        assert len(stack) == 3
        facts = restore_stack(stack, tmp_path / "b.png", Darker())
    assert facts["warnings"] == ["not kept: the still picture of a PNG that moves"]
    np.testing.assert_array_equal(shown(tmp_path / "b.png")[0], darker(frames[1:]))


def test_some_frames(tmp_path: Path) -> None:
    frames = samples(4, dtype="uint8", color=True)
    frames_file(tmp_path / "a.webp", frames)
    with open_stack(tmp_path / "a.webp") as stack:
        restore_stack(stack.select([1, 3]), tmp_path / "b.webp", Darker())
    found, durations, _ = shown(tmp_path / "b.webp")
    assert durations == [120, 70]
    np.testing.assert_array_equal(found, darker(frames[[1, 3]]))


def test_broken_frames(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    frames_file(path, samples(4, dtype="uint8", color=True))
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"fdAT") + 600])
    with pytest.raises(ImageError, match="page 4: broken"):
        open_stack(path)
    path.write_bytes(b"GIF89a?")
    with pytest.raises(ImageError, match="not a stack nlrn can read"):
        open_stack(path)


def test_one_frame_is_no_stack(tmp_path: Path) -> None:
    for name in ("a.webp", "a.png", "a.jpg"):
        PIL.Image.fromarray(samples(dtype="uint8")).save(tmp_path / name)
        assert not is_stack(tmp_path / name)
    with pytest.raises(ImageError, match="content is not TIFF, GIF, WebP, PNG or Zarr"):
        open_stack(tmp_path / "a.jpg")
