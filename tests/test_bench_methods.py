"""What tables are made of, and the methods that stand in them."""

from __future__ import annotations

import dataclasses
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
from nlrn.noise import estimate_sigma
from nlrn.restoration import ClassicDenoiser, Denoiser, Upscaler
from nlrn.restoration.choice import QUALITIES, choose_denoiser
from nlrn.restoration.classic import METHODS

TINY = NLRNConfig(steps=2, channels=8, embed=4, window=7)
DENOISE, SR = TABLES["denoise-bsd400"], TABLES["sr"]
ADDED = [("denoise-bsd300", "Set14"), ("denoise-bsd300", "BSD200")]  # the paper has other images


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_tables_name_sets_methods_and_figures_that_exist(table: tables.Table) -> None:
    assert set(table.sets) <= set(datasets.TEST_SETS)
    assert set(table.methods) <= set(methods.names(table))
    assert set(table.weights) <= set(methods.NETWORKS)
    for image_set in table.sets:
        for level in table.levels:
            figures = tables.published(table.name, image_set, level)
            if tables.is_of_paper(table.name) and (table.name, image_set) not in ADDED:
                assert any(name in table.weights for name in figures)
            for figure in figures.values():
                assert figure.psnr is None or 15 < figure.psnr < 45
                assert figure.ssim is None or 0.5 < figure.ssim < 1


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_weight_has_seen_a_set_of_its_table(table: tables.Table) -> None:
    """Whatever is in the package, and the sets that the missing ones are going to be trained on.

    Models of bsd300 are nearest to two levels of "universal": there they are refused on BSD68.
    """
    refused = {("universal", "BSD68", 35), ("universal", "BSD68", 75)}
    some = {("color", "NLRN-by-channel"): (15, 25, 50), ("universal", "NLRN"): (15, 25, 35, 50, 75)}
    for method, by_level in table.weights.items():
        levels = some.get((table.name, method), table.levels)
        assert set(by_level) == set(levels), method
        for level, name in by_level.items():
            entry = weights.manifest().get(name)
            default = {"sr-y": ("sr291",)}.get(name, ("bsd400",))
            if "bsd300" in name or name in ("denoise-gray-s30", "denoise-gray-s70"):
                default = ("bsd300",)
            seen = frozenset().union(
                *map(datasets.origins, entry.card.training_sets if entry else default)
            )
            for image_set in table.sets:
                common = seen & datasets.origins(image_set)
                is_refused = (table.name, image_set, level) in refused and method == "NLRN"
                assert bool(common) == is_refused, f"{name} on {image_set}"
                if is_refused:
                    with pytest.raises(UnavailableError, match="was trained on bsds500/val: not"):
                        methods.prepare(table, image_set, level, method, MethodOptions())


def test_the_papers_figures_and_misprints() -> None:
    assert tables.published("denoise-bsd400", "Set12", 25)["NLRN"] == (30.80, 0.8689)
    assert tables.published("denoise-bsd300", "Urban100", 70)["NLRN-MV"] == (25.71, 0.7724)
    assert tables.published("sr", "Set5", 2)["NLRN"] == (38.00, 0.9603)
    assert tables.facts("complexity")["RED"]["parameters_k"] == 4131
    assert "0.806" in tables.misprint("denoise-bsd300", "BSD200-half", 30, "NLRN")
    assert not tables.misprint("denoise-bsd300", "BSD200-half", 70, "NLRN")
    assert tables.published("denoise-bsd300", "S14", 30)["BM3D"] == (28.49, 0.8204)
    assert not any(tables.published(*added, 30) for added in ADDED)


