"""Line and bar charts, read back as XML: layout, log axes, levels, error bars, and files."""

from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import tasks.reporting
from tasks.reporting.axes import log_ticks, number_text, ticks
from tasks.reporting.plots import Bar, Level, Mark, bar_chart, line_chart
from tasks.reporting.series import Point, Series
from tasks.reporting.svg import WIDTH, standalone

EM = 12
STEPS = [2.0**power for power in range(10)]


def many(count: int = 15, highlight: int | None = 0) -> list[Series]:
    return [
        Series(
            f"ε = {number}, batch 1,024",
            [Point(step, 0.3 + 0.02 * number / step, 0.001) for step in STEPS],
            highlight=number == highlight,
        )
        for number in range(count)
    ]


def chart(series: list[Series], **options: object) -> ET.Element:
    """Returns a chart in its light colours."""
    labels = {"title": "t", "x_label": "steps", "y_label": "loss"}
    return light(line_chart(series, **{**labels, **options}))  # type: ignore[arg-type]


def light(svg: str) -> ET.Element:
    return ET.fromstring(re.sub(r"var\(--[\w-]+, (#\w+)\)", r"\1", svg))


class Box(NamedTuple):
    left: float
    right: float
    top: float
    bottom: float
    text: str


def boxes(root: ET.Element) -> list[Box]:
    """Returns the places of horizontal texts, estimated with the mean width of DejaVu Sans."""
    found = []
    for text in root.iter("text"):
        if text.get("transform"):
            continue
        words = text.text or ""
        width, x, y = 0.58 * EM * len(words), float(text.get("x", "")), float(text.get("y", ""))
        left = x - width * {"start": 0.0, "middle": 0.5, "end": 1.0}[text.get("text-anchor", "start")]
        found.append(Box(left, left + width, y - 0.75 * EM, y + 0.2 * EM, words))
    return found


@pytest.mark.parametrize(("log_x", "log_y"), list(itertools.product((False, True), repeat=2)))
def test_no_text_is_on_another_or_outside_with_fifteen_series(log_x: bool, log_y: bool) -> None:
    x_ticks = {step: f"{step:,.0f} steps" for step in STEPS}
    levels = [Level(0.3, "non-private: 0.3000"), Level(0.302, "the paper's")]
    root = chart(many(), log_x=log_x, log_y=log_y, x_ticks=x_ticks, levels=levels)
    _, _, width, height = map(float, str(root.get("viewBox")).split())
    found = boxes(root)
    assert {f"ε = {number}, batch 1,024" for number in range(15)} <= {box.text for box in found}
    for box in found:
        assert box.left >= 0
        assert box.right <= width
        assert 0 <= box.top < box.bottom <= height
    for one, other in itertools.combinations(found, 2):
        apart = one.right <= other.left or other.right <= one.left or one.bottom <= other.top or other.bottom <= one.top
        assert apart, (one.text, other.text)


def test_a_legend_of_many_rows_does_not_take_from_the_plot() -> None:
    def frame(root: ET.Element) -> float:
        """Returns the length of the y axis."""
        lines = [line for line in root.findall("line") if line.get("x1") == line.get("x2")]
        return max(abs(float(line.get("y2", "")) - float(line.get("y1", ""))) for line in lines)

    assert frame(chart(many(2))) == pytest.approx(frame(chart(many(15))))
    long = chart([Series("x" * 300, [Point(0, 1)]), Series("y", [Point(0, 2)])])
    assert max(box.right for box in boxes(long)) <= WIDTH


@pytest.mark.parametrize("highlight", [None, 0, 7])
def test_fifteen_series_differ_without_colours(highlight: int | None) -> None:
    root = chart(many(highlight=highlight))
    # The legend comes last: a line and a marker for each name.
    lines, markers = root.findall("polyline")[-15:], root.findall("path")[-15:]
    looks = [(line.get("stroke-dasharray"), mark.get("d")) for line, mark in zip(lines, markers, strict=True)]
    assert len(set(looks)) == 15
    widths = [float(line.get("stroke-width", "")) for line in lines]
    if highlight is None:
        assert len(set(widths)) == 1
    else:
        assert widths.index(max(widths)) == highlight
        assert sorted(widths)[-1] >= 2 * sorted(widths)[-2]
        assert [line.get("stroke") for line in lines].count("#000000") == 1
        # It is drawn last of the lines before the legend, so in front.
        assert root.findall("polyline")[14].get("stroke") == "#000000"


def test_few_series_are_solid_unless_dashed() -> None:
    lines = [Series("ours", [Point(0, 1), Point(1, 2)]), Series("paper", [Point(0, 2), Point(1, 3)], dashed=True)]
    ours, paper = chart(lines).findall("polyline")[:2]
    assert ours.get("stroke-dasharray") is None
    assert paper.get("stroke-dasharray")


