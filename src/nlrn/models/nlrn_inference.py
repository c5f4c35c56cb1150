"""The network for inference: batch norm folded into its neighbours, one copy of the scores.

A batch norm with fixed statistics is a scale and a shift per channel. Where a convolution or the
non-local module stands next to it, that goes into their weights. Each state then has weights of
its own, which are small. Where Triton's kernels run, all that is done element by element happens in
the same pass over memory as something else or, after a convolution, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.non_local import NonLocal2d
from nlrn.models.pixel_grid import from_grid, to_grid
from nlrn.ops import Correlation, attend, kernels_run_on

if TYPE_CHECKING:
    from nlrn.models.nlrn import NLRN


@dataclass(frozen=True)
class _Module:
    """theta, psi and g as one 1x1 convolution; without embeddings only g."""

    weight: Tensor
    bias: Tensor
    parts: tuple[int, ...]
    shift: Tensor | None  # what could not be folded into g


@dataclass(frozen=True)
class _State:
    """One state on x = ReLU(batch norm(s)): the module, two convolutions, the next state's x."""

    module: _Module | None
    skip: Tensor  # scale of the batch norm after the module, on the skip connection
    skip_shift: Tensor  # its shift where there is no module
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor  # with scale and shift of the batch norm that comes next
    bias2: Tensor
    first: Tensor  # that scale, for the identity path


