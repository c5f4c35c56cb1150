"""The network: a recurrent cell with a non-local module, unrolled T times."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlrn import weights
from nlrn.ops import AFFINITIES, BORDERS, AttentionSpec, Correlation, attend


@dataclass(frozen=True)
class NLRNConfig:
    """Everything that decides the shape and the arithmetic of an NLRN.

    Attributes:
        steps: T, how often the recurrent cell is applied.
        channels: m, features of every state.
        embed: l, channels of the embeddings theta and psi.
        window: q, odd side of the neighbourhood.
        affinity: how two pixels are compared, a row of the paper's Table 1.
        border: what a neighbourhood does at the image's edge, "mask" or "circular".
        bandwidth: h of the euclidean affinity.
        propagate: whether a state adds the previous state's correlation to its own.
        non_local_every: k, a non-local module in every k-th state; 0 for none (a plain RNN).
        tied: whether all states share one set of weights.
        norm_per_state: whether every state has batch-norm parameters of its own.
        in_channels: channels of the input image.
        out_channels: channels of the result; the network adds to that many input channels.
    """

    steps: int = 12
    channels: int = 128
    embed: int = 64
    window: int = 45
    affinity: str = "embedded_gaussian"
    border: str = "mask"
    bandwidth: float = 10.0
    propagate: bool = True
    non_local_every: int = 1
    tied: bool = True
    norm_per_state: bool = True
    in_channels: int = 1
    out_channels: int = 1

    def __post_init__(self) -> None:
        for name in ("steps", "channels", "embed", "in_channels", "out_channels"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.window < 1 or self.window % 2 == 0:
            raise ValueError(f"window must be odd and positive, got {self.window}")
        if self.affinity not in AFFINITIES:
            known = ", ".join(AFFINITIES)
            raise ValueError(f"affinity must be one of {known}, got {self.affinity!r}")
        if self.border not in BORDERS:
            raise ValueError(f"border must be one of {', '.join(BORDERS)}, got {self.border!r}")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth must be above 0, got {self.bandwidth}")
        if self.non_local_every < 0:
            raise ValueError(f"non_local_every must be 0 or more, got {self.non_local_every}")
        if self.out_channels > self.in_channels:
            raise ValueError(
                f"out_channels must be at most in_channels ({self.in_channels}), "
                f"got {self.out_channels}"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NLRNConfig:
        """The config with these fields; a field that does not exist is an error naming it."""
        known = {field.name: type(field.default) for field in dataclasses.fields(cls)}
        for name, value in values.items():
            if name not in known:
                raise ValueError(f"unknown config key {name!r}; known keys: {', '.join(known)}")
            whole_as_float = known[name] is float and type(value) is int
            if type(value) is not known[name] and not whole_as_float:
                kind = known[name].__name__
                raise ValueError(f"config key {name!r} must be {kind}, got {value!r}")
        return cls(**values)

    def is_non_local(self, step: int) -> bool:
        """Whether state `step`, counted from 0, holds a non-local module."""
        return self.non_local_every > 0 and step % self.non_local_every == 0

    @property
    def effective_depth(self) -> int:
        """Layers from input to output, a non-local module counted as one."""
        return 2 + 2 * self.steps + sum(map(self.is_non_local, range(self.steps)))

    @property
    def flop_per_pixel(self) -> int:
        """Useful work of all states; masked or repeated work does not count."""
        m, convolutions = self.channels, 36 * self.channels**2
        embedded = AFFINITIES[self.affinity].embedded
        width = m if embedded == "none" else self.embed
        projections = {"none": 0, "shared": 1, "both": 2}[embedded] * m * self.embed + m * m
        non_local = 2 * projections + 2 * self.window**2 * (width + m)
        return sum(
            convolutions + (non_local if self.is_non_local(t) else 0) for t in range(self.steps)
        )


_BASE = NLRNConfig()
# Every variant of the paper's Tables 1 and 2, and of its two figures' other settings.
CONFIGS = {
    "nlrn": _BASE,
    "nlrn-euclidean": dataclasses.replace(_BASE, affinity="euclidean"),
    "nlrn-dot": dataclasses.replace(_BASE, affinity="dot"),
    "nlrn-embedded-dot": dataclasses.replace(_BASE, affinity="embedded_dot"),
    "nlrn-gaussian": dataclasses.replace(_BASE, affinity="gaussian"),
    "nlrn-symmetric": dataclasses.replace(_BASE, affinity="symmetric_embedded_gaussian"),
    "nlrn-untied": dataclasses.replace(_BASE, tied=False),
    "rnn": dataclasses.replace(_BASE, channels=135, non_local_every=0),
    "nlrn-every-2": dataclasses.replace(_BASE, non_local_every=2),
    "nlrn-every-3": dataclasses.replace(_BASE, non_local_every=3),
    "nlrn-no-propagation": dataclasses.replace(_BASE, propagate=False),
    "nlrn-shared-norm": dataclasses.replace(_BASE, norm_per_state=False),
    "nlrn-rgb": dataclasses.replace(_BASE, in_channels=3, out_channels=3),
}


class NonLocal2d(nn.Module):
    """Adds to each pixel the affinity-weighted mean of its window x window neighbourhood.

    g starts at zero, so that a module inserted into a trained network changes nothing at first.

    Args:
        channels: C, feature channels in and out.
        embed: D, channels of the embeddings theta and psi.
        window: odd side of the neighbourhood.
        affinity: how two pixels are compared, a name of `nlrn.ops.AFFINITIES`.
        border: "mask" or "circular".
        bandwidth: h of the euclidean affinity.
        keep_correlation: whether the correlation comes back; without it None does.
    """

    def __init__(
        self,
        channels: int,
        embed: int = 64,
        window: int = 45,
        *,
        affinity: str = "embedded_gaussian",
        border: str = "mask",
        bandwidth: float = 10.0,
        keep_correlation: bool = True,
    ) -> None:
        super().__init__()
        if affinity not in AFFINITIES:
            raise ValueError(f"affinity must be one of {', '.join(AFFINITIES)}, got {affinity!r}")
        if channels < 1 or embed < 1:
            raise ValueError(f"channels and embed must be positive, got {channels} and {embed}")
        if window < 1 or window % 2 == 0:
            raise ValueError(f"window must be odd and positive, got {window}")
        if border not in BORDERS:
            raise ValueError(f"border must be one of {', '.join(BORDERS)}, got {border!r}")
        self.window, self.affinity, self.border = window, affinity, border
        self.bandwidth, self.keep_correlation = bandwidth, keep_correlation
        self.operator = attend  # training may put a formulation of its own here
        embedded = AFFINITIES[affinity].embedded
        self.theta = nn.Conv2d(channels, embed, 1) if embedded != "none" else None
        self.psi = nn.Conv2d(channels, embed, 1) if embedded == "both" else None
        self.g = nn.Conv2d(channels, channels, 1)
        for embedding in (self.theta, self.psi):
            if embedding is not None:
                _xavier(embedding)
        nn.init.zeros_(self.g.weight)
        nn.init.zeros_(self.g.bias)  # type: ignore[arg-type]
        if self.psi is not None and AFFINITIES[affinity].softmax:
            # It would add the same to all scores of a pixel, which the softmax takes out. Its
            # gradient is the noise of rounding; Adam makes a walk of full steps of that, and the
            # scores move so far from zero that half precision cannot tell them apart.
            nn.init.zeros_(self.psi.bias).requires_grad_(False)  # type: ignore[arg-type]
            self.register_load_state_dict_post_hook(_rest_psi_bias)

    def forward(
        self, x: Tensor, prior: Correlation | Tensor | None = None
    ) -> tuple[Tensor, Correlation | None]:
        """Features [B, C, H, W] and the previous correlation -> (features alike, correlation)."""
        theta = x if self.theta is None else self.theta(x)
        psi = theta if self.psi is None else self.psi(x)
        spec = AttentionSpec(self.window, self.affinity, self.border, self.bandwidth)
        out, correlation = self.operator(
            theta, psi, self.g(x), spec, prior_scores=prior, keep_correlation=self.keep_correlation
        )
        return x + out, correlation


class NonLocalBlock2d(NonLocal2d):
    """`NonLocal2d` where no correlation is handed on: a tensor in, a tensor out.

    So it can stand in `nn.Sequential` and wherever else a convolution could. The options are those
    of `NonLocal2d`.
    """

    def __init__(self, channels: int, embed: int = 64, window: int = 45, **options: Any) -> None:
        super().__init__(channels, embed, window, keep_correlation=False, **options)

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Features [B, C, H, W] -> features alike."""
        return super().forward(x)[0]


