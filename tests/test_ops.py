"""The operator against its plain-loop definition: outputs, scores, gradients."""

from __future__ import annotations

import pytest
import torch
from attention_inputs import FAST_BACKENDS, SHAPES, TOLERANCE, attended, make_inputs, run

pytest.importorskip("hypothesis")
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nlrn.ops import (
    AFFINITIES,
    BORDERS,
    AttentionSpec,
    attend,
    neighborhood_attention,
    unsupported,
)
from nlrn.ops.blocks import BLOCK


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
