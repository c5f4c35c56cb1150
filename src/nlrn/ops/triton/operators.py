"""The kernels as PyTorch operators `nlrn::*`, so that autograd and torch.compile know them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nlrn.ops.triton.launch import (
    evenly_spaced,
    launch_backward_keys,
    launch_backward_queries,
    launch_delta,
    launch_forward,
    new_packed,
    unwrap,
    wrap,
)
from nlrn.ops.triton.layout import Plan, plan_for

MASKED = -1.0e30  # as in triton_kernels


def _plan_of(theta: Tensor, g: Tensor, window: int, circular: bool) -> Plan:
    _, height, width, embed = theta.shape
    shape = (int(height), int(width), window, circular, int(embed), int(g.shape[-1]))
    return plan_for(*shape, theta.dtype)


def _skip(x: Tensor | None, factor: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if x is None or factor is None else (x.contiguous(), factor.contiguous())


@torch.library.custom_op(
    "nlrn::attend",
    mutates_args=(),
    schema="(Tensor theta, Tensor psi, Tensor g, Tensor? prior, int window, bool circular, "
    "bool store, Tensor? x=None, Tensor? factor=None) -> (Tensor, Tensor, Tensor)",
)
def _attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    prior: Tensor | None,
    window: int,
    circular: bool,
    store: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """theta, psi, g [B, H, W, channels], packed prior -> (out, packed scores, log-sum-exp).

    x [B, H, W, channels] times factor [channels] is added to out, without gradients.
    """
    plan = _plan_of(theta, g, window, circular)
    scores = new_packed(plan, theta) if store else None
    keys, values = wrap(evenly_spaced(psi), plan.pad), wrap(evenly_spaced(g), plan.pad)
    out, lse = launch_forward(
        plan, evenly_spaced(theta), keys, values, prior, scores, skip=_skip(x, factor)
    )
    return out, theta.new_empty(0) if scores is None else scores, lse


@_attend.register_fake
def _(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    prior: Tensor | None,
    window: int,
    circular: bool,
    store: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _plan_of(theta, g, window, circular)
    scores = new_packed(plan, theta) if store else theta.new_empty(0)
    lse = theta.new_empty(theta.shape[0], plan.lines, dtype=torch.float32)
    return torch.empty_like(g, memory_format=torch.contiguous_format), scores, lse


@torch.library.custom_op(
    "nlrn::attend_backward",
    mutates_args=(),
    schema="(Tensor theta, Tensor psi, Tensor g, Tensor out, Tensor scores, Tensor lse, "
    "Tensor d_out, Tensor? d_next, int window, bool circular) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def _attend_backward(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    out: Tensor,
    scores: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_next: Tensor | None,
    window: int,
    circular: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of theta, psi, g and of the packed scores (which is that of the prior)."""
    plan = _plan_of(theta, g, window, circular)
    theta, d_out = theta.contiguous(), d_out.contiguous()
    keys, values = wrap(psi.contiguous(), plan.pad), wrap(g.contiguous(), plan.pad)
    delta = launch_delta(plan, out.contiguous(), d_out)
    d_next = None if d_next is None else d_next.contiguous()
    d_scores, d_keys, d_values = launch_backward_keys(
        plan, theta, values, scores, lse, delta, d_out, d_next
    )
    d_theta = launch_backward_queries(plan, keys, d_scores)
    d_psi, d_g = (unwrap(grad, plan.pad).to(theta.dtype) for grad in (d_keys, d_values))
    return d_theta, d_psi, d_g, d_scores


