"""Progress of long commands without a terminal: no stage is silent, and none fills the log."""

import io

from rich.console import Console

from models.cli.progress import SILENCE_S, ProgressLines, stage_progress


def test_a_stage_has_a_line_when_it_starts_each_tenth_and_when_it_is_done():
    lines = ProgressLines(0.0)
    told = [lines.tell_share("teaching", step / 100, 2.0 * step) for step in range(101)]
    said = [line for line in told if line]
    assert said[0] == "teaching: started"
    assert said[1] == "teaching: 10% after 20 s, about 3 min 00 s left"
    assert said[-1] == "teaching: done in 3 min 20 s"
    assert len(said) == 1 + 9 + 1


def test_a_quick_stage_fills_no_log():
    lines = ProgressLines(0.0)
    told = [lines.tell_share("reading", step / 100, 0.002 * step) for step in range(101)]
    assert [line for line in told if line] == ["reading: started", "reading: done in 0.2 s"]


def test_a_stage_that_tells_nothing_is_not_silent_for_long():
    lines = ProgressLines(0.0)
    lines.tell_share("attacking", 0.0, 0.0)
    told = [lines.break_silence(float(second)) for second in range(1, 100)]
    assert [line for line in told if line] == [
        "attacking: 0% after 30 s",
        "attacking: 0% after 1 min 00 s",
        "attacking: 0% after 1 min 30 s",
    ]


def test_nothing_is_said_between_stages_and_a_stage_may_come_twice():
    lines = ProgressLines(0.0)
    assert lines.break_silence(10 * SILENCE_S) == ""
    assert lines.tell_share("teaching", 0.0, 0.0) == "teaching: started"
    assert lines.tell_share("teaching", 1.0, 5.0) == "teaching: done in 5.0 s"
    assert lines.tell_share("teaching", 1.0, 6.0) == ""
    assert lines.break_silence(100.0) == ""
    assert lines.tell_share("teaching", 0.0, 101.0) == "teaching: started"
    assert lines.tell_share("cutting", 1.0, 102.0) == "cutting: done"


def test_without_a_terminal_each_line_is_written_when_it_is_told():
    out = io.StringIO()
    with stage_progress(Console(file=out, force_terminal=False)) as tell:
        tell("cutting", 0.0)
        assert out.getvalue() == "cutting: started\n"
        tell("cutting", 1.0)
    assert out.getvalue().splitlines()[1].startswith("cutting: done in ")


def test_a_terminal_draws_a_bar_for_each_stage():
    out = io.StringIO()
    with stage_progress(Console(file=out, force_terminal=True, width=100)) as tell:
        tell("cutting", 0.5)
    assert "50%" in out.getvalue()
    assert "cutting: " not in out.getvalue()
