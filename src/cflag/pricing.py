"""What a method's rounds cost, and how many of them cost the same: the budget of a fair comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Literal

from cflag.account import Account
from cflag.config import Config
from cflag.data.schedules.base import own_rounds, total_rounds
from cflag.errors import UserError
from cflag.experiment import Experiment
from cflag.learning.options import SynthesisOptions
from cflag.models.options import LoraOptions
from cflag.own import Own
from cflag.process import one_thread

Budget = Literal["rounds", "gradients", "bytes"]


def equal_cost(
    configs: Mapping[str, Config], budget: Budget, pricer: Callable[[Config, Budget], Price] | None = None
) -> dict[str, Config]:
    """Give every method the rounds that cost as much as the first method's own; `pricer` may know a faster way."""
    pricer = pricer or price
    prices = {method: pricer(config, budget) for method, config in configs.items()}
    first = next(iter(configs))
    total = prices[first].of(configs[first].rounds)
    return {method: replace(config, rounds=prices[method].rounds_for(total)) for method, config in configs.items()}


@dataclass(frozen=True)
class Price:
    """What a task costs, as a mean over tasks: a sum for its beginning and end, and one for each round."""

    task: float
    round: float

    def of(self, rounds: int) -> float:
        """Return the price of a task of so many rounds."""
        return self.task + rounds * self.round

    def rounds_for(self, total: float) -> int:
        """Return how many rounds come closest to a sum."""
        return max(1, round((total - self.task) / self.round))


def stand_in(config: Config, width: int = 1) -> Config:
    """Return a config whose clients compute and send as often as this one's, with a small model: fast to price."""
    small = replace(config, model="mlp", width=width, workers=1, device="cpu")
    if config.backbone:  # how often clients compute does not depend on what they see
        small = replace(small, backbone="", whiten="", trainable="", lora=LoraOptions(), image_size=8)
    made = config.settings
    if isinstance(made, SynthesisOptions):  # how well samples are made does not change how many clients compute on
        small = replace(small, settings=replace(made, generator_steps=1, student_steps=1, batch=made.samples))
    return small


def price(config: Config, budget: Budget, own: Own | None = None) -> Price:
    """Measure what a method's tasks cost by trying two rounds of each.

    Two, because the first may find the model already sent, by a question at the end of the task before.
    """
    if own_rounds(config):
        return _price_of_clocks(config, budget, own or Own())
    session = (own or Own()).experiment(config).session()

    def cost_of(*acts: Callable[[], object]) -> float:
        for act in acts:
            act()
        return _spent(session.engine.settle(), budget)

    prices = []
    with one_thread():
        for task in range(config.tasks):
            session.enter(task)
            first = cost_of(session.begin_task, session.round)
            a_round = cost_of(session.round)
            end = cost_of(session.end_task, session.prepare_eval)
            prices.append(Price(first - a_round + end, a_round))
    return Price(fmean(p.task for p in prices), fmean(p.round for p in prices))


def _price_of_clocks(config: Config, budget: Budget, own: Own) -> Price:
    """Measure the same where clients have clocks of their own: of whole short runs, of two and of four rounds a task.

    What a round costs depends on who is there, but one round more of every task costs the same again and again.
    """
    short, longer = (replace(config, rounds=rounds) for rounds in (2, 4))
    two, four = (_whole(own.experiment(each), budget) for each in (short, longer))
    if four <= two or total_rounds(short) == total_rounds(longer):
        raise UserError(
            f"an equal budget of {budget} needs a schedule whose length 'rounds' decides, and with "
            f"'{config.schedule.kind}' more rounds cost no more; compare at equal rounds"
        )
    return Price((2 * two - four) / config.tasks, (four - two) / 2 / config.tasks)


def _whole(experiment: Experiment, budget: Budget) -> float:
    """Return what a run costs from its beginning to its end, but for tests along the way, which are not counted."""
    session = experiment.session()
    with one_thread():
        for done in range(session.plan.total):
            session.play(done)
            if session.is_milestone:
                session.prepare_eval()
    return _spent(session.engine.settle(), budget)


def _spent(account: Account, budget: Budget) -> float:
    if budget == "bytes":
        return account.bytes_up + account.bytes_down
    return account.cost.current + account.cost.memory
