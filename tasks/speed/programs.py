"""One training step for each way of computing (clipped) gradients, compiled.

All have the same state, batch, optimiser and schedule, and differ in how a batch becomes a sum of
gradients, and in whether noise is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dp_core import training, two_pass
from dp_core.clipping import GradientSum, zero_sum
from dp_core.layers import INITIAL_SCALES
from dp_core.losses import OBJECTIVES
from dp_core.memory import rows_at_once
from dp_core.optimizers import make_optimizer
from dp_core.oracle import global_norms, per_example_gradients
from dp_core.physical_batches import PhysicalShape, physical_shape
from dp_core.signals import Batch
from dp_core.training import Hyperparameters, Method, TrainState, as_traced
from dp_core.updates import UpdateRule, dense_update
from tasks.speed.workloads import Workload, workload_from_json

OPTIMIZER, MOMENTUM = "sgd", 0.9

MethodName = Literal["non_private", "vmap", "two_pass_ghost", "one_pass_ghost"]
# "whole": the batch at once, as one would write it without a trainer. "pieces": in physical batches.
Form = Literal["whole", "pieces"]
Step = Callable[[TrainState, Batch, jax.Array, jax.Array, Hyperparameters], tuple[TrainState, jax.Array]]


class Program(NamedTuple):
    """A step that is measured: ``pieces`` physical batches of ``rows`` rows hold its batch."""

    workload: Workload
    method: MethodName
    noise: bool
    form: Form
    batch_size: int
    pieces: int
    rows: int

    @property
    def label(self) -> str:
        cut = f", {self.pieces} × {self.rows:,}" if self.form == "pieces" else ""
        return f"{self.method}{' with noise' if self.noise else ''}{cut}"

    def to_json(self) -> dict[str, Any]:
        return {**self._asdict(), "workload": self.workload.to_json()}


def program_from_json(described: Mapping[str, Any]) -> Program:
    """What ``to_json`` described."""
    return Program(**{**described, "workload": workload_from_json(described["workload"])})


def programs_for(
    workload: Workload, method: MethodName, *, noise: bool, batch_size: int, physical_batch_size: int | None = None
) -> list[Program]:
    """The forms in which a method is tried, of which the faster one is reported.

    Ghost clipping runs in physical batches as the trainer cuts them, of the size that it chooses for
    this machine unless one is given. Non-private training is tried in that way, through the trainer,
    and as a plain framework step over the whole batch, so that ratios are to the better of the two.
    ``vmap`` is the naive program, which takes the batch whole.
    """
    forms: dict[str, tuple[Form, ...]] = {"vmap": ("whole",), "non_private": ("whole", "pieces")}
    return [
        make_program(
            workload, method, form, noise=noise, batch_size=batch_size, physical_batch_size=physical_batch_size
        )
        for form in forms.get(method, ("pieces",))
    ]


def make_program(
    workload: Workload,
    method: MethodName,
    form: Form,
    *,
    noise: bool,
    batch_size: int,
    physical_batch_size: int | None = None,
) -> Program:
    """A method in any form, also in one that is not what it is reported in."""
    whole = PhysicalShape(1, batch_size)
    shape = whole if form == "whole" else trainer_shape(workload, batch_size, physical_batch_size)
    return Program(workload, method, noise, form, batch_size, *shape)


def trainer_shape(workload: Workload, batch_size: int, physical_batch_size: int | None) -> PhysicalShape:
    """The physical batches that the trainer would cut a batch into."""
    columns = {"integers": workload.integers, "categoricals": workload.categoricals}
    rows = physical_batch_size or rows_at_once(workload.model, parameter_shapes(workload), **columns)
    return physical_shape(batch_size, largest_rows=rows)


def parameter_count(workload: Workload) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(workload)))


def parameter_shapes(workload: Workload) -> Any:
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), workload.batch_shapes(1, 1))
    return jax.eval_shape(workload.model.init, jax.random.key(0), batch.integers, batch.categoricals)["params"]


def initial_state(workload: Workload) -> TrainState:
    """A state to start from. To be compiled: then it takes no more memory than it holds."""

    def some_values(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        # As large as a model's first values, and made without a draw's temporary memory.
        waves = jnp.sin(jax.lax.iota(jnp.float32, leaf.size)).reshape(leaf.shape)
        return 2**0.5 * INITIAL_SCALES[path[-1].key](leaf.shape) * waves

    params = jax.tree_util.tree_map_with_path(some_values, parameter_shapes(workload))
    none = jnp.zeros((), jnp.int32)
    return TrainState(none, params, _update_rule(noise=True).init(params), jnp.ones(()), none)


def hyperparameters(batch_size: int) -> Hyperparameters:
    return as_traced(
        Hyperparameters(
            learning_rate=1e-3, total_steps=1e6, expected_batch_size=batch_size, l2_clip_norm=1.0, noise_multiplier=1.0
        )
    )


def make_step(program: Program) -> Step:
    """The step as a pure function of (state, batches, number of pieces, key, numbers)."""
    private, workload = program.method != "non_private", program.workload
    method = Method(workload.model, workload.task, OPTIMIZER, MOMENTUM, private)
    update = _update_rule(noise=program.noise)
    if program.method == "one_pass_ghost" or (program.method, program.form) == ("non_private", "pieces"):
        return partial(training._step, method, update)

    add: dict[str, Callable[..., GradientSum]] = {
        "non_private": _add_plainly,
        "vmap": _add_by_vmap,
        "two_pass_ghost": two_pass.add_clipped_gradients,
    }
    add_batch, example_loss = add[program.method], OBJECTIVES[workload.task].example_loss

    def step(
        state: TrainState, batches: Batch, pieces: jax.Array, key: jax.Array, hyper: Hyperparameters
    ) -> tuple[TrainState, jax.Array]:
        def add_piece(index: Any, total: GradientSum) -> GradientSum:
            piece = jax.tree.map(lambda leaf: leaf[index], batches)
            clip = {"l2_clip_norm": state.l2_clip_norm} if private else {}
            return add_batch(total, method.model, state.params, piece, example_loss, **clip)

        total = zero_sum(state.params)
        summed = add_piece(0, total) if program.pieces == 1 else jax.lax.fori_loop(0, pieces, add_piece, total)
        state = training._take_step(method, update, state, summed.gradients, summed.too_long, key, hyper)
        return state, summed.loss / hyper.expected_batch_size

    return step


def compile_step(program: Program) -> Any:
    """The compiled step, which gives up its state's memory for the new state. Nothing is allocated."""
    workload = program.workload
    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments = (
        jax.eval_shape(partial(initial_state, workload)),
        workload.batch_shapes(program.pieces, program.rows),
        jax.ShapeDtypeStruct((), jnp.int32),
        key,
        hyperparameters(program.batch_size),
    )
    return jax.jit(make_step(program), donate_argnums=0).lower(*arguments).compile()


