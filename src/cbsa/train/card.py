"""The card of weights that ship: what they are, where they come from and what they are not good for."""

from typing import Any

from cbsa.models.shipped import Shipped


def write_card(weights: Shipped) -> str:
    """The model card of some weights, from nothing but their ``config.json``."""
    config, training = weights.config, weights.training
    data, run, accuracy = training["data"], training["run"], training["accuracy"]
    side, classes = config["pretrained_cfg"]["input_size"][1], config["label_names"]
    machine = f"{run['processes']} × {training['environment']['device']}"
    return f"""---
library_name: timm
license: mit
tags: [image-classification, timm, cbsa]
---
# {weights.name}

{training["what"]}. {training["parameters"]:,} parameters, {side} px, {len(classes)} classes:
{", ".join(classes)}.

Trained by this project, {run["epochs"]} epochs on {machine}. It is not a model of the paper, whose models
learn ImageNet-1k at 224 px.{" " + training["note"] if training["note"] else ""}

```python
import timm
import cbsa.models  # registers the models

model = timm.create_model("{weights.name}", pretrained=True).eval()
```

## Accuracy

Top-1 on the {accuracy["images"]:,} images of the evaluation split, last epoch of one run.

| weights | computed in | top-1 |
|---|---|---:|
{_accuracies(accuracy)}

## Data

{data["title"]}, {data["source"]}. {data["terms"]}.

## Training

```bash
{run["command"]}
```

| | |
|---|---|
| architecture | {_architecture(weights)} |
| recipe | `{run["recipe"]}`, {run["steps"]:,} steps of {run["batch_size"]} images |
| optimiser | {run["optimizer"]}, learning rate {run["lr"]:g}, decay {run["weight_decay"]:g} |
| precision | {run["precision"]} |
| seed | {run["seed"]} |
| time | {run["seconds"] / 60:.0f} minutes on {machine} |
| versions | {", ".join(f"{k} {v}" for k, v in training["environment"].items() if k != "device")} |

## Limits

- Every image gets one of the {len(classes)} classes above, also one that shows none of them.
- Images had {side} px in training. Other sizes are taken, with positions resampled, but were not trained on.
- One seed: its accuracy ranks nothing against models a point or two away.
- The code is under the MIT licence, and so are these weights as far as they are ours to license. The terms
  of the data are above.
"""


def _architecture(weights: Shipped) -> str:
    given = weights.arguments
    shape = f"width {given['embed_dim']}, {given['depth']} layers, {given['num_heads']} heads"
    found = f"`{weights.architecture}`: {shape}, patches of {given['patch_size']} px"
    if "cbsa" in given["attention"] or "agent" in given["attention"]:  # one, or a list of one a layer
        found += f", {'×'.join(map(str, given['representatives']))} representatives"
    return found


def _accuracies(accuracy: dict[str, Any]) -> str:
    rows = [("as trained (float32)", f"{accuracy['precision']}, by the run itself", accuracy["run"])]
    if accuracy["shipped"] is not None:
        rows += [("as trained (float32)", "float32", accuracy["float32"])]
        rows += [("as shipped (rounded to bfloat16)", "float32", accuracy["shipped"])]
    lines = "\n".join(f"| {weights} | {how} | {value:.2f} % |" for weights, how, value in rows)
    unknown = "\n\nThe rounded weights were not evaluated." if accuracy["shipped"] is None else ""
    return lines + unknown
