"""The network for inference: batch norm folded into its neighbours, one copy of the scores.

A batch norm with fixed statistics is a scale and a shift per channel. Where a convolution or the
non-local module stands next to it, that goes into their weights; before a ReLU it stays one
multiply-add. Each state then has weights of its own, which are small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.model import NLRN, NonLocal2d
from nlrn.ops import AFFINITIES, Correlation, neighborhood_attention


@dataclass(frozen=True)
class _Module:
    """theta, psi and g as one 1x1 convolution; without embeddings only g."""

    weight: Tensor
    bias: Tensor
    parts: tuple[int, ...]
    shift: Tensor | None  # what could not be folded into g


@dataclass(frozen=True)
class _State:
    """One state: ReLU(scale * s + shift), the module, two convolutions."""

    scale: Tensor
    shift: Tensor
    module: _Module | None
    skip: Tensor  # scale of the batch norm after the module, on the skip connection
    skip_shift: Tensor  # its shift where there is no module
    weight1: Tensor
    bias1: Tensor
    weight2: Tensor
    bias2: Tensor


class FoldedNLRN:
    """An NLRN in eval mode that computes in `dtype` on `device`, without gradients.

    Args:
        model: the network; it is not changed.
        dtype: float32 or bfloat16 for speed, float64 for comparisons.
        device: where to compute.
    """

    def __init__(
        self, model: NLRN, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> None:
        self.config, self.dtype, self.device = model.config, dtype, torch.device(device)
        with torch.no_grad():
            self._image_scale, self._image_shift = map(self._vector, _affine(model.norm_in))
            self._in = self._convolution(model.conv_in.weight, model.conv_in.bias)
            self._states = [self._fold(model, t) for t in range(model.config.steps)]
            self._out_scale, self._out_shift = map(self._vector, _affine(model.norm_out))
            self._out = self._convolution(model.conv_out.weight, model.conv_out.bias)

    @torch.inference_mode()
    def __call__(self, image: Tensor, on_step: Callable[[], None] | None = None) -> Tensor:
        """Image [B, in, H, W] -> restored image [B, out, H, W], float32, on the image's device.

        Args:
            image: values in [0, 1].
            on_step: called after every state, to show progress.
        """
        given = image
        image = image.to(self.device, self.dtype, memory_format=torch.channels_last)
        image = torch.addcmul(self._image_shift, image, self._image_scale)
        first = state = F.conv2d(image, *self._in, padding=1)
        correlation: Correlation | None = None
        for t, weights in enumerate(self._states):
            last = t == self.config.steps - 1
            state, correlation = self._step(state, first, correlation, weights, last)
            if on_step is not None:
                on_step()
        features = torch.addcmul(self._out_shift, state, self._out_scale).relu_()
        residual = F.conv2d(features, *self._out, padding=1)
        exact = torch.promote_types(given.dtype, torch.float32)
        return given[:, : self.config.out_channels].to(exact) + residual.to(given.device, exact)

    def _step(
        self,
        state: Tensor,
        first: Tensor,
        correlation: Correlation | None,
        weights: _State,
        last: bool,
    ) -> tuple[Tensor, Correlation | None]:
        x = torch.addcmul(weights.shift, state, weights.scale).relu_()
        if weights.module is None:
            x = torch.addcmul(weights.skip_shift, x, weights.skip)
        else:
            attended, correlation = self._attend(x, correlation, weights.module, last)
            x = torch.addcmul(attended, x, weights.skip)
            if weights.module.shift is not None:
                x += weights.module.shift
        x = F.conv2d(x, weights.weight1, weights.bias1, padding=1).relu_()
        x = F.conv2d(x, weights.weight2, weights.bias2, padding=1)
        return x.add_(first), correlation

    def _attend(
        self, x: Tensor, correlation: Correlation | None, module: _Module, last: bool
    ) -> tuple[Tensor, Correlation | None]:
        parts = list(F.conv2d(x, module.weight, module.bias).split(module.parts, 1))
        theta, psi, g = {1: [x, x, *parts], 2: [parts[0], *parts], 3: parts}[len(parts)]
        return neighborhood_attention(
            theta,
            psi,
            g,
            window=self.config.window,
            affinity=self.config.affinity,
            border=self.config.border,
            bandwidth=self.config.bandwidth,
            prior=correlation if self.config.propagate else None,
            keep_correlation=self.config.propagate and not last,
            reuse_prior=True,
        )

    def _fold(self, model: NLRN, step: int) -> _State:
        cell, norms = model.cell(step), model.norm(step)
        scale, shift = _affine(norms.non_local)
        skip, skip_shift = _affine(norms.conv1)
        scale2, shift2 = _affine(norms.conv2)
        module = cell.non_local if model.config.is_non_local(step) else None
        weight1 = cell.conv1.weight.double() * scale2[:, None, None, None]
        bias1 = _bias(cell.conv1) * scale2 + shift2
        return _State(
            self._vector(scale),
            self._vector(shift),
            None if module is None else self._fold_module(module, skip, skip_shift),
            self._vector(skip),
            self._vector(skip_shift),
            *self._convolution(weight1, bias1),
            *self._convolution(cell.conv2.weight, _bias(cell.conv2)),
        )

    def _fold_module(self, module: NonLocal2d, scale: Tensor, shift: Tensor) -> _Module:
        """Gives g the scale of the batch norm after it, and its shift too if weights sum to 1."""
        sums_to_one = AFFINITIES[module.affinity].softmax
        layers = [layer for layer in (module.theta, module.psi) if layer is not None]
        g_weight = module.g.weight.double() * scale[:, None, None, None]
        g_bias = _bias(module.g) * scale + (shift if sums_to_one else 0)
        weight = torch.cat([*(layer.weight.double() for layer in layers), g_weight])
        bias = torch.cat([*(_bias(layer) for layer in layers), g_bias])
        parts = (*(layer.out_channels for layer in layers), module.g.out_channels)
        rest = None if sums_to_one else self._vector(shift)
        return _Module(*self._convolution(weight, bias), parts, rest)

    def _vector(self, values: Tensor) -> Tensor:
        """Per-channel values [C] -> [1, C, 1, 1], ready for feature maps."""
        return values.to(self.device, self.dtype).view(1, -1, 1, 1)

    def _convolution(self, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
        assert bias is not None  # every convolution of the network has one
        weight = weight.detach().to(self.device, self.dtype, memory_format=torch.channels_last)
        return weight, bias.detach().to(self.device, self.dtype)


def _affine(norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The scale and the shift [C] that the batch norm comes to, in float64."""
    assert norm.running_mean is not None and norm.running_var is not None
    scale = norm.weight.double() / torch.sqrt(norm.running_var.double() + norm.eps)
    return scale, norm.bias.double() - norm.running_mean.double() * scale


def _bias(convolution: nn.Conv2d) -> Tensor:
    assert convolution.bias is not None
    return convolution.bias.double()
