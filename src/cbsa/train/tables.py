"""Tables of a run as text."""

import csv
import io

from torch import Tensor


def confusion_csv(confusion: Tensor, classes: list[str]) -> str:
    """A confusion matrix as CSV, a row for each true class."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["true \\ predicted", *classes])
    for name, row in zip(classes, confusion.tolist(), strict=True):
        writer.writerow([name, *row])
    return text.getvalue()
