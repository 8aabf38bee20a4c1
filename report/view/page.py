"""One HTML page that needs no other file: figures inline, tables that sort by a click on their heading."""

import html
import math
import shlex

import yaml

import style
from table import bytes_text

CSS = """
body{font:16px/1.5 system-ui,sans-serif;color:#111;background:#fff}
body{max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem}h2{font-size:1.25rem;margin-top:2.5rem}figure{margin:1rem 0;overflow-x:auto}
svg{max-width:100%;height:auto}figcaption,p.note{color:#333;max-width:52rem}
.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.85rem}
th,td{padding:.25rem .6rem;border-bottom:1px solid #bbb;text-align:left;white-space:nowrap}
thead th{border-bottom:2px solid #333;vertical-align:bottom}
th button{font:inherit;font-weight:bold;border:0;background:none;padding:0;cursor:pointer}
th button{text-align:left;white-space:normal}
th[aria-sort=ascending] button::after{content:" \\25B2"}
th[aria-sort=descending] button::after{content:" \\25BC"}
.n,.n button{text-align:right}td.n{font-variant-numeric:tabular-nums}
pre{background:#f3f3f3;padding:.6rem;overflow-x:auto;font-size:.8rem}
summary{cursor:pointer}nav li{margin:.1rem 0}
@media print{body{max-width:none}details,nav{display:none}.wide{overflow:visible}table{font-size:.6rem}}
"""

# Sorts a table's rows by a column: numbers as numbers, empty cells last.
SCRIPT = """
for (const button of document.querySelectorAll('th button')) button.addEventListener('click', () => {
  const th = button.parentNode, table = th.closest('table'), column = th.cellIndex;
  const down = th.getAttribute('aria-sort') === 'ascending';
  for (const other of table.querySelectorAll('th')) other.removeAttribute('aria-sort');
  th.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  const key = row => row.cells[column].dataset.value ?? row.cells[column].textContent;
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const x = key(a), y = key(b);
    if (x === '' || y === '') return (x === '') - (y === '');
    const order = isNaN(x) || isNaN(y) ? x.localeCompare(y, undefined, {numeric: true}) : x - y;
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
});
"""

LONG = 60  # rows of a table that the page shows at once
NUMBER = ' class="n"'


def text(title, items, read_runs, notes):
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{html.escape(title)}</title><style>{CSS}</style></head><body>",
        f"<h1>{html.escape(title)}</h1>",
    ]
    parts += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    parts.append(
        "<nav><ul>"
        + "".join(f'<li><a href="#{item.name}">{html.escape(item.title)}</a></li>' for item in items)
        + ('<li><a href="#settings">Settings and commands of each run</a></li>' if read_runs else "")
        + "</ul></nav>"
    )
    for item in items:
        parts.append(f'<section id="{item.name}"><h2>{html.escape(item.title)}</h2>')
        if item.figure is None:
            rows = table(item.data)
            if len(item.data) > LONG:
                rows = f"<details><summary>{len(item.data)} rows</summary>{rows}</details>"
            parts += [f'<p class="note">{html.escape(item.caption)}</p>', rows]
        else:
            svg = style.inline_svg(item.figure, item.name, html.escape(item.title, quote=True))
            parts.append(f"<figure>{svg}<figcaption>{html.escape(item.caption)}</figcaption></figure>")
            parts.append(f"<details><summary>Numbers</summary>{table(item.data)}</details>")
        parts.append("</section>")
    if read_runs:
        parts.append('<section id="settings"><h2>Settings and commands of each run</h2>')
        parts += [*(settings(run) for run in read_runs), "</section>"]
    parts.append(f"<script>{SCRIPT}</script></body></html>\n")
    return "\n".join(parts)


def table(frame):
    """What all rows share is said once, above the table."""
    shared = shared_cells(frame)
    varying = frame.drop(columns=list(shared))
    head, columns = [], []
    for name in varying:
        values = varying[name].tolist()
        is_number = varying[name].dtype.kind in "if"
        if is_number and name.startswith("bytes"):
            columns.append([cell(value, bytes_text) for value in values])
        else:
            decimals = decimals_of(values) if is_number else 0
            columns.append([cell(value, lambda number, d=decimals: f"{number:,.{d}f}") for value in values])
        label = html.escape(name.replace("_", " "))
        head.append(f'<th{NUMBER if is_number else ""}><button type="button">{label}</button></th>')
    rows = "".join("<tr>" + "".join(row) + "</tr>" for row in zip(*columns))
    told = ", ".join(f"{name.replace('_', ' ')} = {value}" for name, value in shared.items() if value != "")
    note = f'<p class="note">The same in all rows: {html.escape(told)}.</p>' if told else ""
    return (
        f'{note}<div class="wide"><table><thead><tr>{"".join(head)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def shared_cells(frame):
    """{column: its text} of the columns whose cells are alike in several rows; "" where they are empty."""
    if len(frame) < 2:
        return {}
    alike = {}
    for name in frame:
        values = ["" if is_missing(value) else value for value in frame[name].tolist()]
        if all(value == values[0] for value in values):
            is_float = isinstance(values[0], float)
            alike[name] = f"{values[0]:.6g}" if is_float else str(values[0])
    return alike if len(alike) < len(frame.columns) else {}


def is_missing(value):
    return value is None or isinstance(value, float) and math.isnan(value)


def decimals_of(values):
    """So many that the column's largest number has six digits, and no more than its numbers need."""
    known = [abs(value) for value in values if not is_missing(value)]
    if not known or all(float(value).is_integer() for value in known):
        return 0
    most = max(0, 5 - math.floor(math.log10(max(known))))
    needed = max(len(f"{value:.{most}f}".rstrip("0").partition(".")[2]) for value in known)
    return min(most, needed)


def cell(value, text=str):
    """`text`: of a number."""
    if is_missing(value):
        return f"<td{NUMBER}></td>"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td{NUMBER} data-value="{value}">{text(value)}</td>'
    return f"<td>{html.escape(str(value))}</td>"


def settings(run):
    command = run.environment.get("command") or []
    mpirun = run.study.get("command") or command
    facts = {
        name: run.environment.get(name)
        for name in ("git_hash", "started", "cpu_info", "devices", "hosts", "mpi_version")
    }
    about = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
    config = {key: value for key, value in run.config.items() if key != "network"}
    network = run.config.get("network")
    config["network"] = network.get("name") if isinstance(network, dict) else network
    dump = yaml.safe_dump(config, sort_keys=False, default_flow_style=None, width=110, allow_unicode=True)
    return (
        f"<details><summary>{html.escape(run.name)}</summary>"
        f"<pre>{html.escape(shlex.join(map(str, mpirun)))}</pre>"
        f"<pre>{html.escape(about)}</pre><pre>{html.escape(dump)}</pre></details>"
    )
