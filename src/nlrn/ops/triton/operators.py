"""The kernels as PyTorch operators `nlrn::*`, so that autograd and torch.compile know them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nlrn.ops.correlation import no_second_derivatives
from nlrn.ops.triton.launch import (
    evenly_spaced,
    launch_backward_keys,
    launch_backward_queries,
    launch_delta,
    launch_forward,
    launch_pack,
    launch_unpack,
    new_packed,
    unwrap,
    wrap,
)
from nlrn.ops.triton.layout import Plan, plan_for


def _plan_of(query: Tensor, value: Tensor, window: int, circular: bool) -> Plan:
    _, height, width, embed = query.shape
    shape = (int(height), int(width), window, circular, int(embed), int(value.shape[-1]))
    return plan_for(*shape, query.dtype)


def _even(plan: Plan, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The operands as the forward kernel reads them: keys and values wrapped around the border."""
    keys, values = (wrap(evenly_spaced(t), plan.pad) for t in (key, value))
    return evenly_spaced(query), keys, values


def _skip(x: Tensor | None, factor: Tensor | None) -> tuple[Tensor, Tensor] | None:
    return None if x is None or factor is None else (x.contiguous(), factor.contiguous())


@torch.library.custom_op(
    "nlrn::attend",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor? prior, int window, bool circular, "
    "bool store, Tensor? x=None, Tensor? factor=None) -> (Tensor, Tensor, Tensor)",
)
def _attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    prior: Tensor | None,
    window: int,
    circular: bool,
    store: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Operands [B, H, W, channels], packed prior -> (out, packed scores, log-sum-exp).

    x [B, H, W, channels] times factor [channels] is added to out, without gradients.
    """
    plan = _plan_of(query, value, window, circular)
    scores = new_packed(plan, query) if store else None
    operands = _even(plan, query, key, value)
    out, lse = launch_forward(plan, *operands, prior, scores, skip=_skip(x, factor))
    return out, query.new_empty(0) if scores is None else scores, lse


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    _, window, circular, store, *_ = rest
    plan = _plan_of(query, value, window, circular)
    scores = new_packed(plan, query) if store else query.new_empty(0)
    lse = query.new_empty(query.shape[0], plan.lines, dtype=torch.float32)
    return _like(value), scores, lse


def _like(image: Tensor) -> Tensor:
    return torch.empty_like(image, memory_format=torch.contiguous_format)


@torch.library.custom_op(
    "nlrn::attend_backward",
    mutates_args=(),
    schema="(Tensor query, Tensor key, Tensor value, Tensor out, Tensor scores, Tensor lse, "
    "Tensor d_out, Tensor? d_next, int window, bool circular) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)
def _attend_backward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    scores: Tensor,
    lse: Tensor,
    d_out: Tensor,
    d_next: Tensor | None,
    window: int,
    circular: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and of the packed scores (which is that of the prior)."""
    plan = _plan_of(query, value, window, circular)
    query, d_out = query.contiguous(), d_out.contiguous()
    keys, values = wrap(key.contiguous(), plan.pad), wrap(value.contiguous(), plan.pad)
    delta = launch_delta(plan, out.contiguous(), d_out)
    d_next = None if d_next is None else d_next.contiguous()
    d_scores, d_keys, d_values = launch_backward_keys(
        plan, query, values, scores, lse, delta, d_out, d_next
    )
    d_query = launch_backward_queries(plan, keys, d_scores)
    d_key, d_value = (unwrap(grad, plan.pad).to(query.dtype) for grad in (d_keys, d_values))
    return d_query, d_key, d_value, d_scores


@_attend_backward.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, scores: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _like(query), _like(key), _like(value), torch.empty_like(scores)


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    query, key, value, _, ctx.window, ctx.circular, ctx.store, _, _ = inputs
    ctx.set_materialize_grads(False)  # the last state's scores have no gradient, not a zero one
    ctx.save_for_backward(query, key, value, *output)


