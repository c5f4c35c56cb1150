"""Published weights of DnCNN, as files that are made here."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_networks import picture
from torch import Tensor
from typer.testing import CliRunner

from nlrn import convert, models
from nlrn.cli import app
from nlrn.models.dncnn import DnCNN, DnCNNConfig
from nlrn.weights import ModelCard

CARD = ModelCard("d", "dncnn", "denoise", sigma=25.0, training_sets=("bsd400",))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * 0.3


def state_dict(image: int = 1, *, norm: bool = True) -> dict[str, Tensor]:
    """A DnCNN of 4 layers and 6 channels, named as in ports to PyTorch."""
    found = {"dncnn.0.weight": random(6, image, 3, 3), "dncnn.0.bias": random(6)}
    for at in (2, 5):
        found[f"dncnn.{at}.weight"] = random(6, 6, 3, 3, seed=at)
        if not norm:
            found[f"dncnn.{at}.bias"] = random(6, seed=at)
            continue
        for part in ("weight", "bias", "running_mean", "running_var"):
            found[f"dncnn.{at + 1}.{part}"] = random(6, seed=len(part)).abs() + 0.1
        found[f"dncnn.{at + 1}.num_batches_tracked"] = torch.tensor(7)
    return found | {"dncnn.8.weight": random(image, 6, 3, 3, seed=9)}


def slow(values: dict[str, Tensor], x: Tensor) -> Tensor:
    """The image minus the noise, as the layers say."""
    y = F.conv2d(x, values["dncnn.0.weight"], values["dncnn.0.bias"], padding=1).relu()
    for at in (2, 5):
        y = F.conv2d(y, values[f"dncnn.{at}.weight"], values.get(f"dncnn.{at}.bias"), padding=1)
        if f"dncnn.{at + 1}.running_mean" in values:
            mean, var, scale, shift = (
                values[f"dncnn.{at + 1}.{part}"]
                for part in ("running_mean", "running_var", "weight", "bias")
            )
            y = F.batch_norm(y, mean, var, scale, shift)
        y = y.relu()
    return x - F.conv2d(y, values["dncnn.8.weight"], padding=1)


def cells(*values: Any) -> np.ndarray:
    found = np.empty((1, len(values)), object)
    for number, value in enumerate(values):
        found[0, number] = value
    return found


def matlab(values: dict[str, Tensor], path: Path) -> Path:
    """The same network as MatConvNet has it: [H, W, I, O], moments with deviations."""
    from scipy.io import savemat

    def conv(name: str) -> dict[str, Any]:
        weight = values[f"{name}.weight"].permute(2, 3, 1, 0).numpy()
        bias = values.get(f"{name}.bias", torch.zeros(weight.shape[3])).numpy()[:, None]
        return {"type": "conv", "weights": cells(weight.squeeze(3) if weight.shape[3] == 1
                                                 else weight, bias), "pad": 1.0}  # fmt: skip

    def norm(name: str) -> dict[str, Any]:
        mean, var = values[f"{name}.running_mean"], values[f"{name}.running_var"]
        moments = torch.stack([mean, (var + 1e-5).sqrt()], 1).numpy()
        scale, shift = values[f"{name}.weight"].numpy(), values[f"{name}.bias"].numpy()
        return {"type": "bnorm", "weights": cells(scale[:, None], shift[:, None], moments)}

    layers: list[dict[str, Any]] = [conv("dncnn.0"), {"type": "relu"}]
    for at in (2, 5):
        layers.append(conv(f"dncnn.{at}"))
        layers += [norm(f"dncnn.{at + 1}")] if f"dncnn.{at + 1}.bias" in values else []
        layers.append({"type": "relu"})
    layers += [conv("dncnn.8"), {"type": "loss"}]
    savemat(path, {"net": {"layers": cells(*layers), "meta": {}}}, do_compression=True)
    return path


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("image", [1, 3])
@pytest.mark.parametrize("kind", ["pth", "wrapped", "mat"])
def test_a_converted_network_computes_the_same(
    kind: str, image: int, norm: bool, tmp_path: Path
) -> None:
    values, path = (
        state_dict(image, norm=norm),
        tmp_path / f"net.{'mat' if kind == 'mat' else 'pt'}",
    )
    if kind == "mat":
        matlab(values, path)
    else:
        named = {f"module.{name}": tensor for name, tensor in values.items()}
        torch.save({"state_dict": named} if kind == "wrapped" else named, path)
    network = convert.read_dncnn(path, CARD)
    assert isinstance(network, DnCNN) and network.config == DnCNNConfig(4, 6, False, image)
    assert network.card.channels == image and network.card.sigma == 25
    x = picture(2, image, 9, 14)
    with torch.no_grad():
        torch.testing.assert_close(network(x), slow(values, x), rtol=0, atol=1e-5)


class Malicious:
    """Runs a program when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_malicious_pickle_is_refused_in_one_line(how: str, tmp_path: Path) -> None:
    path, mark = tmp_path / "net.pth", tmp_path / "was-here"
    if how == "torch":
        torch.save({"dncnn.0.weight": Malicious(mark)}, path)
    else:
        path.write_bytes(pickle.dumps(Malicious(mark)))
    arguments = ["convert", str(path), "-o", str(tmp_path / "n.safetensors")]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and not mark.exists()
    assert result.stderr.startswith(f"error: {path}: holds more than tensors")
    assert result.stderr.count("\n") == 1 and not (tmp_path / "n.safetensors").exists()


