"""Placement: one device, or a mesh of devices in one or several processes.

Batches are sharded by rows: every device sums its own share, and the sums are added across the mesh.
Programs are written for whole arrays, so the noise is drawn once, and an element's noise depends on its
position in the whole array, not on the mesh.

Tables are replicated on every device or, with ``tables="row_sharded"``, large tables are sharded by rows.
Tables that do not divide evenly are padded with rows that no token reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dp_core.training.noise import LARGE_ARRAY

TablePlacement = Literal["replicated", "row_sharded"]

_ROWS = "rows"


class Placement(NamedTuple):
    """The devices that a run uses, and how its tables are laid out on them.

    Attributes:
        devices: Uses the first ``devices`` of ``jax.devices()``, over all processes.
        tables: "replicated", or "row_sharded" for large tables (``noise.LARGE_ARRAY`` elements or more).
    """

    devices: int = 1
    tables: TablePlacement = "replicated"

    @property
    def alone(self) -> bool:
        """Whether everything lives on JAX's default device."""
        return self.devices == 1

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compiles a function with results that are replicated on every device."""
        return (
            jax.jit(function, **options) if self.alone else jax.jit(function, out_shardings=self._copied(), **options)
        )

    def init(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls a function that makes a state, and shards its results."""
        if self.alone:
            return jax.jit(function)(*arguments)
        places = self._places(jax.eval_shape(function, *arguments))
        return jax.jit(function, out_shardings=places)(*arguments)

    def put(self, state: Any) -> Any:
        """Shards a state that ``whole`` returned."""
        return self.init(_same, state)

    def whole(self, state: Any) -> Any:
        """Returns the state as NumPy arrays. With several processes, all of them must call it."""
        return jax.tree.map(np.asarray, state if self.alone else self.jit(_same)(state))

    def keep(self, state: Any) -> Any:
        """Constrains a state's sharding inside a compiled function, so that it stays as it is."""
        return state if self.alone else jax.lax.with_sharding_constraint(state, self._places(state))

    def batches(self, shape: tuple[int, ...], fetch: Callable[[Any], np.ndarray]) -> jax.Array:
        """Returns an array of batches. Each process fetches only its own rows.

        Args:
            shape: (steps, physical batches, rows, ...).
            fetch: Returns the part of the array at an index, a tuple of slices.
        """
        whole = tuple(slice(0, size) for size in shape)
        if self.alone:
            return jnp.asarray(fetch(whole))
        sharding = NamedSharding(self._mesh(), PartitionSpec(None, None, _ROWS))
        return jax.make_array_from_callback(shape, sharding, fetch)

    def copied(self, value: np.ndarray) -> jax.Array:
        """Replicates a small array on every device."""
        if self.alone:
            return jnp.asarray(value)
        return jax.make_array_from_callback(value.shape, self._copied(), lambda index: value[index])

    def pad_tables(self, params: Any) -> Any:
        """Returns parameters with the sharded tables padded to a multiple of the devices."""
        flat = flatten_dict(params)
        for path, value in flat.items():
            if self._is_cut(path[-1], value):
                missing = -len(value) % self.devices
                flat[path] = np.pad(value, [(0, missing), (0, 0)])
        return unflatten_dict(flat)

    def trim_tables(self, params: Any, vocabulary_sizes: Mapping[str, int]) -> Any:
        """Returns parameters without padding rows.

        Args:
            params: Parameters, as padded by ``pad_tables``.
            vocabulary_sizes: Rows of each table, by the name of its layer.
        """
        flat = flatten_dict(params)
        return unflatten_dict(
            {
                path: value[: vocabulary_sizes[path[-2]]] if path[-1] == "table" else value
                for path, value in flat.items()
            }
        )

    def _is_cut(self, name: str, value: Any) -> bool:
        return self.tables == "row_sharded" and name == "table" and value.size >= LARGE_ARRAY

    def _places(self, state: Any) -> Any:
        # The optimiser's state holds trees like the parameters, with the same leaf names.
        def place(path: Any, leaf: Any) -> NamedSharding:
            cut = self._is_cut(getattr(path[-1], "key", ""), leaf)
            return NamedSharding(self._mesh(), PartitionSpec(_ROWS)) if cut else self._copied()

        return jax.tree_util.tree_map_with_path(place, state)

    def _copied(self) -> NamedSharding:
        return NamedSharding(self._mesh(), PartitionSpec())

    def _mesh(self) -> Mesh:
        seen = jax.devices()
        if self.devices > len(seen):
            raise ValueError(f"the placement asks for {self.devices} devices, but JAX sees {len(seen)}")
        return Mesh(np.array(seen[: self.devices]), (_ROWS,))


def _same(state: Any) -> Any:
    """Returns the state. One function, so that it is compiled once for all states of a shape."""
    return state
