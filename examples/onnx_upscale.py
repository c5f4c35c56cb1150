"""Enlarges a picture with ONNX Runtime alone: onnx_upscale.py MODEL.onnx IN.png OUT.png."""

import sys

import numpy as np
import onnxruntime
from PIL import Image

model, source, target = sys.argv[1:]
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
image = np.asarray(Image.open(source).convert("RGB"), np.float32) / 255  # H W C
(large,) = session.run(None, {"image": image.transpose(2, 0, 1)[None]})
pixels = (large[0].clip(0, 1) * 255).round().astype(np.uint8).transpose(1, 2, 0)
Image.fromarray(pixels).save(target)
