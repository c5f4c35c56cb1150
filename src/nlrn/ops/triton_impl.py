"""The operator on CUDA: fused Triton kernels behind `torch.library`, forward and backward.

Scores live in device memory in the dtype of the embeddings, laid out tile by tile as
`triton_kernels` describes, and each state adds to them. Triton itself is imported when the first
kernel runs.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nlrn.ops.correlation import Correlation
from nlrn.ops.dispatch import AFFINITIES

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
MAX_EMBED = 256
MAX_CHANNELS = 256
SLOT_ALIGN = 128  # lines of slots are padded to it, so no block of slots crosses into the next one
MASKED = -1.0e30  # as in triton_kernels
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # triton's CPU simulation, for tests


class Tuning(NamedTuple):
    """Block sizes of the kernels; the first two also shape the stored scores.

    Attributes:
        tile: queries per tile.
        tile_width: columns of a two-dimensional tile.
        forward: slots per step, warps and pipeline stages of the forward kernel.
        keys: keys per program, key columns of a two-dimensional block, queries per step, warps and
            stages of the backward kernel that owns keys.
        queries: slots per step, warps and stages of the backward kernel that owns queries.
        tma_scores: whether scores move through tensor descriptors, on GPUs that have them.
        tma_operands: whether embeddings and values do too, where their rows are consecutive.
        max_registers: cap on the registers of a thread of the forward kernel, or None.
    """

    tile: int
    tile_width: int
    forward: tuple[int, int, int]
    keys: tuple[int, int, int, int, int]
    queries: tuple[int, int, int]
    tma_scores: bool = False
    tma_operands: bool = False
    max_registers: int | None = None


# Half precision with at most 64 + 128 channels, the network's own shape.
HALF_FULL = Tuning(64, 8, (64, 4, 3), (64, 16, 32, 4, 3), (64, 4, 3), True, True)
HALF_LINEAR = Tuning(64, 8, (64, 4, 3), (64, 16, 64, 4, 2), (64, 4, 3), True, True)
HALF_TILED = Tuning(64, 16, (64, 4, 3), (64, 16, 64, 8, 2), (64, 4, 3), True, True)
# More channels, or float32: small blocks that fit anywhere.
HALF_WIDE = Tuning(64, 8, (32, 8, 2), (32, 16, 64, 8, 1), (32, 4, 2))
FLOAT32 = Tuning(32, 8, (16, 8, 1), (32, 8, 16, 8, 1), (32, 4, 1))
# A tile of consecutive pixels reads consecutive keys; so much more work is it worth at most.
LINEAR_ADVANTAGE = 1.25
# Rounding the rows of a region up to whole blocks must not add more than this factor.
BOX_OVERHEAD = 1.1


class Plan(NamedTuple):
    """Where everything lies for one shape of call; see `triton_kernels` for the words."""

    height: int
    width: int
    key_height: int
    key_width: int
    pad: int
    radius: int
    full: bool
    linear: bool
    boxed: bool
    tiles_x: int
    tiles: int
    region_width: int
    stride: int
    tuning: Tuning

    @property
    def lines(self) -> int:
        return self.tiles * self.tuning.tile

    def geometry(self) -> dict[str, Any]:
        """The keyword arguments that all kernels share."""
        tuning = self.tuning
        return {
            "LINEAR": self.linear,
            "TILE": tuning.tile,
            "TILE_H": tuning.tile // tuning.tile_width,
            "TILE_W": tuning.tile_width,
        }

    def window(self) -> dict[str, Any]:
        """The keyword arguments of the kernels that look at regions."""
        return self.geometry() | {
            "FULL": self.full,
            "BOXED": self.boxed,
            "REGION_W": self.region_width,
            "RADIUS": self.radius,
            "PAD": self.pad,
        }


def make_plan(
    height: int, width: int, window: int, circular: bool, linear: bool, tuning: Tuning
) -> Plan:
    """Lays out the tiles, their regions and the stored scores."""
    if tuning.tile % tuning.keys[2] or tuning.tile % tuning.tile_width:
        raise ValueError(f"a tile must hold whole rows and whole steps of queries, got {tuning}")
    radius = window // 2
    full = circular and height == width == window
    pad = radius if circular and not full else 0
    key_height, key_width = height + 2 * pad, width + 2 * pad
    linear = linear or full
    tile_width = tuning.tile_width
    tile_height = tuning.tile // tile_width
    boxed = False
    if linear:
        tiles_x, tiles = 1, -(-height * width // tuning.tile)
        region_width = key_width
    else:
        tiles_x = -(-width // tile_width)
        tiles = tiles_x * -(-height // tile_height)
        region_width = min(tile_width + window - 1, key_width)
        box = -(-(tile_width + window - 1) // tuning.forward[0]) * tuning.forward[0]
        if tuning.tma_operands and box <= BOX_OVERHEAD * region_width:
            boxed, region_width = True, box
    plan = Plan(
        height, width, key_height, key_width, pad, radius, full, linear, boxed,
        tiles_x, tiles, region_width, 0, tuning,
    )  # fmt: skip
    slots = max(_region_rows(plan)) * region_width
    return plan._replace(stride=-(-slots // SLOT_ALIGN) * SLOT_ALIGN)


def _region_rows(plan: Plan) -> list[int]:
    """Key rows in the region of the tiles: of each linear one, or of each row of the others."""
    if plan.full:
        return [plan.key_height] * plan.tiles
    tile = plan.tuning.tile
    if plan.linear:
        last_pixel = plan.height * plan.width - 1
        spans = [
            (n * tile // plan.width, min(n * tile + tile - 1, last_pixel) // plan.width)
            for n in range(plan.tiles)
        ]
    else:
        tile_height = tile // plan.tuning.tile_width
        starts = range(0, plan.height, tile_height)
        spans = [(y, min(y + tile_height, plan.height) - 1) for y in starts]
    low, high = plan.pad - plan.radius, plan.pad + plan.radius + 1
    return [min(last + high, plan.key_height) - max(first + low, 0) for first, last in spans]


def _work(plan: Plan) -> int:
    """Pairs of a query and a slot that the forward kernel goes through."""
    per_row = 1 if plan.linear else plan.tiles_x
    return sum(_region_rows(plan)) * plan.region_width * plan.tuning.tile * per_row


@functools.lru_cache(maxsize=256)
def plan_for(
    height: int,
    width: int,
    window: int,
    circular: bool,
    embed: int,
    channels: int,
    dtype: torch.dtype,
) -> Plan:
    """Chooses blocks and layout for a shape of call, always the same for the same shape."""
    small = _padded(embed) <= 64 and _padded(channels) <= 128
    if dtype == torch.float32:
        full = linear = tiled = FLOAT32
    elif not small:
        full = linear = tiled = HALF_WIDE
    else:
        full, linear, tiled = HALF_FULL, HALF_LINEAR, HALF_TILED
    if circular and height == width == window:
        return make_plan(height, width, window, circular, True, full)
    by_line = make_plan(height, width, window, circular, True, linear)
    by_tile = make_plan(height, width, window, circular, False, tiled)
    return by_line if _work(by_line) <= LINEAR_ADVANTAGE * _work(by_tile) else by_tile


def _padded(channels: int) -> int:
    """The power of two, at least 16, that a block of channels is padded to."""
    return max(16, 1 << (channels - 1).bit_length())


class PackedScores(Correlation):
    """Scores in the kernels' own layout [B, lines, stride], hugely negative where masked."""

    def __init__(self, packed: Tensor, shape: tuple[int, int, int, bool, int, int]) -> None:
        """Takes the scores and (height, width, window, circular, embed, channels)."""
        self.packed = packed
        self.shape = shape

    def scores(self) -> Tensor:
        return torch.ops.nlrn.unpack_scores(self.packed, *self.shape)


