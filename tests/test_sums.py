"""Methods without training: after every task they are what one machine with all data so far would compute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge
from sklearn.neighbors import NearestCentroid
from sklearn.preprocessing import normalize

from cflag import load_config, run
from cflag.build import build_benchmark
from cflag.errors import UserError
from tests.support.grid import Fleet, numbers

pytestmark = pytest.mark.usefixtures("no_figures")

SETTINGS: dict[str, Any] = {
    "model": "linear", "scenario": "class", "clients": 4, "tasks": 5, "rounds": 1, "workers": 1, "zeta": 0.5,
    "samples_per_class": 60, "test_per_class": 40,
}  # fmt: skip
Array = np.ndarray[Any, Any]


def nearest(x: Array, y: Array, test: Array) -> Array:
    found: Array = NearestCentroid().fit(normalize(x), y).predict(normalize(test))
    return found


def discriminant(x: Array, y: Array, test: Array) -> Array:
    """With 60 samples of every class, scikit-learn's mean of the classes' covariances is the covariance within."""
    count = len(np.unique(y))
    model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.3, priors=np.full(count, 1 / count))
    found: Array = model.fit(x, y).predict(test)
    return found


def ridge(x: Array, y: Array, test: Array) -> Array:
    """The offset is a feature like others: the column of ones is among those whose mean square scales the penalty."""
    ones = np.hstack([np.ones((len(x), 1)), x])
    classes = np.unique(y)
    penalty = 0.1 * np.square(ones).sum(0).mean()
    model = Ridge(alpha=penalty, fit_intercept=False).fit(ones, (y[:, None] == classes).astype(float))
    found: Array = classes[model.predict(np.hstack([np.ones((len(test), 1)), test])).argmax(1)]
    return found


@pytest.mark.parametrize(("method", "reference"), [("ncm", nearest), ("slda", discriminant), ("ridge", ridge)])
def test_after_every_task_it_is_what_all_data_at_once_would_give(
    method: str, reference: Callable[[Array, Array, Array], Array], tmp_path: Path
) -> None:
    result = run("digits", method=method, out=tmp_path / "run", **SETTINGS)
    benchmark = build_benchmark(load_config("digits", method=method, **SETTINGS))
    everyone = range(SETTINGS["clients"])
    for last in range(SETTINGS["tasks"]):
        past = [benchmark.train(client, task) for task in range(last + 1) for client in everyone]
        x, y = (torch.cat(parts).double() for parts in ([benchmark.normalise(s.x).flatten(1) for s in past],
                                                        [s.y for s in past]))  # fmt: skip
        for task in range(last + 1):
            test = benchmark.tests(everyone, task)
            guessed = reference(x.numpy(), y.long().numpy(), benchmark.normalise(test.x).flatten(1).double().numpy())
            assert result.matrices["class"][last][task] == pytest.approx((guessed == test.y.numpy()).mean(), abs=0.006)
    assert result.average_accuracy > 0.8
    assert result.costs["gradients_current"] == 0


def test_it_does_not_matter_who_has_what(tmp_path: Path) -> None:
    """One client or eight, even or uneven: the same sums, but for their last digits."""
    settings = {**SETTINGS, "method": "ridge"}
    scores = [
        run("digits", out=tmp_path / str(k), **{**settings, "clients": clients, "zeta": zeta}).matrices["class"]
        for k, (clients, zeta) in enumerate([(1, 1e5), (8, 0.3)])
    ]
    for one, other in zip(*scores, strict=True):
        assert one == pytest.approx(other, abs=0.006)


def test_a_fleet_computes_the_same(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"method": "slda", "model": "linear", "samples_per_class": 40, "min_clients": 3}
    fleet = Fleet(tmp_path, **settings)
    fleet.run()
    own = {k: v for k, v in settings.items() if k != "min_clients"}
    run("digits", out=tmp_path / "local", workers=1, clients=3, tasks=2, rounds=2, width=8, epochs=1, **own)
    assert numbers(fleet.path)[:2] == numbers(tmp_path / "local")[:2]


def test_a_robust_mean_gives_no_sums() -> None:
    with pytest.raises(UserError, match=r"gives no sums over clients; .*sums of features"):
        load_config("digits", method="ncm", mean={"kind": "median"})
    with pytest.raises(UserError, match=r"slda.shrink = 0.0 must be above 0"):
        load_config("digits", method="slda", slda={"shrink": 0})
