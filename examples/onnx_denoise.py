"""Denoises a picture with ONNX Runtime alone: onnx_denoise.py MODEL.onnx IN.png OUT.png [SIGMA]."""

import sys

import numpy as np
import onnxruntime
from PIL import Image

model, source, target, *level = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
image = np.atleast_3d(np.asarray(Image.open(source), np.float32) / 255)  # H W C
sigma = np.full((1, 1, 1, 1), float(level[0] if level else 25) / 255, np.float32)
batch = image.transpose(2, 0, 1)[None]
if session.get_inputs()[0].shape[1] == 3:  # a model for color
    batch = np.repeat(batch, 3 // batch.shape[1], axis=1)
(clean,) = session.run(None, {"image": batch, "sigma": sigma})
pixels = (clean[0].clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
Image.fromarray(pixels.squeeze()).save(target)
