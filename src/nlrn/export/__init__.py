"""Denoisers as files for other programs: ONNX, which needs neither nlrn nor torch to run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nlrn import atomic, models
from nlrn.models import Network

__all__ = ["FORMATS", "Exported", "export"]
# One input or two: vs-mlrt gives a network one tensor, with the noise map as its last channel.
FORMATS = ("onnx", "vsmlrt", "bioimageio")


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: where it is.
        size: in bytes.
        difference: from the package's results, the largest that was found when it was checked.
    """

    path: Path
    size: int
    difference: float


def export(
    model: str | Path | Network,
    path: str | Path,
    *,
    file_format: str = "onnx",
    fp16: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Writes a denoiser as a file, after it was checked against the package on three sizes.

    Args:
        model: the name of a weight in the package, a file, or a network.
        path: the file to write, in a folder that exists.
        file_format: "onnx"; "vsmlrt", the same with image and noise map in one input; or
            "bioimageio", a zip for bioimage.io.
        fp16: whether weights and arithmetic are of half precision.
        overwrite: whether an existing file is replaced.
    """
    if file_format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {file_format!r}")
    path = Path(path)
    _check_target(path, overwrite)
    network = model if isinstance(model, Network) else models.load(model)
    _check_network(network)
    try:
        from nlrn.export.bioimageio import package
        from nlrn.export.check import largest_difference
        from nlrn.export.onnx_file import build
    except ModuleNotFoundError as error:
        if error.name and error.name.startswith("nlrn"):
            raise
        how = "pip install 'nlrn[onnx]' (in a checkout: pip install '.[onnx]')"
        raise ValueError(f"export needs {error.name}: {how}") from error
    built = build(network, fp16=fp16, one_input=file_format == "vsmlrt").SerializeToString()
    difference = largest_difference(network, built, fp16=fp16)
    content = package(network, built) if file_format == "bioimageio" else built
    atomic.write_bytes(path, content, overwrite=overwrite)
    return Exported(path, len(content), difference)


def _check_target(path: Path, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"{path}: folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file")
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: exists; overwrite=True replaces it")


def _check_network(network: Network) -> None:
    name = network.card.name or network.architecture
    if network.card.task == "sr":
        raise ValueError(f"{name}: a model for super-resolution; denoisers can be exported")
    if network.in_channels not in (1, 3) or network.out_channels != network.in_channels:
        got = f"{network.in_channels} to {network.out_channels}"
        raise ValueError(f"{name}: takes no gray or RGB image ({got} channels)")
