"""The network: counts of the paper, variants, folding, files."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from nlrn import weights
from nlrn.models import TrainingMode
from nlrn.models.nlrn import CONFIGS, NLRN, NLRNConfig, NonLocal2d, NonLocalBlock2d, random_network
from nlrn.ops import AFFINITIES, neighborhood_attention
from nlrn.weights import ModelCard, Published


def small(config: NLRNConfig) -> NLRNConfig:
    return dataclasses.replace(config, window=5, steps=4, channels=8, embed=4)


def test_counts_are_those_of_the_paper() -> None:
    model = NLRN()
    assert model.convolution_parameters == 330_625
    assert model.norm_parameters == 9_474
    assert model.config.effective_depth == 38
    assert model.config.flop_per_pixel == 12 * 1_432_960
    assert NLRN(CONFIGS["rnn"]).convolution_parameters == 330_886


def test_every_row_of_tables_1_and_2_is_a_named_config() -> None:
    assert {config.affinity for config in CONFIGS.values()} == set(AFFINITIES)
    assert not CONFIGS["nlrn-untied"].tied
    assert not CONFIGS["nlrn-no-propagation"].propagate
    assert [CONFIGS[f"nlrn-every-{k}"].non_local_every for k in (2, 3)] == [2, 3]
    assert CONFIGS["rnn"].non_local_every == 0


@pytest.mark.parametrize("name", CONFIGS)
def test_folded_network_equals_the_network(name: str) -> None:
    config = small(CONFIGS[name])
    model = random_network(config)
    image = torch.rand(2, config.in_channels, 11, 18, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model.double()(image.double())
    assert (expected - image).std() > 1e-4  # the network does something
    exact = model.for_inference(torch.float64)(image.double())
    torch.testing.assert_close(exact, expected, rtol=0, atol=1e-12)
    single = model.float().for_inference(torch.float32)(image)
    torch.testing.assert_close(single.double(), expected, rtol=0, atol=1e-5)
    half = model.for_inference(torch.bfloat16)(image)
    assert (half - expected).abs().max() < 0.1 * (expected - image).abs().max()


@pytest.mark.parametrize("name", CONFIGS)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    config = small(CONFIGS[name])
    model = random_network(config).train()
    model(torch.rand(2, config.in_channels, 6, 9)).square().mean().backward()
    # A tied cell's module is not used by states without one; everything else must learn, but for
    # what a softmax takes out.
    for key, parameter in model.named_parameters():
        if key.endswith("psi.bias") and AFFINITIES[config.affinity].softmax:
            assert not parameter.requires_grad and parameter.grad is None
        else:
            assert parameter.grad is not None and parameter.grad.isfinite().all(), key


def test_a_bias_that_the_softmax_takes_out_rests_at_zero(tmp_path: Path) -> None:
    assert NonLocal2d(4, affinity="embedded_dot").psi.bias.requires_grad  # type: ignore
    model, image = random_network(small(CONFIGS["nlrn"])), torch.rand(1, 1, 9, 14)
    with torch.no_grad():
        walked = dict(model.named_parameters())["cells.0.non_local.psi.bias"].normal_(std=30)
        expected = model.double()(image.double())
    model.float().save_pretrained(tmp_path / "walked.safetensors")
    loaded = NLRN.from_pretrained(tmp_path / "walked.safetensors")
    resting = {name: p for name, p in loaded.named_parameters() if not p.requires_grad}
    assert list(resting) == ["cells.0.non_local.psi.bias"] and walked.abs().max() > 10
    assert not resting["cells.0.non_local.psi.bias"].any()
    torch.testing.assert_close(loaded.double()(image.double()), expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_a_bias_that_walked_away_costs_half_precision_its_digits() -> None:
    module, x = NonLocal2d(16, 8, 7), torch.randn(1, 16, 12, 12).bfloat16().double()
    for layer in (module.theta, module.psi, module.g):
        layer.weight.normal_(std=0.3)  # type: ignore[union-attr]
    exact, _ = module.bfloat16().double()(x)
    errors = {}
    for walk in (0.0, 30.0):
        module.psi.bias.fill_(walk)  # type: ignore[union-attr]
        torch.testing.assert_close(module.double()(x)[0], exact)
        errors[walk] = (module.bfloat16()(x.bfloat16())[0] - exact).norm() / (exact - x).norm()
    assert errors[0.0] < 0.03 and errors[30.0] > 3 * errors[0.0]


def test_propagation_and_module_spacing_change_the_result() -> None:
    image = torch.rand(1, 1, 9, 14)
    results = [
        random_network(small(CONFIGS[name]))(image)
        for name in ("nlrn", "nlrn-no-propagation", "nlrn-every-2", "nlrn-every-3")
    ]
    for i, a in enumerate(results):
        for b in results[i + 1 :]:
            assert (a - b).abs().max() > 1e-6


@pytest.mark.filterwarnings("ignore")  # the compiler looks at gradients that are not there
@pytest.mark.parametrize("backend", ["auto", "dense"])
@pytest.mark.parametrize("name", ["nlrn-every-2", "nlrn-every-3"])
def test_a_state_without_a_module_is_compiled_apart(name: str, backend: str) -> None:
    """torch.compile once took the operator of the first state for that of all."""
    network, image = random_network(small(CONFIGS[name])), torch.rand(1, 1, 7, 10)
    forward = network.for_training(TrainingMode(backend=backend, dtype=torch.float32))
    expected = forward(image)
    for module in network.repeated_modules():
        module.compile(dynamic=False, backend="eager")
    torch.testing.assert_close(forward(image), expected)


def test_a_new_network_is_the_identity() -> None:
    image = torch.rand(2, 1, 7, 10)
    torch.testing.assert_close(NLRN(small(CONFIGS["nlrn"])).eval()(image), image, rtol=0, atol=0)


@pytest.mark.parametrize("affinity", AFFINITIES)
def test_inserted_module_leaves_a_trained_network_bit_equal(affinity: str) -> None:
    generator = torch.Generator().manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 3, 1))
    target = torch.rand(2, 3, 12, 7, generator=generator)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        (network(target) - target).square().mean().backward()
        optimizer.step()
    module = NonLocal2d(8, embed=4, window=5, affinity=affinity)
    image = torch.rand(1, 3, 13, 9, generator=generator)
    with torch.no_grad():
        features, correlation = module(network[1](network[0](image)))
        assert torch.equal(network[2](features), network(image))
    assert correlation is not None and correlation.scores().shape == (1, 13, 9, 25)


def test_a_module_without_channels_is_refused() -> None:
    with pytest.raises(ValueError, match="channels and embed must be positive, got 0 and 64"):
        NonLocal2d(0)


def test_the_block_is_the_module_without_its_correlation() -> None:
    block = NonLocalBlock2d(6, embed=3, window=7, border="circular")
    nn.init.normal_(block.g.weight)
    module = NonLocal2d(6, embed=3, window=7, border="circular")
    module.load_state_dict(block.state_dict())
    first = nn.Conv2d(2, 6, 3)
    image = torch.rand(1, 2, 14, 15)
    torch.testing.assert_close(nn.Sequential(first, block)(image), module(first(image))[0])


@pytest.mark.parametrize("window", [9, 11])  # tables of indices that no other test has made
def test_tracing_leaves_nothing_behind(window: int) -> None:
    block = NonLocalBlock2d(4, embed=3, window=window).eval()
    nn.init.normal_(block.g.weight)
    x = torch.rand(1, 4, 13, 10)
    if window == 9:
        with torch.no_grad():
            traced = torch.export.export(block, (x,)).module()
            torch.testing.assert_close(traced(x), block(x))
    else:
        with FakeTensorMode():
            assert NonLocalBlock2d(4, embed=3, window=window)(torch.rand(x.shape)).shape == x.shape
    slow = partial(neighborhood_attention, backend="reference")
    expected, _ = NonLocal2d.forward(block, x, attend=slow)
    torch.testing.assert_close(block(x), expected)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # its own
def test_one_graph_for_the_compiler() -> None:
    block = NonLocalBlock2d(4, embed=3, window=7)
    nn.init.normal_(block.g.weight)
    compiled = torch.compile(block, fullgraph=True, backend="aot_eager")
    grads = []
    for module in (block, compiled):
        x = torch.rand(1, 4, 13, 10, generator=torch.Generator().manual_seed(0)).requires_grad_()
        module(x).square().sum().backward()
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])


def test_module_takes_any_size_and_a_prior() -> None:
    module = NonLocal2d(6, embed=3, window=7)
    nn.init.normal_(module.g.weight)
    for size in [(1, 1), (2, 15), (19, 4)]:
        x = torch.randn(1, 6, *size)
        first, correlation = module(x)
        second, _ = module(x, correlation)
        assert first.shape == second.shape == x.shape
        if size != (1, 1):
            assert not torch.equal(first, second)


def test_saved_network_comes_back(tmp_path: Path) -> None:
    model = random_network(small(CONFIGS["nlrn-every-2"]))
    path = tmp_path / "wéights.safetensors"
    card = ModelCard("mine", sigma=25.0, training_sets=("a", "b"), psnr={"Set12": 30.8})
    model.save_pretrained(path, card)
    again = NLRN.from_pretrained(path)
    assert again.config == model.config and again.card == card
    assert not again.training
    image = torch.rand(1, 1, 8, 11)
    assert torch.equal(again(image), model(image))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_broken_weight_files_are_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(weights.WeightsError, match="neither a file nor a model"):
        NLRN.from_pretrained("no-such-model")
    random_network(small(CONFIGS["nlrn"])).save_pretrained(path)
    whole = path.read_bytes()
    for content in (b"", b"hello", whole[: len(whole) // 2], b"\xff" * 64):
        path.write_bytes(content)
        with pytest.raises(weights.WeightsError, match=r"model\.safetensors: not a safetensors"):
            NLRN.from_pretrained(path)
    config = dataclasses.asdict(small(CONFIGS["nlrn"]))
    weights.save(path, ModelCard(), config, {"wrong.key": torch.zeros(3)})
    with pytest.raises(weights.WeightsError, match=r"model\.safetensors: .*[Mm]issing key"):
        NLRN.from_pretrained(path)


def test_sha256_of_shipped_weights_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random_network(small(CONFIGS["nlrn"])).save_pretrained(tmp_path / "a.safetensors")
    entry = Published(ModelCard("a", task="denoise"), "a.safetensors", "0" * 64)
    monkeypatch.setattr(weights, "FOLDER", tmp_path)
    monkeypatch.setattr(weights, "manifest", lambda: {"a": entry})
    with pytest.raises(weights.WeightsError, match="sha256 differs"):
        NLRN.from_pretrained("a")


def test_shipped_weights_load() -> None:
    for name, published in weights.manifest().items():
        if published.card.architecture == "nlrn":
            assert NLRN.from_pretrained(name).convolution_parameters > 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"window": 44}, "window must be odd and positive, got 44"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"affinity": "cosine"}, "got 'cosine'"),
        ({"border": "reflect"}, "got 'reflect'"),
        ({"non_local_every": -1}, "got -1"),
        ({"out_channels": 3}, "out_channels must be at most in_channels"),
        ({"widnow": 45}, "unknown config key 'widnow'"),
        ({"window": "45"}, "config key 'window' must be int, got '45'"),
        ({"tied": 1}, "config key 'tied' must be bool, got 1"),
    ],
)
def test_bad_configs_are_named(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NLRNConfig.from_dict(values)


def test_config_survives_a_round_trip() -> None:
    for config in CONFIGS.values():
        assert NLRNConfig.from_dict(dataclasses.asdict(config)) == config
