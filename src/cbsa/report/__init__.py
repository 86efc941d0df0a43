"""Pictures of training runs and of analyses, from plain data, and one self-contained page that holds them.

All are matplotlib figures, made without pyplot: a notebook shows them, ``figure.savefig`` writes them.
"""

from cbsa.report.attention import compare_attention
from cbsa.report.confusion import per_class_accuracy, plot_confusion
from cbsa.report.curves import plot_curves
from cbsa.report.examples import plot_attention, plot_examples, plot_heads
from cbsa.report.noise import plot_noise
from cbsa.report.overview import plot_overview
from cbsa.report.page import Picture, Section, write_page
from cbsa.report.rank import plot_ranks
from cbsa.report.rates import plot_compression, plot_rates
from cbsa.report.reduction import plot_reduction
from cbsa.report.representatives import plot_contraction, plot_regions
from cbsa.report.tokens import plot_tokens
from cbsa.report.zero_shot import plot_zero_shot, plot_zero_shot_layers

__all__ = [
    "Picture",
    "Section",
    "compare_attention",
    "per_class_accuracy",
    "plot_attention",
    "plot_compression",
    "plot_confusion",
    "plot_contraction",
    "plot_curves",
    "plot_examples",
    "plot_heads",
    "plot_noise",
    "plot_overview",
    "plot_ranks",
    "plot_rates",
    "plot_reduction",
    "plot_regions",
    "plot_tokens",
    "plot_zero_shot",
    "plot_zero_shot_layers",
    "write_page",
]
