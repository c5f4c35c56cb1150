"""Cuts the example pictures of the web page out of scikit-image's photographs.

All are free of rights: astronaut by NASA, in the public domain; camera by Lav Varshney, chelsea by
Stefan van der Walt, coffee by Rachel Michetti and brick from CC0Textures under CC0.
"""

from __future__ import annotations

import sys
from pathlib import Path

import skimage.data

from nlrn import images

FOLDER = Path(__file__).parents[1] / "src" / "nlrn" / "web" / "static" / "examples"


def main(folder: Path) -> None:
    """Writes the crops as PNG, without loss: noise is to be added to clean pictures."""
    crops = {
        "camera": skimage.data.camera()[40:296, 130:386],
        "astronaut": skimage.data.astronaut()[0:224, 100:356],
        "chelsea": skimage.data.chelsea()[20:244, 90:346],
        "coffee": skimage.data.coffee()[80:304, 140:396],
        "brick": skimage.data.brick()[100:324, 100:356],
    }
    for name, crop in crops.items():
        path = folder / f"{name}.png"
        images.write(path, images.Image(crop.copy()), overwrite=True)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
