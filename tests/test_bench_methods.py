"""What tables are made of, and the methods that stand in them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from skimage.metrics import peak_signal_noise_ratio

import nlrn
from nlrn import datasets, models, weights
from nlrn.bench import methods, tables
from nlrn.bench.methods import MethodOptions, UnavailableError
from nlrn.bench.tables import TABLES
from nlrn.degrade import imresize
from nlrn.images import Image
from nlrn.inference import Engine, Settings
from nlrn.inference.overlap import restore_patches
from nlrn.models import ModelCard
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.restoration import ClassicDenoiser, Denoiser, Upscaler
from nlrn.restoration.classic import METHODS

TINY = NLRNConfig(steps=2, channels=8, embed=4, window=7)
DENOISE, SR = TABLES["denoise-bsd400"], TABLES["sr"]


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_name_sets_methods_and_figures_that_exist(table: tables.Table) -> None:
    assert set(table.sets) <= set(datasets.TEST_SETS)
    assert set(table.methods) <= set(methods.names(table))
    assert set(table.weights) <= set(methods.NETWORKS)
    for image_set in table.sets:
        for level in table.levels:
            figures = tables.published(table.name, image_set, level)
            assert any(name in table.weights for name in figures)
            for figure in figures.values():
                assert figure.psnr is None or 15 < figure.psnr < 45
                assert figure.ssim is None or 0.5 < figure.ssim < 1


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_weight_has_seen_a_set_of_its_table(table: tables.Table) -> None:
    """Whatever is in the package, and the sets that the missing ones are going to be trained on."""
    for method, by_level in table.weights.items():
        assert set(by_level) == set(table.levels), method
        for name in by_level.values():
            entry = weights.manifest().get(name)
            default = {"sr-y": ("sr291",)}.get(name, ("bsd400",))
            if "bsd300" in name or name in ("denoise-gray-s30", "denoise-gray-s70"):
                default = ("bsd300",)
            seen = frozenset().union(
                *map(datasets.origins, entry.card.training_sets if entry else default)
            )
            for image_set in table.sets:
                assert seen.isdisjoint(datasets.origins(image_set)), f"{name} on {image_set}"


def test_the_papers_figures_and_misprints() -> None:
    assert tables.published("denoise-bsd400", "Set12", 25)["NLRN"] == (30.80, 0.8689)
    assert tables.published("denoise-bsd300", "Urban100", 70)["NLRN-MV"] == (25.71, 0.7724)
    assert tables.published("sr", "Set5", 2)["NLRN"] == (38.00, 0.9603)
    assert tables.facts("complexity")["RED"]["parameters_k"] == 4131
    assert "0.806" in tables.misprint("denoise-bsd300", "BSD200", 30, "NLRN")
    assert not tables.misprint("denoise-bsd300", "BSD200", 70, "NLRN")
    assert tables.has_unknown_protocol("denoise-bsd300", "Set14")
    assert not tables.has_unknown_protocol("denoise-bsd300", "Urban100")


def test_a_weight_that_has_seen_the_test_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="denoise-gray-s25 was trained on bsds500/test: not for B"):
        methods.prepare_network("denoise-gray-s25", "BSD200", 1, "denoise", MethodOptions())
    file = tmp_path / "mine.safetensors"
    random_network(TINY).save_pretrained(file, ModelCard(training_sets=("bsd300",)))
    with pytest.raises(ValueError, match="trained on bsds500/val: not for BSD68"):
        methods.check_no_leakage(str(file), "BSD68")
    methods.check_no_leakage(str(file), "Set12")
    random_network(TINY).save_pretrained(file, ModelCard(training_sets=("holiday-pictures",)))
    methods.check_no_leakage(str(file), "Set12")


@pytest.mark.slow
def test_baselines_compute_what_they_say() -> None:
    generator = np.random.default_rng(1)
    small = generator.random((9, 7))
    assert methods.noisy(small, 25) is small
    np.testing.assert_array_equal(methods.bicubic(small, 3), imresize(small, 3))
    y, x = np.mgrid[:48, :40] / 48
    clean = 0.5 + 0.3 * np.sin(9 * x) * np.cos(5 * y)
    noisy = clean + 25 / 255 * generator.standard_normal(clean.shape)
    for name in ("NLM-OpenCV", "NLM-skimage", "BM3D-package", *methods.CLASSIC):
        restored = methods.prepare(DENOISE, "Set12", 25, name, MethodOptions()).restore(noisy, 25)
        assert restored.shape == clean.shape and restored.dtype == np.float64
        gained = peak_signal_noise_ratio(clean, restored, data_range=1)
        gained -= peak_signal_noise_ratio(clean, noisy, data_range=1)
        assert gained > 4, name


def test_a_missing_package_or_weight_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    with pytest.raises(UnavailableError, match="NLRN at x2: no weight 'sr-y' yet"):
        methods.prepare(SR, "Set5", 2, "NLRN", MethodOptions())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match=r"BM3D-package: needs bm3d: pip install bm3d"):
        methods.prepare(DENOISE, "Set12", 25, "BM3D-package", MethodOptions())


def test_classic_methods_run_where_they_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.device] = []

    def spy(
        image: np.ndarray, sigma: float, *, device: torch.device, progress: object
    ) -> np.ndarray:
        seen.append(device)
        return image

    monkeypatch.setitem(METHODS, "bm3d", spy)
    for device in ("cpu", "meta"):
        options = MethodOptions(settings=Settings(device=device))
        prepared = methods.prepare(DENOISE, "Set12", 25, "BM3D", options)
        prepared.restore(np.zeros((3, 4)), 25)
        assert prepared.version == f"nlrn {nlrn.__version__}"
        assert (prepared.precision, prepared.device) == ("fp32", device.upper())
    assert [device.type for device in seen] == ["cpu", "meta"]
    assert "BM3D" not in methods.names(SR)


@pytest.fixture
def weight(tmp_path: Path) -> str:
    file = tmp_path / "tiny.safetensors"
    random_network(TINY).save_pretrained(file, ModelCard(sigma=25))
    return str(file)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("level", [25, 60])
def test_tables_run_what_users_run(weight: str, level: int, dtype: str) -> None:
    """The very pixels of the restorations, at the model's own noise level and at another."""
    image = np.random.default_rng(2).random((13, 21)).astype(dtype)
    settings = Settings(device="cpu")
    for views in (1, 8):
        views_too = Settings(views=views, device="cpu")
        options = MethodOptions(settings=settings)
        prepared = methods.prepare_network(weight, "Set12", views, "denoise", options)
        expected = Denoiser(weight, settings=views_too).restore(Image(image), level).image.pixels
        np.testing.assert_array_equal(prepared.restore(image, level), expected)
        prepared = methods.prepare_network(weight, "Set5", views, "sr", options)
        expected = Upscaler(3, weight, settings=views_too).restore(Image(image)).image.pixels
        np.testing.assert_array_equal(prepared.restore(image, 3), expected)
        assert expected.dtype == dtype and expected.shape == (39, 63)
    expected = ClassicDenoiser("nlm").restore(Image(image), level).image.pixels
    prepared = methods.prepare_classic("nlm", "auto")
    np.testing.assert_array_equal(prepared.restore(image, level), expected)


