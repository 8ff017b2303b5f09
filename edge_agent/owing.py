"""What is said to hubs beside questions: hello until it is answered, and now and then what is owed. Pure."""

from math import inf

from edge_agent.commands import Command, SayHello, SendAsk, State
from edge_agent.lines import Line, Lines
from edge_agent.questions import Questions

ASK_AT_MOST = 64  # seqs in one Ask


def hellos(lines: Lines, questions: Questions, now: float, every_s: float) -> list[Command]:
    """On connect, and again until the hub has answered: it may have been away just then."""
    commands: list[Command] = []
    for line in lines:
        if line.up and line.hello_at < inf:
            if now >= line.hello_at:
                line.hello_at = now + every_s
                commands.append(SayHello(line.name))
            questions.arm_tick(line.hello_at)
    return commands


def asks(lines: Lines, questions: Questions, now: float, every_s: float) -> list[Command]:
    """At most once in `every_s` for each line on which a hub owes us something."""
    if not questions.receipted:
        return []
    return [command for line in lines if line.up for command in _asks(line, questions, now, every_s)]


def _asks(line: Line, questions: Questions, now: float, every_s: float) -> list[Command]:
    if now < line.ask_at:
        questions.arm_tick(line.ask_at)
        return []
    owed = [each.seq for each in questions if each.state is State.RECEIPTED and each.line == line.name]
    if not owed:
        return []
    put_off(line, questions, now + every_s)
    questions.asked(owed)
    return [SendAsk(tuple(owed[i : i + ASK_AT_MOST]), line.name) for i in range(0, len(owed), ASK_AT_MOST)]


def put_off(line: Line, questions: Questions, until: float) -> None:
    """Nothing is asked on this line before."""
    line.ask_at = until
    questions.arm_tick(until)