def test_the_figures_of_peers_say_where_they_are_from() -> None:
    color = tables.published("color", "CBSD68", 25)
    assert color["FFDNet, authors' weights"] == (31.21, None)
    assert color["DRUNet, published"] == (31.69, None)
    assert color["ADNet, published"] == (31.31, None)
    assert tables.published("color", "Kodak24", 50)["GRL-T, published"] == (29.67, None)
    gray = tables.published("universal", "Set12", 50)
    assert gray["DnCNN, authors' weights"] == (27.21, None)
    assert gray["N3Net, authors' weights"] == (27.47, None)
    assert "N3Net, authors' weights" not in tables.published("universal", "Set12", 15)
    for name in (*color, *gray):
        assert name.split(", ")[1] in ("published", "authors' weights"), name
    assert not tables.published("camera", "PolyU", tables.AUTO)


def test_universal_has_what_users_get() -> None:
    chosen = {quality: choose_denoiser(1, quality) for quality in QUALITIES}
    for level in TABLES["universal"].levels:
        weights = {m: by[level] for m, by in TABLES["universal"].weights.items() if level in by}
        assert weights["denoise-gray"] == weights["denoise-gray-MV"] == chosen["best"].model
        assert weights["denoise-gray"] == chosen["balanced"].model
        assert weights["denoise-gray-fast"] == chosen["fast"].model


def test_levels_for_people() -> None:
    assert [TABLES["camera"].level(level) for level in (0, 5)] == ["auto", "5"]
    assert SR.level(2) == "x2" and TABLES["color"].level(75) == "75"


def test_a_weight_that_has_seen_the_test_set_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="denoise-gray-s25 was trained on bsds500/test: not for B"):
        methods.prepare_network("denoise-gray-s25", "BSD200", 1, "denoise", MethodOptions())
    with pytest.raises(ValueError, match="was trained on bsds500/test: not for BSD200-half"):
        methods.check_no_leakage("denoise-gray-s25", "BSD200-half")
    file = tmp_path / "mine.safetensors"
    random_network(TINY).save_pretrained(file, ModelCard(training_sets=("bsd300",)))
    with pytest.raises(ValueError, match="trained on bsds500/val: not for BSD68"):
        methods.check_no_leakage(str(file), "BSD68")
    with pytest.raises(ValueError, match="trained on bsds500/val: not for CBSD68"):
        methods.check_no_leakage(str(file), "CBSD68")
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
    packages = {"NLM-OpenCV": 4, "NLM-skimage": 4, "bilateral-skimage": 2, "BM3D-package": 4}
    for name, least in (packages | dict.fromkeys(methods.CLASSIC, 4)).items():
        restored = methods.prepare(DENOISE, "Set12", 25, name, MethodOptions()).restore(noisy, 25)
        assert restored.shape == clean.shape and restored.dtype == np.float64
        gained = peak_signal_noise_ratio(clean, restored, data_range=1)
        gained -= peak_signal_noise_ratio(clean, noisy, data_range=1)
        assert gained > least, name


@pytest.mark.parametrize("name", ["NLM-skimage", "bilateral-skimage", "BM3D-package", "BM3D"])
def test_baselines_take_color(name: str) -> None:
    """Channels with little in common, so that a method that mixes them up would lose."""
    y, x = np.mgrid[:32, :40] / 40
    clean = np.stack([0.5 + 0.3 * np.sin(5 * x), 0.4 + 0.3 * np.cos(5 * y), 0.2 + 0.5 * x * y], 2)
    noisy = clean + 25 / 255 * np.random.default_rng(6).standard_normal(clean.shape)
    table, options = TABLES["color"], MethodOptions(settings=Settings(device="cpu"))
    restored = methods.prepare(table, "CBSD68", 25, name, options).restore(noisy, 25)
    assert restored.shape == clean.shape and restored.dtype == np.float64
    for channel in range(3):
        before, after = (np.square(im - clean)[..., channel].mean() for im in (noisy, restored))
        assert after < before / 2, channel