def test_equal_factors_are_equal_lengths_on_a_logarithmic_axis() -> None:
    root = chart([Series("a", [Point(k, 10.0**-k, 0.5 * 10.0**-k) for k in range(4)])], log_y=True)
    places = [tuple(map(float, pair.split(","))) for pair in str(root.findall("polyline")[0].get("points")).split()]
    steps = [after[1] - before[1] for before, after in itertools.pairwise(places)]
    assert steps == pytest.approx([steps[0]] * 3, abs=0.2)
    assert {"0.001", "0.01", "0.1", "1"} <= {box.text for box in boxes(root)}


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_line_breaks_at_values_that_cannot_be_drawn(bad: float) -> None:
    points = [Point(1, 1.0, 2.0), Point(2, bad), Point(3, 4.0, math.nan)]
    root = chart([Series("a", points)], log_y=True, levels=[Level(-1, "nowhere"), Level(2, "two")])
    assert [str(line.get("points")).count(",") for line in root.findall("polyline")] == [1, 1]
    assert "nan" not in ET.tostring(root, "unicode")
    bottom = max(float(line.get("y2", "")) for line in root.findall("line") if line.get("stroke") == "#d9d9d9")
    error, *caps = [line for line in root.findall("line") if line.get("stroke") == "#0072B2"]
    assert float(error.get("y1", "")) >= bottom - 1
    assert [(cap.get("y1"), cap.get("y2")) for cap in caps] == [
        (error.get(end), error.get(end)) for end in ("y1", "y2")
    ]
    with pytest.raises(ValueError, match="needs a point"):
        chart([Series("a", [Point(1, bad)])], log_y=True)


def test_a_level_is_in_the_plot_with_its_words() -> None:
    root = chart([Series("a", [Point(0, 1.0), Point(1, 1.1)])], levels=[Level(3.0, "far & above")])
    (line,) = [line for line in root.findall("line") if line.get("stroke-dasharray")]
    assert line.get("y1") == line.get("y2")
    (box,) = [box for box in boxes(root) if box.text == "far & above"]
    assert abs((box.top + box.bottom) / 2 - float(line.get("y1", ""))) < 20


@pytest.mark.parametrize(("low", "high"), [(1e-9, 1), (0.5, 10), (0.21, 0.29), (3, 4e5), (1e-120, 1e120), (0.9, 1.1)])
def test_logarithmic_ticks_are_inside_and_not_many(low: float, high: float) -> None:
    found = log_ticks(low, high)
    assert 2 <= len(found) <= 8
    assert low <= found[0]
    assert found[-1] <= high
    assert found == sorted(set(found))
    assert len({number_text(tick) for tick in found}) == len(found)


def test_a_plot_as_a_file() -> None:
    svg = line_chart(many(3), title='a > "b" & <c>', x_label="x", y_label="y")
    root = ET.fromstring(standalone(svg))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height")) == tuple(str(root.get("viewBox")).split()[2:])
    assert root.get("aria-label") == 'a > "b" & <c>'
    assert root[0].tag.endswith("rect")
    assert (root[0].get("fill"), root[0].get("width")) == ("#ffffff", root.get("width"))
    assert len(root) == 1 + len(ET.fromstring(svg))
    with pytest.raises(ValueError, match="viewBox"):
        standalone("<svg></svg>")


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.238, 0.262), (-3, 60), (0, 1e7), (1e-9, 3e-9), (19000, 19030)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 7
    assert low - 1e-9 * (high - low) <= found[0] < found[-1] <= high + 1e-9 * (high - low)
    assert np.diff(found) == pytest.approx(found[1] - found[0])
    assert {f"{found[1] - found[0]:e}"[0]} <= set("125")


def test_several_series_with_error_bars_on_a_logarithmic_axis() -> None:
    budgets = (0.5, 1.0, 8.0)
    lines = [Series(name, [Point(e, k / e - 3, 0.25) for e in budgets]) for k, name in enumerate(("a", "<b>", "c"), 1)]
    svg = line_chart(lines, title="loss", x_label="ε", y_label="%", x_ticks={e: f"{e:g}" for e in budgets}, log_x=True)
    chart = light(svg)
    texts = [text.text for text in chart.findall("text")]
    assert {"a", "<b>", "c", "ε", "%", "0.5", "1", "8", "0", "−2"} <= set(texts)
    colors = [line.get("stroke") for line in chart.findall("polyline")]
    assert len(set(colors)) == 3
    x = [float(pair.split(",")[0]) for pair in str(chart.findall("polyline")[0].get("points")).split()]
    assert (x[2] - x[1]) / (x[1] - x[0]) == pytest.approx(3, rel=0.01)
    by_color = [[line for line in chart.findall("line") if line.get("stroke") == color] for color in colors[:3]]
    assert [len(lines) for lines in by_color] == [9] * 3, "a bar and two caps at each point"
    # At each budget the bars of the three series, caps included, stand beside each other in their order.
    for at in range(3):
        spans = [
            [float(line.get(end, "")) for line in lines[3 * at : 3 * at + 3] for end in ("x1", "x2")]
            for lines in by_color
        ]
        assert max(spans[0]) < min(spans[1]) <= max(spans[1]) < min(spans[2])
        assert min(map(min, spans)) > x[0] - 20


