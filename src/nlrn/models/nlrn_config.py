"""The shape of the Non-Local Recurrent Network, and the variants that the paper compares."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from nlrn.models.config_values import check_positive, check_unshuffle, config_from_dict
from nlrn.ops import AttentionSpec


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
        unshuffle: r, side in pixels of the cells that the states compute on; 1 is the paper's.
        noise_map: whether the input has one more channel with the noise level of every pixel.
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
    unshuffle: int = 1
    noise_map: bool = False

    def __post_init__(self) -> None:
        check_positive(self, "steps", "channels", "embed", "in_channels", "out_channels")
        _ = self.attention  # checks its own values
        if self.non_local_every < 0:
            raise ValueError(f"non_local_every must be 0 or more, got {self.non_local_every}")
        if self.out_channels > self.in_channels:
            raise ValueError(
                f"out_channels must be at most in_channels ({self.in_channels}), "
                f"got {self.out_channels}"
            )
        check_unshuffle(self.unshuffle)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> NLRNConfig:
        """The config with these fields; a field that does not exist is an error naming it."""
        return config_from_dict(cls, values)

    @property
    def attention(self) -> AttentionSpec:
        """What the non-local modules compute."""
        return AttentionSpec(self.window, self.affinity, self.border, self.bandwidth)

    def is_non_local(self, step: int) -> bool:
        """Whether state `step`, counted from 0, holds a non-local module."""
        return self.non_local_every > 0 and step % self.non_local_every == 0

    @property
    def modules(self) -> int:
        """How many states hold a non-local module."""
        return sum(map(self.is_non_local, range(self.steps)))

    @property
    def effective_depth(self) -> int:
        """Layers from input to output, a non-local module counted as one."""
        return 2 + 2 * self.steps + self.modules

    @property
    def compared(self) -> int:
        """Channels of what two pixels are compared by."""
        return self.channels if self.attention.kind.embedded == "none" else self.embed

    @property
    def halo(self) -> int:
        """How far away a pixel can still change the result: T (floor(q/2) + 2) + 2.

        Less where some states have no non-local module; in cells, where these are larger.
        """
        cells = 2 + 2 * self.steps + self.window // 2 * self.modules
        return (cells + 1) * self.unshuffle - 1

    @property
    def flop_per_pixel(self) -> float:
        """Useful work of all states; masked or repeated work does not count."""
        m, convolutions = self.channels, 36 * self.channels**2
        embedded = self.attention.kind.embedded
        projections = {"none": 0, "shared": 1, "both": 2}[embedded] * m * self.embed + m * m
        non_local = 2 * projections + 2 * self.window**2 * (self.compared + m)
        return (self.steps * convolutions + self.modules * non_local) / self.unshuffle**2


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
