"""The network: a recurrent cell with a non-local module, unrolled T times."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn.models.base import AttentionLayout, Network, TrainingMode, Watch, noise_map_for
from nlrn.models.nlrn_config import CONFIGS, NLRNConfig
from nlrn.models.nlrn_inference import NLRNInference
from nlrn.models.non_local import Attend, NonLocal2d, NonLocalBlock2d, xavier_
from nlrn.models.pixel_grid import from_grid, to_grid
from nlrn.models.shared_weights import OneForEachState
from nlrn.ops import AttentionSpec, Correlation, attend, correlation_bytes

__all__ = ["CONFIGS", "NLRN", "NLRNConfig", "NonLocal2d", "NonLocalBlock2d", "random_network"]
FEATURE_MAPS = 12  # tensors of the size of a state that the network and its libraries hold at most


class BatchNorms(nn.Module):
    """The three batch norms of one state: before the module and before each convolution."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.non_local = nn.BatchNorm2d(channels)
        self.conv1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.BatchNorm2d(channels)


class RecurrentCell(nn.Module):
    """The transition function: a non-local module, two convolutions, the identity path."""

    def __init__(self, config: NLRNConfig, with_non_local: bool) -> None:
        super().__init__()
        self.non_local = (
            NonLocal2d(
                config.channels,
                config.embed,
                config.window,
                affinity=config.affinity,
                border=config.border,
                bandwidth=config.bandwidth,
                keep_correlation=config.propagate,
            )
            if with_non_local
            else None
        )
        self.conv1 = _conv3x3(config.channels, config.channels)
        self.conv2 = _conv3x3(config.channels, config.channels)

    def forward(
        self,
        state: Tensor,
        skip: Tensor,
        correlation: Correlation | None,
        norms: BatchNorms,
        non_local: bool,
        attend: Attend | None,
        spec: AttentionSpec,
    ) -> tuple[Tensor, Correlation | None]:
        """States s^(t-1) and s^0 [B, m, H, W] -> (s^t, correlation to hand on).

        Args:
            state: the state before.
            skip: the first one.
            correlation: what the state before handed on.
            norms: batch norms of this state.
            non_local: whether the non-local module takes part. (Not to be told from `attend`: of
                that, torch.compile would take what it was at the first state.)
            attend: computes the operator.
            spec: takes the place of the module's own.
        """
        x = F.relu(norms.non_local(state))
        if non_local and self.non_local is not None:
            x, correlation = self.non_local(x, correlation, attend, spec)
        x = self.conv1(norms.conv1(x))  # no ReLU here, as in the authors' code
        x = self.conv2(F.relu(norms.conv2(x)))
        return x + skip, correlation


