"""Operations of a client, written once: a generator becomes a method of the blocking and of the asyncio client.

`class Answers(AnswerOperations, BlockingCalls)` has blocking methods, and with `AsyncCalls` in its place coroutines of
the same names, parameters and results: which of the two a method is, is decided by the object that it is read from, for
the type checker too.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from skerry_client.exchange.commands import Items, Steps
from skerry_client.exchange.transports import AsyncTransport, BlockingTransport

C = TypeVar("C")
P = ParamSpec("P")
T = TypeVar("T")


class BlockingCalls:
    """Base of what has blocking methods."""

    def __init__(self, transport: BlockingTransport) -> None:
        self._transport = transport


class AsyncCalls:
    """Base of what has coroutines."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport


class operation(Generic[C, P, T]):  # noqa: N801 - a decorator, like `property`
    """Decorator: a generator of commands becomes a call that returns its result. `steps`: the generator function."""

    def __init__(self, steps: Callable[Concatenate[C, P], Steps[T]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    @overload
    def __get__(self, calls: BlockingCalls, owner: type | None = None) -> Callable[P, T]: ...

    @overload
    def __get__(self, calls: AsyncCalls, owner: type | None = None) -> Callable[P, Coroutine[Any, Any, T]]: ...

    @overload
    def __get__(self, calls: None, owner: type | None = None) -> Self: ...

    def __get__(self, calls: Any, owner: type | None = None) -> Any:
        """Return the method of an object."""
        if calls is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return calls._transport.run_steps(self.steps(calls, *args, **kwargs))  # noqa: SLF001 - its own base

        return update_wrapper(call, self.steps)

    def __call__(self, calls: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the method of an object by its class: `Agent.ask(agent, sample)`."""
        return self.__get__(calls)(*args, **kwargs)


class iteration(Generic[C, P, T]):  # noqa: N801 - see `operation`
    """Decorator: a generator of commands and items becomes a call that returns an iterator of the items."""

    def __init__(self, steps: Callable[Concatenate[C, P], Items[T]]) -> None:
        self.steps = steps
        update_wrapper(self, steps)

    @overload
    def __get__(self, calls: BlockingCalls, owner: type | None = None) -> Callable[P, Iterator[T]]: ...

    @overload
    def __get__(self, calls: AsyncCalls, owner: type | None = None) -> Callable[P, AsyncIterator[T]]: ...

    @overload
    def __get__(self, calls: None, owner: type | None = None) -> Self: ...

    def __get__(self, calls: Any, owner: type | None = None) -> Any:
        """Return the method of an object."""
        if calls is None:
            return self

        def call(*args: P.args, **kwargs: P.kwargs) -> Any:
            return calls._transport.iterate_items(self.steps(calls, *args, **kwargs))  # noqa: SLF001 - its own base

        return update_wrapper(call, self.steps)

    def __call__(self, calls: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the method of an object by its class: `Answers.corrections(answers)`."""
        return self.__get__(calls)(*args, **kwargs)
