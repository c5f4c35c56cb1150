"""The neighbourhood operator in ONNX: a loop over rows of blocks, two matrix products in each.

As in `nlrn.ops.blocked`, a block of 8 x 8 queries sees a square region of keys, and the scores stay
in block order between the states. The loop runs over the rows of blocks of the image that is given,
so that the graph has the same size for all images. Images stand column by column [B, W, H, C]: then
the regions of a row of blocks are one gather of whole columns.
"""

from __future__ import annotations

import numpy as np

from nlrn.export.graph import Graph
from nlrn.ops import AttentionSpec
from nlrn.ops.blocks import BLOCK

LOW = {np.dtype(np.float32): -1e9, np.dtype(np.float16): -3e4}  # score of what is not compared


class Window:
    """What all states share: which keys a block sees, for images of one size.

    Args:
        graph: where it is written.
        features: name of features [B, C, H, W], for the size.
        spec: the operator.
    """

    def __init__(self, graph: Graph, features: str, spec: AttentionSpec) -> None:
        if not spec.kind.softmax or spec.kind.distance:
            raise ValueError(f"affinity {spec.affinity!r} cannot be exported")
        g = self.graph = graph
        self.region = BLOCK + 2 * spec.radius
        self.height, self.width = g.size(features, 2), g.size(features, 3)
        self.batch = g.size(features, 0)
        self.rows, self.cols = (self._blocks(side) for side in (self.height, self.width))
        self.y, outside_y = self._keys(self.rows, self.height, spec)
        self.x, outside_x = self._keys(self.cols, self.width, spec)
        outside = g("Or", g("Unsqueeze", outside_y, [1, 2]), g("Unsqueeze", outside_x, [0, 3]))
        low = g("Where", outside, LOW[g.dtype], 0.0)  # R cols x y
        self.low = g("Reshape", low, g.shape(self.rows, self.cols, 1, self.region**2))

    def _blocks(self, side: str) -> str:
        return self.graph("Div", self.graph("Add", side, BLOCK - 1), BLOCK)

    def _keys(self, blocks: str, side: str, spec: AttentionSpec) -> tuple[str, str]:
        """Which keys the blocks see along an axis, and which of them are not there [n, region]."""
        g = self.graph
        first = g("Unsqueeze", g("Mul", g.count(blocks), BLOCK), [1])
        key = g("Add", first, np.arange(self.region) - spec.radius)
        if spec.circular:
            return g("Mod", key, side), g("Less", key, -(2**31))
        last = g("Sub", side, 1)
        inside = g("Min", g("Max", key, 0), last)
        return inside, g("Not", g("Equal", key, inside))

    def attend(
        self, query: str, key: str, value: str, prior: str | None, channels: int, keep: bool
    ) -> tuple[str, str | None]:
        """Attended values [B, C, H, W] and, to be kept, the scores in block order.

        Args:
            query: [B, W, H, D].
            key: [B, W, H, D].
            value: [B, W, H, C].
            prior: scores of the state before.
            channels: C.
            keep: whether the scores are wanted.
        """
        body = Graph(self.graph.dtype, self.graph)
        row, y, start = (body.name(word) for word in ("query", "y", "start"))
        keys = body("Transpose", self._seen(body, key, y), perm=[0, 1, 3, 2])
        before = start if prior else body("Add", start, self._window_mask())  # cols 1 K + Q K
        scores = body("Add", body("MatMul", row, keys), before)  # B cols Q K
        weights = body("Softmax", scores, axis=-1)
        out = body("MatMul", weights, self._seen(body, value, y))
        inputs = {row: self._to_blocks(query), y: self.y, start: prior or self.low}
        results = self.graph.scan(body, inputs, [out, scores] if keep else [out])
        return self._from_blocks(results[0], channels), results[1] if keep else None

    def _seen(self, body: Graph, image: str, y: str) -> str:
        """What each block of a row sees of an image [B, W, H, C] -> [B, cols, region**2, C]."""
        seen = body("Gather", body("Gather", image, y, axis=2), self.x, axis=1)
        return body("Reshape", seen, [0, 0, self.region**2, -1])

    def _window_mask(self) -> np.ndarray:
        """0 for the keys in the window of a query, low for the others [BLOCK**2, region**2]."""
        offset = np.arange(self.region)[None] - np.arange(BLOCK)[:, None]
        inside = (offset >= 0) & (offset <= self.region - BLOCK)  # query key
        inside = inside[:, None, :, None] & inside[None, :, None, :]
        return np.where(inside.reshape(BLOCK**2, -1), 0.0, LOW[self.graph.dtype])

    def _to_blocks(self, image: str) -> str:
        """[B, W, H, C] -> [R, B, cols, BLOCK**2, C], zeros where blocks stick out."""
        g = self.graph
        right = g("Sub", g("Mul", self.cols, BLOCK), self.width)
        below = g("Sub", g("Mul", self.rows, BLOCK), self.height)
        image = g("Pad", image, g.shape(0, 0, 0, 0, 0, right, below, 0))
        image = g("Reshape", image, g.shape(self.batch, self.cols, BLOCK, self.rows, BLOCK, -1))
        image = g("Transpose", image, perm=[3, 0, 1, 2, 4, 5])
        return g("Reshape", image, g.shape(self.rows, self.batch, self.cols, BLOCK**2, -1))

    def _from_blocks(self, blocks: str, channels: int) -> str:
        """[R, B, cols, BLOCK**2, C] -> [B, C, H, W]."""
        g = self.graph
        split = g.shape(self.rows, self.batch, self.cols, BLOCK, BLOCK, channels)
        image = g("Transpose", g("Reshape", blocks, split), perm=[1, 5, 0, 4, 2, 3])
        height, width = (g("Mul", blocks, BLOCK) for blocks in (self.rows, self.cols))
        image = g("Reshape", image, g.shape(self.batch, channels, height, width))
        return g("Slice", image, [0, 0], g.shape(self.height, self.width), [2, 3])
