"""The operator against its plain-loop definition: outputs, scores, gradients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nlrn.ops import (
    AFFINITIES,
    BORDERS,
    AttentionSpec,
    Correlation,
    attend,
    neighborhood_attention,
    unsupported,
)
from nlrn.ops.blocks import BLOCK

FAST_BACKENDS = ["blocked", "dense"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
# batch, embed, channels, height, width, window: never square, window beyond the image, blocks cut
SHAPES = [(1, 4, 6, 7, 9, 3), (2, 3, 5, 11, 3, 5), (1, 2, 3, 2, 13, 7), (2, 2, 2, 1, 5, 3)]


def make_inputs(
    shape: tuple[int, ...], with_prior: bool, dtype: torch.dtype = torch.float64, seed: int = 0
) -> list[Tensor]:
    batch, embed, channels, height, width, window = shape
    generator = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64).to(dtype)

    tensors = [draw(batch, c, height, width) for c in (embed, embed, channels)]
    if with_prior:
        tensors.append(draw(batch, height, width, window * window))
    return [t.requires_grad_() for t in tensors]


def attended(
    operands: Sequence[Tensor], spec: AttentionSpec, **options: Any
) -> tuple[Tensor, Correlation | None]:
    """`attend` on the first three tensors."""
    query, key, value, *_ = operands
    return attend(query, key, value, spec, **options)


def run(inputs: list[Tensor], spec: AttentionSpec, backend: str) -> list[Tensor]:
    """Output, scores and the gradients of a fixed random functional of both."""
    query, key, value, *rest = inputs
    prior = rest[0] if rest else None
    out, correlation = neighborhood_attention(
        query, key, value, spec, prior_scores=prior, backend=backend
    )
    assert correlation is not None
    scores = correlation.scores()
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (t * torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)).sum()
        for t in (out, scores)
    )
    assert isinstance(loss, Tensor)
    return [out, scores, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("with_prior", [False, True], ids=["no_prior", "prior"])
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("affinity", AFFINITIES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_scores_and_gradients_match_plain_loops(
    shape: tuple[int, ...], affinity: str, border: str, with_prior: bool, backend: str
) -> None:
    spec = AttentionSpec(shape[-1], affinity, border, bandwidth=1.7)
    if reason := unsupported(backend, make_inputs(shape, False)[0], spec):
        assert backend == "dense" and border == "circular" and spec.window > min(shape[3:5])
        with pytest.raises(ValueError, match=reason):
            run(make_inputs(shape, with_prior), spec, backend)
        return
    expected = run(make_inputs(shape, with_prior), spec, "reference")
    for dtype, tolerance in TOLERANCE.items():
        actual = run(make_inputs(shape, with_prior, dtype), spec, backend)
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == dtype
            scale = max(1.0, e.abs().max().item())
            torch.testing.assert_close(a.double(), e, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("backend", [*FAST_BACKENDS, "reference"])
def test_a_skip_connection_is_added_and_has_gradients(backend: str) -> None:
    shape = (2, 3, 5, 7, 4, 3)
    *operands, x = make_inputs(shape, False) + make_inputs((2, 5, 1, 7, 4, 3), False, seed=1)[:1]
    factor = torch.randn(5, dtype=torch.float64, requires_grad=True)
    leaves = [*operands, x, factor]
    spec = AttentionSpec(3)
    plain, _ = attended(operands, spec, backend=backend)
    expected = plain + x * factor.view(1, -1, 1, 1)
    out, _ = attended(operands, spec, skip=(x, factor), backend=backend)
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), leaves), wanted)
    with pytest.raises(ValueError, match=r"features like value and factors \[C\], got"):
        attended(operands, spec, skip=(x, factor[:1]), backend=backend)


@pytest.mark.slow
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot", "euclidean"])
def test_many_blocks_and_a_small_workspace_change_nothing(affinity: str, border: str) -> None:
    shape = (2, 3, 4, 3 * BLOCK + 5, 2 * BLOCK + 3, 9)
    inputs, spec = make_inputs(shape, with_prior=True), AttentionSpec(9, affinity, border, 1.7)
    expected = run(inputs, spec, "reference")
    for workspace in (1, 40_000, 2**30):
        out, correlation = attended(
            inputs, spec, prior_scores=inputs[3], backend="blocked", workspace=workspace
        )
        assert correlation is not None
        torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(correlation.scores(), expected[1], rtol=0, atol=1e-10)
    grads = run(inputs, spec, "blocked")[2:]
    for a, e in zip(grads, expected[2:], strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("affinity", AFFINITIES)
def test_gradcheck(affinity: str, backend: str) -> None:
    shape = (1, 2, 2, 2, 4, 3)
    inputs = make_inputs(shape, with_prior=True)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        out, correlation = attended(
            tensors, AttentionSpec(3, affinity), prior_scores=tensors[3], backend=backend
        )
        assert correlation is not None
        return out, correlation.scores()

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("border", BORDERS)
def test_gradients_without_kept_correlation(border: str) -> None:
    shape = (1, 3, 4, 9, 5, 5)
    for with_prior in (False, True):
        results = []
        for backend in ("reference", *FAST_BACKENDS):
            inputs = make_inputs(shape, with_prior)
            out, correlation = attended(
                inputs, AttentionSpec(5, border=border), keep_correlation=False,
                prior_scores=inputs[3] if with_prior else None, backend=backend,
            )  # fmt: skip
            assert correlation is None
            results.append(torch.autograd.grad(out.square().sum(), inputs))
        for expected, *others in zip(*results, strict=True):
            for actual in others:
                torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3, 7, 11]),
    st.sampled_from(BORDERS), st.integers(0, 2**16),
)  # fmt: skip
def test_states_with_propagation_equal_concatenated_embeddings(
    steps: int, height: int, width: int, window: int, border: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    query, key = (
        torch.randn(steps, 1, 4, height, width, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    value = torch.randn(1, 3, height, width, generator=generator, dtype=torch.float64)
    spec, correlation = AttentionSpec(window, border=border), None
    for t in range(steps):
        out, correlation = attend(
            query[t], key[t], value, spec, prior_scores=correlation, reuse_prior=True
        )
    assert correlation is not None
    joined, expected = attend(torch.cat(list(query), 1), torch.cat(list(key), 1), value, spec)
    assert expected is not None
    torch.testing.assert_close(out, joined, rtol=0, atol=1e-10)
    torch.testing.assert_close(correlation.scores(), expected.scores(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_twelve_states_equal_concatenated_embeddings_with_gradients(backend: str) -> None:
    query = torch.randn(12, 1, 4, 9, 6, dtype=torch.float64, requires_grad=True)
    key = torch.randn(12, 1, 4, 9, 6, dtype=torch.float64, requires_grad=True)
    value = torch.randn(1, 3, 9, 6, dtype=torch.float64, requires_grad=True)
    correlation = None
    for t in range(12):
        out, correlation = neighborhood_attention(
            query[t], key[t], value, 5, prior_scores=correlation, backend=backend
        )
    joined, _ = neighborhood_attention(
        torch.cat(list(query), 1), torch.cat(list(key), 1), value, 5, backend=backend
    )
    torch.testing.assert_close(out, joined, rtol=0, atol=1e-10)
    chained = torch.autograd.grad(out.square().sum(), [query, key, value])
    direct = torch.autograd.grad(joined.square().sum(), [query, key, value])
    for a, e in zip(chained, direct, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=1e-9)


def test_circular_window_of_the_patch_is_dense_attention() -> None:
    query, key, value = (torch.randn(2, c, 5, 5, dtype=torch.float64) for c in (4, 4, 3))
    out, _ = neighborhood_attention(query, key, value, AttentionSpec(5, border="circular"))
    weights = torch.einsum("bdi,bdj->bij", query.flatten(2), key.flatten(2)).softmax(-1)
    dense = torch.einsum("bij,bcj->bci", weights, value.flatten(2)).reshape(value.shape)
    torch.testing.assert_close(out, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affinity", AFFINITIES)
def test_half_precision_stays_close_and_finite(
    dtype: torch.dtype, affinity: str, backend: str
) -> None:
    shape = (2, 8, 6, 11, 19, 7)
    inputs = [t.detach() for t in make_inputs(shape, with_prior=False)]
    spec, correlation, exact = AttentionSpec(7, affinity), None, None
    for _ in range(3):
        expected, exact = attended(inputs, spec, prior_scores=exact, backend="blocked")
        half = [t.to(dtype) for t in inputs]
        out, correlation = attended(
            half, spec, prior_scores=correlation, reuse_prior=True, backend=backend
        )
    assert correlation is not None and out.dtype == dtype
    assert out.isfinite().all() and correlation.scores().isfinite().all()
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (6e-2 if dtype == torch.bfloat16 else 1e-2)


def test_reusing_the_prior_takes_its_storage_and_says_so() -> None:
    operands, spec = [torch.randn(1, 4, 9, 10) for _ in range(3)], AttentionSpec(5)
    _, first = attended(operands, spec)
    assert first is not None
    before = first.scores()
    kept, _ = attended(operands, spec, prior_scores=first)
    torch.testing.assert_close(first.scores(), before, rtol=0, atol=0)
    storage = first.blocks.data_ptr()  # type: ignore[attr-defined]
    reused, second = attended(operands, spec, prior_scores=first, reuse_prior=True)
    assert second.blocks.data_ptr() == storage  # type: ignore[union-attr]
    torch.testing.assert_close(reused, kept, rtol=0, atol=0)
    with pytest.raises(ValueError, match="used up"):
        first.scores()


@pytest.mark.parametrize("backend", FAST_BACKENDS)
def test_inference_mode_before_training_leaves_no_trace(backend: str) -> None:
    """What the backend caches must not be tensors that refuse gradients."""
    inputs = [torch.randn(1, 3, 6, 17) for _ in range(3)]
    with torch.inference_mode():
        _, correlation = attended(inputs, AttentionSpec(13), backend=backend)
        correlation.scores()  # type: ignore[union-attr]
    inputs = [t.requires_grad_() for t in inputs]
    out, correlation = attended(inputs, AttentionSpec(13), backend=backend)
    assert correlation is not None
    (out.sum() + correlation.scores().sum()).backward()
    assert inputs[0].grad is not None


@pytest.mark.parametrize("first", AFFINITIES)
def test_a_correlation_may_go_to_another_affinity(first: str) -> None:
    """What lies outside the windows in one backend's own form must not leak into the other."""
    inputs = [t.detach() for t in make_inputs((2, 3, 4, 9, 11, 5), with_prior=False)]
    results = []
    for backend in ("reference", *FAST_BACKENDS):
        _, prior = attended(inputs, AttentionSpec(5, first), backend=backend)
        results.append([
            attended(inputs, AttentionSpec(5, a), prior_scores=prior, backend=backend)[0]
            for a in ("gaussian", "dot")
        ])  # fmt: skip
    for expected, *others in zip(*results, strict=True):
        for actual in others:
            torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("second", ["reference", *FAST_BACKENDS])
