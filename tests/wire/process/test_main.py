"""Exit codes: that of the work, or of the `ExitError` that ended it, with one line on stderr."""

from collections.abc import Callable

import pytest

from wire.process.exit_codes import ExitCode, ExitError
from wire.process.main import run_to_exit


def raising(error: BaseException) -> Callable[[], int]:
    def work() -> int:
        raise error

    return work


def test_the_code_of_the_work_is_that_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_to_exit("skerry hub", lambda: ExitCode.OK) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "error",
    [
        ExitError(ExitCode.PORT, "taken"),
        BaseExceptionGroup("tasks", [ValueError(), BaseExceptionGroup("inner", [ExitError(ExitCode.PORT, "taken")])]),
    ],
)
def test_a_stop_is_one_line_and_its_code_also_out_of_a_task_group(
    error: BaseException, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_to_exit("skerry hub", raising(error)) == ExitCode.PORT
    assert capsys.readouterr().err == "skerry hub: taken\n"


@pytest.mark.parametrize("error", [KeyError("x"), ExceptionGroup("tasks", [KeyError("x")])])
def test_a_defect_of_ours_goes_on(error: Exception) -> None:
    with pytest.raises(type(error)):
        run_to_exit("skerry hub", raising(error))
