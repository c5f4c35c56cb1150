"""Images in files: read and written with depth, alpha, EXIF and ICC profile as they came in.

| format | samples | alpha | EXIF, ICC |
|---|---|---|---|
| PNG | uint8, uint16 | yes | both; gAMA, cHRM, sRGB, cICP too |
| JPEG | uint8 | no | both |
| TIFF | uint8, uint16, float32, float64; with `white` int16, int32, uint32 | yes | both |
| WebP | uint8, without loss | yes | both |
| AVIF | uint8, nearly without loss; 10 and 12 bits are read as uint16 | yes | both |
| JPEG 2000 (.jp2) | uint8, uint16, without loss | yes | both |
| JPEG 2000 (.j2k) | uint8, uint16, without loss | yes | none |
| BMP | uint8 | no | none |
| TGA | uint8 | yes | none |
| PGM, PPM, PNM | uint8, uint16 | no | none |
| NPY | as TIFF, and int64 with `white` | yes | none |

Pixels per inch are kept by PNG, JPEG, TIFF, JPEG 2000 (.jp2) and BMP. A TIFF keeps the EXIF and GPS
directories, and of the other tags names, description, camera, software, date, artist, copyright and
what says how colors are measured; a BigTIFF (above 4 GB) keeps the ICC profile only. A WebP or AVIF
has no gray: it comes back as RGB, and an alpha that is opaque everywhere as none. CMYK and Lab
become RGB, by their profile where there is one. XMP, IPTC, texts, other tags and smaller versions
of the picture are not kept, and the image's `notes` say so; the EXIF thumbnail never is.
"""

from nlrn.images.arrays import ImageLike, as_array, as_image
from nlrn.images.files import (
    MAX_PIXELS,
    SUFFIXES,
    ExistsError,
    ImageError,
    check_format,
    check_holds,
    check_writable,
    encode,
    format_of,
    lost,
    read,
    read_file,
    write,
)
from nlrn.images.image import Image
from nlrn.images.samples import FormatError, from_float, to_float
from nlrn.images.whole import is_whole

__all__ = [
    "MAX_PIXELS",
    "SUFFIXES",
    "ExistsError",
    "FormatError",
    "Image",
    "ImageError",
    "ImageLike",
    "as_array",
    "as_image",
    "check_format",
    "check_holds",
    "check_writable",
    "encode",
    "format_of",
    "from_float",
    "is_whole",
    "lost",
    "read",
    "read_file",
    "to_float",
    "write",
]
