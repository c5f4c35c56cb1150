"""One step: loss, gradients, clipping, update, moving average; compiled and recorded on a GPU."""

from __future__ import annotations

import math
import sys
from typing import Any

import torch
from torch import Tensor

from nlrn.training import tied
from nlrn.training.config import Config
from nlrn.training.learner import Learner

WARM_STEPS = 4  # the first steps of a stage, in which kernels are compiled and chosen
_FLAT = 0.1  # mean squared error before, in units of the noise, below which patches count alike


class Step:
    """A training step of one stage, to be called once per batch.

    The loss is the paper's 1/2 squared error over the whole patch, as a mean over all pixels and
    in units of the noise: 0.5 for the noisy image itself at every noise level, unless the config
    balances the patches. Nothing is read back from the device; `take` does that.

    On one GPU the first steps run as they are, then a whole step is recorded as a CUDA graph and
    replayed: launched one by one, its thousands of small kernels would keep the GPU waiting.
    What cannot be compiled or recorded runs without, after one line of warning.
    """

    def __init__(self, learner: Learner, config: Config, fabric: Any) -> None:
        self.learner, self.fabric = learner, fabric
        self.scale = 255 / config.data.sigma
        self.clip_norm, self.balance = config.optimizer.clip_norm, config.optimizer.balance
        model, average = learner.model, learner.average
        device = next(model.parameters()).device
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._current, self._averaged = _floating(model), _floating(average)
        self._average_weight = torch.zeros((), device=device)
        self._losses = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)  # steps since `take` without an update
        self._grad_norm = torch.zeros((), device=device)
        self._count = 0  # losses in the sum
        self.done = 0
        on_gpu = device.type == "cuda"
        self._graph: torch.cuda.CUDAGraph | None = None
        self._record = config.machine.cuda_graph and on_gpu and fabric.world_size == 1
        # A step that will be recorded must have run on another stream than the main one.
        self._side = torch.cuda.Stream() if self._record else None
        self._compiled = config.machine.compile and on_gpu
        torch.compiler.reset()  # what was compiled for the last stage does not fit this one
        for cell in model.cells:
            # The cell alone: its code is compiled for the first state and for the others, while
            # the unrolled network would be compiled twelve times as long.
            cell._compiled_call_impl = None
            if self._compiled:
                cell.compile(dynamic=False)

    def __call__(self, noisy: Tensor, clean: Tensor, rate: float, average_weight: float) -> None:
        """Learns from patches [B, 1, P, P] with this learning rate."""
        self._set(rate, average_weight)
        if self._graph is None and self._record and self.done >= WARM_STEPS - 1:
            self._try_to_record(noisy, clean)
        if self._graph is not None:
            self._inputs[0].copy_(noisy)
            self._inputs[1].copy_(clean)
            self._graph.replay()
        elif self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                self._run(noisy, clean)
            torch.cuda.current_stream().wait_stream(self._side)
        else:
            self._run(noisy, clean)
        self._count += 1
        self.done += 1

    def wait(self) -> None:
        """Returns when the device has done all steps."""
        self._losses.item()

    def take(self) -> tuple[float, float]:
        """Mean loss since the last call and the last gradient's norm; waits for the device."""
        total = self._losses
        if self.fabric.world_size > 1:
            total = self.fabric.all_reduce(total.clone(), reduce_op="mean")
        loss, norm, skipped = torch.stack([total, self._grad_norm, self._skipped]).tolist()
        learned = self._count - skipped
        self._losses.zero_()
        self._skipped.zero_()
        self._count = 0
        return (loss / learned if learned else math.nan), norm

    def _set(self, rate: float, average_weight: float) -> None:
        self._average_weight.fill_(average_weight)
        for group in (g for o in self.learner.optimizers for g in o.param_groups):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _run(self, noisy: Tensor, clean: Tensor) -> None:
        """A step launched kernel by kernel; without the compiler if that fails."""
        try:
            self.learner.model.zero_grad(set_to_none=True)
            self._compute(noisy, clean)
        except Exception as error:
            if not self._compiled or self.done >= WARM_STEPS:
                raise
            _warn("compiling the recurrent cell failed, going on without", error)
            self._compiled = False
            for cell in self.learner.model.cells:
                cell._compiled_call_impl = None
            self.learner.model.zero_grad(set_to_none=True)
            self._compute(noisy, clean)

    def _try_to_record(self, noisy: Tensor, clean: Tensor) -> None:
        self._inputs = (noisy.clone(), clean.clone())
        self.learner.model.zero_grad(set_to_none=True)  # so that gradients belong to the graph
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._compute(*self._inputs)
            self._graph = graph
        except Exception as error:
            _warn("recording the step as a CUDA graph failed, going on without", error)
            self._record, self._side = False, None
            torch.cuda.synchronize()

    def _compute(self, noisy: Tensor, clean: Tensor) -> None:
        with self.fabric.autocast():
            device = noisy.device.type
            half = torch.is_autocast_enabled(device)
            dtype = torch.get_autocast_dtype(device) if half else noisy.dtype
            restored = tied.forward(self.learner.model, noisy, dtype)
        errors = self._squared_error(restored.float(), clean)
        if self.balance:
            errors = errors / (self._squared_error(noisy, clean) + _FLAT).pow(self.balance)
        loss = 0.5 * errors.mean()
        loss.backward()
        if self.fabric.world_size > 1:
            self._average_gradients()
        limit = self.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        self._learn(bad=~norm.isfinite())
        self._update_average()
        self._losses += loss.detach().nan_to_num(0.0, 0.0, 0.0)
        self._grad_norm.copy_(norm)

    def _squared_error(self, patches: Tensor, clean: Tensor) -> Tensor:
        """Mean of each patch, in units of the noise [B]."""
        return ((patches - clean) * self.scale).square().mean((1, 2, 3))

    def _learn(self, bad: Tensor) -> None:
        """The optimizers' step, but not with gradients that are not numbers.

        Where batch-norm statistics were learned until now and are frozen, a patch in fifty makes
        the recurrent states grow without bounds; the other steps teach the network not to.
        """
        self._skipped += bad
        if not bad.is_cuda and bad:
            return
        for optimizer in self.learner.optimizers:
            if bad.is_cuda:  # nothing waits for the answer: fused Adam and Muon read it there
                optimizer.found_inf = bad.float()  # type: ignore[attr-defined]
            optimizer.step()

    @torch.no_grad()
    def _average_gradients(self) -> None:
        """The mean over all processes, in one message: it is little more than a megabyte."""
        grads = [p.grad for p in self._parameters if p.grad is not None]
        flat = self.fabric.all_reduce(torch.cat([g.flatten() for g in grads]), reduce_op="mean")
        for grad, mean in zip(grads, flat.split([g.numel() for g in grads]), strict=True):
            grad.copy_(mean.view_as(grad))

    @torch.no_grad()
    def _update_average(self) -> None:
        change = torch._foreach_sub(self._current, self._averaged)
        torch._foreach_mul_(change, self._average_weight)
        torch._foreach_add_(self._averaged, change)


def _floating(model: torch.nn.Module) -> list[Tensor]:
    """Parameters and batch-norm statistics; the counter of batches is no number to average."""
    return [t.detach() for t in model.state_dict().values() if t.is_floating_point()]


def _warn(what: str, error: Exception) -> None:
    reason = " ".join(str(error).split())[:200]
    print(f"warning: {what} ({type(error).__name__}: {reason})", file=sys.stderr, flush=True)
