"""Progress of work in named stages, for functions that report it and commands that show it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from typing import Any

from clearhead._utils.checks import describe

StageProgress = Callable[[str, int, int], None]  # stage, steps done, steps in total (0: unknown)


def check_progress(progress: object) -> None:
    """Raise if `progress` is neither None nor a function."""
    if progress is not None and not callable(progress):
        raise TypeError(f"progress is {describe(progress)}; expected a function of stage, done and total, or None")


class ReportedSteps:
    """Iterator with the interface of a tqdm bar, which reports each step as progress of a stage."""

    def __init__(
        self, progress: StageProgress, stage: str, steps: Any = None, *, total: float | None = None, **_: Any
    ) -> None:
        self._progress, self._stage, self._steps = progress, stage, steps
        count = len(steps) if total is None and isinstance(steps, Sized) else total
        self.n, self.total = 0, int(count or 0)
        progress(stage, 0, self.total)

    def __iter__(self) -> Iterator[Any]:
        for step in self._steps:
            yield step
            self.update()

    def update(self, count: float = 1) -> None:
        """Report more steps."""
        self.n += int(count)
        self._progress(self._stage, self.n, self.total)

    def __enter__(self) -> ReportedSteps:
        return self

    def __exit__(self, *exception: object) -> None:
        return None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return a function that does nothing, for the methods that only change how a bar is drawn."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *arguments, **options: None
