"""Methods that are written once, as coroutines: awaited on a class for asyncio, run to their end on a blocking one.

The input and output of a blocking class block, so that its coroutines never wait for an event loop.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

P = ParamSpec("P")
T = TypeVar("T")
BlockingT = TypeVar("BlockingT")
AwaitedT = TypeVar("AwaitedT")


class Blocking:
    """Base of classes whose methods block."""


class Awaited:
    """Base of classes whose methods are awaited."""


class Twofold(Generic[P, BlockingT, AwaitedT]):
    """A method that gives one thing on a :class:`Blocking` class and another on one that is :class:`Awaited`."""

    def __init__(self, awaited: Callable[..., AwaitedT], run: Callable[[AwaitedT], BlockingT]) -> None:
        @wraps(awaited)
        def blocking(*args: Any, **kwargs: Any) -> BlockingT:
            return run(awaited(*args, **kwargs))

        self._awaited, self._blocking = awaited, blocking

    @overload
    def __get__(self, owner: Blocking, kind: type) -> Callable[P, BlockingT]: ...
    @overload
    def __get__(self, owner: Awaited, kind: type) -> Callable[P, AwaitedT]: ...
    @overload
    def __get__(self, owner: None, kind: type) -> Callable[..., Any]: ...
    def __get__(self, owner: object, kind: type) -> Any:
        return cast(Any, self._blocking if issubclass(kind, Blocking) else self._awaited).__get__(owner, kind)


def method(body: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Twofold[P, T, Coroutine[Any, Any, T]]:
    """Make a method out of a coroutine."""
    return Twofold(body, _run)


def series(
    body: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Twofold[P, Iterator[T], AsyncGenerator[T, None]]:
    """Make a method that gives one thing after the other."""
    return Twofold(body, _each)


def _run(coroutine: Coroutine[Any, Any, T]) -> T:
    try:
        coroutine.send(None)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a method of a blocking class waited for an event loop")


def _each(items: AsyncGenerator[T, None]) -> Iterator[T]:
    try:
        while True:
            try:
                item = _run(items.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        _run(items.aclose())
