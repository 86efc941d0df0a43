"""Made-up result files, in the formats that the commands write."""

import csv
import json


def put(root, path, content):
    """Write a result below ``benchmarks/results``: rows as CSV, anything else as JSON."""
    file = root / "benchmarks" / "results" / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".csv":
        with file.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(content[0]))
            writer.writeheader()
            writer.writerows(content)
    else:
        file.write_text(json.dumps(content))


def put_run(
    root, job, top1=None, *, scale="studies", dataset="tiny_imagenet", model="cbt_tiny_patch4_64", **result
):
    """The record of a run as a study keeps it; without an accuracy it failed."""
    found = {} if top1 is None else {"top1": top1, "model": model, **result}
    put(
        root,
        f"{scale}/{job}.json",
        {
            "job": job,
            "status": "failed" if top1 is None else "done",
            "reason": "the loss | is NaN" if top1 is None else "",
            "command": f"cbsa train {job}",
            "result": found,
            "config": {"data": {"dataset": dataset}},
        },
    )
