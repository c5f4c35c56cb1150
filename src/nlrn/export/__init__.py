"""Networks as files for other programs: ONNX, which needs neither nlrn nor torch to run."""

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
    scale: int | None = None,
    file_format: str = "onnx",
    fp16: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Writes a network as a file, after it was checked against the package on three sizes.

    Args:
        model: the name of a weight in the package, a file, or a network.
        path: the file to write, in a folder that exists.
        scale: for a network that enlarges, which of its factors: a file has one.
        file_format: "onnx"; "vsmlrt", the same with image and noise map in one input; or
            "bioimageio", a zip for bioimage.io.
        fp16: whether weights and arithmetic are of half precision.
        overwrite: whether an existing file is replaced.
    """
    if file_format not in FORMATS:
        raise ValueError(f"format must be one of {', '.join(FORMATS)}, got {file_format!r}")
    path = Path(path)
    _check_target(path, ".zip" if file_format == "bioimageio" else ".onnx", overwrite)
    network = model if isinstance(model, Network) else models.load(model)
    network = _for_scale(network, scale)
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


def _check_target(path: Path, suffix: str, overwrite: bool) -> None:
    if not path.parent.is_dir():
        raise ValueError(f"{path}: folder {path.parent} does not exist")
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name a file")
    if path.suffix.lower() in {".onnx", ".zip"} - {suffix}:
        raise ValueError(f"{path}: a file of this format ends in {suffix}")
    if path.exists() and not overwrite:
        raise ValueError(f"{path}: exists; overwrite=True replaces it")


def _for_scale(network: Network, scale: int | None) -> Network:
    """The network for the factor; raises if it cannot be exported like that."""
    name, factors = network.card.name or network.architecture, network.factors
    known = ", ".join(map(str, factors))
    if network.in_channels not in (1, 3) or network.out_channels != network.in_channels:
        got = f"{network.in_channels} to {network.out_channels}"
        raise ValueError(f"{name}: takes no gray or RGB image ({got} channels)")
    if network.card.task == "sr" and not factors:
        takes = "takes luminance that is enlarged already"
        raise ValueError(f"{name}: {takes}; networks that enlarge by themselves can be exported")
    if scale is None and factors:
        raise ValueError(f"{name}: enlarges by {known}; scale must be one of them, was left out")
    if scale is not None and not factors:
        raise ValueError(f"{name}: does not enlarge, so scale must be left out, got {scale}")
    if scale is not None and scale not in factors:
        raise ValueError(f"{name}: scale must be one of {known}, got {scale}")
    return network if scale is None else network.with_scale(scale)
