"""Makes nlrn's denoisers known to spandrel, which chaiNNer and ComfyUI load models with.

    import spandrel, spandrel_models
    spandrel_models.register(sigma=25)
    model = spandrel.ModelLoader().load_from_file("denoise-rgb.safetensors")
    clean = model(image)  # [B, C, H, W] in [0, 1]

spandrel hands over tensors without the file's metadata. Tensors do not show how large the window
is: the config is that of the model in nlrn whose tensors have the same names and shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from torch import Tensor

import nlrn
from nlrn import models, weights
from nlrn.models import Network


def network_of(tensors: Mapping[str, Tensor]) -> Network | None:
    """The network that these weights are of; None if no denoiser of nlrn has their shapes."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    for card in nlrn.list_models():
        known = weights.load(card.name)
        if card.task == "denoise" and shapes == {n: t.shape for n, t in known.tensors.items()}:
            # Of a model for one level nothing says which: spandrel's users have no level either.
            card = dataclasses.replace(card, sigma=None)
            weight = known._replace(card=card, tensors=dict(tensors))
            return models.ARCHITECTURES[card.architecture].from_weight(weight, card.name)
    return None


def register(sigma: float = 25.0) -> None:
    """Adds the architecture to spandrel's registry.

    Args:
        sigma: noise level on the 0..255 scale that models are told.
    """
    from spandrel import (
        MAIN_REGISTRY,
        Architecture,
        ArchSupport,
        ImageModelDescriptor,
        SizeRequirements,
    )

    class NLRNArch(Architecture):
        def __init__(self) -> None:
            super().__init__(id="NLRN", detect=lambda tensors: network_of(tensors) is not None)

        def load(self, state_dict: Mapping[str, Tensor]) -> Any:
            network = network_of(state_dict)
            assert network is not None  # or it would not have been detected
            return ImageModelDescriptor(
                network,
                dict(state_dict),
                architecture=self,
                purpose="Restoration",
                tags=[network.architecture],
                supports_half=False,
                supports_bfloat16=True,
                scale=1,
                input_channels=network.in_channels,
                output_channels=network.out_channels,
                size_requirements=SizeRequirements(),
                call_fn=lambda model, image: model(model.input_for(image, sigma / 255)),
            )

    MAIN_REGISTRY.add(ArchSupport.from_architecture(NLRNArch()))
