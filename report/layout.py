"""Axes of fixed sizes: the figure grows with what is written around them, so that long labels shrink no axes."""

from dataclasses import dataclass

from matplotlib.layout_engine import LayoutEngine
from matplotlib.transforms import ScaledTranslation

PAD = 0.1  # inches around the figure, and around each panel with its labels


@dataclass
class Panel:
    axes: object
    row: int
    column: int
    width: float  # of the axes, in inches
    height: float
    spans: bool = False  # all columns, beginning in the first one
    left: float = 0.0  # what labels, title and legend take beside the axes
    right: float = 0.0
    below: float = 0.0
    above: float = 0.0


class Layout(LayoutEngine):
    """Panels in rows and columns, and a legend of the figure under them."""

    _adjust_compatible = False
    _colorbar_gridspec = False

    def __init__(self):
        super().__init__()
        self.panels = []
        self.legend = None  # axes that hold nothing else
        self.under = []  # axes with a legend of their own under their labels

    def add(self, axes, row, column, width, height, spans=False):
        self.panels.append(Panel(axes, row, column, width, height, spans))
        _place(axes, 0, 0, width, height)  # text may be measured against the axes from now on

    def execute(self, figure):
        for panel in self.panels:
            _place(panel.axes, 1, 1, panel.width, panel.height)
        for axes in self.under:
            place_under(axes)
        for panel in self.panels:
            _measure(panel)
        legend = self.legend.get_legend() if self.legend else None
        legend_width, legend_height = _inches(legend) if legend else (0, 0)
        lefts, rights = self._columns(), self._rights()
        inner = max(sum(lefts) + sum(rights), *(lefts[0] + p.width + p.right for p in self.panels if p.spans), 0)
        width = max(inner, legend_width) + 2 * PAD
        rows = sorted({panel.row for panel in self.panels})
        heights = [self._height(row) for row in rows]
        height = sum(heights) + 2 * PAD + (legend_height + PAD if legend else 0)
        figure.set_size_inches(width, height)
        top, start = height - PAD, (width - inner) / 2
        for row, high in zip(rows, heights):
            above = max(p.above for p in self.panels if p.row == row)
            for panel in self.panels:
                if panel.row == row:
                    x = start + sum(lefts[: panel.column + 1]) + sum(rights[: panel.column])
                    _place(panel.axes, x, top - above - panel.height, panel.width, panel.height)
            top -= high
        if legend:
            _place(self.legend, (width - legend_width) / 2, PAD, legend_width, legend_height)

    def _columns(self):
        """What each column needs to the left of its axes."""
        count = 1 + max(panel.column for panel in self.panels)
        return [
            max(p.left for p in self.panels if p.column == i) + (2 * PAD if i else 0) for i in range(count)
        ]

    def _rights(self):
        """Each column's axes, and what it needs to the right of them."""
        count = 1 + max(panel.column for panel in self.panels)
        return [
            max((p.width + p.right for p in self.panels if p.column == i and not p.spans), default=0.0)
            for i in range(count)
        ]

    def _height(self, row):
        mine = [panel for panel in self.panels if panel.row == row]
        return max(p.above for p in mine) + max(p.height + p.below for p in mine) + PAD


def fit(figure):
    """Gives the figure its size; before it is saved, because the canvas takes it over then."""
    engine = figure.get_layout_engine()
    if isinstance(engine, Layout):
        engine.execute(figure)
        figure.set_layout_engine("none")


def place_under(axes):
    """The legend of the axes under their labels, so that it covers nothing."""
    legend = axes.get_legend()
    legend.set_in_layout(False)
    lowest = axes.get_tightbbox(_renderer(axes)).y0
    legend.set_in_layout(True)
    inches = (axes.bbox.y0 - lowest) / axes.figure.dpi + 0.1
    place = axes.transAxes + ScaledTranslation(0, -inches, axes.figure.dpi_scale_trans)
    legend.set_bbox_to_anchor((0.5, 0), transform=place)


def legend_width(axes):
    """In inches."""
    return _inches(axes.get_legend())[0]


def _renderer(artist):
    return artist.figure.canvas.get_renderer()


def _inches(artist):
    extent = artist.get_window_extent(_renderer(artist))
    return extent.width / artist.figure.dpi, extent.height / artist.figure.dpi


def _place(axes, x, y, width, height):
    """In inches of the figure."""
    across, up = axes.figure.get_size_inches()
    axes.set_position((x / across, y / up, width / across, height / up))


def _measure(panel):
    inner, outer, dpi = panel.axes.bbox, panel.axes.get_tightbbox(_renderer(panel.axes)), panel.axes.figure.dpi
    panel.left, panel.right = max(0, inner.x0 - outer.x0) / dpi, max(0, outer.x1 - inner.x1) / dpi
    panel.below, panel.above = max(0, inner.y0 - outer.y0) / dpi, max(0, outer.y1 - inner.y1) / dpi