def _differentiate(
    ctx: Any, d_out: Tensor | None, d_next: Tensor | None, _d_lse: Tensor | None
) -> tuple[Tensor | None, ...]:
    if not ctx.store:
        raise RuntimeError("nlrn::attend needs store=True when gradients are recorded")
    query, key, value, out, scores, lse = ctx.saved_tensors
    if d_out is None:
        d_out = torch.zeros_like(out)
    d_query, d_key, d_value, d_scores = torch.ops.nlrn.attend_backward(
        query, key, value, out, scores, lse, d_out, d_next, ctx.window, ctx.circular
    )
    d_prior = d_scores if ctx.needs_input_grad[3] else None
    return d_query, d_key, d_value, d_prior, None, None, None, None, None


def _refuse(ctx: Any, *_: Tensor) -> None:
    raise no_second_derivatives("triton")


_attend.register_autograd(_differentiate, setup_context=_save_for_backward)
_attend_backward.register_autograd(_refuse)


@torch.library.custom_op(
    "nlrn::attend_update",
    mutates_args=("scores",),
    schema="(Tensor query, Tensor key, Tensor value, Tensor(a!) scores, int window, "
    "bool circular, Tensor? x=None, Tensor? factor=None) -> Tensor",
)
def _attend_update(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scores: Tensor,
    window: int,
    circular: bool,
    x: Tensor | None = None,
    factor: Tensor | None = None,
) -> Tensor:
    """Inference: adds this state's scores to the packed ones in place, returns out."""
    plan = _plan_of(query, value, window, circular)
    operands, skip = _even(plan, query, key, value), _skip(x, factor)
    return launch_forward(plan, *operands, scores, scores, exact=False, skip=skip)[0]


@_attend_update.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    return _like(value)


@torch.library.custom_op(
    "nlrn::pack_scores",
    mutates_args=(),
    schema="(Tensor plain, float fill, int window, bool circular, int embed, int channels) "
    "-> Tensor",
)
def _pack_scores(plain: Tensor, fill: float, *shape: Any) -> Tensor:
    """Scores [B, H, W, window**2] in the kernels' layout, `fill` where no pair stands."""
    return launch_pack(_packing_plan(plain, *shape), plain.contiguous(), fill)


@_pack_scores.register_fake
def _(plain: Tensor, fill: float, *shape: Any) -> Tensor:
    return new_packed(_packing_plan(plain, *shape), plain)


def _packing_plan(plain: Tensor, window: int, circular: bool, embed: int, channels: int) -> Plan:
    _, height, width, _ = plain.shape
    return plan_for(int(height), int(width), window, circular, embed, channels, plain.dtype)


@torch.library.custom_op(
    "nlrn::unpack_scores",
    mutates_args=(),
    schema="(Tensor packed, int height, int width, int window, bool circular, int embed, "
    "int channels) -> Tensor",
)
def _unpack_scores(packed: Tensor, *shape: Any) -> Tensor:
    """Scores [B, H, W, window**2] out of the kernels' layout, 0 where masked."""
    return launch_unpack(plan_for(*shape, packed.dtype), packed.contiguous())


@_unpack_scores.register_fake
def _(packed: Tensor, height: int, width: int, window: int, *_: Any) -> Tensor:
    return packed.new_empty(packed.shape[0], height, width, window * window)


def _save_pack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = (*inputs[0].shape[1:3], *inputs[2:])


def _save_unpack(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.shape = inputs[1:]


def _differentiate_pack(ctx: Any, d_packed: Tensor) -> tuple[Tensor | None, ...]:
    return torch.ops.nlrn.unpack_scores(d_packed, *ctx.shape), None, None, None, None, None


def _differentiate_unpack(ctx: Any, d_plain: Tensor) -> tuple[Tensor | None, ...]:
    packed = torch.ops.nlrn.pack_scores(d_plain, 0.0, *ctx.shape[2:])
    return packed, None, None, None, None, None, None


_pack_scores.register_autograd(_differentiate_pack, setup_context=_save_pack)
_unpack_scores.register_autograd(_differentiate_unpack, setup_context=_save_unpack)
