"""Learning curves hold the numbers they were given."""

import math

import pytest

from cbsa.report import plot_curves


def records(epochs=4, **changes):
    rows = [
        {"epoch": e, "train_loss": 3.0 / e, "val_loss": 2.0 / e, "val_top1": 20.0 * e, "lr": 1e-3 / e}
        for e in range(1, epochs + 1)
    ]
    return [{**row, **changes} for row in rows]


def lines(axes):
    return {line.get_linestyle(): line.get_ydata().tolist() for line in axes.lines}


def test_each_panel_has_its_numbers():
    loss, top1, rate = plot_curves({"run": records()}).axes
    assert lines(loss) == {"--": [3 / e for e in (1, 2, 3, 4)], "-": [2 / e for e in (1, 2, 3, 4)]}
    assert lines(top1) == {"-": [20, 40, 60, 80]}
    assert lines(rate) == {"-": [1e-3 / e for e in (1, 2, 3, 4)]}
    assert top1.lines[0].get_xdata().tolist() == [1, 2, 3, 4]
    assert [text.get_text() for text in loss.get_legend().get_texts()] == ["training", "validation"]


def test_segmenters_are_drawn_by_their_miou():
    rows = [{"epoch": e, "train_loss": 1.0, "val_miou": 10.0 * e, "lr": 1e-3} for e in (1, 2)]
    figure = plot_curves({"run": rows})
    _, miou, _ = figure.axes
    assert lines(miou) == {"-": [10, 20]}
    assert miou.get_title(loc="left") + miou.get_title() == "Mean IoU, %"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["run  (best 20.0 %)"]


@pytest.mark.parametrize("count", [1, 2, 8, 9, 30])
def test_a_colour_and_a_name_for_each_run(count):
    names = [f"run {i}" for i in range(count)]
    figure = plot_curves({name: records() for name in names})
    figure.draw_without_rendering()
    loss, top1, _ = figure.axes
    assert len(loss.lines) == 2 * count
    assert len({str(line.get_color()) for line in top1.lines}) == count
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [f"{name}  (best 80.0 %)" for name in names]


def test_names_are_shown_as_they_are():
    """Underscores in front hide a line from matplotlib's legends, and dollar signs start mathematics."""
    figure = plot_curves({"_lr$1_": records(1), "$\\bad{$": records(1)})
    figure.draw_without_rendering()
    texts = figure.legends[0].get_texts()
    assert [text.get_text().split("  ")[0] for text in texts] == ["_lr$1_", "$\\bad{$"]


def test_a_single_epoch_is_a_dot():
    figure = plot_curves({"run": records(1)})
    assert figure.axes[1].lines[0].get_markevery() == [0]
    figure.draw_without_rendering()


def test_gaps_break_the_line():
    rows = records(6)
    rows[1]["val_top1"] = math.nan
    rows[3]["val_top1"] = math.inf
    del rows[5]["val_top1"]
    rows[5]["val_loss"] = None
    loss, top1, _ = plot_curves({"run": rows}).axes
    line = top1.lines[0]
    assert [math.isfinite(y) for y in line.get_ydata()] == [True, False, True, False, True, False]
    assert line.get_markevery() == [0, 2, 4]  # each stands alone: without a dot it would be invisible
    assert math.isnan(loss.lines[1].get_ydata()[5])


def test_what_was_not_recorded_is_said():
    figure = plot_curves({"run": [{"train_loss": 1.0}, {"train_loss": 0.5}]})
    loss, top1, rate = figure.axes
    assert loss.lines[0].get_xdata().tolist() == [1, 2]  # records without epoch count by their place
    for axes in (top1, rate):
        assert [text.get_text() for text in axes.texts] == ["not recorded"]
    assert figure.legends[0].get_texts()[0].get_text() == "run"
    figure.draw_without_rendering()


def test_a_run_without_epochs_and_no_runs():
    plot_curves({"new": [], "run": records()}).draw_without_rendering()
    with pytest.raises(ValueError, match="runs is empty"):
        plot_curves({})
