"""From what a method declares to what is searched: ranges around the file's own values, and settings back from them."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any, TypeGuard

from cflag.methods.space import Choice, Over, SearchSpace, Times

if TYPE_CHECKING:
    from optuna.trial import Trial


class Space:
    """A method's search space beside its settings in a file; it always holds them.

    A setting that is off there (0) or a word ("auto") is not searched.
    """

    def __init__(self, declared: SearchSpace, own: Any, optimizer: str) -> None:
        self.own = {name: getattr(own, name) for name in declared}
        self.others = {choice.other: getattr(own, choice.other) for choice in declared.values() if _paired(choice)}
        self.declared = {name: choice for name, choice in declared.items() if self._searched(name, choice)}
        self.spans = {name: self._span(name, choice, optimizer) for name, choice in self.declared.items()}

    def _searched(self, name: str, choice: Choice) -> bool:
        if isinstance(choice, list):
            return True
        return _positive(self.own[name]) and (not _paired(choice) or _positive(self.others[choice.other]))

    def _span(self, name: str, choice: Choice, optimizer: str) -> list[Any] | tuple[float, float]:
        own = self.own[name]
        if isinstance(choice, list):
            return choice if own in choice else [own, *choice]
        if isinstance(choice, Times | Over):
            low, high = choice.low, choice.high
        else:
            low, high = choice if isinstance(choice, tuple) else choice.span(float(own), optimizer)
        at = self.own_params()[name]
        return min(low, at), max(high, at)

    def own_params(self) -> dict[str, Any]:
        """Return the point that the file's own values are."""
        return {name: self._param(name, choice) for name, choice in self.declared.items()}

    def _param(self, name: str, choice: Choice) -> Any:
        own = self.own[name]
        if isinstance(choice, Times):
            return own / self.others[choice.other]
        return own * self.others[choice.other] if isinstance(choice, Over) else own

    def suggest(self, trial: Trial) -> dict[str, Any]:
        """Let a trial choose a point; return the settings there."""
        for name, span in self.spans.items():
            if isinstance(span, list):
                trial.suggest_categorical(name, span)
            else:
                trial.suggest_float(name, *span, log=True)
        return self.settings(trial.params)

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings at a point, those of others that were found first among them."""
        if params == self.own_params():
            return {name: self.own[name] for name in self.declared}  # to the last bit
        found: dict[str, Any] = dict(self.others)
        for name, choice in self.declared.items():
            value = params[name]
            if isinstance(choice, Times):
                value *= found[choice.other]
            elif isinstance(choice, Over):
                value /= found[choice.other]
            found[name] = value if isinstance(choice, list) else _rounded(value, self.own[name])
        return {name: found[name] for name in self.declared}


def _paired(choice: Choice) -> TypeGuard[Times | Over]:
    return isinstance(choice, Times | Over)


def _positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and isfinite(value) and value > 0


def _rounded(value: float, own: Any) -> float:
    """Return a value that people can read, and a whole number where the setting is one."""
    return max(1, round(value)) if isinstance(own, int) else float(f"{value:.6g}")
