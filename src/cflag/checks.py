"""Checks of a config that look at several of its values."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from cflag import registry
from cflag.augmentations.base import OF_PICTURES
from cflag.data.schedules.base import make_schedule
from cflag.errors import UserError
from cflag.problems.base import scoring, takes
from cflag.ranges import check_numbers

if TYPE_CHECKING:
    from cflag.config import Config

MOST_CELLS = 10**8
"""Clients times tasks that a schedule can be planned for."""


def check_ranges(config: Config) -> None:
    """Refuse numbers that cannot work, whatever else is chosen."""
    if not 0 <= config.average_tail <= 1:
        raise UserError(f"average_tail = {config.average_tail} must be between 0 (off) and 1 (all rounds)")
    if not 0 <= config.validation < 1:
        raise UserError(f"validation = {config.validation} must be 0 (off) or a share of the training samples below 1")
    for key in ("zeta", "epochs", "deadline", "patience"):
        if not 0 < getattr(config, key) < float("inf"):
            raise UserError(f"{key} = {getattr(config, key)} must be positive and finite")
    check_numbers(config)
    if config.clients * config.tasks > MOST_CELLS:
        raise UserError(
            f"clients = {config.clients} times tasks = {config.tasks} is more than {MOST_CELLS:,}: too many to plan for"
        )


def check_cohort(config: Config) -> None:
    """Refuse a number of clients in a round that there are not."""
    asked = config.clients_per_round
    if asked < 0 or asked > config.clients or (asked > 1 and asked != int(asked)):
        raise UserError(
            f"clients_per_round = {asked:g} must be a number of clients up to {config.clients}, "
            "a fraction below 1, or 0 for all"
        )
    if config.min_clients > config.cohort_size():
        raise UserError(
            f"min_clients = {config.min_clients} is more than the {config.cohort_size()} clients of a round; "
            "lower it or raise clients_per_round"
        )


def check_augment(config: Config) -> None:
    """Refuse augmentations that nobody knows, and what does not go with them."""
    if not config.augment.on:
        return
    for name in config.augment.own:
        registry.get("augmentation", name)
    used = config.augment.for_source(config.source).names
    if config.scenario == "permuted" and (wrong := [name for name in used if name in OF_PICTURES]):
        raise UserError(f"augment.{wrong[0]} is for pictures, which scenario 'permuted' shuffles: set it to 0")
    if config.privacy.unit == "sample" and config.augment.own:
        raise UserError(
            f"augment.own = ['{config.augment.own[0]}']: it may mix samples, and privacy.unit = 'sample' protects each "
            "by itself; use cflag's own augmentations"
        )


def check_device(config: Config) -> None:
    """Refuse a device that is not here."""
    if config.device == "cpu":
        return
    import torch

    try:
        device = torch.device(config.device)
    except RuntimeError:
        raise UserError(f"device = '{config.device}' is not a device torch knows; try 'cpu' or 'cuda'") from None
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"device = '{config.device}' is not one that runs are made for; use 'cpu' or 'cuda'")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError("device = 'cuda': torch finds no CUDA device here; use device = 'cpu'")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device = '{config.device}': there are {torch.cuda.device_count()} CUDA devices, from 0 on")
    if device.type != "cpu" and config.workers > 1:
        raise UserError("workers share the processor's cores; with device = 'cuda' use workers = 1")


def check_problem(config: Config) -> None:
    """Refuse a problem that the method, the schedule or what protects clients is not for."""
    found = scoring(config.problem, config.score)
    problem, method = found.problem, registry.get("method", config.method)
    if method.problems and not takes(problem, method.problems):
        known = " or ".join(f"'{name}'" for name in method.problems)
        raise UserError(
            f"method '{config.method}' is for problem = {known}, not for '{config.problem}'; choose another, such as "
            "'cflag' or 'replay'"
        )
    if takes(problem, ["classes"]):
        return
    schedule, only = make_schedule(config), f"problem = '{config.problem}' has no single class per sample"
    if schedule.deals:
        raise UserError(f"schedule '{config.schedule.kind}' deals by class, and {only}; choose another schedule")
    if config.schedule.heads == "own":
        raise UserError(f"schedule.heads = 'own' opens outputs by class, and {only}; use 'anyone'")
    if getattr(config.settings, "labels", None) == "sampled":
        raise UserError(f"{config.method}.labels = 'sampled' draws classes, and {only}; use 'empirical'")
    if config.secure:
        raise UserError(f"secure = true sums right answers, and {only}; use secure = false")
    if config.privacy.on and config.privacy.held_out == "noised":
        raise UserError(f"[privacy] noises counts of right answers, and {only}; set privacy.held_out = 'public'")


def check_schedule(config: Config) -> None:
    """Refuse clocks that cannot be, and what does not go with them."""
    schedule, kind = make_schedule(config), config.schedule.kind
    if not schedule.together:
        schedule.plan.check()
    if config.secure and not schedule.together and (few := schedule.plan.fewest(config.cohort_size())) < 3:
        raise UserError(
            f"secure = true: with schedule '{kind}' a question is for {few} clients alone, and a mean of fewer than 3 "
            "is not secret; choose a schedule in which more go together, or more clients_per_round"
        )
    if config.average_tail and not schedule.together:
        raise UserError(f"average_tail is for clients that change together; schedule '{kind}' has others: set it to 0")
    if schedule.streams:
        _check_stream(config, f"schedule '{kind}'" if schedule.told else f"boundaries = '{config.schedule.boundaries}'")


def _check_stream(config: Config, why: str) -> None:
    """Refuse what cannot be where samples pass by, or nobody tells what they belong to."""
    method, options = registry.get("method", config.method), config.schedule
    if method.whole_tasks:
        raise UserError(
            f"method '{config.method}' chooses from all samples of a task, and with {why} they pass by; choose another"
        )
    if method.uses_memory and config.memory.kind == "ring":
        raise UserError(
            f"memory.kind = 'ring' chooses at the end of a task, and with {why} samples pass by; "
            "set memory.kind = 'reservoir'"
        )
    if options.boundaries == "none" and method.at_boundaries:
        raise UserError(
            f"method '{config.method}' acts at boundaries, and there is none: it would be 'finetune'; "
            "set schedule.boundaries = 'detected' or choose another"
        )
    if options.boundaries == "detected":
        _check_detector(config)


def _check_detector(config: Config) -> None:
    """Refuse detectors that cannot work, and runs in which nobody may know who noticed something."""
    options = config.schedule
    if config.secure or config.privacy.on:
        raise UserError(
            "schedule.boundaries = 'detected' tells the server which client noticed a drift, which "
            f"{'secure = true' if config.secure else '[privacy]'} forbids; use 'told' or 'none'"
        )
    if options.detector_threshold < 0 or (options.detector != "page-hinkley" and options.detector_threshold >= 1):
        allowed = "0 or more" if options.detector == "page-hinkley" else "at least 0 and below 1"
        raise UserError(f"schedule.detector_threshold = {options.detector_threshold} must be {allowed}")
    if options.detector_window < 100:
        raise UserError(f"schedule.detector_window = {options.detector_window} must be at least 100")
    if config.engine != "flower" and find_spec("river") is None:  # a fleet's server needs none
        raise UserError("schedule.boundaries = 'detected' needs river: pip install 'cflag[streams]'")
