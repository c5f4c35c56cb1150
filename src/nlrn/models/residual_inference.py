"""The everyday network for inference: what states have of their own goes into their convolutions.

Scales before and after a convolution, its shift and the gate behind the second one are weights and
biases of that state's own copy, which is small. What is left between the convolutions is one pass:
add to the stream, norm, ReLU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.pixel_grid import from_grid
from nlrn.models.recurrence import EPSILON, Recurrence
from nlrn.ops import attend, kernels_run_on

if TYPE_CHECKING:
    from nlrn.models.nlrn_residual import ResidualNLRN

SAMPLED = 17  # every so many pixels are enough for the mean of the keys
BLOCK = 2**18  # values that a CPU's core has at hand from one pass over them to the next
Weights = tuple[Tensor, Tensor]  # of a convolution: weight and bias


@dataclass(frozen=True)
class _State:
    """One state: norm, the module (theta, psi and g in one product), two convolutions."""

    scale: Tensor
    shift: Tensor
    module: Weights | None
    conv1: Weights
    conv2: Weights


class RecurrenceInference(nn.Module):
    """A `Recurrence` that computes in `dtype` on `device`, without gradients.

    Args:
        recurrence: what it is made from; it is not changed.
        border: what neighbourhoods do at the edge.
        dtype: float32 or bfloat16 for speed, float64 for comparisons.
        device: where to compute.
    """

    def __init__(
        self, recurrence: Recurrence, border: str, dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.config, self.dtype, self.device = recurrence.config, dtype, device
        self.border = border
        self._fused = dtype != torch.float64 and kernels_run_on(device)
        with torch.no_grad():
            self._states = [self._fold(recurrence, t) for t in range(self.config.steps)]
        self._ones = torch.ones(self.config.channels, dtype=dtype, device=device)

    @torch.inference_mode()
    def forward(self, features: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Features [B, m, H, W], channels last -> features alike; the given ones are used up.

        The stream is float32 at least, as in training: twelve sums in bfloat16 would cost 0.01 dB.
        """
        pixels = features.to(torch.promote_types(self.dtype, torch.float32)).permute(0, 2, 3, 1)
        stream = pixels.contiguous().permute(0, 3, 1, 2)
        added, correlation = None, None
        spec, embed = self.config.attention_with(self.border), self.config.embed
        last = max((t for t, s in enumerate(self._states) if s.module is not None), default=-1)
        for t, state in enumerate(self._states):
            x = self._norm_relu(stream, added, state)
            if state.module is not None:
                rows = self._project(x, *state.module)
                query, key, value = rows.split((embed, embed, x.shape[1]), 1)
                x, correlation = attend(
                    query,
                    key,
                    value,
                    spec,
                    prior_scores=correlation,
                    keep_correlation=t < last,
                    reuse_prior=True,
                    skip=(x, self._ones),
                )
            x = self._convolve_relu(x, *state.conv1)
            added = F.conv2d(x, *state.conv2, padding=1)
            if on_step is not None:
                on_step()
        return (stream if added is None else stream.add_(added)).to(self.dtype)

    def _norm_relu(self, stream: Tensor, added: Tensor | None, state: _State) -> Tensor:
        """ReLU(norm(stream + added)); the sum is written over `stream`."""
        if self._fused:
            from nlrn.ops.triton.pointwise import add_norm_relu

            return add_norm_relu(stream, added, state.scale, state.shift, EPSILON)
        pixels = stream.permute(0, 2, 3, 1)
        sums = pixels.flatten(0, 2)  # BHW C, the same memory
        more = None if added is None else added.permute(0, 2, 3, 1).flatten(0, 2)
        x = torch.empty_like(sums, dtype=self.dtype)
        scale, shift = (vector.to(sums.dtype) for vector in (state.scale, state.shift))
        at_once = BLOCK // sums.shape[1]
        for start in range(0, len(sums), at_once):
            here = slice(start, start + at_once)
            rows = sums[here]
            if more is not None:
                rows += more[here]
            # rms_norm by hand: on a CPU its parts run one after the other, in more passes.
            length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
            normed = rows * (length.square_() / rows.shape[1]).add_(EPSILON).rsqrt_()
            x[here] = torch.addcmul(shift, normed, scale).relu_()
        return x.view(pixels.shape).permute(0, 3, 1, 2)

    def _project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """theta, psi and g of all pixels, one after the other along the channels.

        Keys without the mean over some of the pixels: see `non_local.centered`.
        """
        embed, limit, pixels = self.config.embed, self.config.embed_limit, x.permute(0, 2, 3, 1)
        rows = F.linear(pixels.flatten(0, 2), weight, bias)  # BHW C
        embeddings = rows[:, : 2 * embed].unflatten(1, (2, embed))
        if limit:
            length = torch.linalg.vector_norm(embeddings, dim=2, keepdim=True)
            embeddings *= torch.rsqrt(1 + (length / limit).square())
        embeddings[:, 1] -= _rough_mean(embeddings[:, 1])
        return rows.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2)

    def _convolve_relu(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if self._fused:
            from nlrn.ops.triton.pointwise import finish_

            return finish_(F.conv2d(x, weight, padding=1), bias)
        return F.conv2d(x, weight, bias, padding=1).relu_()

    def _fold(self, recurrence: Recurrence, step: int) -> _State:
        """The weights of one state, computed in float64."""
        cell = recurrence.cell(step)
        own = (vector.double() for vector in recurrence.vectors.by_state()[step])
        scale, shift, scale1, scale2, shift2, gate = own
        weight, bias = _double(cell.conv1)
        weight = weight * scale1[:, None, None] * scale2[:, None, None, None]
        conv1 = self.convolution(weight, bias * scale2 + shift2)
        weight, bias = _double(cell.conv2)
        conv2 = self.convolution(weight * gate[:, None, None, None], bias * gate)
        module = None
        if cell.non_local is not None and self.config.is_non_local(step):
            theta, psi = cell.non_local.theta, cell.non_local.psi
            assert theta is not None and psi is not None
            parts = [_double(layer) for layer in (theta, psi, cell.non_local.g)]
            weights, biases = zip(*parts, strict=True)
            module = self._ready(torch.cat(weights).flatten(1)), self._ready(torch.cat(biases))
        return _State(self._ready(scale), self._ready(shift), module, conv1, conv2)

    def of(self, convolution: nn.Conv2d) -> Weights:
        """The weights of a convolution before or after the states, ready to be used."""
        return self.convolution(*_double(convolution))

    def convolution(self, weight: Tensor, bias: Tensor) -> Weights:
        """A convolution's weights, ready to be used."""
        weight = weight.detach().to(self.device, self.dtype, memory_format=torch.channels_last)
        return weight, self._ready(bias)

    def _ready(self, values: Tensor) -> Tensor:
        return values.detach().to(self.device, self.dtype)


class ResidualInference(nn.Module):
    """A `ResidualNLRN` that computes in `dtype` on `device`, without gradients.

    Args:
        network: what it is made from; it is not changed.
        dtype: float32 or bfloat16 for speed, float64 for comparisons.
        device: where to compute.
    """

    can_be_recorded = True  # what it launches depends on the size of the image alone

    def __init__(self, network: ResidualNLRN, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config, self.dtype, self.device = network.config, dtype, device
        self.states = RecurrenceInference(network.states, network.config.border, dtype, device)
        self._in = self.states.of(network.conv_in)
        self._out = self.states.of(network.conv_out)

    @torch.inference_mode()
    def forward(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Image and noise map [B, in + 1, H, W] -> restored image, float32, on the image's device.

        Args:
            image: values in [0, 1], the noise map last.
            on_step: called after every state, to show progress; on CUDA, when it has been launched.
        """
        from nlrn.models.nlrn_residual import centered_cells

        cells = centered_cells(image.to(self.device), self.config.unshuffle)
        cells = cells.to(self.dtype, memory_format=torch.channels_last)
        features = F.conv2d(cells, *self._in, padding=1)
        features = self.states(features.contiguous(memory_format=torch.channels_last), on_step)
        residual = F.conv2d(features.relu_(), *self._out, padding=1)
        exact = torch.promote_types(image.dtype, torch.float32)
        restored = from_grid(residual.to(image.device, exact), image, self.config.unshuffle)
        return image[:, : self.config.in_channels].to(exact) + restored


def _rough_mean(rows: Tensor) -> Tensor:
    """Mean [C] over some of the rows [N, C]."""
    some = rows[::SAMPLED]
    return some.mean(0, dtype=torch.promote_types(some.dtype, torch.float32)).to(some.dtype)


def _double(convolution: nn.Conv2d) -> Weights:
    """Weight and bias in float64."""
    assert convolution.bias is not None
    return convolution.weight.double(), convolution.bias.double()