def test_nothing_is_changed_where_nothing_varies(weight: str) -> None:
    flat = np.full((12, 9), 0.3)
    options = MethodOptions(settings=Settings(device="cpu"))
    prepared = methods.prepare_network(weight, "Set5", 1, "sr", options)
    np.testing.assert_allclose(prepared.restore(flat, 2), 0.3, atol=1e-6)


def test_a_network_runs_by_both_protocols_and_with_views(weight: str) -> None:
    model, settings = models.load(weight), Settings(device="cpu")
    image = np.random.default_rng(2).random((50, 47))
    given = torch.from_numpy(image)[None, None].float()
    for protocol, views, expected in (
        ("whole", 1, Engine(model, settings)(given)),
        ("whole", 8, Engine(model, Settings(views=8, device="cpu"))(given)),
        ("overlap", 1, restore_patches(model, given, settings)),
    ):
        options = MethodOptions(protocol, settings=settings)
        prepared = methods.prepare_network(weight, "Set12", views, "denoise", options)
        np.testing.assert_allclose(prepared.restore(image, 25), expected[0, 0].numpy(), atol=1e-5)
        assert prepared.protocol == protocol
        assert prepared.version == f"tiny.safetensors@{weights.fingerprint(weight)}"


def test_super_resolution_runs_by_both_protocols(weight: str) -> None:
    image = np.random.default_rng(3).random((25, 19))
    large = torch.from_numpy(imresize(image, 2))[None, None].float()
    model, settings = models.load(weight), Settings(device="cpu")
    for protocol, expected in (
        ("whole", Engine(model, settings)(large)),
        ("overlap", restore_patches(model, large, settings)),
    ):
        options = MethodOptions(protocol, settings=settings)
        prepared = methods.prepare_network(weight, "Set5", 1, "sr", options)
        np.testing.assert_allclose(prepared.restore(image, 2), expected[0, 0].numpy(), atol=1e-5)


def test_patches_have_the_contrast_of_the_training(weight: str) -> None:
    """At another noise level both protocols differ by the patches alone: here they are one."""
    image = np.random.default_rng(4).random((7, 7))
    network = models.load(weight).with_border("circular")
    options = MethodOptions("overlap", settings=Settings(device="cpu"))
    prepared = methods.prepare_network(weight, "Set12", 1, "denoise", options)
    expected = Denoiser(network, settings=options.settings).restore(Image(image), 60).image.pixels
    np.testing.assert_allclose(prepared.restore(image, 60), expected, atol=1e-6)


def test_options_are_checked() -> None:
    with pytest.raises(ValueError, match="protocol must be whole or overlap, got 'half'"):
        MethodOptions("half")
