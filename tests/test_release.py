"""What is published: metadata, Dockerfile, and the wheel in an environment without the checkout."""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import time
import tomllib
import urllib.request
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from command_line import nlrn, picture

import nlrn as package
from nlrn import images

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# The names of distributions whose modules are called otherwise, or that bring them along.
DISTRIBUTIONS = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "skimage": "scikit-image",
    "pydantic": "fastapi",
    "starlette": "fastapi",
    "triton": "torch",
    "fsspec": "torch",
}
HOSTS = {"napari"}  # programs that load this package, not the other way round
# In Python 3.11, but not in 3.12 or 3.13.
REMOVED = {
    "aifc", "asynchat", "asyncore", "audioop", "cgi", "cgitb", "chunk", "crypt", "distutils",
    "imghdr", "imp", "mailcap", "msilib", "nis", "nntplib", "ossaudiodev", "pipes", "smtpd",
    "sndhdr", "spwd", "sunau", "telnetlib", "uu", "xdrlib",
}  # fmt: skip


def modules_imported() -> set[str]:
    found = set()
    for file in SOURCES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module.partition(".")[0])
    return found


def test_every_package_that_is_imported_is_declared() -> None:
    extras = [p for extra in PROJECT["optional-dependencies"].values() for p in extra]
    declared = {re.split(r"[\[<>=!~; ]", p)[0] for p in [*PROJECT["dependencies"], *extras]}
    others = modules_imported() - set(sys.stdlib_module_names) - HOSTS - {"nlrn"}
    assert {"rich", "torch"} <= others
    assert {DISTRIBUTIONS.get(name, name) for name in others} <= declared


def test_the_sources_suit_every_python_that_is_named() -> None:
    named = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: Python :: 3." in c]
    assert named == ["3.11", "3.12", "3.13"] and PROJECT["requires-python"] == ">=3.11"
    assert not modules_imported() & REMOVED
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # escapes that newer versions warn about
        for file in SOURCES:
            ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 11))


def test_the_version_stands_in_one_place() -> None:
    assert PROJECT["dynamic"] == ["version"] and "version" not in PROJECT
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.dev\d+)?", package.__version__)


