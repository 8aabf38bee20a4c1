"""How figures look: legible at half size, and in black and white by markers, dashes and hatches."""

import io
import os
import re

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

# Okabe and Ito's colours, distinct for any colour vision, dark enough on white; markers and dashes repeat the difference.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#3A9BD6")
MARKERS = "osD^vPX*<>"
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 2, 2, 2, 2, 2)))
COMMUNICATION, COMPUTATION = "#C1440E", "#BBD7EE"
GRID = {"color": "0.88", "linewidth": 0.8}
FORMATS = ("png", "svg", "pdf")
plt.rcParams.update(
    {
        "font.size": 11,
        "axes.titlesize": 12,
        "axes.labelsize": 11,
        "legend.fontsize": 10.5,
        "xtick.labelsize": 10.5,
        "ytick.labelsize": 10.5,
        "figure.dpi": 100,
        "savefig.dpi": 150,
        "svg.hashsalt": "lpsgd",
        "pdf.fonttype": 42,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "legend.frameon": False,
        "hatch.linewidth": 0.9,
        "figure.max_open_warning": 0,
        "lines.linewidth": 1.9,
        "lines.markersize": 6,
    }
)


def line(index, points=1):
    """Colour, dashes and marker of a curve; markers about six times along it, each curve's at other points."""
    step = max(1, points // 6)
    return {
        "color": COLORS[index % len(COLORS)],
        "linestyle": DASHES[index % len(DASHES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markevery": (index * step // 6 % step, step),
        "markeredgecolor": "white",
        "markeredgewidth": 0.6,
        "markersize": 7,
    }


def panels(count, labels, width=4.4, height=3.6, columns=3, **options):
    """A figure of `count` axes above a legend of so many labels: (figure, axes, the legend's axes, its columns)."""
    columns = min(columns, count)
    rows = -(-count // columns)
    inches = max(6.2, width * columns)
    legend_columns = columns_for(labels, inches)
    legend_height = 0.15 + 0.24 * -(-len(labels) // legend_columns) if labels else 0.01
    figure = plt.figure(figsize=(inches, height * rows + legend_height), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1, hspace=0.04)
    grid = figure.add_gridspec(rows + 1, columns, height_ratios=[height] * rows + [legend_height])
    axes = []
    for i in range(count):
        shared = {key: axes[0] for key in ("sharex", "sharey") if options.get(key) and axes}
        axes.append(figure.add_subplot(grid[i // columns, i % columns], **shared))
    legend = figure.add_subplot(grid[rows, :])
    legend.axis("off")
    return figure, axes, legend, legend_columns


def below(legend_axes, handles, columns):
    legend_axes.legend(handles=handles, loc="center", ncol=columns, handlelength=2.6, columnspacing=1.4)


def columns_for(labels, inches):
    """How many columns of a legend fit."""
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), 5, int(inches / (0.085 * longest + 0.75))))


def save(figure, folder, name):
    """PNG, SVG and PDF; the same bits for the same figure."""
    for kind in FORMATS:
        path = os.path.join(folder, f"{name}.{kind}")
        metadata = {
            "svg": {"Date": None, "Creator": "lpsgd"},
            "pdf": {"CreationDate": None},
            "png": {"Software": "lpsgd"},
        }[kind]
        figure.savefig(path, metadata=metadata)


def inline_svg(figure, name, title):
    """The figure for an HTML page: no namespaces or metadata, identifiers that no other figure has."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = re.sub(r'href="#', f'href="#{name}-', svg)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.S)
    return svg.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
