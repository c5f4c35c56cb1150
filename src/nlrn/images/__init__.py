"""Images in files: read and written with depth, alpha, EXIF and ICC profile as they came in.

PNG, JPEG, TIFF, WebP, BMP and NumPy's .npy. What each can hold:

| format | samples | alpha | EXIF, ICC |
|---|---|---|---|
| PNG | uint8, uint16 | yes | both |
| JPEG | uint8 | no | both |
| TIFF | uint8, uint16, float32, float64 | yes | both (see below) |
| WebP | uint8, without loss | yes | both |
| BMP | uint8 | no | none |
| NPY | uint8, uint16, float32, float64 | yes | none |

Pixels per inch are kept by all but WebP and NPY. A TIFF keeps the EXIF and GPS directories, and of
the other tags description, camera, software, date, artist and copyright; a BigTIFF (above 4 GB)
keeps the ICC profile only. A WebP has no gray: it comes back as RGB, and an alpha that is opaque
everywhere as none. A CMYK JPEG becomes RGB without its profile. XMP, PNG text and the EXIF
thumbnail are never kept.
"""

from nlrn.images.arrays import ImageLike, as_array, as_image
from nlrn.images.files import (
    MAX_PIXELS,
    SUFFIXES,
    ExistsError,
    ImageError,
    check_holds,
    check_writable,
    read,
    write,
)
from nlrn.images.image import Image
from nlrn.images.samples import from_float, to_float

__all__ = [
    "MAX_PIXELS",
    "SUFFIXES",
    "ExistsError",
    "Image",
    "ImageError",
    "ImageLike",
    "as_array",
    "as_image",
    "check_holds",
    "check_writable",
    "from_float",
    "read",
    "to_float",
    "write",
]