def unsupported(theta: Tensor, affinity: str, channels: int = 1) -> str | None:
    """Says why the kernels cannot run this call, or None when they can."""
    if importlib.util.find_spec("triton") is None:
        return "triton is not installed"
    if not theta.is_cuda and not INTERPRETED:
        return f"the triton backend needs CUDA tensors, got {theta.device.type}"
    if (
        theta.is_cuda
        and not INTERPRETED
        and torch.cuda.get_device_capability(theta.device) < (8, 0)
    ):
        return "the triton backend needs a GPU of compute capability 8.0 or later"
    if theta.dtype not in DTYPES:
        return f"the triton backend takes bfloat16, float16 and float32, got {theta.dtype}"
    if not AFFINITIES[affinity].softmax:
        return f"the triton backend has no affinity {affinity!r}, only those with a softmax"
    _, embed, height, width = theta.shape
    if embed > MAX_EMBED - 4 * AFFINITIES[affinity].distance or channels > MAX_CHANNELS:
        return f"too many channels for the triton backend: embed {embed}, values {channels}"
    if height * width * max(embed, channels) >= 2**31:
        return f"image too large for the triton backend: {height} x {width}"
    return None


def attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    *,
    window: int,
    affinity: str,
    circular: bool,
    bandwidth: float,
    prior: Correlation | Tensor | None,
    keep_correlation: bool,
    reuse_prior: bool,
) -> tuple[Tensor, Correlation | None]:
    """The operator of `dispatch.neighborhood_attention` on arguments it has checked."""
    if AFFINITIES[affinity].distance:
        theta, psi = _distance_as_dot(theta, psi, bandwidth)
    # B C H W -> B H W C, free for channels-last tensors
    theta = theta.permute(0, 2, 3, 1).contiguous()
    psi = psi.permute(0, 2, 3, 1).contiguous()
    g = g.permute(0, 2, 3, 1).contiguous()
    _, height, width, embed = theta.shape
    shape = (height, width, window, circular, embed, g.shape[-1])
    packed, ours = _packed_prior(prior, shape, theta.dtype)
    grads = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (theta, psi, g, packed)
    )
    if packed is not None and keep_correlation and not grads and (reuse_prior or not ours):
        out = torch.ops.nlrn.attend_update(theta, psi, g, packed, window, circular)
    else:
        out, packed, _ = torch.ops.nlrn.attend(
            theta, psi, g, packed, window, circular, keep_correlation or grads
        )
    correlation = PackedScores(packed, shape) if keep_correlation else None
    return out.permute(0, 3, 1, 2), correlation


