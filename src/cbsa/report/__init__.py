"""Pictures of a training run, from plain data, and one self-contained page that holds them."""

from cbsa.report.confusion import per_class_accuracy, plot_confusion
from cbsa.report.curves import plot_curves
from cbsa.report.examples import plot_attention, plot_examples, plot_heads
from cbsa.report.page import Picture, Section, write_page
from cbsa.report.rates import plot_rates

__all__ = [
    "Picture",
    "Section",
    "per_class_accuracy",
    "plot_attention",
    "plot_confusion",
    "plot_curves",
    "plot_examples",
    "plot_heads",
    "plot_rates",
    "write_page",
]
