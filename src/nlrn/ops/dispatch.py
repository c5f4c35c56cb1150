"""The front door of the operator: checks the arguments, chooses the backend."""

from __future__ import annotations

import torch
from torch import Tensor

from nlrn.ops.affinity import AFFINITIES, BORDERS
from nlrn.ops.correlation import Correlation, add_skip
from nlrn.ops.triton.launch import INTERPRETED

BACKENDS = ("triton", "torch", "reference")  # in the order in which "auto" tries them
DEFAULT_WORKSPACE = 64 * 2**20


def neighborhood_attention(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    *,
    window: int,
    affinity: str = "embedded_gaussian",
    border: str = "mask",
    bandwidth: float = 10.0,
    prior: Correlation | Tensor | None = None,
    keep_correlation: bool = True,
    reuse_prior: bool = False,
    skip: tuple[Tensor, Tensor] | None = None,
    workspace: int = DEFAULT_WORKSPACE,
    backend: str = "auto",
) -> tuple[Tensor, Correlation | None]:
    """Returns the attention of every pixel over its window, and the scores behind it.

    For a pixel i and the pixels j of the window x window neighbourhood centred on it,
    score(i, j) = theta_i . psi_j + prior(i, j) and out_i = sum_j softmax_j(score(i, j)) g_j.

    Args:
        theta: query embedding of each pixel [B, D, H, W].
        psi: key embedding of each pixel [B, D, H, W].
        g: value of each pixel [B, C, H, W].
        window: odd side q of the neighbourhood; it may be larger than the image.
        affinity: a name of AFFINITIES; the ones without a softmax divide by the number of
            neighbours inside the image.
        border: "mask" leaves pixels outside the image out, "circular" wraps around.
        bandwidth: h of the euclidean affinity, exp(-|theta_i - psi_j|^2 / h^2).
        prior: correlation of the previous state, or scores [B, H, W, window**2].
        keep_correlation: whether the correlation is wanted; without it None comes back.
        reuse_prior: lets a backend overwrite `prior` when no gradient is recorded, so that one
            copy of the scores is enough; `prior` must not be used afterwards.
        skip: features [B, C, H, W] and a factor for each channel [C], whose product is added to
            the attended values: a skip connection in the same pass over memory.
        workspace: bytes that the torch backend may take for temporaries.
        backend: "auto", or a name of BACKENDS, which then runs or raises with the reason.

    Returns:
        The attended values [B, C, H, W] and the correlation for the next state.
    """
    _check(theta, psi, g, window, affinity, border, bandwidth, prior)
    if skip is not None and (skip[0].shape != g.shape or skip[1].shape != g.shape[1:2]):
        shapes = f"{tuple(skip[0].shape)} and {tuple(skip[1].shape)}"
        raise ValueError(f"skip must be features like g and factors [C], got {shapes}")
    name = _choose(backend, theta, affinity, g.shape[1])
    if name == "reference":
        from nlrn.ops import reference

        out, correlation = reference.attend(
            theta, psi, g, window, affinity, border, bandwidth, prior, keep_correlation
        )
        return add_skip(out, skip), correlation
    if name == "triton":
        from nlrn.ops.triton import backend as triton_impl

        return triton_impl.attend(
            theta,
            psi,
            g,
            window=window,
            affinity=affinity,
            circular=border == "circular",
            bandwidth=bandwidth,
            prior=prior,
            keep_correlation=keep_correlation,
            reuse_prior=reuse_prior,
            skip=skip,
        )
    from nlrn.ops import blocked as torch_impl

    out, correlation = torch_impl.attend(
        theta,
        psi,
        g,
        window=window,
        affinity=affinity,
        circular=border == "circular",
        bandwidth=bandwidth,
        prior=prior,
        keep_correlation=keep_correlation,
        reuse_prior=reuse_prior,
        workspace=workspace,
    )
    return add_skip(out, skip), correlation