class NLRNInference(nn.Module):
    """An NLRN in eval mode that computes in `dtype` on `device`, without gradients.

    On CUDA nothing waits for the device before the result is asked for.

    Args:
        network: what it is made from; it is not changed.
        dtype: float32 or bfloat16 for speed, float64 for comparisons.
        device: where to compute.
    """

    def __init__(self, network: NLRN, dtype: torch.dtype, device: torch.device) -> None:
        super().__init__()
        self.config, self.dtype, self.device = network.config, dtype, device
        self.spec = network.config.attention
        self._fused = dtype != torch.float64 and kernels_run_on(self.device)
        # cuDNN applies bias and ReLU of the first convolution itself, 2 % of the whole network on
        # an H200; only where it was tried: half precision, channels in its units of eight.
        half = dtype in (torch.bfloat16, torch.float16)
        on_cuda = self._fused and self.device.type == "cuda"
        self._cudnn_relu = on_cuda and half and network.config.channels % 8 == 0
        with torch.no_grad():
            self._image_scale, self._image_shift = map(self._on_map, affine(network.norm_in))
            self._in = self._convolution(network.conv_in.weight, network.conv_in.bias)
            self._scale, self._shift = map(self._on_map, affine(network.norm(0).non_local))
            self._states = [self._fold(network, t) for t in range(network.config.steps)]
            self._out = self._convolution(network.conv_out.weight, network.conv_out.bias)

    @torch.inference_mode()
    def forward(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Image [B, in, H, W] -> restored image [B, out, H, W], float32, on the image's device.

        Args:
            image: values in [0, 1], with the noise map where the network takes one.
            on_step: called after every state, to show progress; on CUDA, when it has been launched.
        """
        given, propagate, last = image, self.config.propagate, self.config.steps - 1
        image = to_grid(image.to(self.device), self.config.unshuffle, self.config.noise_map)
        image = image.to(self.dtype, memory_format=torch.channels_last)
        image = torch.addcmul(self._image_shift, image, self._image_scale)
        skip = F.conv2d(image, *self._in, padding=1).contiguous(memory_format=torch.channels_last)
        x = torch.addcmul(self._shift, skip, self._scale).relu_()
        correlation: Correlation | None = None
        for t, state in enumerate(self._states):  # from ReLU(batch norm(s)) to that of the next
            if state.module is None:
                x = torch.addcmul(
                    state.skip_shift.view(1, -1, 1, 1), x, state.skip.view(1, -1, 1, 1)
                )
            else:
                x, correlation = attend(
                    *self._embed(x, state.module),
                    self.spec,
                    prior_scores=correlation if propagate else None,
                    keep_correlation=propagate and t < last,
                    reuse_prior=True,
                    skip=(x, state.skip),
                )
                if state.module.shift is not None:
                    x += state.module.shift
            x = self._convolve(x, state.weight1, state.bias1)
            x = self._convolve(x, state.weight2, state.bias2, skip, state.first)
            if on_step is not None:
                on_step()
        residual = from_grid(F.conv2d(x, *self._out, padding=1), given, self.config.unshuffle)
        exact = torch.promote_types(given.dtype, torch.float32)
        return given[:, : self.config.out_channels].to(exact) + residual.to(given.device, exact)

    def _embed(self, x: Tensor, module: _Module) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value of all pixels."""
        parts = self._project(x, module).split(module.parts, 1)
        if len(parts) == 1:
            return x, x, parts[0]
        return (parts[0], parts[0], parts[1]) if len(parts) == 2 else (parts[0], parts[1], parts[2])

    def _project(self, x: Tensor, module: _Module) -> Tensor:
        """theta, psi and g of all pixels, one after the other along the channels."""
        if not self._fused:
            return F.conv2d(x, module.weight, module.bias)
        # The same as a matrix product, which adds the bias on its way; B C H W -> B H W C.
        pixels = x.permute(0, 2, 3, 1)
        rows = F.linear(pixels.flatten(0, 2), module.weight.flatten(1), module.bias)
        return rows.view(*pixels.shape[:3], -1).permute(0, 3, 1, 2)

    def _convolve(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        added: Tensor | None = None,
        factor: Tensor | None = None,
    ) -> Tensor:
        """ReLU(convolution + bias + added * factor), the factor one for each channel."""
        if self._fused:
            from nlrn.ops.triton.pointwise import finish_

            if self._cudnn_relu and added is None:
                return torch.cudnn_convolution_relu(x, weight, bias, (1, 1), (1, 1), (1, 1), 1)
            return finish_(F.conv2d(x, weight, padding=1), bias, added, factor)
        x = F.conv2d(x, weight, bias, padding=1)
        if added is not None and factor is not None:
            x.addcmul_(added, factor.view(1, -1, 1, 1))
        return x.relu_()

    def _fold(self, network: NLRN, step: int) -> _State:
        cell, norms = network.cell(step), network.norm(step)
        skip, skip_shift = affine(norms.conv1)
        scale2, shift2 = affine(norms.conv2)
        last = step == network.config.steps - 1
        scale, shift = affine(network.norm_out if last else network.norm(step + 1).non_local)
        module = cell.non_local if network.config.is_non_local(step) else None
        return _State(
            None if module is None else self._fold_module(module, skip, skip_shift),
            self._vector(skip),
            self._vector(skip_shift),
            *self._convolution(*_scaled(cell.conv1, scale2, shift2)),
            *self._convolution(*_scaled(cell.conv2, scale, shift)),
            self._vector(scale),
        )

    def _fold_module(self, module: NonLocal2d, scale: Tensor, shift: Tensor) -> _Module:
        """Gives g the scale of the batch norm after it, and its shift too if weights sum to 1."""
        sums_to_one = module.spec.kind.softmax
        layers = [layer for layer in (module.theta, module.psi) if layer is not None]
        g_weight, g_bias = _scaled(module.g, scale, shift if sums_to_one else 0 * shift)
        weight = torch.cat([*(layer.weight.double() for layer in layers), g_weight])
        bias = torch.cat([*(_bias(layer) for layer in layers), g_bias])
        parts = (*(layer.out_channels for layer in layers), module.g.out_channels)
        rest = None if sums_to_one else self._on_map(shift)
        return _Module(*self._convolution(weight, bias), parts, rest)

    def _vector(self, values: Tensor) -> Tensor:
        return values.to(self.device, self.dtype)

    def _on_map(self, values: Tensor) -> Tensor:
        """Values of the channels [C] -> [1, C, 1, 1], ready for feature maps."""
        return self._vector(values).view(1, -1, 1, 1)

    def _convolution(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        assert bias is not None  # every convolution of the network has one
        weight = weight.detach().to(self.device, self.dtype, memory_format=torch.channels_last)
        return weight, bias.detach().to(self.device, self.dtype)


def affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the shift [C] that the batch norm comes to, in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _scaled(convolution: nn.Conv2d, scale: Tensor, shift: Tensor) -> tuple[Tensor, Tensor]:
    """Weight and bias of the convolution with a batch norm after it, in float64."""
    weight = convolution.weight.double() * scale[:, None, None, None]
    return weight, _bias(convolution) * scale + shift


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None
    return convolution.bias.double()
