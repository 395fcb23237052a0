"""The contents of ``evidence.json``: what a training leaves for the audit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

if TYPE_CHECKING:
    from dp_core.audit.release_noise import HistogramNoise


class CanaryEvidence(TypedDict):
    """Each attack's score of each canary, and which canaries were in the training data."""

    attacks: dict[str, list[float]]
    included: list[bool]


class Evidence(TypedDict):
    """What was measured on the run itself, for the audit. It is not private.

    Attributes:
      sampling: ``SamplingCounts.to_json()`` of all batches.
      program: What the sampler and the compiled program were, by the names of ``MechanismRecord``.
      log: ``StepLog.to_json()``: what the device reported of each step, against what was sampled.
      last_state: The checksum of the last state.
      keys: ``KeyEvidence`` of the run's randomness; None without DP-SGD.
      device_steps: The step counter of the last state.
      releases_the_last_state: Whether the released parameters are those of the last state or, with averaging, the
        average that it holds.
      attempts: The number of steps and the digest of the state that each attempt at the run began with.
      saves: The same of each checkpoint.
      initial_state: The digest of the state before the first step, computed again after the run.
      released: ``parameters_digest`` of the released parameters, by which a file that was changed later is found out;
        None if the run diverged. Evidence of earlier versions has none.
      replays: ``Replay`` of some of the training's dispatches; None without DP-SGD and for a run that diverged.
      probe: ``Probe.to_json()`` of the compiled step; None without DP-SGD and for a run that diverged.
      canaries: The attacks' scores, if the trial had canaries and did not diverge.
      label_transitions: ``[i][j]`` counts the labels of bin i that were trained on as response j; None unless LabelDP.
      histogram_noise: What was measured of the noise of the histogram that bins were fitted to, if there was one.
      label_rate: ``LabelRateEvidence`` of the release that the initial bias was computed from, if there was one.
      noise_coefficients: The first column of the matrix of correlated noise, if there is more than one band.
      recalibration: ``RecalibrationEvidence``, if a private model was recalibrated.
      initial_parameters: The digest of the parameters before the first step, if they are another trial's.
    """

    sampling: dict[str, Any]
    program: dict[str, Any]
    log: dict[str, Any]
    last_state: int
    keys: dict[str, Any] | None
    device_steps: int
    releases_the_last_state: bool
    attempts: list[Any]
    saves: list[Any]
    initial_state: str
    released: NotRequired[str | None]
    replays: list[dict[str, Any]] | None
    probe: dict[str, Any] | None
    canaries: CanaryEvidence | None
    label_transitions: list[list[int]] | None
    histogram_noise: HistogramNoise | None
    label_rate: NotRequired[dict[str, Any]]
    recalibration: NotRequired[dict[str, Any] | None]
    initial_parameters: NotRequired[str]
    noise_coefficients: NotRequired[list[float]]
