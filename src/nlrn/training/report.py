"""What a run says: metrics.jsonl, TensorBoard, a progress bar or lines of text."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

METRICS = "metrics.jsonl"
_LINE_SECONDS = 20.0


class Report:
    """Writes every reading of the loss to the folder, and shows where the run is.

    Args:
        folder: where metrics.jsonl goes; lines past `step`, of a run that was killed after its
            last checkpoint, are removed.
        step: where the run goes on.
        tensorboard: whether to write its files too, when it is installed.
        is_main: whether this process is the one that reports.
    """

    def __init__(self, folder: Path, *, step: int, tensorboard: bool, is_main: bool) -> None:
        self._is_main = is_main
        self._board = self._bar = None
        self._last_line = 0.0
        if not is_main:
            return
        path = folder / METRICS
        kept = [entry for entry in read_metrics(path) if entry["step"] <= step] if step else []
        path.write_text("".join(json.dumps(entry) + "\n" for entry in kept), encoding="utf-8")
        self._file = path.open("a", encoding="utf-8")
        if tensorboard:
            self._board = _tensorboard(folder / "tensorboard")
        if sys.stdout.isatty():
            self._bar = _progress_bar()

    def metrics(self, values: dict[str, Any], *, done: float, left_seconds: float) -> None:
        """Takes a reading; `done` is the part of the stage that is over."""
        if not self._is_main:
            return
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
        self._to_board(values, ("loss", "lr", "grad_norm", "skipped", "steps_per_second"))
        if self._bar is not None:
            self._bar.update(0, completed=done, text=_line(values, left_seconds))
        elif time.monotonic() - self._last_line > _LINE_SECONDS:
            self._last_line = time.monotonic()
            print(_line(values, left_seconds), flush=True)

    def validation(self, step: int, psnr: dict[str, float], seconds: float) -> None:
        """Takes the result of a validation, by the name of the level."""
        if not self._is_main:
            return
        mean = sum(psnr.values()) / len(psnr)
        values = {"step": step, "psnr": mean} | {f"psnr_{level}": p for level, p in psnr.items()}
        if len(psnr) == 1:
            values = {"step": step, "psnr": mean}
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()
        self._to_board(values, tuple(values)[1:])
        parts = ", ".join(f"{level}: {p:.3f}" for level, p in psnr.items())
        levels = f" ({parts})" if len(psnr) > 1 else ""
        self.log(f"step {step}: validation {mean:.3f} dB{levels} ({seconds:.1f} s)")

    def log(self, text: str) -> None:
        """Prints a line, above the progress bar if there is one."""
        if self._is_main and self._bar is not None:
            self._bar.console.print(text, markup=False, emoji=False, highlight=False)
        elif self._is_main:
            print(text, flush=True)

    def _to_board(self, values: dict[str, Any], names: tuple[str, ...]) -> None:
        if self._board is not None:
            for name in names:
                self._board.add_scalar(name, values[name], values["step"])

    def __enter__(self) -> Report:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._is_main:
            return
        self._file.close()
        if self._bar is not None:
            self._bar.stop()
        if self._board is not None:
            self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file, none when there is no file."""
    entries = []
    if path.is_file():
        for line in path.read_text(encoding="utf-8").splitlines():
            with contextlib.suppress(json.JSONDecodeError):  # a line that a kill cut off
                entries.append(json.loads(line))
    return entries


def _line(values: dict[str, Any], left_seconds: float) -> str:
    psnr = "" if values["psnr"] is None else f"  psnr {values['psnr']:.2f}"
    minutes, seconds = divmod(int(left_seconds), 60)
    return (
        f"stage {values['stage'] + 1}  step {values['step']}  loss {values['loss']:.5f}{psnr}"
        f"  lr {values['lr']:.1e}  {values['steps_per_second']:.1f} steps/s"
        f"  {minutes}:{seconds:02d} left"
    )


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))


def _progress_bar() -> Any:
    try:
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    bar = Progress(BarColumn(12), TextColumn("{task.fields[text]}", markup=False))
    bar.add_task("training", total=1.0, text="starting")
    return bar
