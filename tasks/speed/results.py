"""Results of measurements, as they are sent between processes and stored as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypedDict

if TYPE_CHECKING:
    from tasks.speed.programs import Form, MethodName


class Machine(TypedDict):
    """What a measurement was made on."""

    device: str
    cpus: int
    jax: str


class ProgramDescription(TypedDict):
    """A ``Program``; ``workload`` has the fields of its class."""

    workload: dict[str, Any]
    method: MethodName
    noise: bool
    form: Form
    batch_size: int
    pieces: int
    rows: int


class TimedProgram(TypedDict):
    """A ``Timing``."""

    program: ProgramDescription
    steps_per_second: float | None
    median_steps_per_second: float | None
    planned_bytes: int
    steps_per_second_of_rounds: list[float]


class TimedSteps(TypedDict):
    """The programs timed at one batch size, and the model's number of parameters."""

    parameters: int
    timings: list[TimedProgram]


class ThroughputRow(TypedDict):
    """One method at one batch size, with or without noise; ``measure_throughput`` explains the fields."""

    method: MethodName
    noise: bool
    batch_size: int
    steps_per_second: float | None
    steps_per_second_std: float | None
    best_steps_per_second: float | None
    examples_per_second: float | None
    peak_memory_bytes: int
    fits: bool
    physical_batch_size: int


class LargestBatches(TypedDict):
    """Largest batch size of each method within the memory cap."""

    largest_batch_size: dict[MethodName, int]
    largest_batch_size_at_once: dict[MethodName, int]


class Throughput(LargestBatches, Machine):
    """The result of ``measure_throughput``."""

    rows: list[ThroughputRow]
    parameters: int
    memory_cap_bytes: int
    devices: int
    seconds: float
    measured: str
    spec: dict[str, Any]
    reused: bool
