"""A history as a page of HTML that looks like the status page and loads nothing: no script, no font."""

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import Final

from tailer.cli.history.paper import NUMBERS, Deliveries, columns_of, row_of
from tailer.cli.history.periods import By, Period

__all__ = ["page_of"]

_WIDTH: Final = 720
_HEIGHT: Final = 120
_LEAST_HEIGHT: Final = 2.0  # of a bar, so that one row beside many is seen
_MOST_WIDTH: Final = 60
_DELIVERY_NOTE: Final = """
Delivery is the time from the commit until the sink had its version; -: the daemon does not know it any more."""
_STYLE: Final = """
.plots { grid-template-columns: 1fr; margin-bottom: 1rem; }
.plots svg .inserted { fill: var(--good); } .plots svg .updated { fill: var(--warn); }
.plots svg .deleted { fill: var(--bad); }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .8rem; color: var(--soft); }
.key .inserted { color: var(--good); } .key .updated { color: var(--warn); } .key .deleted { color: var(--bad); }
.note { margin: .75rem 0; font-size: .85rem; color: var(--soft); }
th.number { text-align: right; } th:nth-child(2) { width: auto; } td { overflow-wrap: anywhere; }
td:nth-child(2) { white-space: nowrap; }
@media (max-width: 46rem) {
  .cards > tbody > tr { grid-template-columns: minmax(0, 2fr) minmax(0, 3fr); }
  .cards > tbody > tr > td:nth-child(2) { grid-column: auto; text-align: right; }
  .cards > tbody > tr > td:nth-child(2)::before { content: none; }
  .cards > tbody > tr > td:nth-child(3), .cards > tbody > tr > td:nth-child(4) { grid-column: 1 / -1; }
}
"""


def page_of(table: str, periods: Sequence[Period], deliveries: Deliveries) -> str:
    """Return the page."""
    columns = columns_of(deliveries)
    style = files("tailer.daemon").joinpath("page", "page.css").read_text() + _STYLE
    number = sum(len(each.commits) for each in periods)
    per = "" if not periods or periods[0].by is By.COMMIT else f", by {periods[0].by.value}"
    summary = f"{number:,} commit{'' if number == 1 else 's'}{per}; times are in UTC"
    head = "".join(f'<th scope="col"{_number(name)}>{escape(name)}</th>' for name in columns)
    note = "" if deliveries is None else _DELIVERY_NOTE
    body = "\n".join(_row(columns, row_of(each, deliveries)) for each in reversed(periods))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>History of {escape(table)}</title>
<style>
{style}</style>
</head>
<body>
<header><h1>History of {escape(_short(table))}</h1><p id="summary">{escape(summary)}</p></header>
<main>
<p class="note">{escape(table)}</p>
<section class="plots">
{_plot("Changed rows", [(each.when, _parts(each)) for each in periods])}
</section>
<p class="note">The newest line is the first. Numbers are those of the log; unknown: the log does not say how many
rows; + after a number: more, in such commits. Bytes are those of the files that were added.{note}</p>
<table class="cards" aria-label="Commits">
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
</main>
</body>
</html>
"""


def _short(table: str) -> str:
    return table.rstrip("/").rpartition("/")[2]


def _number(column: str) -> str:
    return ' class="number"' if column in NUMBERS else ""


def _row(columns: Sequence[str], texts: Sequence[str]) -> str:
    cells = "".join(
        f'<td{_number(name)} data-label="{escape(name)}">{escape(text)}</td>'
        for name, text in zip(columns, texts, strict=True)
    )
    return f"<tr>{cells}</tr>"


def _parts(period: Period) -> dict[str, int]:
    return {"inserted": period.inserted.rows, "updated": period.updated.rows, "deleted": period.deleted.rows}


def _plot(title: str, bars: Sequence[tuple[str, dict[str, int]]]) -> str:
    """Return a figure of stacked bars, one for each period."""
    most = max((sum(parts.values()) for _, parts in bars), default=0)
    shapes, step = [], _WIDTH / max(len(bars), 1)
    width = min(max(step * 0.85, 0.5), _MOST_WIDTH)
    for number, (when, parts) in enumerate(bars):
        top = float(_HEIGHT)
        told = ", ".join(f"{rows:,} {kind}" for kind, rows in parts.items())
        drawn = []
        for kind, rows in parts.items():
            if rows:
                height = max(rows / most * (_HEIGHT - 2 * _LEAST_HEIGHT), _LEAST_HEIGHT)
                top -= height
                place = f'x="{number * step:.2f}" y="{top:.2f}" width="{width:.2f}" height="{height:.2f}"'
                drawn.append(f'<rect class="{kind}" {place}/>')
        shapes.append(f"<g><title>{escape(f'{when}: {told}')}</title>{''.join(drawn)}</g>")
    keys = "".join(
        f'<span class="{kind}"><b aria-hidden="true">■</b> {kind}</span>' for kind in ("inserted", "updated", "deleted")
    )
    first, last = bars[0][0] if bars else "", bars[-1][0] if len(bars) > 1 else ""
    label = escape(f"{title}: at most {most:,}")
    return (
        f'<figure><h3>{escape(title)}, at most {most:,}</h3><div class="key">{keys}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" preserveAspectRatio="none" role="img" aria-label="{label}">'
        f"{''.join(shapes)}</svg>"
        f'<div class="range"><span>{escape(first)}</span><span>{escape(last)}</span></div></figure>'
    )
