"""The command line for tests: runs a command, makes small images, looks at one-line errors."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from typer.testing import CliRunner, Result

from nlrn import cli, images
from nlrn.models.nlrn import NLRNConfig

SMALL = NLRNConfig(window=5, steps=2, channels=8, embed=4)
runner = CliRunner()


def picture(path: Path, shape: tuple[int, ...] = (10, 13, 3), seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    values = np.random.default_rng(seed).integers(0, 255, shape, np.uint8)
    images.write(path, images.Image(values))
    return path


def nlrn(*arguments: object) -> Result:
    return runner.invoke(cli.app, [str(a) for a in arguments])


def assert_one_clear_line(result: Result, *words: str) -> None:
    assert result.exit_code == 2, result.output
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: "), result.stderr
    for word in words:
        assert word in lines[0], lines[0]


def names(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


def png_header(width: int, height: int) -> bytes:
    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
