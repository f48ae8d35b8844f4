"""The graph of a log as lines of text: a dot per message, a lane per open end, and joints where they meet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

# Which sides of a cell have a line: up, down, left, right.
_JOINTS = {
    (0, 0, 0, 0): " ", (1, 1, 0, 0): "│", (0, 0, 1, 1): "─", (1, 1, 1, 1): "┼",
    (1, 1, 0, 1): "├", (1, 1, 1, 0): "┤", (0, 1, 1, 1): "┬", (1, 0, 1, 1): "┴",
    (0, 1, 1, 0): "╮", (0, 1, 0, 1): "╭", (1, 0, 1, 0): "╯", (1, 0, 0, 1): "╰",
    (1, 0, 0, 0): "│", (0, 1, 0, 0): "│", (0, 0, 1, 0): "─", (0, 0, 0, 1): "─",
}  # fmt: skip


def draw(rows: Iterable[tuple[str, Sequence[str], str]]) -> Iterator[str]:
    """Yield lines for messages given as id, parents and label, children before parents.

    >>> print(*draw([("c", ["a", "b"], "c"), ("b", ["a"], "b"), ("a", [], "a")]), sep="\\n")
    ●  c
    ├─╮
    │ ●  b
    ├─╯
    ●  a
    """
    # What each lane leads down to; a freed lane is used again, so none ever moves.
    lanes: list[str | None] = []
    for id, parents, label in rows:
        at = lanes.index(id) if id in lanes else _take(lanes, id)
        dots = "".join("● " if lane == at else "│ " if lanes[lane] else "  " for lane in range(len(lanes)))
        yield f"{dots.rstrip()}  {label}"
        before = [lane is not None for lane in lanes]
        lanes[at] = None
        ends = [at] if not parents else [_lane_for(lanes, parent, at) for parent in parents]
        if ends != [at]:
            yield _joints(before, [lane is not None for lane in lanes], at, ends)
        while lanes and lanes[-1] is None:
            lanes.pop()


def _lane_for(lanes: list[str | None], parent: str, at: int) -> int:
    if parent in lanes:
        found = lanes.index(parent)
        if found > at and lanes[at] is None:  # lanes join towards the left, where the oldest ends are
            lanes[found], lanes[at] = None, parent
        return found
    if lanes[at] is None:
        lanes[at] = parent
        return at
    return _take(lanes, parent)


def _take(lanes: list[str | None], id: str) -> int:
    if None in lanes:
        free = lanes.index(None)
        lanes[free] = id
        return free
    lanes.append(id)
    return len(lanes) - 1


def _joints(before: list[bool], after: list[bool], at: int, ends: list[int]) -> str:
    low, high = min(at, *ends), max(at, *ends)
    before += [False] * (len(after) - len(before))
    out = []
    for lane, (up, down) in enumerate(zip(before, after, strict=True)):
        left, right = low < lane <= high, low <= lane < high
        out.append(_JOINTS[int(up), int(down), int(left), int(right)] + ("─" if right else " "))
    return "".join(out).rstrip()