def planned_bytes(compiled: Any) -> int:
    """What XLA's compiler planned for a step: arguments, results and temporaries, those that share memory once."""
    plan = compiled.memory_analysis()
    arguments = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return int(arguments + plan.temp_size_in_bytes)


def _update_rule(*, noise: bool) -> UpdateRule:
    """The trainer's update; without noise, one that does not even draw it."""
    update = dense_update(make_optimizer(OPTIMIZER, momentum=MOMENTUM))
    if noise:
        return update
    return update._replace(
        apply=lambda state, params, gradient_sum, scale: update.apply(
            state, params, gradient_sum, scale._replace(standard_deviation=None)
        )
    )


def _add_plainly(total: GradientSum, model: Any, params: Any, batch: Batch, example_loss: Any) -> GradientSum:
    """``jax.grad`` of the summed loss."""

    def loss(params: Any) -> jax.Array:
        logits = model.apply({"params": params}, batch.integers, batch.categoricals)
        return jnp.sum(batch.mask * example_loss(logits, batch.labels))

    summed, gradients = jax.value_and_grad(loss)(params)
    return total._replace(gradients=jax.tree.map(jnp.add, total.gradients, gradients), loss=total.loss + summed)


def _add_by_vmap(
    total: GradientSum, model: Any, params: Any, batch: Batch, example_loss: Any, *, l2_clip_norm: jax.Array
) -> GradientSum:
    """A gradient for each example by ``vmap``, clipped and added up: DP-SGD as it is first written."""
    gradients = per_example_gradients(model, params, batch, example_loss)
    factors = batch.mask * jnp.minimum(1.0, l2_clip_norm / global_norms(gradients))
    clipped = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), gradients)
    return total._replace(gradients=jax.tree.map(jnp.add, total.gradients, clipped))
