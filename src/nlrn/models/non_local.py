"""The non-local module of the paper, for any network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from nlrn.ops import AttentionSpec, Correlation, neighborhood_attention

# (query, key, value, spec, prior_scores=, keep_correlation=) -> (attended values, correlation)
Attend = Callable[..., tuple[Tensor, Correlation | None]]


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
        center_keys: whether keys lose their mean over the image, for half precision: `centered`.
        limit: how long an embedding can become at most, `limited`; 0 for any length.
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
        center_keys: bool = False,
        limit: float = 0.0,
    ) -> None:
        super().__init__()
        if channels < 1 or embed < 1:
            raise ValueError(f"channels and embed must be positive, got {channels} and {embed}")
        self.spec = AttentionSpec(window, affinity, border, bandwidth)
        self.keep_correlation = keep_correlation
        kind = self.spec.kind
        self.center_keys, self.limit = center_keys, limit
        if center_keys and (kind.distance or not kind.softmax):
            raise ValueError(f"center_keys would change what {affinity!r} gives")
        self.theta = nn.Conv2d(channels, embed, 1) if kind.embedded != "none" else None
        self.psi = nn.Conv2d(channels, embed, 1) if kind.embedded == "both" else None
        self.g = nn.Conv2d(channels, channels, 1)
        for embedding in (self.theta, self.psi):
            if embedding is not None:
                xavier_(embedding)
        nn.init.zeros_(self.g.weight)
        nn.init.zeros_(self.g.bias)  # type: ignore[arg-type]
        if self.psi is not None and kind.softmax:
            # It would add the same to all scores of a pixel, which the softmax takes out. Its
            # gradient is the noise of rounding; Adam makes a walk of full steps of that, and the
            # scores move so far from zero that half precision cannot tell them apart.
            nn.init.zeros_(self.psi.bias).requires_grad_(False)  # type: ignore[arg-type]
            self.register_load_state_dict_post_hook(_rest_psi_bias)

    def forward(
        self,
        x: Tensor,
        prior_scores: Correlation | Tensor | None = None,
        attend: Attend = neighborhood_attention,
        spec: AttentionSpec | None = None,
    ) -> tuple[Tensor, Correlation | None]:
        """Features [B, C, H, W] and the previous correlation -> (features alike, correlation).

        Args:
            x: features.
            prior_scores: correlation of the previous state, or its scores [B, H, W, window**2].
            attend: computes the operator, with the arguments of `neighborhood_attention`.
            spec: takes the place of the module's own.
        """
        query = x if self.theta is None else self.theta(x)
        key = query if self.psi is None else self.psi(x)
        if self.limit:
            query, key = limited(query, self.limit), limited(key, self.limit)
        if self.center_keys:
            key = centered(key)
        out, correlation = attend(
            query,
            key,
            self.g(x),
            self.spec if spec is None else spec,
            prior_scores=prior_scores,
            keep_correlation=self.keep_correlation,
        )
        return x + out, correlation


class NonLocalBlock2d(NonLocal2d):
    """`NonLocal2d` where no correlation is handed on: a tensor in, a tensor out.

    So it can stand in `nn.Sequential` and wherever else a convolution could.

    Args:
        channels: C, feature channels in and out.
        embed: D, channels of the embeddings theta and psi.
        window: odd side of the neighbourhood.
        affinity: how two pixels are compared, a name of `nlrn.ops.AFFINITIES`.
        border: "mask" or "circular".
        bandwidth: h of the euclidean affinity.
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
    ) -> None:
        super().__init__(
            channels, embed, window, affinity=affinity, border=border, bandwidth=bandwidth,
            keep_correlation=False,
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Features [B, C, H, W] -> features alike."""
        return super().forward(x)[0]


def _rest_psi_bias(module: nn.Module, _: Any) -> None:
    """Puts psi's bias back to zero after loading weights that let it walk: the same function."""
    nn.init.zeros_(module.psi.bias)  # type: ignore[union-attr, arg-type]


def limited(embedding: Tensor, limit: float) -> Tensor:
    """Embeddings [B, D, H, W] shortened so that none is longer than the limit, short ones hardly.

    Without it nothing keeps scores from growing in training until every pixel looks at a single
    neighbour, which the next step takes from it: gradients then say nothing any more.
    """
    exact = embedding.to(torch.promote_types(embedding.dtype, torch.float32))
    square = exact.square().sum(1, keepdim=True)
    return (exact * torch.rsqrt(1 + square / limit**2)).to(embedding.dtype)


def centered(key: Tensor) -> Tensor:
    """Keys [B, D, H, W] without their mean over the image: what every pixel is compared with.

    It adds the same to all scores of a pixel, which the softmax takes out: nothing changes but the
    rounding. Features behind a ReLU have a mean, and the scores that are handed on from state to
    state then lie around 500, in bfloat16 4 apart, while those of one pixel differ by 5.
    """
    return key - key.mean((2, 3), keepdim=True)


def xavier_(convolution: nn.Conv2d) -> nn.Conv2d:
    """Sets a convolution to its start: Xavier's weights, no bias."""
    nn.init.xavier_uniform_(convolution.weight)
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return convolution
