"""Weights and their cards: one description, in the manifest and in the file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors
import safetensors.torch
import torch

from nlrn import models, weights
from nlrn.models.nlrn import NLRNConfig, random_network
from nlrn.weights import ModelCard, WeightsError

SMALL = NLRNConfig(window=5, steps=2, channels=8, embed=4)


@pytest.mark.parametrize("name", weights.manifest())
def test_the_manifest_and_the_file_say_the_same(name: str) -> None:
    published = weights.manifest()[name]
    with safetensors.safe_open(str(weights.FOLDER / published.file), "pt") as file:
        metadata = file.metadata()
    assert set(metadata) == {"format", "config", "card"}
    assert json.loads(metadata["card"]) == published.card.to_dict()
    card = weights.load(name).card
    assert card == published.card and card.name == name
    assert card.license and card.description and card.training_sets and card.psnr
    network = models.load(name)
    assert network.card == card and network.in_channels == card.channels


def test_a_card_survives_a_round_trip() -> None:
    card = ModelCard("a", task="denoise", channels=3, sigma_range=(0.0, 75.0), factors=(2.0, 3.0),
                     training_sets=("x", "y"), steps=7, psnr={"Set12": 30.8})  # fmt: skip
    assert ModelCard.from_dict(json.loads(json.dumps(card.to_dict()))) == card
    assert ModelCard.from_dict(ModelCard().to_dict()) == ModelCard()
    with pytest.raises(ValueError, match="unknown field 'licence' of a model card"):
        ModelCard.from_dict({"licence": "MIT"})
    with pytest.raises(ValueError, match="task of a model card must be denoise or sr, got 'paint'"):
        ModelCard.from_dict({"task": "paint"})


def save_as_before(path: Path, **notes: str) -> None:
    """A file from before there were cards."""
    network = random_network(SMALL)
    config = {key: value for key, value in vars(SMALL).items()
              if key not in ("unshuffle", "noise_map")}  # fmt: skip
    metadata = {"format": "nlrn-1", "config": json.dumps(config), **notes}
    tensors = {name: tensor.contiguous() for name, tensor in network.state_dict().items()}
    safetensors.torch.save_file(tensors, path, metadata)


def test_files_from_before_there_were_cards_load(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_as_before(
        path, name="old", task="sr", data="bsd400,sr291", start_from="sr-y", steps="70",
        factors="2,3", validation_psnr="28.5", training_minutes="9.3", sigma="", licence="MIT",
    )  # fmt: skip
    network = models.load(path)
    assert network.config == SMALL
    assert network.card == ModelCard(
        "old", "nlrn", "sr", 1, None, None, (2.0, 3.0), ("bsd400", "sr291"), "sr-y", 70, 9.3, 28.5
    )
    image = torch.rand(1, 1, 7, 9)
    assert torch.equal(network(image), random_network(SMALL)(image))


@pytest.mark.parametrize(
    ("notes", "message"),
    [
        ({"sigma": "loud"}, "sigma in the model's metadata is no number: 'loud'"),
        ({"card": "[1, 2]"}, "the model card is no table"),
        ({"card": "{"}, "old.safetensors: "),
        ({"card": '{"color": 3}'}, "unknown field 'color'"),
        ({"card": '{"architecture": "gpt"}'}, "unknown architecture 'gpt'"),
    ],
)
def test_broken_cards_are_named(notes: dict[str, str], message: str, tmp_path: Path) -> None:
    save_as_before(tmp_path / "old.safetensors", **notes)
    with pytest.raises(WeightsError, match=message):
        models.load(tmp_path / "old.safetensors")


def test_the_fingerprint_is_that_of_the_tensors(tmp_path: Path) -> None:
    network = random_network(SMALL)
    first, second, other = (tmp_path / f"{n}.safetensors" for n in "abc")
    network.save_pretrained(first)
    network.save_pretrained(second, replace(network.card, psnr={"Set12": 30.0}))
    random_network(SMALL, seed=1).save_pretrained(other)
    assert weights.fingerprint(first) == weights.fingerprint(second) != weights.fingerprint(other)
    assert len(weights.fingerprint("sr-y")) == 12


def test_an_unknown_architecture_is_refused() -> None:
    with pytest.raises(ValueError, match=r"architecture must be one of nlrn.*got 'gpt'"):
        models.build("gpt", {})
    with pytest.raises(ValueError, match="unknown config key 'layers'"):
        models.build("nlrn", {"layers": 3})


def test_the_folder_of_a_run_is_its_best_weights(tmp_path: Path) -> None:
    first, second = random_network(SMALL, seed=1), random_network(SMALL, seed=2)
    with pytest.raises(WeightsError, match=r"a folder without best\.safetensors or weights"):
        weights.load(tmp_path)
    first.save_pretrained(tmp_path / "weights.safetensors", ModelCard(name="last"))
    assert weights.load(tmp_path).card.name == "last"
    second.save_pretrained(tmp_path / "best.safetensors", ModelCard(name="best"))
    assert weights.load(str(tmp_path)).card.name == "best"
    assert weights.fingerprint(tmp_path) == weights.fingerprint(tmp_path / "best.safetensors")
