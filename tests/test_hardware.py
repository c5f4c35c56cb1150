"""Devices by name, and memory that is free."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from nlrn import hardware
from nlrn.hardware import choose_device


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu")], ids=str)
def test_a_device_by_name(name: str | torch.device) -> None:
    assert choose_device(name) == torch.device("cpu")


def test_auto_is_one_that_works() -> None:
    torch.empty(1, device=choose_device("auto"))


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="needs a machine without MPS")
def test_a_device_that_is_missing_is_one_short_line() -> None:
    for name in ("mps", "vulkan", "hpu", "meta"):
        with pytest.raises(ValueError, match=f"device '{name}' cannot be used: ") as told:
            choose_device(name)  # PyTorch's own message has 1400 characters
        assert len(str(told.value)) < 150 and "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["nowhere", "cuda:x", None], ids=str)
def test_no_device_at_all(name: str) -> None:
    with pytest.raises(ValueError, match=f"device must be auto, cpu, .* got {name!r}"):
        choose_device(name)


@pytest.mark.parametrize("version", [1, 2])
def test_copies_of_files_are_free_memory_in_a_container(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit, used = ("memory.max", "memory.current")
    folder, stat = tmp_path, "inactive_file 700\nactive_file 50\n"
    if version == 1:
        limit, used = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        folder, stat = tmp_path / "memory", "inactive_file 1\ntotal_inactive_file 700\n"
        folder.mkdir()
    for name, text in ((limit, "1000\n"), (used, "900\n"), ("memory.stat", stat)):
        (folder / name).write_text(text)
    monkeypatch.setattr(hardware, "CONTROL_GROUPS", tmp_path)
    assert min(hardware._container_limits()) == 800
    (folder / limit).write_text("max\n")
    assert min(hardware._container_limits()) == 2**62


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_limit_of_the_process_is_respected() -> None:
    """`ulimit -v`, in a process of its own."""
    script = """
import resource, torch
from nlrn.hardware import free_memory
cpu, limit = torch.device("cpu"), 6 * 2**30
before = free_memory(cpu)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
left = free_memory(cpu)
held = torch.ones(2**26)  # 1/4 GiB
print(before, limit, left, free_memory(cpu))
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr[-2000:]
    before, limit, left, later = map(int, found.stdout.split())
    assert 0 < left < min(before, limit)
    assert before < limit or 0.2 * 2**30 < left - later < 0.5 * 2**30


