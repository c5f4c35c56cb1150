"""The operator against its plain-loop definition: outputs, scores, gradients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nlrn.ops import AFFINITIES, BORDERS, neighborhood_attention, unsupported
from nlrn.ops.blocks import BLOCK

FAST_BACKENDS = ["torch"]
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


def run(
    inputs: list[Tensor], window: int, affinity: str, border: str, backend: str
) -> list[Tensor]:
    """Output, scores and the gradients of a fixed random functional of both."""
    prior = inputs[3] if len(inputs) == 4 else None
    out, correlation = neighborhood_attention(
        *inputs[:3], window=window, affinity=affinity, border=border, bandwidth=1.7,
        prior=prior, backend=backend,
    )  # fmt: skip
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
    expected = run(make_inputs(shape, with_prior), shape[-1], affinity, border, "reference")
    for dtype, tolerance in TOLERANCE.items():
        actual = run(make_inputs(shape, with_prior, dtype), shape[-1], affinity, border, backend)
        for a, e in zip(actual, expected, strict=True):
            assert a.dtype == dtype
            scale = max(1.0, e.abs().max().item())
            torch.testing.assert_close(a.double(), e, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_skip_connection_is_added_and_has_gradients(backend: str) -> None:
    shape = (2, 3, 5, 7, 4, 3)
    *operands, x = make_inputs(shape, False) + make_inputs((2, 5, 1, 7, 4, 3), False, seed=1)[:1]
    factor = torch.randn(5, dtype=torch.float64, requires_grad=True)
    leaves = [*operands, x, factor]
    plain, _ = neighborhood_attention(*operands, window=3, backend=backend)
    expected = plain + x * factor.view(1, -1, 1, 1)
    out, _ = neighborhood_attention(*operands, window=3, skip=(x, factor), backend=backend)
    torch.testing.assert_close(out, expected)
    wanted = torch.autograd.grad(expected.square().sum(), leaves)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), leaves), wanted)
    with pytest.raises(ValueError, match=r"skip must be features like g and factors \[C\], got"):
        neighborhood_attention(*operands, window=3, skip=(x, factor[:1]), backend=backend)


@pytest.mark.parametrize("border", BORDERS)
@pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot", "euclidean"])
def test_many_blocks_and_a_small_workspace_change_nothing(affinity: str, border: str) -> None:
    shape = (2, 3, 4, 3 * BLOCK + 5, 2 * BLOCK + 3, 9)
    inputs = make_inputs(shape, with_prior=True)
    expected = run(inputs, 9, affinity, border, "reference")
    for workspace in (1, 40_000, 2**30):
        out, correlation = neighborhood_attention(
            *inputs[:3], window=9, affinity=affinity, border=border, bandwidth=1.7,
            prior=inputs[3], backend="torch", workspace=workspace,
        )  # fmt: skip
        assert correlation is not None
        torch.testing.assert_close(out, expected[0], rtol=0, atol=1e-10)
        torch.testing.assert_close(correlation.scores(), expected[1], rtol=0, atol=1e-10)
    grads = run(inputs, 9, affinity, border, "torch")[2:]
    for a, e in zip(grads, expected[2:], strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=1e-9)


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_gradcheck(affinity: str) -> None:
    shape = (1, 2, 2, 2, 4, 3)
    inputs = make_inputs(shape, with_prior=True)

    def function(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        out, correlation = neighborhood_attention(
            *tensors[:3], window=3, affinity=affinity, prior=tensors[3], backend="torch"
        )
        assert correlation is not None
        return out, correlation.scores()

    assert torch.autograd.gradcheck(function, inputs)


@pytest.mark.parametrize("border", BORDERS)
def test_gradients_without_kept_correlation(border: str) -> None:
    shape = (1, 3, 4, 9, 5, 5)
    for with_prior in (False, True):
        results = []
        for backend in ("reference", "torch"):
            inputs = make_inputs(shape, with_prior)
            out, correlation = neighborhood_attention(
                *inputs[:3], window=5, border=border, keep_correlation=False,
                prior=inputs[3] if with_prior else None, backend=backend,
            )  # fmt: skip
            assert correlation is None
            results.append(torch.autograd.grad(out.square().sum(), inputs))
        for a, e in zip(*results, strict=True):
            torch.testing.assert_close(a, e, rtol=0, atol=1e-10)


@settings(max_examples=15, deadline=None)
@given(
    st.integers(1, 12), st.integers(1, 20), st.integers(1, 20), st.sampled_from([1, 3, 7, 11]),
    st.sampled_from(BORDERS), st.integers(0, 2**16),
)  # fmt: skip
def test_states_with_propagation_equal_concatenated_embeddings(
    steps: int, height: int, width: int, window: int, border: str, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    theta, psi = (
        torch.randn(steps, 1, 4, height, width, generator=generator, dtype=torch.float64)
        for _ in range(2)
    )
    g = torch.randn(1, 3, height, width, generator=generator, dtype=torch.float64)
    correlation = None
    for t in range(steps):
        out, correlation = neighborhood_attention(
            theta[t], psi[t], g, window=window, border=border, prior=correlation, reuse_prior=True
        )
    assert correlation is not None
    joined, expected = neighborhood_attention(
        torch.cat(list(theta), 1), torch.cat(list(psi), 1), g, window=window, border=border
    )
    assert expected is not None
    torch.testing.assert_close(out, joined, rtol=0, atol=1e-10)
    torch.testing.assert_close(correlation.scores(), expected.scores(), rtol=0, atol=1e-10)


def test_twelve_states_equal_concatenated_embeddings_with_gradients() -> None:
    theta = torch.randn(12, 1, 4, 9, 6, dtype=torch.float64, requires_grad=True)
    psi = torch.randn(12, 1, 4, 9, 6, dtype=torch.float64, requires_grad=True)
    g = torch.randn(1, 3, 9, 6, dtype=torch.float64, requires_grad=True)
    correlation = None
    for t in range(12):
        out, correlation = neighborhood_attention(theta[t], psi[t], g, window=5, prior=correlation)
    joined, _ = neighborhood_attention(
        torch.cat(list(theta), 1), torch.cat(list(psi), 1), g, window=5
    )
    torch.testing.assert_close(out, joined, rtol=0, atol=1e-10)
    chained = torch.autograd.grad(out.square().sum(), [theta, psi, g])
    direct = torch.autograd.grad(joined.square().sum(), [theta, psi, g])
    for a, e in zip(chained, direct, strict=True):
        torch.testing.assert_close(a, e, rtol=0, atol=1e-9)


def test_circular_window_of_the_patch_is_dense_attention() -> None:
    theta, psi, g = (torch.randn(2, c, 5, 5, dtype=torch.float64) for c in (4, 4, 3))
    out, _ = neighborhood_attention(theta, psi, g, window=5, border="circular")
    weights = torch.einsum("bdi,bdj->bij", theta.flatten(2), psi.flatten(2)).softmax(-1)
    dense = torch.einsum("bij,bcj->bci", weights, g.flatten(2)).reshape(g.shape)
    torch.testing.assert_close(out, dense, rtol=0, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("affinity", AFFINITIES)
def test_half_precision_stays_close_and_finite(dtype: torch.dtype, affinity: str) -> None:
    shape = (2, 8, 6, 11, 19, 7)
    inputs = [t.detach() for t in make_inputs(shape, with_prior=False)]
    correlation = None
    exact = None
    for _ in range(3):
        expected, exact = neighborhood_attention(
            *inputs, window=7, affinity=affinity, prior=exact, backend="torch"
        )
        out, correlation = neighborhood_attention(
            *(t.to(dtype) for t in inputs), window=7, affinity=affinity, prior=correlation,
            reuse_prior=True,
        )  # fmt: skip
    assert correlation is not None and out.dtype == dtype
    assert out.isfinite().all() and correlation.scores().isfinite().all()
    error = (out.double() - expected).norm() / expected.norm()
    assert error < (6e-2 if dtype == torch.bfloat16 else 1e-2)


def test_reusing_the_prior_takes_its_storage_and_says_so() -> None:
    theta, psi, g = (torch.randn(1, 4, 9, 10) for _ in range(3))
    _, first = neighborhood_attention(theta, psi, g, window=5)
    assert first is not None
    before = first.scores()
    kept, _ = neighborhood_attention(theta, psi, g, window=5, prior=first)
    torch.testing.assert_close(first.scores(), before, rtol=0, atol=0)
    storage = first.blocks.data_ptr()  # type: ignore[attr-defined]
    reused, second = neighborhood_attention(theta, psi, g, window=5, prior=first, reuse_prior=True)
    assert second.blocks.data_ptr() == storage  # type: ignore[union-attr]
    torch.testing.assert_close(reused, kept, rtol=0, atol=0)
    with pytest.raises(ValueError, match="used up"):
        first.scores()


def test_inference_mode_before_training_leaves_no_trace() -> None:
    """What the backend caches must not be tensors that refuse gradients."""
    inputs = [torch.randn(1, 3, 6, 17) for _ in range(3)]
    with torch.inference_mode():
        neighborhood_attention(*inputs, window=13)[1].scores()  # type: ignore[union-attr]
    inputs = [t.requires_grad_() for t in inputs]
    out, correlation = neighborhood_attention(*inputs, window=13)
    assert correlation is not None
    (out.sum() + correlation.scores().sum()).backward()
    assert inputs[0].grad is not None


@pytest.mark.parametrize("first", AFFINITIES)
def test_a_correlation_may_go_to_another_affinity(first: str) -> None:
    """What lies outside the windows in one backend's own form must not leak into the other."""
    inputs = [t.detach() for t in make_inputs((2, 3, 4, 9, 11, 5), with_prior=False)]
    results = []
    for backend in ("reference", "torch"):
        _, prior = neighborhood_attention(*inputs, window=5, affinity=first, backend=backend)
        results.append([
            neighborhood_attention(*inputs, window=5, affinity=a, prior=prior, backend=backend)[0]
            for a in ("gaussian", "dot")
        ])  # fmt: skip
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-10)