@_attend_backward.register_fake
def _(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    out: Tensor,
    scores: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_next: Tensor | None,
    window: int,
    circular: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dense = torch.contiguous_format
    d_theta, d_psi, d_g = (torch.empty_like(t, memory_format=dense) for t in (theta, psi, g))
    return d_theta, d_psi, d_g, torch.empty_like(scores)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    theta, psi, g, _, ctx.window, ctx.circular, ctx.store, _, _ = inputs
    ctx.set_materialize_grads(False)  # the last state's scores have no gradient, not a zero one
    ctx.save_for_backward(theta, psi, g, *output)


def _differentiate(
    ctx: Any, d_out: Tensor | None, d_next: Tensor | None, _d_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    if not ctx.store:
        raise RuntimeError("nlrn::attend needs store=True when gradients are recorded")
    theta, psi, g, out, scores, lse = ctx.saved_tensors
    if d_out is None:
        d_out = torch.zeros_like(out)
    d_theta, d_psi, d_g, d_scores = torch.ops.nlrn.attend_backward(
        theta, psi, g, out, scores, lse, d_out, d_next, ctx.window, ctx.circular
    )
    d_prior = d_scores if ctx.needs_input_grad[3] else None
    return d_theta, d_psi, d_g, d_prior, None, None, None, None, None


_attend.register_autograd(_differentiate, setup_context=_save_for_backward)


@torch.library.custom_op(
    "nlrn::attend_update",
    mutates_args=("scores",),
    schema="(Tensor theta, Tensor psi, Tensor g, Tensor(a!) scores, int window, bool circular, "
    "Tensor? x=None, Tensor? factor=None) -> Tensor",
)
def _attend_update(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    scores: Tensor,
    window: int,
    circular: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Inference: adds this state's scores to the packed ones in place, returns out."""
    plan = _plan_of(theta, g, window, circular)
    keys, values = wrap(evenly_spaced(psi), plan.pad), wrap(evenly_spaced(g), plan.pad)
    theta, skip = evenly_spaced(theta), _skip(x, factor)
    return launch_forward(plan, theta, keys, values, scores, scores, exact=False, skip=skip)[0]


@_attend_update.register_fake
def _(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    scores: Tensor,
    window: int,
    circular: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    return torch.empty_like(g, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "nlrn::pack_scores",
    mutates_args=(),
    schema="(Tensor plain, float fill, int window, bool circular, int embed, int channels) "
    "-> Tensor",
)
def _pack_scores(
    plain: Tensor, fill: float, window: int, circular: bool, embed: int, channels: int
) -> Tensor:
    """Scores [B, H, W, window**2] in the kernels' layout, `fill` where no pair stands."""
    from nlrn.ops.triton import kernels as triton_kernels

    batch, height, width, _ = plain.shape
    plan = plan_for(height, width, window, circular, embed, channels, plain.dtype)
    packed = new_packed(plan, plain)
    triton_kernels.pack_kernel[(plan.tiles, batch)](
        plain.contiguous(),
        packed,
        fill,
        height,
        width,
        plan.key_height,
        plan.key_width,
        plan.tiles_x,
        plan.stride,
        **plan.window(),
        BLOCK=64,
    )
    return packed


@_pack_scores.register_fake
def _(plain: Tensor, fill: float, window: int, circular: bool, embed: int, channels: int) -> Tensor:
    _, height, width, _ = plain.shape
    return new_packed(
        plan_for(int(height), int(width), window, circular, embed, channels, plain.dtype), plain
    )


@torch.library.custom_op(
    "nlrn::unpack_scores",
    mutates_args=(),
    schema="(Tensor packed, int height, int width, int window, bool circular, int embed, "
    "int channels) -> Tensor",
)
def _unpack_scores(
    packed: Tensor,
    height: int,
    width: int,
    window: int,
    circular: bool,
    embed: int,
    channels: int,
) -> Tensor:
    """Scores [B, H, W, window**2] out of the kernels' layout, 0 where masked."""
    from nlrn.ops.triton import kernels as triton_kernels

    plan = plan_for(height, width, window, circular, embed, channels, packed.dtype)
    plain = packed.new_empty(packed.shape[0], height, width, window * window)
    triton_kernels.unpack_kernel[(plan.tiles, packed.shape[0])](
        packed.contiguous(),
        plain,
        height,
        width,
        plan.key_height,
        plan.key_width,
        plan.tiles_x,
        plan.stride,
        **plan.window(),
        BLOCK=64,
    )
    return plain


@_unpack_scores.register_fake
def _(
    packed: Tensor,
    height: int,
    width: int,
    window: int,
    circular: bool,
    embed: int,
    channels: int,
) -> Tensor:
    return packed.new_empty(packed.shape[0], height, width, window * window)


def _save_pack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    plain, _, window, circular, embed, channels = inputs
    _, height, width, _ = plain.shape
    ctx.shape = (height, width, window, circular, embed, channels)


def _save_unpack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = inputs[1:]


def _differentiate_pack(ctx: Any, d_packed: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.nlrn.unpack_scores(d_packed, *ctx.shape), None, None, None, None, None


def _differentiate_unpack(ctx: Any, d_plain: Tensor) -> tuple[Tensor | None, ...]:
    packed = torch.ops.nlrn.pack_scores(d_plain, 0.0, *ctx.shape[2:])
    return packed, None, None, None, None, None, None


_pack_scores.register_autograd(_differentiate_pack, setup_context=_save_pack)
_unpack_scores.register_autograd(_differentiate_unpack, setup_context=_save_unpack)