def test_the_command_writes_a_model_that_others_take(tmp_path: Path) -> None:
    source, target = tmp_path / "sigma=25.pth", tmp_path / "dncnn.safetensors"
    torch.save(state_dict(), source)
    more = ["--sigma", "25", "--trained-on", "bsd400"]
    command = ["convert", str(source), "-o", str(target), *more]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0 and result.stdout == f"{target}: 4 layers\n"
    card = models.load(target).card
    assert (card.name, card.architecture, card.task) == ("dncnn", "dncnn", "denoise")
    assert (card.sigma, card.training_sets) == (25, ("bsd400",))
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 2 and "--overwrite" in again.stderr
    assert CliRunner().invoke(app, [*command, "--overwrite"]).exit_code == 0
    wrong = CliRunner().invoke(app, [*command[:3], "n.bin"])
    assert wrong.exit_code == 2 and wrong.stderr == "error: n.bin: must end in .safetensors\n"
    for given, words in (([], "no image sets"), (["--trained-on", "div2k,cc0"], "images of div2k")):
        with pytest.warns(UserWarning, match=words):
            CliRunner().invoke(app, [*command[:4], "--overwrite", *given])
    assert models.load(target).card.training_sets == ("div2k", "cc0")
    negative = [*command[:3], str(tmp_path / "m.safetensors"), "--sigma", "-1"]
    assert "sigma must be 0 or more" in CliRunner().invoke(app, negative).stderr


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"dncnn.0.weight": random(6, 1, 3, 3)}, "at least 2 convolutions, got 1"),
        (state_dict() | {"dncnn.5.weight": random(6, 6, 5, 5)},
         r"convolution 3 must be \[6, 6, 3, 3\], got \[6, 6, 5, 5\]"),
        (state_dict() | {"dncnn.8.weight": random(1, 6, 3, 3) * np.nan},
         "convolution 4 has NaN or infinite"),
        (state_dict() | {"dncnn.0.bias": random(5)}, "convolution 1 must be"),
        (state_dict() | {"dncnn.9.alpha": random(5)}, "'dncnn.9' is neither convolution nor"),
        ({"x": random(5)}, r"'x' belongs to no layer, as 'model\.0\.weight' does"),
        ({"a.running_mean": random(3), "a.running_var": random(3).abs(), "a.weight": random(3),
          "a.bias": random(3)}, "a batch norm of 3 channels fits no layer"),
        ([1, 2], "no state_dict"),
        ({"a": 1}, "no state_dict"),
    ],
    ids=str,
)  # fmt: skip
def test_other_networks_are_refused(content: Any, message: str, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "net.pt")
    with pytest.raises(ValueError, match=message):
        convert.read_dncnn(tmp_path / "net.pt", CARD)


def test_other_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scipy.io import savemat

    savemat(tmp_path / "other.mat", {"x": np.eye(3)})
    savemat(tmp_path / "net.mat", {"net": {"layers": cells({"type": "conv"})}})
    (tmp_path / "text.mat").write_text("no MATLAB file")
    for name in ("other.mat", "net.mat", "text.mat"):
        with pytest.raises(ValueError, match=rf"{name}: no network of MatConvNet's SimpleNN"):
            convert.read_dncnn(tmp_path / name, CARD)
    hdf5 = bytearray(matlab(state_dict(), tmp_path / "new.mat").read_bytes())
    hdf5[124:126] = b"\x00\x02"
    (tmp_path / "new.mat").write_bytes(hdf5)
    with pytest.raises(ValueError, match=r"new\.mat: of MATLAB 7\.3; save it there with -v7"):
        convert.read_dncnn(tmp_path / "new.mat", CARD)
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(ValueError, match=r"torn\.pt: no file of PyTorch's, or a damaged one"):
        convert.read_dncnn(tmp_path / "torn.pt", CARD)
    with pytest.raises(ValueError, match=r"net\.npz: weights to convert end in \.mat, \.pt, \.pth"):
        convert.read_dncnn(tmp_path / "net.npz", CARD)
    with pytest.raises(ValueError, match=r"none\.pt: no such file"):
        convert.read_dncnn(tmp_path / "none.pt", CARD)
    monkeypatch.setattr(convert, "LARGEST", 5)
    with pytest.raises(ValueError, match=r"torn\.pt: 9 bytes, at most 5 are read"):
        convert.read_dncnn(tmp_path / "torn.pt", CARD)