def test_a_level_that_is_not_given_is_estimated(weight: str) -> None:
    """The same estimate for all: what the restorations take by themselves."""
    image = np.random.default_rng(5).normal(0.5, 24 / 255, (24, 33, 3))
    camera, settings = TABLES["camera"], Settings(device="cpu")
    found = estimate_sigma(image)
    assert 20 < found < 28
    for name in ("NLM-skimage", "bilateral-skimage", "BM3D"):
        options = MethodOptions(settings=settings)
        run = methods.prepare(camera, "PolyU", tables.AUTO, name, options).restore
        np.testing.assert_array_equal(run(image, tables.AUTO), run(image, found))
        assert not np.array_equal(run(image, tables.AUTO), run(image, 5))
    for protocol in methods.PROTOCOLS:
        options = MethodOptions(protocol, weight, settings)
        run = methods.prepare(camera, "PolyU", tables.AUTO, "denoise-rgb", options).restore
        np.testing.assert_array_equal(run(image, tables.AUTO), run(image, found))
    expected = Denoiser(weight, settings=settings).restore(Image(image)).image.pixels
    whole = methods.prepare_network(weight, "PolyU", 1, "camera", MethodOptions(settings=settings))
    np.testing.assert_array_equal(whole.restore(image, tables.AUTO), expected)
    flat = np.full((24, 33, 3), 0.3)  # no noise at all
    run = methods.prepare(camera, "PolyU", tables.AUTO, "NLM-skimage", MethodOptions()).restore
    np.testing.assert_array_equal(run(flat, tables.AUTO), flat)


def test_a_missing_package_or_weight_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "manifest", dict)
    with pytest.raises(UnavailableError, match="NLRN at x2: no weight 'sr-y' yet"):
        methods.prepare(SR, "Set5", 2, "NLRN", MethodOptions())
    with pytest.raises(UnavailableError, match="denoise-rgb-MV at 5: no weight 'denoise-rgb' yet"):
        methods.prepare(TABLES["color"], "CBSD68", 5, "denoise-rgb-MV", MethodOptions())
    with pytest.raises(UnavailableError, match="NLRN-by-channel at 5: it is for 15, 25, 50 only"):
        methods.prepare(TABLES["color"], "CBSD68", 5, "NLRN-by-channel", MethodOptions())
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
    for device in ("cpu", "cpu:0"):
        options = MethodOptions(settings=Settings(device=device))
        prepared = methods.prepare(DENOISE, "Set12", 25, "BM3D", options)
        prepared.restore(np.zeros((3, 4)), 25)
        assert prepared.version == f"nlrn {nlrn.__version__}"
        assert (prepared.precision, prepared.device) == ("fp32", "CPU")
    assert [str(device) for device in seen] == ["cpu", "cpu:0"]
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


@pytest.mark.parametrize("protocol", methods.PROTOCOLS)
def test_a_gray_network_takes_color_channel_by_channel(weight: str, protocol: str) -> None:
    image = np.random.default_rng(7).random((13, 21, 3))
    options = MethodOptions(protocol, settings=Settings(device="cpu"))
    run = methods.prepare_network(weight, "Kodak24", 1, "color", options).restore
    expected = np.stack([run(np.ascontiguousarray(c), 25) for c in np.moveaxis(image, 2, 0)], 2)
    np.testing.assert_allclose(run(image, 25), expected, atol=1e-6)


@pytest.mark.parametrize("protocol", methods.PROTOCOLS)
def test_a_color_network_takes_color_whole(tmp_path: Path, protocol: str) -> None:
    file = tmp_path / "color.safetensors"
    model = random_network(dataclasses.replace(TINY, in_channels=3, out_channels=3))
    model.save_pretrained(file, ModelCard(sigma=25, channels=3))
    image, settings = np.random.default_rng(8).random((13, 21, 3)), Settings(device="cpu")
    given = torch.from_numpy(image).permute(2, 0, 1)[None].float().contiguous()
    is_whole = protocol == "whole"
    expected = Engine(model, settings)(given) if is_whole else restore_patches(model, given)
    options = MethodOptions(protocol, settings=settings)
    run = methods.prepare_network(str(file), "Kodak24", 1, "color", options).restore
    np.testing.assert_allclose(run(image, 25), expected[0].permute(1, 2, 0).numpy(), atol=1e-5)


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
