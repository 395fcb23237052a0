"""Steps per second of several programs, timed in turns so that their ratios hold on a busy machine."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tasks.runtime.memory import available_memory, keep_freed_memory
from tasks.runtime.progress import Ticker, counted, say
from tasks.speed.programs import Program, compile_step, hyperparameters, initial_state, planned_bytes
from tasks.speed.results import TimedProgram

# Turns of a program in each round, and the length of a turn (or one step, if that is longer). Short turns find the
# quiet moments of a busy machine.
_TURNS, _TURN_SECONDS = 5, 0.08
# A program's speed is settled when its best turns agree within this relative spread. Timing stops after this multiple
# of the requested rounds even if it is not settled.
_SETTLED_TURNS, _SETTLED_SPREAD, _MAX_ROUNDS_FACTOR = 3, 0.03, 3
# Batches that are taken in turns.
_BATCHES = 16
# Maximum share of the free memory that a program may plan for; otherwise it is not run.
_MEMORY_SHARE = 0.8
# Tolerance for rounding: two programs that sum the same clipped gradients add them in different orders.
_AGREEMENT = 1e-4


class Timing(NamedTuple):
    """A program's steps per second in its best and its median turn, and the bytes that XLA planned for it.

    ``steps_per_second_of_rounds`` has the mean of each round. A program that does not fit into memory has no speed.
    """

    program: Program
    steps_per_second: float | None
    median_steps_per_second: float | None
    planned_bytes: int
    steps_per_second_of_rounds: list[float]

    def to_json(self) -> TimedProgram:
        return {
            "program": self.program.to_json(),
            "steps_per_second": self.steps_per_second,
            "median_steps_per_second": self.median_steps_per_second,
            "planned_bytes": self.planned_bytes,
            "steps_per_second_of_rounds": self.steps_per_second_of_rounds,
        }


def time_programs(
    programs: Sequence[Program], *, rounds: int, until_settled: bool = True, cap_bytes: int | None = None
) -> list[Timing]:
    """Times each program over several rounds. A program that does not fit into memory is compiled but not run.

    Args:
        programs: The programs, all for the same batch size.
        rounds: Number of rounds; every program has its turns in each.
        until_settled: Adds rounds on a busy machine. Without it, every mean is over the same number of rounds.
        cap_bytes: Programs for which XLA plans more than this do not fit either.
    """
    keep_freed_memory()
    runners, planned = {}, {}
    for program in programs:
        say(f"batch size {program.batch_size:,}: compiling {program.label}")
        compiled = compile_step(program)
        planned[program] = planned_bytes(compiled)
        room = _MEMORY_SHARE * available_memory()
        if planned[program] <= (room if cap_bytes is None else min(room, cap_bytes)):
            runners[program] = _Runner(program, compiled)
    _check_agreement(runners)
    # The system is still reclaiming vmap's gigabytes of temporaries when the next program runs, so vmap goes last.
    in_turns = [runner for program, runner in runners.items() if program.method != "vmap"]
    alone = [runner for program, runner in runners.items() if program.method == "vmap"]
    for group in filter(None, (in_turns, alone)):
        _time_group(group, rounds, (_MAX_ROUNDS_FACTOR if until_settled else 1) * rounds)
    best = {program: 1 / min(runner.seconds) for program, runner in runners.items()}
    median = {program: 1 / statistics.median(runner.seconds) for program, runner in runners.items()}
    by_round = {program: [1 / seconds for seconds in runner.rounds] for program, runner in runners.items()}
    return [
        Timing(program, best.get(program), median.get(program), planned[program], by_round.get(program, []))
        for program in programs
    ]


def _time_group(group: Sequence[_Runner], rounds: int, most: int) -> None:
    """Runs ``rounds`` rounds, then up to ``most`` until the speed of every program is settled."""
    say(f"timing {counted(len(group), 'program')} in {counted(rounds, 'round')}")
    ticker = Ticker("timing", rounds, "rounds")
    for round_number in range(most):
        if round_number >= rounds and all(runner.is_settled() for runner in group):
            return
        if round_number == rounds:
            say(f"the machine is busy: up to {counted(most - rounds, 'more round')}")
            ticker = Ticker("timing", most, "rounds")
        ticker.update(round_number)
        for turn in range(_TURNS):
            for runner in group:
                if turn < runner.turns:
                    runner.time_turn()
        for runner in group:
            runner.end_round()


class _Runner:
    """A compiled step with its arrays. Creating one runs the step twice."""

    def __init__(self, program: Program, compiled: Any) -> None:
        workload = program.workload
        self._compiled = compiled
        self._state = jax.jit(lambda: initial_state(program))()
        # Several batches: the rows of one would all be in the processor's cache.
        self._batches = [
            jax.device_put(workload.random_batch(program.batch_size, program.pieces, program.rows, seed))
            for seed in range(_BATCHES)
        ]
        self._taken = 0
        self._arguments = (
            np.int32(program.pieces),
            jax.random.key(0),
            hyperparameters(program.batch_size),
        )
        self._run(1)
        # After one step, SGD's velocity is the mean gradient.
        self.first_gradients = (
            None if program.method.startswith("lazy") else jax.tree.map(np.array, self._state.update_state)
        )
        seconds = self._run(1)
        self._steps = max(1, round(_TURN_SECONDS / seconds))
        self.turns = min(_TURNS, max(1, round(_TURNS * _TURN_SECONDS / seconds)))
        # Seconds per step in each turn, and the mean of each round.
        self.seconds: list[float] = []
        self.rounds: list[float] = []

    def time_turn(self) -> None:
        self.seconds.append(self._run(self._steps) / self._steps)

    def end_round(self) -> None:
        self.rounds.append(statistics.fmean(self.seconds[-self.turns :]))

    def is_settled(self) -> bool:
        """Returns whether the best turn was no outlier: several turns were about as fast."""
        fastest = sorted(self.seconds)[:_SETTLED_TURNS]
        return fastest[-1] <= (1 + _SETTLED_SPREAD) * fastest[0]

    def _run(self, steps: int) -> float:
        start = time.perf_counter()
        for _ in range(steps):
            batch = self._batches[self._taken % _BATCHES]
            self._state, _ = self._compiled(self._state, batch, *self._arguments)
            self._taken += 1
        jax.block_until_ready(self._state)
        return time.perf_counter() - start


def _check_agreement(runners: dict[Program, _Runner]) -> None:
    """Raises unless the programs without noise agree: the private ones on clipped sums, the others on plain sums."""
    for private in (True, False):
        same = [
            p
            for p in runners
            if not p.noise and ("non_private" not in p.method) == private and runners[p].first_gradients is not None
        ]
        for program in same[1:]:
            distance = relative_distance(runners[program].first_gradients, runners[same[0]].first_gradients)
            if not distance <= _AGREEMENT:
                raise AssertionError(f"{program.label} and {same[0].label} differ by {distance:.1g} in the first step")


def relative_distance(tree: Any, expected: Any) -> float:
    """Returns the L2 norm of the difference, divided by the norm of ``expected``."""
    differences = jax.tree.map(lambda left, right: float(np.sum((left - right) ** 2)), tree, expected)
    norms = [float(np.sum(leaf**2)) for leaf in jax.tree.leaves(expected)]
    return float(np.sqrt(sum(jax.tree.leaves(differences)) / sum(norms)))
