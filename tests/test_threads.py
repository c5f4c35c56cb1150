"""Threads leave other programs their cores."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_networks import strong_network

from nlrn import threads
from nlrn.inference import Engine
from nlrn.threads import SPINS, Cores, beside_others


class Machine:
    """Cores whose times a test says; the process has two of three."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.own, self.busy = 0.0, 0.0, [0.0, 0.0, 0.0]
        self._file = tmp_path / "stat"
        monkeypatch.setattr(threads, "STATISTICS", self._file)
        monkeypatch.setattr(threads.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(threads.time, "process_time", lambda: self.own)
        monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 2}, raising=False)
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        self.pass_time(0.0, 0.0, 0.0, 0.0, 0.0)

    def pass_time(self, seconds: float, own: float, *busy: float) -> None:
        """Lets time pass, of which the process and each core have had these shares."""
        self.now += seconds
        self.own += own * seconds
        self.busy = [b + share * seconds for b, share in zip(self.busy, busy, strict=True)]
        ticks = [round(b * os.sysconf("SC_CLK_TCK")) for b in self.busy]
        lines = [f"cpu{i} {t} 0 0 999 99 0 0 0 7 7" for i, t in enumerate(ticks)]
        self._file.write_text("\n".join([f"cpu {sum(ticks)} 0 0 99", *lines, "intr 8 7"]))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("own", "busy", "expected"),
    [
        (0.0, (0.0, 0.0, 0.0), 2),
        (1.9, (1.0, 0.0, 0.9), 2),  # all of it is our own
        (0.3, (0.2, 1.0, 0.3), 2),  # a little, and a core that is not ours
        (1.4, (1.0, 0.0, 0.9), 1),  # another program shares a core with us
        (0.0, (0.0, 0.0, 1.0), 1),
        (0.2, (1.0, 1.0, 1.0), 1),  # all cores are taken: half of them all the same
    ],
)
def test_other_programs_keep_their_cores(
    machine: Machine, own: float, busy: tuple[float, ...], expected: int
) -> None:
    cores = Cores()
    machine.pass_time(3.0, own, *busy)
    assert cores.threads(2) == expected
    machine.pass_time(0.01, 0.0, 0.0, 0.0, 0.0)
    assert cores.threads(2) == expected, "too early to look again"
    machine.pass_time(0.5, 0.0, 0.0, 0.0, 0.0)
    assert cores.threads(2) == 2


def test_who_has_decided_is_obeyed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores()
    machine.pass_time(1.0, 0.0, 1.0, 0.0, 1.0)
    assert cores.threads(1) == 1
    assert cores.threads(5) == 5, "more threads than cores"
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert cores.threads(2) == 2


def test_without_linux_nothing_changes(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threads, "STATISTICS", tmp_path / "missing")
    assert Cores().threads(2) == 2
    monkeypatch.delattr(threads.os, "sched_getaffinity")
    assert Cores().threads(2) == 2


class Fewer(Cores):
    """Cores that are taken from the second look on."""

    looks = 0

    def threads(self, limit: int) -> int:
        self.looks += 1
        return limit if self.looks == 1 else limit - 1


def test_a_restoration_looks_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "CORES", Fewer())
    before, network = torch.get_num_threads(), strong_network()
    torch.set_num_threads(2)
    try:
        seen: list[int] = []
        image = torch.rand(1, network.in_channels, 20, 26)
        Engine(network)(image, lambda *_: seen.append(torch.get_num_threads()))
        assert len(seen) == network.steps and set(seen) == {1}
        assert torch.get_num_threads() == 2
        with pytest.raises(ValueError, match="in the middle"), beside_others() as look:
            look()
            raise ValueError("in the middle")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("first", "variables", "expected"),
    [
        ("", {}, SPINS),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "active"}, "None"),
        ("import types, sys; sys.modules['torch'] = types.ModuleType('torch')", {}, "None"),
    ],
)
def test_waiting_is_set_where_nobody_has(
    first: str, variables: dict[str, str], expected: str
) -> None:
    code = f"{first}\nimport os, nlrn\nprint(os.environ.get('GOMP_SPINCOUNT'))"
    others = {k: v for k, v in os.environ.items() if k not in threads.WAITING}
    said = subprocess.run(
        [sys.executable, "-c", code], env=others | variables, capture_output=True, check=True
    )
    assert said.stdout.decode().strip() == expected


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_benchmark_of_load_runs(capsys: pytest.CaptureFixture[str]) -> None:
    import runpy

    root = Path(__file__).parents[1]
    ratios = runpy.run_path(str(root / "benchmarks" / "load.py"))["main"](24, 0.1)
    assert ratios.keys() == {"torch", "nlrn"} and min(ratios.values()) > 0
    assert "at most 2.2 times: " in capsys.readouterr().out