def test_a_single_series_is_not_shifted() -> None:
    points = [Point(k, 1.0 + k, 1e-9) for k in (1, 2, 4)]
    bare = [point._replace(error=None) for point in points]
    one, other = (chart([Series("a", found)]).findall("polyline")[0].get("points") for found in (points, bare))
    assert one == other


def test_what_a_series_is_compared_with_shares_its_colour_but_is_hollow_and_dashed() -> None:
    two = [Point(0, 1), Point(1, 2)]
    root = chart(
        [Series("a", two), Series("b", two), Series("b there", two, like="b"), Series("c there", two, like="c")]
    )
    _, b, there, alone = root.findall("polyline")[:4]
    assert (b.get("stroke"), b.get("stroke-dasharray")) == (there.get("stroke"), None)
    assert there.get("stroke-dasharray")
    assert alone.get("stroke") != b.get("stroke")
    assert [mark.get("fill") == "#ffffff" for mark in root.findall("path")[-4:]] == [False, False, True, True]


def test_colours_are_variables_of_the_page_and_light_in_a_file() -> None:
    svg = line_chart(many(3), title="t", x_label="x", y_label="y", levels=[Level(0.3, "level")])
    painted = re.findall(r'(?:fill|stroke)="(.*?)"', svg) + re.findall(
        r'(?:fill|stroke)="(.*?)"', bar_chart([Bar("a", 1, "1")], title="")
    )
    assert all(color == "none" or re.fullmatch(r"var\(--[\w-]+, #\w{6}\)", color) for color in painted)
    style = (Path(tasks.reporting.__file__).parent / "templates" / "style.css").read_text()
    dark = style[style.index("prefers-color-scheme: dark") :]
    assert all(f"{name}:" in dark for name in set(re.findall(r"var\((--[\w-]+)", svg)))
    assert "var(" not in standalone(svg)


def test_text_is_large_enough_on_a_narrow_screen() -> None:
    svg = line_chart(many(3), title="t", x_label="x", y_label="y")
    size = float(re.findall(r'font-size="([\d.]+)"', svg)[0])
    assert size * 380 / WIDTH >= 11


def test_the_label_of_a_mark_stands_over_what_begins_there() -> None:
    marks = [Mark(80, "validation"), Mark(90, "test")]
    root = chart([Series("a", [Point(x, 1.0) for x in range(0, 101, 10)])], marks=marks)
    dashed = [float(line.get("x1", "")) for line in root.findall("line") if line.get("stroke-dasharray")]
    labels = {box.text: box for box in boxes(root)}
    for x, mark in zip(sorted(dashed), marks, strict=True):
        box = labels[mark.label]
        assert x - 15 < box.left < x + 1
        assert box.right > x + 20
        assert box.right <= WIDTH


@pytest.mark.parametrize("values", [[5.0, 5.1], [0.2, 0.9]])
def test_axes_from_zero_start_alike(values: list[float]) -> None:
    root = chart([Series("a", list(map(Point, range(2), values)))], from_zero=True)
    assert "0" in {box.text for box in boxes(root)}


@pytest.mark.parametrize("values", [[0.25], [0.0], [0.0, 0.0], [-1.0, -2.0], [5.0, 5.0], [1e-12, 3e-12]])
def test_every_point_is_inside_the_plot(values: list[float]) -> None:
    points = [Point(x, y, 0.1 * abs(y)) for x, y in enumerate(values)]
    chart = ET.fromstring(line_chart([Series("a", points)], title="", x_label="", y_label="", marks=[Mark(0, "now")]))
    _, _, width, height = map(float, str(chart.get("viewBox")).split())
    for path in chart.findall("path"):
        x, y = map(float, place(path))
        assert 0 < x < width
        assert 0 < y < height - 40
    with pytest.raises(ValueError, match="needs a point"):
        line_chart([Series("a", [Point(0, None)])], title="", x_label="", y_label="")


def test_bars() -> None:
    chart = ET.fromstring(bar_chart([Bar("x" * 60, 3, "3"), Bar("y", 0, "none")], title="a & b"))
    assert [float(rect.get("width", "")) > 0 for rect in chart.iter("rect")] == [True, False]
    assert [title.text for title in chart.iter("title")] == ["x" * 60 + ": 3", "y: none"]
    assert max(len(str(text.text)) for text in chart.iter("text")) == 24
    ET.fromstring(bar_chart([Bar("y", 0, "0")], title=""))
    ET.fromstring(bar_chart([], title=""))


def place(path: ET.Element) -> list[str]:
    return re.findall(r"[\d.]+", str(path.get("transform")))


def test_a_point_whose_error_bar_ends_below_zero_is_inside_a_log_axis() -> None:
    points = [Point(1, 50.0, 1.0), Point(10, 0.5, 6.0)]
    svg = line_chart([Series("a", points)], title="t", x_label="x", y_label="y", log_x=True, log_y=True)
    height = int(ET.fromstring(svg).attrib["viewBox"].split()[3])
    places = [float(y) for y in re.findall(r'translate\([\d.]+ ([\d.]+)\)" d=', svg)]
    assert len(places) == 2
    assert max(places) < height - 44
