"""What the description of a TIFF says about its pages, when there are fewer or larger ones."""

from __future__ import annotations

import json
import math
import re
from typing import NamedTuple
from xml.etree import ElementTree

from nlrn.images.samples import FormatError

_TYPES = {"float32": "float", "float64": "double"}  # NumPy's names -> OME's, where they differ


class Change(NamedTuple):
    """What became of a block of pages.

    Attributes:
        first: number of its first page in the new file.
        sizes: its outer axes and their sizes, in order.
        page: shape of one, [H, W] or [H, W, C].
        scale: by how much its pages became wider and higher.
        dtype: of the samples.
        chosen: places that are left along an axis, where not all are.
    """

    first: int
    sizes: tuple[tuple[str, int], ...]
    page: tuple[int, ...]
    scale: tuple[float, float]
    dtype: str
    chosen: dict[str, tuple[int, ...]]

    @property
    def pages(self) -> int:
        """Number of pages."""
        return math.prod(size for _, size in self.sizes)


def of_tifffile(text: str, change: Change) -> str:
    """The note of axes and shape that tifffile writes."""
    note = json.loads(text)
    note["shape"] = [*(size for _, size in change.sizes), *change.page]
    if "axes" in note:
        note["axes"] = "".join(axis for axis, _ in change.sizes) + "YXS"[: len(change.page)]
    note.pop("truncated", None)  # every page has a directory now
    return json.dumps(note)


def of_imagej(text: str, change: Change) -> str:
    """ImageJ's lines of names and values."""
    sizes = dict(change.sizes)
    values = {"images": change.pages}
    for name, axis in (("channels", "C"), ("slices", "Z"), ("frames", "T")):
        values[name] = sizes.get(axis, 1)
    for name, value in values.items():
        text = re.sub(rf"(?m)^{name}=\d+", f"{name}={value}", text)
    return text


def ome_channels(xml: str) -> list[tuple[str, ...]]:
    """The names of the channels of each image, empty where there are none."""
    _, images = _parsed(xml)
    return [
        tuple(channel.get("Name", "") for channel in pixels.findall(_beside(pixels, "Channel")))
        for pixels in images
    ]


def of_ome(xml: str, changes: list[Change]) -> str:
    """OME-XML with the sizes of what became of its images, in one file, page after page."""
    root, images = _parsed(xml)
    if len(images) != len(changes):
        raise FormatError(f"OME-XML of {len(images)} images, {len(changes)} are in the file")
    root.attrib.pop("UUID", None)  # this is another file
    for pixels, change in zip(images, changes, strict=True):
        _change_pixels(pixels, change)
    declaration = '<?xml version="1.0" encoding="UTF-8"?>'
    return declaration + ElementTree.tostring(root, encoding="unicode")


def _parsed(xml: str) -> tuple[ElementTree.Element, list[ElementTree.Element]]:
    """The root, and the Pixels of each image."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    # Without the declaration, whose encoding is that of the bytes.
    root = ElementTree.fromstring(re.sub(r"^\s*<\?xml.*?\?>", "", xml, count=1), parser)
    namespace = root.tag[1:].partition("}")[0] if root.tag.startswith("{") else ""
    if namespace:
        ElementTree.register_namespace("", namespace)
    return root, [e for e in root.iter() if str(e.tag).rpartition("}")[2] == "Pixels"]


def _beside(element: ElementTree.Element, name: str) -> str:
    """A name in the namespace of an element."""
    return element.tag.rpartition("}")[0] + "}" + name if "}" in element.tag else name


def _change_pixels(pixels: ElementTree.Element, change: Change) -> None:
    pixels.set("SizeY", str(change.page[0]))
    pixels.set("SizeX", str(change.page[1]))
    pixels.set("Type", _TYPES.get(change.dtype, change.dtype))
    for name, scale in zip(("PhysicalSizeX", "PhysicalSizeY"), change.scale, strict=True):
        if name in pixels.attrib and scale != 1:
            pixels.set(name, repr(float(pixels.attrib[name]) / scale))
    for axis, places in change.chosen.items():
        _choose(pixels, axis, places)
    _change_pages(pixels, change)


def _choose(pixels: ElementTree.Element, axis: str, places: tuple[int, ...]) -> None:
    """Leaves some places of an axis; raises if OME does not know it."""
    before = pixels.get(f"Size{axis}")
    if before is None:
        raise FormatError(f"pages along {axis} cannot be chosen from OME-TIFF")
    channels = pixels.findall(_beside(pixels, "Channel"))
    if axis == "C" and channels:
        samples = int(channels[0].get("SamplesPerPixel", "1"))
        pixels.set("SizeC", str(samples * len(places)))
        for number, channel in enumerate(channels):
            if number not in places:
                pixels.remove(channel)
    else:
        pixels.set(f"Size{axis}", str(len(places)))
    for plane in pixels.findall(_beside(pixels, "Plane")):
        place = int(plane.get(f"The{axis}", "0"))
        if place in places:
            plane.set(f"The{axis}", str(places.index(place)))
        else:
            pixels.remove(plane)


def _change_pages(pixels: ElementTree.Element, change: Change) -> None:
    """One entry for all pages of an image, which follow one another in this file."""
    name = _beside(pixels, "TiffData")
    before = pixels.findall(name)
    at = list(pixels).index(before[0]) if before else len(pixels)
    for entry in before:
        pixels.remove(entry)
    found = {"IFD": str(change.first), "PlaneCount": str(change.pages)}
    pixels.insert(at, ElementTree.Element(name, found))
