"""A graph of ONNX that is being written: nodes by name, numbers and arrays become constants."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8  # the one that came with opset 17: older runtimes read it too
EXACT, HALF = np.dtype(np.float32), np.dtype(np.float16)
Value = str | float | int | Sequence[int] | np.ndarray


class Graph:
    """Nodes and constants; `graph(op, ...)` adds a node and returns the name of what it gives.

    Arguments that are no names become constants: floats in the precision of the graph, integers
    and lists of them as int64.

    Args:
        dtype: precision of constants, EXACT or HALF.
        outer: the graph around it, for the body of a loop; constants are kept there.
    """

    def __init__(self, dtype: np.dtype, outer: Graph | None = None) -> None:
        self.dtype, self.outer = dtype, outer
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[bytes, onnx.TensorProto] = {} if outer is None else outer.constants
        self._names: list[str] = [] if outer is None else outer._names

    def at(self, dtype: np.dtype) -> Graph:
        """The same graph for constants of another precision."""
        other = copy.copy(self)
        other.dtype = dtype
        return other

    def __call__(self, op: str, *inputs: Value, **attributes: Any) -> str:
        """Name of the only output of a new node."""
        return self.several(op, 1, *inputs, **attributes)[0]

    def several(self, op: str, outputs: int, *inputs: Value, **attributes: Any) -> list[str]:
        """Names of the outputs of a new node."""
        given = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        names = [self.name(op.lower()) for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, given, names, **attributes))
        return names

    def constant(self, value: float | int | Sequence[int] | np.ndarray) -> str:
        """Name of a constant; equal ones are kept once."""
        array = np.asarray(value)
        kind = np.int64 if array.dtype.kind in "iu" else self.dtype
        array = array.astype(kind)
        key = f"{array.dtype}{array.shape}".encode() + array.tobytes()
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, self.name("constant"))
        return self.constants[key].name

    def name(self, word: str) -> str:
        """A name that nothing has yet."""
        self._names.append(word)
        return f"{word}_{len(self._names)}"

    def size(self, value: str, axis: int) -> str:
        """Length of an axis, as a list of one."""
        return self("Slice", self("Shape", value), [axis], [axis + 1])

    def shape(self, *lengths: str | int) -> str:
        """A shape of lengths that are known now, or later: lists of one."""
        parts = [self.constant([n]) if isinstance(n, int) else n for n in lengths]
        return self("Concat", *parts, axis=0)

    def count(self, length: str) -> str:
        """0, 1, ... up to a length that is a list of one."""
        return self("Range", 0, self("Squeeze", length), 1)

    def to_exact(self, value: str) -> str:
        """What is in the precision of the graph, in float32."""
        return value if self.dtype == EXACT else self("Cast", value, to=TensorProto.FLOAT)

    def from_exact(self, value: str) -> str:
        """What is in float32, in the precision of the graph."""
        return value if self.dtype == EXACT else self("Cast", value, to=TensorProto.FLOAT16)

    def scan(self, body: Graph, inputs: dict[str, str], outputs: Sequence[str]) -> list[str]:
        """Runs the body for each slice along the first axis, and stacks what it gives.

        Args:
            body: made with this graph as `outer`.
            inputs: name of a slice in the body -> the tensor that it is of.
            outputs: names of results in the body.
        """
        # Types come from the tensors: only the names are declared.
        slices, results = (
            [onnx.ValueInfoProto(name=n) for n in part] for part in (inputs, outputs)
        )
        inside = helper.make_graph(body.nodes, self.name("body"), slices, results)
        given = inputs.values()
        return self.several("Scan", len(outputs), *given, body=inside, num_scan_inputs=len(inputs))
