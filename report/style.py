"""How every figure looks: legible at half size, and in black and white by markers, dashes and hatches."""

import io
import os
import re
import textwrap

import layout
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter

# Okabe and Ito's colours, distinct for any colour vision, dark enough on white. Markers and dashes repeat the
# difference.
COLORS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#B8860B", "#3A9BD6")
MARKERS = "osD^vPX*<>"
DASHES = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (6, 2, 1.5, 2)), (0, (3, 1.5)), (0, (8, 2, 2, 2, 2, 2)))
COMMUNICATION, COMPUTATION = "#C1440E", "#BBD7EE"
EMPHASIS, BASE, OUTSIDE = "#0072B2", "#000000", "#D55E00"  # of single points
GRID = {"color": "0.88", "linewidth": 0.8}
REFERENCE = {
    "color": "0.35",
    "linewidth": 1,
    "linestyle": (0, (4, 2)),
    "zorder": 0,
}  # a value to compare with
FORMATS = ("png", "svg", "pdf")
LABELS = 0.95, 0.85  # inches that the usual labels take beside axes, and above and below them
LEGEND = {"handlelength": 2.6, "columnspacing": 1.4}
SHORTEST = 24  # letters of a line, however narrow a legend must be
NAMES = 44  # letters of a line of the names beside points or rows
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
if "text.parse_math" in plt.rcParams:  # a $ of a name is a dollar
    plt.rcParams["text.parse_math"] = False


def line(index, points=1):
    """Colour, dashes and marker of a curve; markers about six times along it, each curve's at other
    points."""
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


def pair(index, points=1):
    """Looks of two curves of one thing: solid with filled markers, and thin and dashed with hollow ones."""
    solid = {**line(index, points), "linestyle": "-"}
    dashed = {
        **solid,
        "linestyle": (0, (4, 2)),
        "linewidth": 1.0,
        "markersize": 5,
        "markerfacecolor": "white",
        "markeredgecolor": solid["color"],
        "markeredgewidth": 1.0,
    }
    return solid, dashed


def handle(label, look):
    """Of a legend, which leaves out labels that begin with an underscore."""
    label = f" {label}" if label.startswith("_") else label
    return Line2D([], [], label=label, **{key: value for key, value in look.items() if key != "markevery"})


def note(axes, text, point, offset, **look):
    """Text so many points of type away from a point."""
    axes.annotate(text, point, xytext=offset, textcoords="offset points", **look)