class NLRN(Network):
    """The Non-Local Recurrent Network: degraded image in, restored image out.

    Args:
        config: shape of the network; the paper's by default.
    """

    architecture = "nlrn"
    paper = "Liu et al., Non-Local Recurrent Network for Image Restoration, NeurIPS 2018"
    config_class = NLRNConfig
    config: NLRNConfig

    def __init__(self, config: NLRNConfig | None = None) -> None:
        config = config or NLRNConfig()
        super().__init__(config)
        self.card = dataclasses.replace(self.card, channels=config.in_channels)
        self.steps, self.multiple = config.steps, config.unshuffle
        self.takes_noise_map = config.noise_map
        modules = [config.is_non_local(t) for t in range(config.steps)]
        # Module i serves state i; a tied network has one cell, shared norms are one set.
        self.cells = nn.ModuleList(
            RecurrentCell(config, has) for has in ([any(modules)] if config.tied else modules)
        )
        self.norms = nn.ModuleList(
            BatchNorms(config.channels) for _ in range(config.steps if config.norm_per_state else 1)
        )
        area = config.unshuffle**2
        given = area * config.in_channels + config.noise_map
        self.norm_in = nn.BatchNorm2d(given)
        self.conv_in = _conv3x3(given, config.channels)
        self.norm_out = nn.BatchNorm2d(config.channels)
        self.conv_out = _conv3x3(config.channels, area * config.out_channels)
        nn.init.zeros_(self.conv_out.weight)  # so that training starts at the identity

    def cell(self, step: int) -> RecurrentCell:
        """The cell of state `step`, counted from 0."""
        return self.cells[0 if self.config.tied else step]  # type: ignore[return-value]

    def norm(self, step: int) -> BatchNorms:
        """The batch norms of state `step`, counted from 0."""
        return self.norms[step if self.config.norm_per_state else 0]  # type: ignore[return-value]

    def forward(self, image: Tensor, *, non_local: bool = True) -> Tensor:
        """Degraded image [B, in, H, W] in [0, 1] -> restored image [B, out, H, W].

        Args:
            image: with the noise map as last channel, where the network takes one.
            non_local: whether the non-local modules take part.
        """
        operator = functools.partial(attend, reuse_prior=True) if non_local else None
        return self._unroll(image, self.cell, operator, self.config.attention)

    def watch(self, image: Tensor, watch: Watch) -> Tensor:
        """`forward`, with `watch` called for query and key of each comparison."""

        def watched(query: Tensor, key: Tensor, *others: Any, **options: Any) -> Any:
            watch(query, key)
            return attend(query, key, *others, reuse_prior=True, **options)

        return self._unroll(image, self.cell, watched, self.config.attention)

    @property
    def attention(self) -> AttentionLayout | None:
        config = self.config
        states = tuple(t + 1 for t in range(config.steps) if config.is_non_local(t))
        both = 2 if config.attention.kind.embedded == "both" else 1
        return AttentionLayout(config.attention, states, config.propagate, both * config.compared)

    def _unroll(
        self,
        image: Tensor,
        cell: Callable[[int], Callable[..., Any]],
        attend: Attend | None,
        spec: AttentionSpec,
    ) -> Tensor:
        """The whole network, with cell(t) as the cell of state t, counted from 0."""
        config = self.config
        cells = to_grid(image, config.unshuffle, config.noise_map)
        skip = state = self.conv_in(self.norm_in(cells))
        correlation: Correlation | None = None
        for t in range(config.steps):
            here, norms = attend is not None and config.is_non_local(t), self.norm(t)
            state, correlation = cell(t)(state, skip, correlation, norms, here, attend, spec)
        residual = self.conv_out(F.relu(self.norm_out(state)))
        return image[:, : config.out_channels] + from_grid(residual, image, config.unshuffle)

    @property
    def in_channels(self) -> int:
        return self.config.in_channels

    @property
    def out_channels(self) -> int:
        return self.config.out_channels

    @property
    def halo(self) -> int:
        return self.config.halo

    @property
    def can_tile_exactly(self) -> bool:
        return self.config.border != "circular"

    @property
    def flop_per_pixel(self) -> float:
        return self.config.flop_per_pixel

    def memory(self, height: int, width: int, dtype: torch.dtype, device: torch.device) -> int:
        """Bytes that the network takes at most: the scores and a dozen feature maps."""
        config = self.config
        height, width = (-(-side // config.unshuffle) for side in (height, width))
        if device.type == "cuda" and height * width * (config.channels + 2 * config.embed) >= 2**31:
            return 2**62  # kernels count elements in 32 bits: no memory is enough
        features = FEATURE_MAPS * height * width * config.channels * dtype.itemsize
        if not config.non_local_every:
            return features
        return features + correlation_bytes(
            height, width, config.attention, embed=config.compared, channels=config.channels,
            dtype=dtype, device=device,
        )  # fmt: skip

    def for_inference(
        self, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
    ) -> NLRNInference:
        """The network with its batch norms folded into its neighbours."""
        return NLRNInference(self, dtype, torch.device(device))

    def for_training(self, mode: TrainingMode) -> Callable[[Tensor], Tensor]:
        """`forward` with the operator and the border of a stage.

        With a dtype, weights that all states share are cast once, not once per state.
        """
        operator: Attend | None = None
        if mode.non_local:
            operator = functools.partial(attend, backend=mode.backend)
            if mode.backend != "dense":  # kernels or loops: not for the compiler to look into
                operator = torch.compiler.disable(operator)
        spec = dataclasses.replace(self.config.attention, border=mode.border)

        def forward(image: Tensor) -> Tensor:
            cell: Callable[[int], Callable[..., Any]] = self.cell
            if mode.dtype is not None and self.config.tied:
                cell = OneForEachState(self.cell(0), self.config.steps, mode.dtype)
            return self._unroll(image, cell, operator, spec)

        return forward

    def input_for(self, image: Tensor, sigma: float | Tensor) -> Tensor:
        """The image [B, C, H, W] and, where the network takes one, the noise map.

        Args:
            image: in [0, 1].
            sigma: noise level in the units of the image: a number, [B], or a map [B, 1, H, W].
        """
        if not self.takes_noise_map:
            return image
        return torch.cat([image, noise_map_for(image, sigma)], 1)

    def with_border(self, border: str) -> NLRN:
        """The same parameters with neighbourhoods that do something else at the image's edge."""
        view = copy.copy(self)
        view.config = dataclasses.replace(self.config, border=border)
        return view

    def matrices(self) -> list[nn.Parameter]:
        """All weights of convolutions but those from and to the image, which are filters."""
        filters = (self.conv_in.weight, self.conv_out.weight)
        return [p for p in self.parameters() if p.ndim > 1 and not any(p is f for f in filters)]

    def repeated_modules(self) -> Iterable[nn.Module]:
        # The cell alone: its code is compiled for the first state and for the others, while the
        # unrolled network would be compiled twelve times as long.
        return self.cells

    def counts(self) -> dict[str, int]:
        """Parameters of convolutions, the count that papers print, and of batch norms; depth."""
        return {
            "convolution_parameters": self.convolution_parameters,
            "batch_norm_parameters": self.norm_parameters,
            "effective_depth": self.config.effective_depth,
        }

    @property
    def convolution_parameters(self) -> int:
        """Parameters of all convolutions, the count that papers print."""
        return self._parameters_of(nn.Conv2d)

    @property
    def norm_parameters(self) -> int:
        """Trained parameters of all batch norms, without running statistics."""
        return self._parameters_of(nn.BatchNorm2d)

    def _parameters_of(self, kind: type[nn.Module]) -> int:
        chosen = (m for m in self.modules() if isinstance(m, kind))
        return sum(p.numel() for m in chosen for p in m.parameters())


def _conv3x3(channels_in: int, channels_out: int) -> nn.Conv2d:
    return xavier_(nn.Conv2d(channels_in, channels_out, 3, padding=1))


def random_network(config: NLRNConfig, seed: int = 0) -> NLRN:
    """An untrained network in which every part acts: for demonstrations, benchmarks and tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NLRN(config)
        for module in model.modules():
            if isinstance(module, NonLocal2d):
                xavier_(module.g)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.8, 1.2)  # type: ignore[arg-type]
                nn.init.uniform_(module.weight, 0.5, 0.9)
                nn.init.normal_(module.bias, std=0.05)
        nn.init.normal_(model.conv_out.weight, std=0.002)
    return model.eval()
