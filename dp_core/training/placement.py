"""Where a run's arrays lie: on one device, or on a mesh of them in one process or several.

Batches are cut along their rows: every device adds up its own share, and the sums are added over the
mesh. The program is written for whole arrays, so noise is drawn once, whatever the mesh: an element's
noise is a function of its place in the whole.

Tables are copied to every device or, with ``tables="row_sharded"``, the large ones are cut along
their rows. Rows that no token reads are added at their end where the cut would not be even.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dp_core.noise import LARGE_ARRAY

TablePlacement = Literal["replicated", "row_sharded"]

_ROWS = "rows"


class Placement(NamedTuple):
    """The first ``devices`` that JAX sees, over all its processes."""

    devices: int = 1
    tables: TablePlacement = "replicated"

    @property
    def alone(self) -> bool:
        """Whether everything is on JAX's default device, and there is nothing to place."""
        return self.devices == 1

    def jit(self, function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
        """Compiles a function whose results are the same on every device."""
        return (
            jax.jit(function, **options) if self.alone else jax.jit(function, out_shardings=self._copied(), **options)
        )

    def init(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Calls ``function``, which makes a state from parameters, with its results in their places."""
        if self.alone:
            return jax.jit(function)(*arguments)
        places = self._places(jax.eval_shape(function, *arguments))
        return jax.jit(function, out_shardings=places)(*arguments)

    def put(self, state: Any) -> Any:
        """A whole state, as ``whole`` gave it, back in its places."""
        return self.init(lambda state: state, state)

    def whole(self, state: Any) -> Any:
        """The state as numpy arrays. In several processes, all of them must ask."""
        return jax.tree.map(np.asarray, state if self.alone else self.jit(lambda state: state)(state))

    def keep(self, state: Any) -> Any:
        """Inside a compiled function: the state, to be left in its place."""
        return state if self.alone else jax.lax.with_sharding_constraint(state, self._places(state))

    def batches(self, shape: tuple[int, ...], fetch: Callable[[Any], np.ndarray]) -> jax.Array:
        """An array of batches (steps, physical batches, rows, …), of which each process fetches its own rows."""
        whole = tuple(slice(0, size) for size in shape)
        if self.alone:
            return jnp.asarray(fetch(whole))
        sharding = NamedSharding(self._mesh(), PartitionSpec(None, None, _ROWS))
        return jax.make_array_from_callback(shape, sharding, fetch)

    def copied(self, value: np.ndarray) -> jax.Array:
        """A small array that every device needs whole."""
        if self.alone:
            return jnp.asarray(value)
        return jax.make_array_from_callback(value.shape, self._copied(), lambda index: value[index])

    def pad_tables(self, params: Any) -> Any:
        """Parameters whose large tables can be cut evenly."""
        flat = flatten_dict(params)
        for path, value in flat.items():
            if self._is_cut(path[-1], value):
                missing = -len(value) % self.devices
                flat[path] = np.pad(value, [(0, missing), (0, 0)])
        return unflatten_dict(flat)

    def trim_tables(self, params: Any, vocabulary_sizes: Mapping[str, int]) -> Any:
        """Parameters without the rows that were added; ``vocabulary_sizes`` by the name of the layer."""
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
        # The optimiser's state holds trees like the parameters', with the same names at their ends.
        def place(path: Any, leaf: Any) -> NamedSharding:
            cut = self._is_cut(getattr(path[-1], "key", ""), leaf)
            return NamedSharding(self._mesh(), PartitionSpec(_ROWS)) if cut else self._copied()

        return jax.tree_util.tree_map_with_path(place, state)

    def _copied(self) -> NamedSharding:
        return NamedSharding(self._mesh(), PartitionSpec())

    def _mesh(self) -> Mesh:
        seen = jax.devices()
        if self.devices > len(seen):
            raise ValueError(f"{self.devices} devices were asked for, but JAX sees {len(seen)}")
        return Mesh(np.array(seen[: self.devices]), (_ROWS,))
