"""One compiled training step for each way of computing the (clipped) gradient sum.

All have the same state, batch, optimizer and schedule. They differ in how they sum the gradients of a batch, and in
whether they draw noise.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from dp_core.clipping import two_pass
from dp_core.clipping.factors import clip_factor
from dp_core.clipping.layers import INITIAL_SCALES
from dp_core.clipping.one_pass import GradientSum, zero_sum
from dp_core.clipping.oracle import global_norms, per_example_gradients
from dp_core.clipping.signals import Batch
from dp_core.training.lazy_updates import lazy_tables
from dp_core.training.losses import OBJECTIVES
from dp_core.training.method import Method
from dp_core.training.physical_batches import PhysicalShape, physical_shape
from dp_core.training.step import Hyperparameters, TrainState, as_traced, noisy_update, train_step
from dp_core.training.updates import make_update_rule, without_noise
from tasks.speed.results import ProgramDescription
from tasks.speed.workloads import Workload, workload_from_json
from tasks.training.hardware import rows_at_once

OPTIMIZER, MOMENTUM = "sgd", 0.9

# "ghost" is the one-pass ghost clipping that this project trains with; "two_pass_ghost" is the paper's. "vmap" holds a
# gradient for each example. "lazy" is "ghost" with large tables updated lazily, and "lazy_non_private" is
# "non_private" with them.
MethodName = Literal["non_private", "vmap", "ghost", "two_pass_ghost", "lazy", "lazy_non_private"]
# "whole": the batch at once, as in a plain framework step. "pieces": in physical batches, as the trainer does.
Form = Literal["whole", "pieces"]
Step = Callable[[TrainState, Batch, jax.Array, jax.Array, Hyperparameters], tuple[TrainState, Any]]


class Program(NamedTuple):
    """A step to measure. Its batch is held in ``pieces`` physical batches of ``rows`` rows."""

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

    def to_json(self) -> ProgramDescription:
        return {
            "workload": self.workload.to_json(),
            "method": self.method,
            "noise": self.noise,
            "form": self.form,
            "batch_size": self.batch_size,
            "pieces": self.pieces,
            "rows": self.rows,
        }


def program_from_json(described: ProgramDescription) -> Program:
    """Returns the program that ``to_json`` described."""
    return Program(
        workload_from_json(described["workload"]),
        described["method"],
        described["noise"],
        described["form"],
        described["batch_size"],
        described["pieces"],
        described["rows"],
    )


def programs_for(
    workload: Workload, method: MethodName, *, noise: bool, batch_size: int, physical_batch_size: int | None = None
) -> list[Program]:
    """Returns the forms of a method to time; the faster one is reported.

    Ghost clipping runs in physical batches, by default of the size that the trainer chooses on this machine.
    Non-private training runs both through the trainer and as a plain framework step over the whole batch, so that
    ratios are to the faster of the two. ``vmap``, the naive program, takes the whole batch.
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
    """Returns a program of a method in the given form, which need not be one that ``programs_for`` times."""
    whole = PhysicalShape(1, batch_size)
    shape = whole if form == "whole" else trainer_shape(workload, batch_size, physical_batch_size)
    return Program(workload, method, noise, form, batch_size, *shape)


def trainer_shape(workload: Workload, batch_size: int, physical_batch_size: int | None) -> PhysicalShape:
    """Returns the physical batches that the trainer would split a batch into."""
    columns = {"integers": workload.integers, "categoricals": workload.categoricals}
    rows = physical_batch_size or rows_at_once(workload.model, parameter_shapes(workload), **columns)
    return physical_shape(batch_size, largest_rows=rows)


def parameter_count(workload: Workload) -> int:
    return sum(leaf.size for leaf in jax.tree.leaves(parameter_shapes(workload)))


def parameter_shapes(workload: Workload) -> Any:
    batch = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), workload.batch_shapes(1, 1))
    return jax.eval_shape(workload.model.init, jax.random.key(0), batch.integers, batch.categoricals)["params"]


def initial_state(program: Program) -> TrainState:
    """Returns an initial training state. Compile it, so that it allocates nothing but the state."""
    workload = program.workload

    def some_values(path: Any, leaf: jax.ShapeDtypeStruct) -> jax.Array:
        # Of the scale of initial parameters, without the temporary memory of a random draw.
        waves = jnp.sin(jax.lax.iota(jnp.float32, leaf.size)).reshape(leaf.shape)
        return 2**0.5 * INITIAL_SCALES[path[-1].key](leaf.shape) * waves

    params = jax.tree_util.tree_map_with_path(some_values, parameter_shapes(workload))
    none = jnp.zeros((), jnp.int32)
    rule = make_update_rule(_method(program))
    return TrainState(none, rule.hold(params), rule.init(params), jnp.ones(()), none)


def hyperparameters(batch_size: int) -> Hyperparameters:
    return as_traced(
        Hyperparameters(
            learning_rate=1e-3, total_steps=1e6, expected_batch_size=batch_size, l2_clip_norm=1.0, noise_multiplier=1.0
        )
    )


def make_step(program: Program) -> Step:
    """Returns the step, a pure function of (state, batches, number of pieces, key, hyperparameters)."""
    method, workload = _method(program), program.workload
    private = method.private
    rule = make_update_rule(method) if program.noise else without_noise(make_update_rule(method))
    if program.method in ("ghost", "lazy", "lazy_non_private") or (program.method, program.form) == (
        "non_private",
        "pieces",
    ):
        return partial(train_step, method, rule)

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
        state = noisy_update(method, rule, state, summed, key, hyper)
        return state, summed.loss / hyper.expected_batch_size

    return step


def compile_step(program: Program) -> Any:
    """Compiles the step, with its state donated. Allocates no arrays."""
    workload = program.workload
    key = jax.eval_shape(lambda: jax.random.key(0))
    arguments = (
        jax.eval_shape(partial(initial_state, program)),
        workload.batch_shapes(program.pieces, program.rows),
        jax.ShapeDtypeStruct((), jnp.int32),
        key,
        hyperparameters(program.batch_size),
    )
    return jax.jit(make_step(program), donate_argnums=0).lower(*arguments).compile()


def planned_bytes(compiled: Any) -> int:
    """Returns the bytes XLA planned for a step: arguments, outputs and temporaries; aliased buffers count once."""
    plan = compiled.memory_analysis()
    arguments = plan.argument_size_in_bytes + plan.output_size_in_bytes - plan.alias_size_in_bytes
    return int(arguments + plan.temp_size_in_bytes)


def _method(program: Program) -> Method:
    workload, private = program.workload, "non_private" not in program.method
    model = workload.model
    tables = dict(zip(model.vocabulary_sizes, model.features, strict=True))
    lazy = lazy_tables("auto", tables, program.batch_size) if program.method.startswith("lazy") else ()
    return Method(model, workload.task, OPTIMIZER, MOMENTUM, private, lazy_tables=lazy)


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
    factors = batch.mask * clip_factor("fixed").oracle(global_norms(gradients), l2_clip_norm)
    clipped = jax.tree.map(lambda leaf: jnp.tensordot(factors, leaf, axes=1), gradients)
    return total._replace(gradients=jax.tree.map(jnp.add, total.gradients, clipped))