@pytest.mark.parametrize("first", ["reference", *FAST_BACKENDS])
def test_a_correlation_may_go_to_another_backend(first: str, second: str, border: str) -> None:
    inputs, spec = (
        make_inputs((2, 3, 4, 6, 9, 5), with_prior=False),
        AttentionSpec(5, border=border),
    )
    results = []
    for backends in ((first, second), ("reference", "reference")):
        _, prior = attended(inputs, spec, backend=backends[0])
        out, last = attended(inputs, spec, prior_scores=prior, backend=backends[1])
        assert last is not None
        grads = torch.autograd.grad(out.square().sum() + last.scores().sin().sum(), inputs)
        results.append([out, last.scores(), *grads])
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("backend", ["reference", *FAST_BACKENDS])
def test_the_correlation_of_another_image_is_refused(backend: str) -> None:
    inputs = [torch.randn(1, 3, 6, 9) for _ in range(3)]
    _, prior = attended([torch.randn(2, 3, 6, 9) for _ in range(3)], AttentionSpec(5))
    with pytest.raises(
        ValueError, match=r"prior_scores must be \(1, 6, 9, 25\), got \(2, 6, 9, 25\)"
    ):
        attended(inputs, AttentionSpec(5), prior_scores=prior, backend=backend)


def penalty(inputs: list[Tensor], affinity: str, backend: str) -> tuple[Tensor, ...]:
    """A gradient penalty: the gradients of squared gradients, of a constant incoming gradient."""
    out, _ = attended(inputs, AttentionSpec(3, affinity), keep_correlation=False, backend=backend)
    grads = torch.autograd.grad(out, inputs, torch.ones_like(out), create_graph=True)
    loss = sum(g.square().sum() for g in grads)
    assert isinstance(loss, Tensor)
    return torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_second_derivatives(affinity: str) -> None:
    results = [
        penalty(make_inputs((2, 2, 3, 4, 5, 3), False), affinity, backend)
        for backend in ("dense", "reference")
    ]
    for actual, expected in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_second_derivatives_of_blocks_are_an_error(affinity: str) -> None:
    inputs = make_inputs((2, 2, 3, 4, 5, 3), False)
    with pytest.raises(RuntimeError, match="the blocked backend has no second derivatives"):
        penalty(inputs, affinity, "blocked")
    # Asked for and not used, a graph of the gradients harms nobody.
    out, _ = attended(inputs, AttentionSpec(3, affinity), backend="blocked")
    graph = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    out, _ = attended(inputs, AttentionSpec(3, affinity), backend="blocked")
    for actual, expected in zip(graph, torch.autograd.grad(out.sum(), inputs), strict=True):
        assert torch.equal(actual, expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # its own
@pytest.mark.parametrize("backend", FAST_BACKENDS)
@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot", "euclidean"])
def test_compiles_without_graph_breaks(affinity: str, border: str, backend: str) -> None:
    inputs = make_inputs((2, 3, 4, 5, 7, 5), with_prior=True)

    def network(*inputs: Tensor) -> Tensor:
        spec = AttentionSpec(5, affinity, border)
        first, prior = attended(inputs, spec, prior_scores=inputs[3], backend=backend)
        second, _ = attended(inputs, spec, prior_scores=prior, backend=backend)
        return first.square().sum() + second.sin().sum()

    torch.compiler.reset()
    traced = torch.compile(network, fullgraph=True, backend="aot_eager")
    wanted = torch.autograd.grad(network(*inputs), inputs)
    torch.testing.assert_close(torch.autograd.grad(traced(*inputs), inputs), wanted)


PEAK = """
import torch
from nlrn.ops import AttentionSpec, attend
torch.set_num_threads(1)
def peak(kind="VmHWM"):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(kind))
def run(size):
    x = torch.rand(1, 4, size, size)
    attend(x, x, x, AttentionSpec(45, {affinity!r}), keep_correlation=False, workspace=2**22)
with torch.no_grad():
    run(16)
    before = peak("VmRSS")
    run(200)
print((peak() - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot"])
def test_temporaries_stay_within_the_workspace(affinity: str) -> None:
    """200 x 200 pixels have 324 MB of scores; none of them may be held without being kept."""
    command = [sys.executable, "-c", PEAK.format(affinity=affinity)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(result.stdout) < 40  # MiB


def test_constant_values_come_back_unchanged_by_a_softmax() -> None:
    query, key = torch.randn(2, 1, 4, 6, 17, dtype=torch.float64)
    out, _ = neighborhood_attention(query, key, torch.full((1, 2, 6, 17), 0.3).double(), 9)
    torch.testing.assert_close(out, torch.full_like(out, 0.3), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 44}, "window must be odd and positive, got 44"),
        ({"window": -3}, "window must be odd and positive, got -3"),
        ({"window": 4.5}, "window must be an integer, got 4.5"),
        ({"affinity": "cosine"}, "affinity must be one of .* got 'cosine'"),
        ({"border": "reflect"}, "border must be one of mask, circular, got 'reflect'"),
        ({"bandwidth": 0.0}, "bandwidth must be above 0, got 0.0"),
        ({"bandwidth": float("nan")}, "bandwidth must be above 0, got nan"),
    ],
    ids=str,
)
def test_a_spec_that_cannot_be_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttentionSpec(**({"window": 3} | change))


def test_an_integer_is_the_window_of_a_default_spec() -> None:
    query, key, value = make_inputs((1, 2, 3, 5, 7, 3), with_prior=False)
    out, _ = neighborhood_attention(query, key, value, 3)
    assert torch.equal(out, neighborhood_attention(query, key, value, AttentionSpec(3))[0])
    for window in (44, 4.5):
        with pytest.raises(ValueError, match=f"got {window}"):
            neighborhood_attention(query, key, value, window)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "cuda"}, "got 'cuda'"),
        ({"backend": "torch"}, "one of triton, blocked, reference, dense, got 'torch'"),
        ({"key": torch.zeros(1, 3, 5, 7)}, r"got \(1, 2, 5, 7\) and \(1, 3, 5, 7\)"),
        ({"value": torch.zeros(1, 3, 7, 5)}, r"value must be .* got \(1, 3, 7, 5\)"),
        ({"value": torch.zeros(1, 3, 5, 7).double()}, "dtypes differ"),
        ({"value": torch.zeros(1, 0, 5, 7)}, r"empty tensor: .* value \(1, 0, 5, 7\)"),
        ({"prior_scores": torch.zeros(1, 5, 7, 8)}, r"prior_scores must be \(1, 5, 7, 9\)"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refuses_what_it_cannot_do(change: dict, message: str) -> None:
    arguments = {
        "query": torch.zeros(1, 2, 5, 7),
        "key": torch.zeros(1, 2, 5, 7),
        "value": torch.zeros(1, 3, 5, 7),
        "spec": 3,
    }
    with pytest.raises(ValueError, match=message):
        neighborhood_attention(**(arguments | change))


def test_unsupported_names_the_reason() -> None:
    spec = AttentionSpec(3, "dot")
    assert unsupported("blocked", torch.zeros(1, 1, 1, 1), spec) is None
    reason = unsupported("blocked", torch.zeros(1, 1, 1, 1, dtype=torch.int64), spec)
    assert reason is not None and "int64" in reason
    reason = unsupported("triton", torch.zeros(1, 1, 1, 1), spec)
    assert reason is not None and "triton" in reason


LOADED = """
import sys, torch
from nlrn.ops import neighborhood_attention
neighborhood_attention(*torch.rand(3, 1, 2, 5, 7), 3)
assert not {"triton", "torch._dynamo"} & set(sys.modules)
"""


@pytest.mark.slow
def test_a_call_on_the_cpu_loads_no_compiler() -> None:
    """It takes seconds to load, longer than a small image takes."""
    subprocess.run([sys.executable, "-c", LOADED], check=True)