def panels(count, labels, width=4.4, height=3.6, columns=3, **options):
    """A figure of `count` axes above a legend of so many labels: (figure, axes, the legend's axes, its
    columns). `width` and `height`: of axes with usual labels; the figure grows where theirs are longer."""
    columns = min(columns, count)
    figure = plt.figure(figsize=(max(6.2, width * columns), height * -(-count // columns)), layout=layout.Layout())
    places = [(i // columns, i % columns, width - LABELS[0], height - LABELS[1]) for i in range(count)]
    axes = add_panels(figure, places, **options)
    legend = figure.add_axes((0, 0, 1, 0.1), label="legend")
    legend.axis("off")
    figure.get_layout_engine().legend = legend
    return figure, axes, legend, columns_for(labels, max(6.2, width * columns))


def add_panels(figure, places, spans=False, **options):
    """Axes at (row, column, width, height), of these inches."""
    axes = []
    for row, column, width, height in places:
        shared = {key: axes[0] for key in ("sharex", "sharey") if options.get(key) and axes}
        axes.append(figure.add_axes((0, 0, 1, 1), label=f"panel {row} {column}", **shared))
        figure.get_layout_engine().add(axes[-1], row, column, width, height, spans)
    return axes


def below(legend_axes, handles, columns):
    """A legend in axes of its own, at most as wide as the figure."""
    _legend(legend_axes, handles, columns, legend_axes.figure.get_size_inches()[0], loc="center", **LEGEND)


def under(axes, handles, columns, inches=None, **look):
    """A legend under the axes and their labels, so that it covers nothing."""
    look = {**LEGEND, "columnspacing": 1.2, **look}
    engine = axes.figure.get_layout_engine()
    is_ours = isinstance(engine, layout.Layout)
    if is_ours:
        engine.under.append(axes)
        inches = axes.bbox.width / axes.figure.dpi + LABELS[0]
    _legend(axes, handles, columns, inches, loc="upper center", borderaxespad=0, **look)
    layout.place_under(axes)


def _legend(axes, handles, columns, inches, **look):
    """With fewer columns, and with labels in several lines, where it would be wider than so many inches."""
    axes.legend(handles=handles, ncol=columns, **look)
    while inches and columns > 1 and layout.legend_width(axes) > inches:
        columns -= 1
        axes.legend(handles=handles, ncol=columns, **look)
    letters = max((len(handle.get_label()) for handle in handles), default=0)
    while inches and letters > SHORTEST and layout.legend_width(axes) > inches:
        letters = max(SHORTEST, min(letters - 1, int(letters * inches / layout.legend_width(axes))))
        for handle in handles:
            handle.set_label(wrapped(handle.get_label(), letters))
        axes.legend(handles=handles, ncol=columns, **look)


def wrapped(label, letters=NAMES):
    """In lines of at most so many letters."""
    return textwrap.fill(label.replace("\n", " "), letters)


def row_height(names):
    """Inches from one name to the next below it, where each is in lines of NAMES letters."""
    return 0.09 + 0.17 * max((wrapped(name).count("\n") + 1 for name in names), default=1)


def log_labels(axis):
    """Numbers at a logarithmic axis' ticks; over more than a decade only at those that begin with 1, 2 or 5."""

    def text(value, _):
        low, high = axis.get_view_interval()
        number = f"{value:g}"
        is_dense = low > 0 and high > 10 * low
        return number if not is_dense or number.lstrip("0.")[:1] in "125" else ""

    axis.set_major_formatter(FuncFormatter(text))
    axis.set_minor_formatter(FuncFormatter(text))


def names_beside(axes, points):
    """Names of (x, y, name) in a column to the right, ordered by height, each joined to its point by a thin
    line."""
    low, high = axes.get_ylim()
    order = sorted(points, key=lambda point: (-point[1], -point[0]))
    step = row_height(name for _, _, name in points) / (axes.bbox.height / axes.figure.dpi)
    places = places_apart([(y - low) / (high - low) for _, y, _ in order], step)
    arrow = {
        "arrowstyle": "-",
        "color": "0.7",
        "linewidth": 0.7,
        "shrinkA": 1,
        "shrinkB": 4,
        "relpos": (0, 0.5),
    }
    for (x, y, name), place in zip(order, places):
        axes.annotate(
            wrapped(name),
            (x, y),
            xycoords="data",
            xytext=(1.03, place),
            textcoords="axes fraction",
            va="center",
            fontsize=10.5,
            arrowprops=arrow,
        )


def places_apart(wanted, step):
    """The nearest places to the wanted descending ones that are at least a step apart, within 0 and 1 if they
    fit."""
    # Pool adjacent violators.
    blocks = []
    for i, place in enumerate(wanted):
        blocks.append([place + i * step, 1])
        while len(blocks) > 1 and blocks[-1][0] > blocks[-2][0]:
            mean, count = blocks.pop()
            before, size = blocks[-1]
            blocks[-1] = [(before * size + mean * count) / (size + count), size + count]
    apart = [mean for mean, count in blocks for _ in range(count)]
    lift = max(0.0, (len(wanted) - 1) * step - apart[-1])
    places = [min(1.0, place - i * step + lift) for i, place in enumerate(apart)]
    for i in range(1, len(places)):
        places[i] = min(places[i], places[i - 1] - step)
    return places


def columns_for(labels, inches):
    """How many columns of a legend fit."""
    longest = max((len(label) for label in labels), default=1)
    return max(1, min(len(labels), 5, int(inches / (0.085 * longest + 0.75))))


def save(figure, folder, name, kinds=None):
    for kind in kinds or FORMATS:
        write(figure, os.path.join(folder, f"{name}.{kind}"))


def write(figure, path):
    """The same bits for the same figure, where it is PNG, SVG or PDF."""
    metadata = {
        ".svg": {"Date": None, "Creator": "lpsgd"},
        ".pdf": {"CreationDate": None},
        ".png": {"Software": "lpsgd"},
    }.get(os.path.splitext(path)[1])
    layout.fit(figure)
    try:
        figure.savefig(path, metadata=metadata)
    except ValueError as error:  # an extension that matplotlib does not support
        raise OSError(f"{path}: {error}") from None


def inline_svg(figure, name, title):
    """The figure for an HTML page: no namespaces or metadata, identifiers that no other figure has."""
    text = io.StringIO()
    layout.fit(figure)
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
