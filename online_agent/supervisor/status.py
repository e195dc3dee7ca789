"""What a person sees while the processes start: one line each, with its state and for how many seconds."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from online_agent.supervisor.child import Child, ChildState

_STYLES = {
    ChildState.WAITING: "dim",
    ChildState.STARTING: "yellow",
    ChildState.READY: "green",
    ChildState.BACKING_OFF: "bold red",
    ChildState.STOPPING: "yellow",
    ChildState.STOPPED: "dim",
}


class StatusDisplay:
    """A live table on a terminal; elsewhere one line per change of state."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        self._shown: dict[str, ChildState] = {}

    def __enter__(self) -> StatusDisplay:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def print(self, message: str) -> None:
        self._console.print(message, highlight=False, soft_wrap=True)

    def update(self, children: Sequence[Child]) -> None:
        if self._live is not None:
            self._live.update(_table(children))
            return
        for child in children:
            if self._shown.get(child.spec.name) is not child.state:
                self._shown[child.spec.name] = child.state
                self._console.print(f"{child.spec.name}: {child.state.value}", highlight=False)


def _table(children: Sequence[Child]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title, justify in (
        ("process", "left"),
        ("state", "left"),
        ("seconds", "right"),
        ("pid", "right"),
        ("restarts", "right"),
    ):
        table.add_column(title, justify="right" if justify == "right" else "left")
    for child in children:
        table.add_row(
            child.spec.name,
            Text(child.state.value, _STYLES[child.state]),
            f"{child.seconds_in_state:.0f}",
            str(child.pid or ""),
            str(child.num_restarts or ""),
        )
    return table
