"""The documentation site: whole, without a broken link, without anything from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.mark.slow
def test_every_page_is_built_and_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        built = (site / page.relative_to(ROOT / "docs")).with_suffix(".html")
        text = built.read_text(encoding="utf-8")
        assert not re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?:", text), page.name


@pytest.mark.slow
def test_the_reference_is_made_from_the_code(site: Path) -> None:
    commands = (site / "reference" / "cli.html").read_text(encoding="utf-8")
    for word in ("nlrn denoise", "--skip-existing", "nlrn bench run", "nlrn data check"):
        assert word in commands
    python = (site / "reference" / "python.html").read_text(encoding="utf-8")
    import nlrn

    for name in nlrn.__all__:
        assert f">{name}<" in python or f"{name}</" in python, f"{name} is not in the reference"
    keys = (site / "reference" / "config.html").read_text(encoding="utf-8")
    for key in ("loss_balance", "unshuffle", "freeze_norm", "save_minutes", "sigma_range"):
        assert f"<code>{key}</code>" in keys
