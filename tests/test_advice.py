"""C-FLAG says of itself that its rates do not adapt, or that its memory is starved: numbers by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cflag import Experiment, load_config, registry
from cflag.learning.advice import about_caps, about_memory
from cflag.results.display import Quiet


class Noted(Quiet):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def rounds(cases: str, capped: list[int], count: int = 3) -> list[dict[str, Any]]:
    """Rounds in which each client met a case, by its first letter."""
    words = {"i": "interference", "t": "transference", "n": "none"}
    clients = {"case": [words[c] for c in cases], "capped": capped}
    return [{"clients": clients, "gradients_memory": 20} for _ in range(count)]


@pytest.mark.parametrize(
    ("cases", "capped", "times"),
    [
        ("ii", [1, 1], 6),
        ("it", [1, 0], 3),  # what the other rule did says nothing about α
        ("ii", [1, 0], 0),  # one α_i was free
        ("tt", [1, 1], 0),  # caps of β
        ("nn", [0, 0], 0),
    ],
)
def test_the_cap_decides_where_every_interference_met_it(cases: str, capped: list[int], times: int) -> None:
    line = about_caps("cflag", 0.19, 0.2, rounds(cases, capped))
    assert (f"its cap 0.2 all {times} times" in line) == bool(times)
    assert ("cflag.alpha = 0.19 leaves it no room" in line) == bool(times)


def test_a_single_chance_meeting_is_no_reason() -> None:
    """Once in three rounds: nobody can tell from that."""
    assert not about_caps("cflag", 0.1, 0.2, [*rounds("i", [1], 1), *rounds("t", [0], 2)])


def test_without_single_clients_nothing_is_known() -> None:
    assert not about_caps("cflag", 0.1, 0.2, [{"clients": {}, "gradients_memory": 20}] * 3)


def test_a_memory_that_gets_few_gradients() -> None:
    """Three rounds of 20: 60 of replay's 300 are a fifth; of 240 they are a quarter, which will do."""
    line = about_memory("cflag", 1.0, 0.1, 10, 300, rounds("ii", [0, 0]))
    assert "the memory gets 20% of the gradients" in line
    assert "raise memory.sample" in line
    assert not about_memory("cflag", 1.0, 0.1, 10, 240, rounds("ii", [0, 0]))


def test_a_memory_step_that_is_short_beside_the_local_ones() -> None:
    """α = 0.1 against 10 steps of 0.05: a fifth; towards 0.5. Against 8 steps it is a quarter."""
    line = about_memory("cflag-sgd", 0.1, 0.05, 10, 60, rounds("ii", [0, 0]))
    assert "so the past has 20% of the say" in line
    assert "raise cflag-sgd.alpha towards 0.5" in line
    assert not about_memory("cflag-sgd", 0.1, 0.05, 8, 60, rounds("ii", [0, 0]))


def test_without_a_past_there_is_nothing_to_say() -> None:
    assert not about_memory("cflag", 0.1, 0.05, 10, 0, [])


QUICK: dict[str, Any] = {"source": "digits", "tasks": 3, "clients": 2, "rounds": 1, "steps": 8, "batch": 8,
                         "workers": 1, "samples_per_class": 20, "memory": {"per_task": 20, "sample": 10}}  # fmt: skip


@pytest.mark.parametrize(("method", "said"), [("cflag", 1), ("replay", 0)])
def test_a_run_says_it_once(method: str, said: int, tmp_path: Path) -> None:
    """Ten of replay's 8 × 8 memory samples a round, by both clients: 16 %. Three tasks, two of them with a past."""
    display = Noted()
    Experiment(load_config("digits", method=method, **QUICK)).run(tmp_path / "run", display)
    events = tmp_path / "run" / "events.log"
    text = events.read_text() if events.exists() else ""
    line = f"{method}: the memory gets 16% of the gradients that replay would spend on it"
    assert text.count(line) == "\n".join(display.notes).count(line) == said


@pytest.mark.parametrize(
    ("settings", "lines"),
    [
        ({"optimizer": "adam"}, 1),
        ({"optimizer": "sgd"}, 0),
        ({"optimizer": "adam", "cflag-tracked": {"past": "own"}}, 0),
        ({"optimizer": "adam", "tasks": 1}, 0),
    ],
    ids=str,
)
@pytest.mark.usefixtures("no_figures")
def test_cflag_tracked_says_that_its_lead_is_one_of_sgd(settings: dict[str, Any], lines: int, tmp_path: Path) -> None:
    """With Adam at small scale it was behind replay; where it sends no memory gradient that was not tried."""
    quick = {"method": "cflag-tracked", "tasks": 2, "rounds": 1, "steps": 1, "workers": 1}
    noted = Noted()
    Experiment(load_config("digits", **{**quick, **settings})).run(tmp_path / "run", noted)
    said = [note for note in noted.notes if "replay did better" in note]
    assert len(said) == lines


def test_a_starved_memory_is_pointed_to_a_method_that_there_is() -> None:
    for share in (300, 1):
        line = about_memory("cflag", 1.0, 0.1 if share > 1 else 100.0, 10, share, rounds("ii", [0, 0]))
        assert registry.get("method", line.rpartition("method = ")[2].strip("'")).uses_memory
