"""What the operator refuses, what it costs, and what a compiler makes of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from attention_inputs import FAST_BACKENDS, attended, make_inputs

pytest.importorskip("hypothesis")
from torch import Tensor

from nlrn.ops import (
    AFFINITIES,
    BORDERS,
    AttentionSpec,
    neighborhood_attention,
    unsupported,
)


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
