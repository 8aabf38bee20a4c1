"""Tables and figures for LaTeX, with the package booktabs."""

import math

SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def escape(text):
    return "".join(SPECIAL.get(character, character) for character in str(text))


def cell(value):
    if value is None or isinstance(value, float) and math.isnan(value):
        return "--"
    if isinstance(value, float):
        return f"{value:.6g}"
    return escape(value)


def table(item):
    frame = item.data
    kinds = "".join("r" if frame[name].dtype.kind in "if" else "l" for name in frame)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape(item.title)}. {escape(item.caption)}}}",
        rf"\label{{tab:{item.name}}}",
        rf"\begin{{tabular}}{{{kinds}}}",
        r"\toprule",
        " & ".join(escape(name.replace("_", " ")) for name in frame) + r" \\",
        r"\midrule",
    ]
    lines += [" & ".join(cell(value) for value in row) + r" \\" for row in frame.itertuples(index=False)]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def figure(item):
    width, _ = item.figure.get_size_inches()
    return "\n".join(
        [
            r"\begin{figure}",
            r"\centering",
            rf"\includegraphics[width={min(1.0, width / 9):.2f}\linewidth]{{{item.name}.pdf}}",
            rf"\caption{{{escape(item.title)}. {escape(item.caption)}}}",
            rf"\label{{fig:{item.name}}}",
            r"\end{figure}",
            "",
        ]
    )