def _rest_psi_bias(module: nn.Module, _: Any) -> None:
    """Of weights that let it walk: zero is the same function."""
    nn.init.zeros_(module.psi.bias)  # type: ignore[union-attr, arg-type]


class StateNorms(nn.Module):
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
        first: Tensor,
        correlation: Correlation | None,
        norms: StateNorms,
        is_non_local: bool,
    ) -> tuple[Tensor, Correlation | None]:
        """States s^(t-1) and s^0 [B, m, H, W] -> (s^t, correlation to hand on)."""
        x = F.relu(norms.non_local(state))
        if is_non_local and self.non_local is not None:
            x, correlation = self.non_local(x, correlation)
        x = self.conv1(norms.conv1(x))  # no ReLU here, as in the authors' code
        x = self.conv2(F.relu(norms.conv2(x)))
        return x + first, correlation


class NLRN(nn.Module):
    """The Non-Local Recurrent Network: degraded image in, restored image out.

    Args:
        config: shape of the network; the paper's by default.

    Attributes:
        notes: what `save_pretrained` was told besides, such as the noise level of the training.
    """

    def __init__(self, config: NLRNConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or NLRNConfig()
        self.notes: dict[str, str] = {}
        modules = [config.is_non_local(t) for t in range(config.steps)]
        # Module i serves state i; a tied network has one cell, shared norms are one set.
        self.cells = nn.ModuleList(
            RecurrentCell(config, has) for has in ([any(modules)] if config.tied else modules)
        )
        self.norms = nn.ModuleList(
            StateNorms(config.channels) for _ in range(config.steps if config.norm_per_state else 1)
        )
        self.norm_in = nn.BatchNorm2d(config.in_channels)
        self.conv_in = _conv3x3(config.in_channels, config.channels)
        self.norm_out = nn.BatchNorm2d(config.channels)
        self.conv_out = _conv3x3(config.channels, config.out_channels)
        nn.init.zeros_(self.conv_out.weight)  # so that training starts at the identity

    def cell(self, step: int) -> RecurrentCell:
        """The cell of state `step`, counted from 0."""
        return self.cells[0 if self.config.tied else step]  # type: ignore[return-value]

    def norm(self, step: int) -> StateNorms:
        """The batch norms of state `step`, counted from 0."""
        return self.norms[step if self.config.norm_per_state else 0]  # type: ignore[return-value]

    def forward(self, image: Tensor) -> Tensor:
        """Degraded image [B, in, H, W] in [0, 1] -> restored image [B, out, H, W]."""
        return self.unroll(image, self.cell)

    def unroll(self, image: Tensor, cell: Callable[[int], Callable[..., Any]]) -> Tensor:
        """`forward` with cell(t) in place of the cell of state t, counted from 0."""
        first = state = self.conv_in(self.norm_in(image))
        correlation: Correlation | None = None
        for t in range(self.config.steps):
            state, correlation = cell(t)(
                state, first, correlation, self.norm(t), self.config.is_non_local(t)
            )
        residual = self.conv_out(F.relu(self.norm_out(state)))
        return image[:, : self.config.out_channels] + residual

    @property
    def convolution_parameters(self) -> int:
        """Parameters of all convolutions, the count that papers print."""
        convolutions = (m for m in self.modules() if isinstance(m, nn.Conv2d))
        return sum(p.numel() for m in convolutions for p in m.parameters())

    @property
    def norm_parameters(self) -> int:
        """Trained parameters of all batch norms, without running statistics."""
        norms = (m for m in self.modules() if isinstance(m, nn.BatchNorm2d))
        return sum(p.numel() for m in norms for p in m.parameters())

    @classmethod
    def from_pretrained(cls, name_or_path: str | Path) -> NLRN:
        """The network of a weight in the package, or of a file that `save_pretrained` wrote."""
        weight = weights.load(name_or_path)
        config = NLRNConfig.from_dict(weight.config)
        with torch.device("meta"):  # a file's config takes no memory before its tensors fit it
            model = cls(config)
        model.notes = weight.notes
        try:
            model.load_state_dict(weight.tensors, assign=True)
        except RuntimeError as error:
            first_line = " ".join(str(error).split())[:200]
            raise weights.WeightsError(f"{name_or_path}: {first_line}") from error
        return model.eval()

    def save_pretrained(self, path: str | Path, notes: dict[str, str] | None = None) -> None:
        """Writes weights, config and notes into one safetensors file."""
        notes = self.notes | (notes or {})
        weights.save(path, dataclasses.asdict(self.config), self.state_dict(), notes)


def _conv3x3(channels_in: int, channels_out: int) -> nn.Conv2d:
    return _xavier(nn.Conv2d(channels_in, channels_out, 3, padding=1))


def _xavier(convolution: nn.Conv2d) -> nn.Conv2d:
    nn.init.xavier_uniform_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution


def random_network(config: NLRNConfig, seed: int = 0) -> NLRN:
    """An untrained network in which every part acts: for demonstrations, benchmarks and tests."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = NLRN(config)
        for module in model.modules():
            if isinstance(module, NonLocal2d):
                _xavier(module.g)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.running_mean, std=0.1)  # type: ignore[arg-type]
                nn.init.uniform_(module.running_var, 0.8, 1.2)  # type: ignore[arg-type]
                nn.init.uniform_(module.weight, 0.5, 0.9)
                nn.init.normal_(module.bias, std=0.05)
        nn.init.normal_(model.conv_out.weight, std=0.002)
    return model.eval()
