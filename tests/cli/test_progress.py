"""Progress: calm estimates, nothing where nobody looks; sizes and times in words."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from mqtool import exits
from mqtool.progress import Estimate, Progress, Steps
from mqtool.text import clean, human_seconds, human_size, human_time


def test_estimate_is_hidden_until_the_rate_is_steady() -> None:
    estimate = Estimate(0.0)
    answers = []
    for tick in range(1, 12):
        estimate.update(float(tick), tick * 100)
        answers.append(estimate.remaining(float(tick), tick * 100, 2000))
    assert answers[:3] == [None, None, None]
    assert answers[-1] == pytest.approx(9.0)


def test_estimate_hides_again_while_rates_scatter() -> None:
    estimate = Estimate(0.0)
    done = 0
    for tick in range(1, 12):
        done += 100 if tick % 2 else 1000
        estimate.update(float(tick), done)
        assert estimate.remaining(float(tick), done, 10**6) is None


def test_nothing_is_drawn_where_stderr_is_no_terminal() -> None:
    stream = io.StringIO()
    with Progress("scanning", None, lambda: Console(file=stream), 100) as progress:
        progress(100, 3)
    assert stream.getvalue() == ""


def test_progress_is_drawn_when_asked_for() -> None:
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=100)
    with Progress("scanning", True, lambda: console, 2048) as progress:
        progress(1024, 3)
        progress(1024, 4)
    assert "2.0 KiB of 2.0 KiB" in stream.getvalue()
    assert "7 records" in stream.getvalue()


def test_a_log_file_ends_with_all_queues_that_were_checked() -> None:
    stream = io.StringIO()
    with Progress("verifying", True, lambda: Console(file=stream, width=100), 100) as progress:
        progress(100, 3)
        for _ in range(5_000):
            progress.queue()
    assert stream.getvalue().splitlines()[1:] == ["verifying  5,000 queues checked"]


def test_steps_name_what_comes_next_without_raw_controls() -> None:
    stream = io.StringIO()
    with Steps("applying", True, lambda: Console(file=stream, force_terminal=True, width=100)) as steps:
        steps(0, 2, "install evil\x1b]0;x\x07")
    assert "step 1 of 2" in stream.getvalue()
    assert "\x1b]0;" not in stream.getvalue()


def test_a_signal_between_steps_waits_for_the_end_of_the_step() -> None:
    import os
    import signal

    reached = False
    with pytest.raises(exits.Stopped), exits.signals(), exits.between_steps() as interrupted:
        assert not interrupted()
        os.kill(os.getpid(), signal.SIGTERM)
        assert interrupted()
        reached = True
    assert reached


@pytest.mark.parametrize(("raw", "harmless"), [
    ("plain-Topic_1%", "plain-Topic_1%"), ("订单", "订单"), ("a\nb", "a\\x0ab"), ("\x1b[31m", "\\x1b[31m"),
    ("\u202eabc", "\\u202eabc"), (b"\xff\xfe", "\\xff\\xfe"), ("\x85", "\\x85"), ("\ud800", "\\ud800"),
    ("\u2028", "\\u2028"),
])
def test_names_are_made_harmless(raw: str | bytes, harmless: str) -> None:
    assert clean(raw) == harmless


def test_long_names_are_cut() -> None:
    assert clean("x" * 100, 10) == "x" * 9 + "…"


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (1023, "1023 B"), (1 << 20, "1.0 MiB"), (5 << 40, "5.0 TiB")])
def test_sizes_in_words(size: int, text: str) -> None:
    assert human_size(size) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.44, "0.4 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_durations_in_words(seconds: float, text: str) -> None:
    assert human_seconds(seconds) == text


def test_times_no_calendar_holds_stay_numbers() -> None:
    assert human_time(0) == "never"
    assert human_time(1 << 62) == str(1 << 62)
    assert human_time(-5) == "-5"
    assert human_time(1795226071956)[10] == " "