def dockerfile() -> list[tuple[str, str]]:
    """Instructions and what follows them."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line.split(None, 1) for line in text.splitlines() if line and line[0] != "#"]
    return [(name, rest.strip()) for name, rest in lines]


def copied() -> list[str]:
    """Files and folders of the checkout that the Dockerfile copies."""
    copies = [shlex.split(rest) for name, rest in dockerfile() if name == "COPY"]
    return [source for *sources, _ in copies for source in sources]


def test_the_dockerfile_copies_what_exists_and_is_not_ignored() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line.removeprefix("!") for line in ignored if line.startswith("!")]
    assert {"pyproject.toml", "src"} <= set(copied())
    for source in copied():
        assert (ROOT / source).exists(), source
        assert any(fnmatch.fnmatch(source, pattern) for pattern in kept), source


def test_the_dockerfile_installs_as_the_readme_says_and_starts_the_page() -> None:
    steps = dockerfile()
    assert steps[0][1] in [f"python:3.{minor}-slim" for minor in (11, 12, 13)]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    commands = [rest for name, rest in steps if name == "RUN"]
    installs = [c for rest in commands for c in re.findall(r"pip install [^&]+", rest)]
    assert len(installs) == 2
    for command in installs:
        assert command.replace("--no-cache-dir ", "").strip() in readme, command
    found = dict(steps)
    assert json.loads(found["ENTRYPOINT"]) == ["nlrn"]
    command, *options = json.loads(found["CMD"])
    shown = nlrn(command, "--help").output
    assert all(option in shown for option in options if option.startswith("--"))
    assert f"default: {found['EXPOSE']}" in shown
    assert found["USER"] != "root"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist and the wheel that was built from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


def build(source: Path, target: Path, *options: str) -> None:
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(target)]
    done = subprocess.run([*command, *options, str(source)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def names_in_wheel(folder: Path) -> list[str]:
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        return sorted(wheel.namelist())


@pytest.mark.slow
def test_wheel_and_sdist_hold_everything_and_nothing_else(built: Path, tmp_path: Path) -> None:
    version = package.__version__
    wheel = f"nlrn-{version}-py3-none-any.whl"
    assert sorted(f.name for f in built.iterdir()) == [wheel, f"nlrn-{version}.tar.gz"]
    files = [f for f in (ROOT / "src" / "nlrn").rglob("*") if f.is_file()]
    expected = [f for f in files if "__pycache__" not in f.parts]
    inside = {name for name in names_in_wheel(built) if ".dist-info/" not in name}
    assert inside == {f.relative_to(ROOT / "src").as_posix() for f in expected}
    with tarfile.open(next(built.glob("*.gz"))) as sdist:
        tops = {Path(name).parts[1] for name in sdist.getnames() if len(Path(name).parts) > 1}
    assert {"src", "tests", "README.md", "CHANGELOG.md", "LICENSE", "pyproject.toml"} <= tops
    assert not tops & {".venv", ".git", "runs", "rows", "demo"}
    # What the Dockerfile copies is enough for the same wheel.
    context = tmp_path / "context"
    context.mkdir()
    for source in map(Path, copied()):
        copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
        copy(ROOT / source, context / source)
    build(context, tmp_path / "dist", "--wheel")
    assert names_in_wheel(tmp_path / "dist") == names_in_wheel(built)


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of a fresh environment with the wheel; what it needs is that of this one."""
    environment = tmp_path_factory.mktemp("fresh")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    scheme = {"base": str(environment), "platbase": str(environment)}
    packages = Path(sysconfig.get_path("purelib", "venv", vars=scheme))
    others = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "others.pth").write_text("\n".join(others))
    python = environment / "bin" / "python"
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet"]
    command += ["--no-deps", "--no-index", "--ignore-installed", str(next(built.glob("*.whl")))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (packages / "nlrn").is_dir()
    return environment / "bin"


def outside() -> dict[str, str]:
    """The environment variables, less what leads to the checkout."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NLRN_DATA")}


def run(programs: Path, folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [programs / arguments[0], *arguments[1:]],
        cwd=folder, env=outside(), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_installed_wheel_restores_without_the_checkout(installed: Path, tmp_path: Path) -> None:
    place = run(installed, tmp_path, "python", "-c", "import nlrn; print(nlrn.__file__)")
    assert str(installed.parent) in place and str(ROOT) not in place
    assert run(installed, tmp_path, "nlrn", "--version").strip() == f"nlrn {package.__version__}"
    code = "import importlib.metadata as m; print(m.version('nlrn'))"
    assert run(installed, tmp_path, "python", "-c", code).strip() == package.__version__
    picture(tmp_path / "a.png", (18, 25, 3))
    picture(tmp_path / "b.png", (19, 14))
    run(installed, tmp_path, "nlrn", "denoise", "a.png", "b.png", "--sigma", "25")
    run(installed, tmp_path, "nlrn", "upscale", "a.png", "--scale", "2")
    assert images.read(tmp_path / "a_denoised.png").pixels.shape == (18, 25, 3)
    assert images.read(tmp_path / "b_denoised.png").pixels.shape == (19, 14)
    assert images.read(tmp_path / "a_x2.png").pixels.shape == (36, 50, 3)


def ask(url: str, data: bytes | None = None, kind: str = "application/json") -> bytes:
    request = urllib.request.Request(url, data, {"content-type": kind})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=60) as answer:
        body: bytes = answer.read()
    return body


@pytest.mark.slow
def test_the_installed_wheel_has_the_page(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    picture(tmp_path / "a.png", (18, 25, 3))
    command = [str(installed / "nlrn"), "web", "--port", "0", "--no-browser"]
    server = subprocess.Popen(
        command, cwd=tmp_path, env=outside(), stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        address = server.stdout.readline().split()[4]
        assert b"<title>" in ask(address)
        sent = (tmp_path / "a.png").read_bytes()
        upload = ask(f"{address}/api/pictures?name=a.png", sent, "application/octet-stream")
        wanted = {"picture": json.loads(upload)["id"], "sigma": 25}
        job = json.loads(ask(f"{address}/api/jobs", json.dumps(wanted).encode()))
        while job["state"] in ("waiting", "running"):
            time.sleep(0.1)
            job = json.loads(ask(f"{address}/api/jobs/{job['id']}"))
        assert job["state"] == "done", job
        (tmp_path / "b.png").write_bytes(ask(f"{address}/api/jobs/{job['id']}/result"))
    finally:
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=30)
    before, after = (images.read(tmp_path / f"{name}.png").pixels for name in "ab")
    assert before.shape == after.shape and not np.array_equal(before, after)
    assert server.returncode == 0