FORKED = """
import multiprocessing, sys, warnings
import numpy as np
import nlrn
from nlrn.models.nlrn import NLRNConfig, random_network

image = np.random.default_rng(0).integers(0, 256, (90, 120), np.uint8)
network = random_network(NLRNConfig(window=5, steps=2, channels=8, embed=4))
denoiser = nlrn.Denoiser(network)
doors = {
    "network": lambda: denoiser.restore(nlrn.images.as_image(image), 25).image.pixels,
    "classic": lambda: nlrn.denoise(image, 25, method="nlm"),
}
work = doors[sys.argv[1]]

def child(queue):
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        queue.put((float(work().mean()), [str(w.message) for w in told]))

before = float(work().mean())
context = multiprocessing.get_context("fork")
queue = context.Queue()
process = context.Process(target=child, args=(queue,))
process.start()
after, told = queue.get(timeout=60)
process.join()
assert abs(before - after) < 0.01, (before, after)
assert len(told) == 1 and "this process was forked" in told[0], told
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody forks")
@pytest.mark.parametrize("door", ["network", "classic"])
def test_a_forked_process_does_not_hang(door: str) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-W", "ignore", "-c", FORKED, door]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert found.returncode == 0, found.stderr[-2000:]


@pytest.mark.parametrize(
    ("there", "chosen"),
    [((), "cpu"), (("xpu",), "xpu"), (("mps", "xpu"), "mps"), (("cuda", "mps"), "cuda")],
    ids=str,
)
def test_auto_takes_what_torch_has(
    there: tuple[str, ...], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backends = {"cuda": torch.cuda, "mps": torch.backends.mps, "xpu": torch.xpu}
    for name, backend in backends.items():
        monkeypatch.setattr(backend, "is_available", lambda name=name: name in there)
    assert choose_device("auto") == torch.device(chosen)


@pytest.mark.skipif(torch.xpu.is_available(), reason="needs a machine without XPU")
def test_xpu_that_is_missing_is_one_line() -> None:
    with pytest.raises(ValueError, match="device 'xpu' cannot be used: "):
        choose_device("xpu")


def test_memory_of_other_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: 100)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 30)
    assert hardware.free_memory(torch.device("mps")) == 70
    monkeypatch.setattr(torch.xpu, "mem_get_info", lambda device: (50, 100))
    monkeypatch.setattr(torch.xpu, "memory_reserved", lambda device: 20)
    monkeypatch.setattr(torch.xpu, "memory_allocated", lambda device: 5)
    assert hardware.free_memory(torch.device("xpu")) == 65
    assert hardware.is_out_of_memory(RuntimeError("MPS backend out of memory (MPS allocated: ..."))


NO_OPERATOR = NotImplementedError(
    "The operator 'aten::im2col' is not currently implemented for the MPS device. If you want this "
    "op to be considered for addition please comment on https://github.com/pytorch/pytorch/issues"
)
NO_FLOAT64 = TypeError("Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't "
                       "support float64. Please use float32 instead.")  # fmt: skip
STAND_IN = "cpu:0"  # the CPU, but not the device that the package calls so


@pytest.mark.parametrize(
    ("error", "what"), [(NO_OPERATOR, "aten::im2col"), (NO_FLOAT64, "float64")], ids=["op", "type"]
)
def test_a_network_goes_to_the_cpu_where_an_operator_is_missing(
    error: Exception, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from small_networks import picture, strong_network

    from nlrn.inference import Engine, Settings
    from nlrn.models.nlrn_inference import NLRNInference

    network, image = strong_network(), picture(1, 1, 20, 31)
    expected = Engine(network, Settings(device="cpu"))(image)
    forward = NLRNInference.forward

    def lacking(self: NLRNInference, *inputs: Any) -> torch.Tensor:
        if self.device == torch.device(STAND_IN):
            raise error
        return forward(self, *inputs)

    monkeypatch.setattr(NLRNInference, "forward", lacking)
    engine = Engine(network, Settings(device=STAND_IN))
    with pytest.warns(UserWarning, match=f"^cpu:0 has no {what}: computing on the CPU$"):
        assert torch.equal(engine(image), expected)
    assert torch.equal(engine(image), expected)  # and not a word: warnings are errors
    timed = Engine(network, Settings(device=STAND_IN))
    with pytest.warns(UserWarning, match="computing on the CPU"):
        assert timed.seconds((20, 31)) > 0
    with pytest.raises(type(error)):  # what is wrong on the CPU is wrong
        monkeypatch.setattr(NLRNInference, "forward", lambda *_: (_ for _ in ()).throw(error))
        Engine(network, Settings(device="cpu"))(image)


def test_a_classic_method_goes_to_the_cpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from nlrn.restoration import ClassicDenoiser, classic

    method = classic.METHODS["nlm"]

    def lacking(noisy: Any, sigma: float, *, device: torch.device, progress: Any = None) -> Any:
        if device == torch.device(STAND_IN):
            raise NO_OPERATOR
        return method(noisy, sigma, device=device, progress=progress)

    x = torch.rand(1, 1, 18, 25, generator=torch.Generator().manual_seed(0))
    expected = ClassicDenoiser("nlm", device="cpu")(x, 0.1)
    monkeypatch.setitem(classic.METHODS, "nlm", lacking)
    denoiser = ClassicDenoiser("nlm", device=STAND_IN)
    with pytest.warns(UserWarning, match="cpu:0 has no aten::im2col: computing on the CPU"):
        assert torch.equal(denoiser(x, 0.1), expected)
    assert torch.equal(denoiser(x, 0.1), expected)