def correlation_bytes(
    height: int,
    width: int,
    *,
    embed: int,
    channels: int,
    window: int,
    affinity: str,
    border: str,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Bytes that the correlation of an image takes on the device at most, for planning."""
    if device.type == "cuda":
        from nlrn.ops.triton import backend as triton_impl

        shape = (height, width, embed, channels)
        packed = triton_impl.packed_bytes(
            device, dtype, affinity, shape, window, border == "circular"
        )
        if packed is not None:
            return packed
    from nlrn.ops.blocks import BLOCK

    if AFFINITIES[affinity].distance:
        dtype = torch.promote_types(dtype, torch.float32)
    blocks = -(-height // BLOCK) * -(-width // BLOCK)
    return blocks * BLOCK**2 * (BLOCK + window - 1) ** 2 * dtype.itemsize


def kernels_run_on(device: torch.device) -> bool:
    """Whether Triton's kernels can run on the device."""
    if device.type != "cuda" and not INTERPRETED:
        return False  # and there is no need to look for a GPU's library
    from nlrn.ops.triton import backend as triton_impl

    return triton_impl.no_kernels(device) is None


def unsupported(backend: str, theta: Tensor, affinity: str, channels: int = 1) -> str | None:
    """Says why the backend cannot run this call, or None when it can.

    Args:
        backend: a name of BACKENDS.
        theta: query embedding [B, D, H, W].
        affinity: a name of AFFINITIES.
        channels: C, channels of the values.
    """
    if backend not in BACKENDS:
        return f"backend must be 'auto' or one of {', '.join(BACKENDS)}, got {backend!r}"
    if not theta.is_floating_point():
        return f"the operator takes floating-point tensors, got {theta.dtype}"
    if backend != "triton":
        return None
    from nlrn.ops.triton import backend as triton_impl

    return triton_impl.unsupported(theta, affinity, channels)


def _choose(backend: str, theta: Tensor, affinity: str, channels: int) -> str:
    if backend != "auto":
        if reason := unsupported(backend, theta, affinity, channels):
            raise ValueError(reason)
        return backend
    # On a CPU there is no need to look for a GPU's library.
    names = BACKENDS if theta.is_cuda or INTERPRETED else BACKENDS[1:]
    reasons = []
    for name in names:
        reason = unsupported(name, theta, affinity, channels)
        if reason is None:
            return name
        reasons.append(f"{name}: {reason}")
    raise ValueError("no backend can run this call; " + "; ".join(reasons))


def _check(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    window: int,
    affinity: str,
    border: str,
    bandwidth: float,
    prior: Correlation | Tensor | None,
) -> None:
    if window < 1 or window % 2 == 0:
        raise ValueError(f"window must be odd and positive, got {window}")
    if affinity not in AFFINITIES:
        raise ValueError(f"affinity must be one of {', '.join(AFFINITIES)}, got {affinity!r}")
    if border not in BORDERS:
        raise ValueError(f"border must be one of {', '.join(BORDERS)}, got {border!r}")
    if not bandwidth > 0:
        raise ValueError(f"bandwidth must be above 0, got {bandwidth}")
    if theta.dim() != 4 or theta.shape != psi.shape:
        shapes = f"{tuple(theta.shape)} and {tuple(psi.shape)}"
        raise ValueError(f"theta and psi must both be [B, D, H, W], got {shapes}")
    if g.dim() != 4 or g.shape[:1] + g.shape[2:] != theta.shape[:1] + theta.shape[2:]:
        raise ValueError(f"g must be [B, C, H, W] like theta, got {tuple(g.shape)}")
    if not theta.dtype == psi.dtype == g.dtype:
        raise ValueError(f"dtypes differ: theta {theta.dtype}, psi {psi.dtype}, g {g.dtype}")
    if 0 in theta.shape or 0 in g.shape:
        raise ValueError(f"empty tensor: theta {tuple(theta.shape)}, g {tuple(g.shape)}")
    if isinstance(prior, Tensor):
        batch, _, height, width = theta.shape
        expected = torch.Size((batch, height, width, window * window))
        if prior.shape != expected:
            raise ValueError(f"prior must be {tuple(expected)}, got {tuple(prior.shape)}")
