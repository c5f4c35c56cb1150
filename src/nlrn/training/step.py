"""One step: loss, gradients, clipping, update, moving average; compiled and recorded on a GPU."""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nlrn.errors import one_line
from nlrn.models import TrainingMode
from nlrn.models.bicubic import enlarge
from nlrn.training.batches import Batch
from nlrn.training.config import Config
from nlrn.training.config_tables import Stage
from nlrn.training.parsing import TrainingError
from nlrn.training.state import NORMS_KEPT, TrainState

WARM_STEPS = 4  # the first ones of a stage at each scale, in which kernels are compiled and chosen
_FLAT = 0.1  # mean squared error before, in units of the noise, below which patches count alike


class StepMetrics(NamedTuple):
    """What some steps were like.

    Attributes:
        loss: mean over those that changed the weights. If none did, over those whose gradient was
            too large; if all gradients were no numbers, NaN.
        grad_norm: of the last one.
        skipped: how many changed nothing.
    """

    loss: float
    grad_norm: float
    skipped: int


class Step:
    """A training step of one stage, to be called once per batch.

    The loss is the paper's 1/2 squared error over the whole patch, as a mean over all pixels and
    in units of the noise: 0.5 for the noisy image itself at every noise level, unless the config
    balances the patches. Nothing is read back from the device; `pop_metrics` does that.

    On one GPU the first steps run as they are, then a whole step is recorded as a CUDA graph and
    replayed: launched one by one, its thousands of small kernels would keep the GPU waiting.
    What cannot be compiled or recorded runs without, after one line of warning.
    """

    def __init__(self, state: TrainState, config: Config, stage: Stage, fabric: Any) -> None:
        self.state, self.fabric, self._options = state, fabric, config.optimizer
        self.scale = 255 / config.data.sigma
        model = state.model
        device = next(model.parameters()).device
        mode = TrainingMode(
            non_local=stage.non_local,
            border=stage.border,
            backend=config.runtime.attention,
            dtype=_compute_dtype(fabric, device),
        )
        scales = config.data.factors if model.factors else (1,)
        self._restore = {scale: model.with_scale(scale).for_training(mode) for scale in scales}
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._current, self._averaged = _floating(model), _floating(state.ema_model)
        self._ema_alpha = torch.zeros((), device=device)
        # Loss and number of the steps that changed the weights, and of those too large to, since
        # the metrics were last taken.
        self._totals = torch.zeros(4, device=device)
        self._grad_norm = torch.zeros((), device=device)
        self._count = 0  # all steps since then
        self.done = 0
        on_gpu = device.type == "cuda"
        # scale -> the recorded step, and where it reads its batch
        self._graphs: dict[int, tuple[torch.cuda.CUDAGraph, Batch]] = {}
        self._record = config.runtime.cuda_graph and on_gpu and fabric.world_size == 1
        # A step that will be recorded must have run on another stream than the main one.
        self._side = torch.cuda.Stream() if self._record else None
        self._compiled = config.runtime.compile and on_gpu
        torch.compiler.reset()  # what was compiled for the last stage does not fit this one
        for module in model.repeated_modules():
            module._compiled_call_impl = None
            if self._compiled:
                module.compile(dynamic=False)

    def __call__(self, batch: Batch, rate: float, ema_alpha: float) -> None:
        """Learns from patches [B, C, P, P] with this learning rate."""
        self._set(rate, ema_alpha)
        scale = _scale(batch)
        is_warm = self.done >= self.warm_steps - len(self._restore)
        if self._record and is_warm and scale not in self._graphs:
            self._try_to_record(batch)
        if scale in self._graphs:
            graph, inputs = self._graphs[scale]
            for recorded, given in zip(inputs, batch, strict=True):
                recorded.copy_(given)
            graph.replay()
        elif self._side is not None:
            self._side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._side):
                self._run(batch)
            torch.cuda.current_stream().wait_stream(self._side)
        else:
            self._run(batch)
        self._count += 1
        self.done += 1

    @property
    def warm_steps(self) -> int:
        """The first steps, in which kernels are compiled and chosen for every scale."""
        return WARM_STEPS * len(self._restore)

    def wait(self) -> None:
        """Returns when the device has done all steps."""
        self._grad_norm.item()

    def pop_metrics(self) -> StepMetrics:
        """What the steps since the last call were like; waits for the device."""
        totals = self._totals
        if self.fabric.world_size > 1:
            totals = self.fabric.all_reduce(totals.clone(), reduce_op="mean")
        *sums, norm = torch.cat([totals, self._grad_norm.view(1)]).tolist()
        skipped = self._count - round(sums[1])
        loss, count = sums[:2] if sums[1] else sums[2:]
        self._totals.zero_()
        self._count = 0
        return StepMetrics(loss / count if count else math.nan, norm, skipped)

    def _set(self, rate: float, ema_alpha: float) -> None:
        self._ema_alpha.fill_(ema_alpha)
        for group in (g for o in self.state.optimizers for g in o.param_groups):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def _run(self, batch: Batch) -> None:
        """A step launched kernel by kernel; without the compiler if that fails."""
        model = self.state.model
        try:
            model.zero_grad(set_to_none=True)
            self._compute(batch)
        except Exception as error:
            if not self._compiled or self.done >= self.warm_steps:
                raise
            _warn("compiling the network failed, going on without", error)
            self._compiled = False
            for module in model.repeated_modules():
                module._compiled_call_impl = None
            model.zero_grad(set_to_none=True)
            self._compute(batch)

    def _try_to_record(self, batch: Batch) -> None:
        inputs = Batch(*(tensor.clone() for tensor in batch))
        self.state.model.zero_grad(set_to_none=True)  # so that gradients belong to the graph
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                self._compute(inputs)
            self._graphs[_scale(batch)] = graph, inputs
        except Exception as error:
            _warn("recording the step as a CUDA graph failed, going on without", error)
            self._record, self._side = False, None
            torch.cuda.synchronize()

    def _compute(self, batch: Batch) -> None:
        (degraded, clean, sigma), scale = batch, _scale(batch)
        with self.fabric.autocast():
            restored = self._restore[scale](self.state.model.input_for(degraded, sigma / 255))
        if restored.shape != clean.shape:
            got = f"{tuple(restored.shape)} for {tuple(clean.shape)}"
            raise TrainingError(f"the network's result has another shape than the image: {got}")
        errors = self._squared_error(restored.float(), clean)
        if balance := self._options.loss_balance:
            before = self._squared_error(enlarge(degraded, scale), clean)
            errors = errors / (before + _FLAT).pow(balance)
        if most := self._options.robust_above:
            errors = most * torch.log1p(errors / most)
        loss = 0.5 * errors.mean()
        loss.backward()
        if self.fabric.world_size > 1:
            self._average_gradients()
        limit = self._options.clip_norm or float("inf")
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, limit)
        bad = self._is_bad(norm)
        self._learn(bad)
        self._update_average()
        self._add_up(loss.detach(), norm, bad)

    def _is_bad(self, norm: Tensor) -> Tensor:
        """Whether a gradient of this norm is to be left out; decided on the device."""
        finite = norm.isfinite()
        if not self._options.skip_above:
            return ~finite
        norms = self.state.grad_norms
        usual = norms.sort().values[NORMS_KEPT // 2]  # infinite while there are few of them
        bad = ~finite | (norm > self._options.skip_above * usual)
        # It counts even if it is left out: where all gradients have grown, that is soon usual.
        norms.copy_(torch.where(finite, torch.cat([norms[1:], norm.view(1)]), norms))
        return bad

    def _add_up(self, loss: Tensor, norm: Tensor, bad: Tensor) -> None:
        cases = torch.stack([~bad, bad & norm.isfinite()])
        sums = torch.where(cases, loss, 0.0)
        self._totals += torch.stack([sums, cases.float()], 1).flatten()
        self._grad_norm.copy_(norm)

    def _squared_error(self, patches: Tensor, clean: Tensor) -> Tensor:
        """Mean of each patch, in units of the noise [B]."""
        return ((patches - clean) * self.scale).square().mean((1, 2, 3))

    def _learn(self, bad: Tensor) -> None:
        """The optimizers' step, but not with gradients that are no numbers or far too large.

        Where batch-norm statistics were learned until now and are frozen, a patch in fifty makes
        the recurrent states grow without bounds; the other steps teach the network not to.
        """
        if not bad.is_cuda and bad:
            return
        for optimizer in self.state.optimizers:
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
        torch._foreach_mul_(change, self._ema_alpha)
        torch._foreach_add_(self._averaged, change)


def _scale(batch: Batch) -> int:
    """How many times larger the clean patches are."""
    return batch.clean.shape[-1] // batch.degraded.shape[-1]


def _compute_dtype(fabric: Any, device: torch.device) -> torch.dtype:
    """What convolutions compute in under the run's precision."""
    with fabric.autocast():
        half = torch.is_autocast_enabled(device.type)
        return torch.get_autocast_dtype(device.type) if half else torch.get_default_dtype()


def _floating(model: torch.nn.Module) -> list[Tensor]:
    """Parameters and batch-norm statistics; the counter of batches is no number to average."""
    return [t.detach() for t in model.state_dict().values() if t.is_floating_point()]


def _warn(what: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {one_line(error)}"
    print(f"warning: {what} ({reason})", file=sys.stderr, flush=True)