def _packed_prior(
    prior: Correlation | Tensor | None,
    shape: tuple[int, int, int, bool, int, int],
    dtype: torch.dtype,
) -> tuple[Tensor | None, bool]:
    """The prior in the kernels' layout, and whether that is the caller's own memory."""
    if prior is None:
        return None, False
    if isinstance(prior, PackedScores) and prior.shape == shape and prior.packed.dtype == dtype:
        return prior.packed, True
    plain = prior if isinstance(prior, Tensor) else prior.scores()
    _, _, window, circular, embed, channels = shape
    plain = plain.to(dtype).contiguous()
    return torch.ops.nlrn.pack_scores(plain, MASKED, window, circular, embed, channels), False


def _distance_as_dot(theta: Tensor, psi: Tensor, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Embeddings whose dot product is -|theta_i - psi_j|^2 / bandwidth^2.

    The squared norms ride along as extra channels, each split in two so that half precision keeps
    them to about float32.
    """
    scale = 1.0 / bandwidth**2
    ones = torch.ones_like(theta[:, :1])
    theta_norm = _split(theta.float().square().sum(1, keepdim=True) * -scale, theta.dtype)
    psi_norm = _split(psi.float().square().sum(1, keepdim=True) * -scale, theta.dtype)
    queries = torch.cat([theta * (2.0 * scale), *theta_norm, ones, ones], dim=1)
    keys = torch.cat([psi, ones, ones, *psi_norm], dim=1)
    return queries, keys


def _split(value: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Two tensors of the dtype whose sum is the value; the gradient goes through the first."""
    high = value.to(dtype)
    return high, (value - high).detach().to(dtype)


# --- Launches -----------------------------------------------------------------------------------


def _descriptor(tensor: Tensor, rows: int, columns: int) -> Any:
    """A descriptor of the tensor as a matrix of lines, moved in blocks of rows x columns."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    matrix = tensor.view(-1, tensor.shape[-1])
    return TensorDescriptor.from_tensor(matrix, [rows, columns])


def _box_descriptor(plane: Tensor, columns: int, depth: int) -> Any:
    """A descriptor of [B, H, W, C] as rows of pixels, moved in pieces of one row."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor.from_tensor(plane.flatten(0, 1), [1, columns, depth])


@functools.lru_cache(maxsize=16)
def _has_descriptors(device: torch.device) -> bool:
    return INTERPRETED or torch.cuda.get_device_capability(device) >= (9, 0)


def _precision(dtype: torch.dtype) -> str:
    return "ieee" if dtype == torch.float32 else "tf32"


def _new_packed(plan: Plan, like: Tensor) -> Tensor:
    return like.new_empty(like.shape[0], plan.lines, plan.stride)


def _wrap(keys: Tensor, pad: int) -> Tensor:
    """Keys [B, H, W, C] continued around the border by `pad` pixels."""
    if not pad:
        return keys
    for axis in (1, 2):
        size = keys.shape[axis]
        source = torch.arange(-pad, size + pad, device=keys.device) % size
        keys = keys.index_select(axis, source)
    return keys


def _unwrap(grad: Tensor, pad: int) -> Tensor:
    """The gradient of `_wrap`: copies of a pixel add up."""
    if not pad:
        return grad
    for axis in (1, 2):
        padded = grad.shape[axis]
        size = padded - 2 * pad
        shape = list(grad.shape)
        shape[axis] = size
        folded = grad.new_zeros(shape)
        begin = 0
        while begin < padded:
            # padded position p holds pixel (p - pad) mod size
            pixel = (begin - pad) % size
            count = min(size - pixel, padded - begin)
            folded.narrow(axis, pixel, count).add_(grad.narrow(axis, begin, count))
            begin += count
        grad = folded
    return grad


def launch_forward(
    plan: Plan,
    theta: Tensor,
    keys: Tensor,
    values: Tensor,
    prior: Tensor | None,
    scores: Tensor | None,
    exact: bool = True,
) -> tuple[Tensor, Tensor]:
    """Runs the forward kernel on keys already wrapped; `scores` (may be `prior`) is written.

    With `exact` the weights are those of the scores as stored, which backward needs.

    Returns:
        The attended values [B, H, W, C] and the log-sum-exp of each line [B, lines].
    """
    from nlrn.ops import triton_kernels

    batch, height, width, embed = theta.shape
    channels = values.shape[-1]
    tuning = plan.tuning
    block, warps, stages = tuning.forward
    block_d, block_c = _padded(embed), _padded(channels)
    out = theta.new_empty(batch, height, width, channels)
    lse = theta.new_empty(batch, plan.lines, dtype=torch.float32)
    tma_scores = tuning.tma_scores and _has_descriptors(theta.device)
    tma_keys = (
        tuning.tma_operands
        and (plan.linear or plan.boxed)
        and (block_d, block_c) == (embed, channels)
        and _has_descriptors(theta.device)
    )

    def as_lines(lines: Tensor) -> Any:
        return _descriptor(lines, tuning.tile, block) if tma_scores else lines

    def as_keys(plane: Tensor, depth: int) -> Any:
        if not tma_keys:
            return plane
        if plan.linear:
            return _descriptor(plane, block, depth)
        return _box_descriptor(plane, block, depth)

    triton_kernels.forward_kernel[(plan.tiles, batch)](
        theta,
        as_keys(keys, block_d),
        as_keys(values, block_c),
        theta if prior is None else as_lines(prior),
        theta if scores is None else as_lines(scores),
        out,
        lse,
        height,
        width,
        plan.key_height,
        plan.key_width,
        plan.tiles_x,
        plan.stride,
        D=embed,
        C=channels,
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        **plan.window(),
        BLOCK=block,
        HAS_PRIOR=prior is not None,
        STORE_SCORES=scores is not None,
        ROUND=exact,
        TMA_SCORES=tma_scores,
        TMA_KEYS=tma_keys,
        PRECISION=_precision(theta.dtype),
        STAGES=stages,
        num_warps=warps,
        maxnreg=tuning.max_registers,
    )
    return out, lse


def launch_delta(plan: Plan, out: Tensor, d_out: Tensor) -> Tensor:
    """Returns out . d_out of each line [B, lines]."""
    from nlrn.ops import triton_kernels

    batch, height, width, channels = out.shape
    delta = out.new_empty(batch, plan.lines, dtype=torch.float32)
    triton_kernels.delta_kernel[(plan.tiles, batch)](
        out,
        d_out,
        delta,
        height,
        width,
        plan.tiles_x,
        C=channels,
        BLOCK_C=_padded(channels),
        **plan.geometry(),
        num_warps=4,
    )
    return delta


def launch_backward_keys(
    plan: Plan,
    theta: Tensor,
    values: Tensor,
    scores: Tensor,
    lse: Tensor,
    delta: Tensor,
    d_out: Tensor,
    d_next: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of the scores, the wrapped keys and the wrapped values."""
    from nlrn.ops import triton_kernels

    batch, height, width, embed = theta.shape
    channels = values.shape[-1]
    tuning = plan.tuning
    keys, keys_w, queries, warps, stages = tuning.keys
    block_d, block_c = _padded(embed), _padded(channels)
    d_scores = _new_packed(plan, scores)
    # Copies of a wrapped pixel are summed afterwards: keep them in float32 until then.
    dtype = torch.float32 if plan.pad else theta.dtype
    d_keys = theta.new_empty(batch, plan.key_height, plan.key_width, embed, dtype=dtype)
    d_values = torch.empty_like(values, dtype=dtype)
    if plan.linear:
        blocks = -(-plan.key_height * plan.key_width // keys)
    else:
        blocks = -(-plan.key_height // (keys // keys_w)) * -(-plan.key_width // keys_w)
    # Only where no region sticks out of the stored lines: blocks that begin before a line stopped
    # an H200 with an illegal instruction.
    tma = (
        tuning.tma_operands
        and plan.full
        and (block_d, block_c) == (embed, channels)
        and _has_descriptors(theta.device)
    )

    def as_lines(lines: Tensor) -> Any:
        return _descriptor(lines, queries, keys) if tma else lines

    triton_kernels.backward_keys_kernel[(blocks, batch)](
        _descriptor(theta, queries, block_d) if tma else theta,
        values,
        as_lines(scores),
        lse,
        delta,
        _descriptor(d_out, queries, block_c) if tma else d_out,
        theta if d_next is None else as_lines(d_next),
        as_lines(d_scores),
        d_keys,
        d_values,
        height,
        width,
        plan.key_height,
        plan.key_width,
        plan.tiles_x,
        plan.tiles,
        plan.stride,
        D=embed,
        C=channels,
        BLOCK_D=block_d,
        BLOCK_C=block_c,
        **plan.window(),
        KEYS=keys,
        KEYS_W=keys_w,
        QUERIES=queries,
        HAS_NEXT=d_next is not None,
        TMA=tma,
        PRECISION=_precision(theta.dtype),
        STAGES=stages,
        num_warps=warps,
    )
    return d_scores, d_keys, d_values


def launch_backward_queries(plan: Plan, keys: Tensor, d_scores: Tensor) -> Tensor:
    """The gradient of theta [B, H, W, D] from that of the scores."""
    from nlrn.ops import triton_kernels

    batch, _, _, embed = keys.shape
    block, warps, stages = plan.tuning.queries
    d_theta = keys.new_empty(batch, plan.height, plan.width, embed)
    tma = plan.tuning.tma_scores and _has_descriptors(keys.device)
    triton_kernels.backward_queries_kernel[(plan.tiles, batch)](
        keys,
        _descriptor(d_scores, plan.tuning.tile, block) if tma else d_scores,
        d_theta,
        plan.height,
        plan.width,
        plan.key_height,
        plan.key_width,
        plan.tiles_x,
        plan.stride,
        D=embed,
        BLOCK_D=_padded(embed),
        **plan.window(),
        BLOCK=block,
        TMA_SCORES=tma,
        PRECISION=_precision(keys.dtype),
        STAGES=stages,
        num_warps=warps,
    )
    return d_theta


# --- torch.library ------------------------------------------------------------------------------


def _plan_of(theta: Tensor, g: Tensor, window: int, circular: bool) -> Plan:
    _, height, width, embed = theta.shape
    shape = (int(height), int(width), window, circular, int(embed), int(g.shape[-1]))
    return plan_for(*shape, theta.dtype)


@torch.library.custom_op(
    "nlrn::attend",
    mutates_args=(),
    schema="(Tensor theta, Tensor psi, Tensor g, Tensor? prior, int window, bool circular, "
    "bool store) -> (Tensor, Tensor, Tensor)",
)
def _attend(
    theta: Tensor,
    psi: Tensor,
    g: Tensor,
    prior: Tensor | None,
    window: int,
    circular: bool,
    store: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """theta, psi, g [B, H, W, channels], packed prior -> (out, packed scores, log-sum-exp)."""
    plan = _plan_of(theta, g, window, circular)
    scores = _new_packed(plan, theta) if store else None
    keys, values = _wrap(psi.contiguous(), plan.pad), _wrap(g.contiguous(), plan.pad)
    out, lse = launch_forward(plan, theta.contiguous(), keys, values, prior, scores)
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
) -> tuple[Tensor, Tensor, Tensor]:
    plan = _plan_of(theta, g, window, circular)
    scores = _new_packed(plan, theta) if store else theta.new_empty(0)
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
    keys, values = _wrap(psi.contiguous(), plan.pad), _wrap(g.contiguous(), plan.pad)
    delta = launch_delta(plan, out.contiguous(), d_out)
    d_next = None if d_next is None else d_next.contiguous()
    d_scores, d_keys, d_values = launch_backward_keys(
        plan, theta, values, scores, lse, delta, d_out, d_next
    )
    d_theta = launch_backward_queries(plan, keys, d_scores)
    d_psi, d_g = (_unwrap(grad, plan.pad).to(theta.dtype) for grad in (d_keys, d_values))
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
    theta, psi, g, _, ctx.window, ctx.circular, ctx.store = inputs
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
    return d_theta, d_psi, d_g, d_prior, None, None, None


_attend.register_autograd(_differentiate, setup_context=_save_for_backward)


@torch.library.custom_op(
    "nlrn::attend_update",
    mutates_args=("scores",),
    schema="(Tensor theta, Tensor psi, Tensor g, Tensor(a!) scores, int window, bool circular) "
    "-> Tensor",
)
def _attend_update(
    theta: Tensor, psi: Tensor, g: Tensor, scores: Tensor, window: int, circular: bool
) -> Tensor:
    """Inference: adds this state's scores to the packed ones in place, returns out."""
    plan = _plan_of(theta, g, window, circular)
    keys, values = _wrap(psi.contiguous(), plan.pad), _wrap(g.contiguous(), plan.pad)
    return launch_forward(plan, theta.contiguous(), keys, values, scores, scores, exact=False)[0]


@_attend_update.register_fake
def _(theta: Tensor, psi: Tensor, g: Tensor, scores: Tensor, window: int, circular: bool) -> Tensor:
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
    from nlrn.ops import triton_kernels

    batch, height, width, _ = plain.shape
    plan = plan_for(height, width, window, circular, embed, channels, plain.dtype)
    packed = _new_packed(plan, plain)
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
    return _new_packed(
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
    from nlrn.ops import triton_kernels

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