PEAK = """
import torch
from nlrn.ops import neighborhood_attention
torch.set_num_threads(1)
def peak(kind="VmHWM"):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith(kind))
def run(size):
    x = torch.rand(1, 4, size, size)
    neighborhood_attention(x, x, x, window=45, affinity={affinity!r}, keep_correlation=False,
                           workspace=2**22)
with torch.no_grad():
    run(16)
    before = peak("VmRSS")
    run(200)
print((peak() - before) / 1024)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("affinity", ["embedded_gaussian", "dot"])
def test_temporaries_stay_within_the_workspace(affinity: str) -> None:
    """200 x 200 pixels have 324 MB of scores; none of them may be held without being kept."""
    command = [sys.executable, "-c", PEAK.format(affinity=affinity)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(result.stdout) < 40  # MiB


def test_constant_values_come_back_unchanged_by_a_softmax() -> None:
    theta, psi = torch.randn(2, 1, 4, 6, 17, dtype=torch.float64)
    out, _ = neighborhood_attention(theta, psi, torch.full((1, 2, 6, 17), 0.3).double(), window=9)
    torch.testing.assert_close(out, torch.full_like(out, 0.3), rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 44}, "window must be odd and positive, got 44"),
        ({"window": -3}, "got -3"),
        ({"affinity": "cosine"}, "affinity must be one of .* got 'cosine'"),
        ({"border": "reflect"}, "border must be one of mask, circular, got 'reflect'"),
        ({"backend": "cuda"}, "got 'cuda'"),
        ({"bandwidth": 0.0}, "bandwidth must be above 0, got 0.0"),
        ({"psi": torch.zeros(1, 3, 5, 7)}, r"got \(1, 2, 5, 7\) and \(1, 3, 5, 7\)"),
        ({"g": torch.zeros(1, 3, 7, 5)}, r"g must be .* got \(1, 3, 7, 5\)"),
        ({"g": torch.zeros(1, 3, 5, 7).double()}, "dtypes differ"),
        ({"prior": torch.zeros(1, 5, 7, 8)}, r"prior must be \(1, 5, 7, 9\)"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_refuses_what_it_cannot_do(change: dict, message: str) -> None:
    arguments = {
        "theta": torch.zeros(1, 2, 5, 7),
        "psi": torch.zeros(1, 2, 5, 7),
        "g": torch.zeros(1, 3, 5, 7),
        "window": 3,
    }
    with pytest.raises(ValueError, match=message):
        neighborhood_attention(**(arguments | change))


def test_unsupported_names_the_reason() -> None:
    assert unsupported("torch", torch.zeros(1, 1, 1, 1), "dot") is None
    reason = unsupported("torch", torch.zeros(1, 1, 1, 1, dtype=torch.int64), "dot")
    assert reason is not None and "int64" in reason
