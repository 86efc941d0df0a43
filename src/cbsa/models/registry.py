"""The models by name, registered with timm."""

from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import PretrainedCfg, build_model_with_cfg, generate_default_cfgs, register_model

from cbsa._checks import check_choice
from cbsa.models.shipped import SHIPPED
from cbsa.models.tost import ToST
from cbsa.models.transformer import Transformer

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"embed_dim": 192, "depth": 12, "num_heads": 3},
    "small": {"embed_dim": 384, "depth": 12, "num_heads": 6},
    "base": {"embed_dim": 768, "depth": 12, "num_heads": 12},
    "large": {"embed_dim": 1024, "depth": 24, "num_heads": 16},
}
# Inputs: the paper's, and laboratory sizes for small images.
INPUTS: dict[str, dict[str, Any]] = {
    "patch16_224": {"img_size": 224, "patch_size": 16},
    "patch4_64": {"img_size": 64, "patch_size": 4},
    "patch4_32": {"img_size": 32, "patch_size": 4, "representatives": (4, 4)},
}


def hybrid(depth: int) -> list[str]:
    """The attentions of the hybrid: MSSA in the first half of its layers, CBSA in the second."""
    return ["mssa"] * (depth // 2) + ["cbsa"] * (depth - depth // 2)


# Families: name, arguments, sizes at 224 px. Laboratory inputs exist in tiny and small.
FAMILIES: dict[str, tuple[dict[str, Any], tuple[str, ...], str]] = {
    "cbt": ({"attention": "cbsa"}, ("tiny", "small", "base", "large"), "CBT: CBSA and ISTA"),
    "crate": ({"attention": "mssa"}, ("tiny", "small", "base", "large"), "CRATE twin: MSSA and ISTA"),
    "tost": ({"attention": "tssa"}, ("tiny", "small"), "ToST twin: TSSA and ISTA"),
    "agent": ({"attention": "agent"}, ("tiny", "small"), "Agent twin: CBSA without contraction, and ISTA"),
    "crate_cbt": (
        {"attention": hybrid(12)},
        ("tiny", "small"),
        "CRATE+CBT hybrid: MSSA in the first half, CBSA in the second",
    ),
    "vit_conv": (
        {"attention": "mhsa", "feed_forward": "mlp"},
        ("tiny", "small"),
        "ViT with a convolutional stem: MHSA and MLP",
    ),
}
ORIGINAL_CRATE = ({"attention": "mssa", "stem": "linear"}, ("base", "large"))
# The original ToST, by the names of its code: width, depth, heads, initial scale of the residual branches.
ORIGINAL_TOST: dict[str, tuple[int, int, int, float]] = {
    "tiny_12": (192, 12, 4, 1.0),
    "small_12": (384, 12, 8, 1.0),
    "tiny_24": (192, 24, 4, 1e-5),
    "small_24": (384, 24, 8, 1e-5),
    "medium_24": (512, 24, 8, 1e-5),
    "large_24": (768, 24, 16, 1e-5),
}


def _default_cfg(img_size: int, stem: str) -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, img_size, img_size),
        "pool_size": None,
        "crop_pct": 0.875 if img_size == 224 else 1.0,
        "interpolation": "bicubic",
        "fixed_input_size": False,
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": "patch_embed.proj.0.0" if stem == "conv" else "patch_embed.proj",
        "classifier": "head",
        "license": "mit",
    }


def _entries() -> dict[str, tuple[dict[str, Any], str]]:
    """All models: name -> (arguments, what it is)."""
    entries: dict[str, tuple[dict[str, Any], str]] = {}
    for family, (arguments, sizes, what) in FAMILIES.items():
        for size in sizes:
            for name, given in INPUTS.items():
                if name == "patch16_224" or size in ("tiny", "small"):
                    entries[f"{family}_{size}_{name}"] = ({**SIZES[size], **given, **arguments}, what)
    arguments, sizes = ORIGINAL_CRATE
    for size in sizes:
        entries[f"crate_{size}_linear_patch16_224"] = (
            {**SIZES[size], **INPUTS["patch16_224"], **arguments},
            "Original CRATE: MSSA and ISTA on a linear stem",
        )
    for size, (dim, depth, heads, eta) in ORIGINAL_TOST.items():
        entries[f"tost_cab_{size}_patch16_224"] = (
            {"embed_dim": dim, "depth": depth, "num_heads": heads, "eta": eta, **INPUTS["patch16_224"]},
            "Original ToST: TSSA and MLP in XCiT's frame, with class attention",
        )
    return entries


MODELS = _entries()
"""All registered models: name -> (arguments of the model, what it is)."""
UNTRAINED = "untrained"  # tag of a model without weights
_cfgs: dict[str, dict[str, Any] | PretrainedCfg] = {
    f"{name}.{UNTRAINED}": _default_cfg(arguments["img_size"], arguments.get("stem", "conv"))
    for name, (arguments, _) in MODELS.items()
}
default_cfgs = generate_default_cfgs(
    _cfgs | {name: entry.pretrained_cfg() for name, entry in SHIPPED.items()}
)


def checkpoint_filter_fn(state_dict: dict[str, Any], model: Transformer | ToST) -> dict[str, Any]:
    """Fit a state dict to a model: the position embedding is resampled to the model's grid."""
    from cbsa.models.checkpoints import fit_positions

    return fit_positions(state_dict, model) if isinstance(model, Transformer) else state_dict


def _choose_tag(name: str, tag: str | None, pretrained: bool, overlay: dict[str, Any] | None) -> str:
    """Which weights of a model are meant, or which configuration of it if none are to be loaded.

    Without a tag and without weights a model is the same whatever weights of it there are.
    """
    known = default_cfgs[name]
    tag = check_choice(f"tag of {name}", tag or (known.tags[0] if pretrained else UNTRAINED), known.cfgs)
    elsewhere = any((overlay or {}).get(key) for key in ("file", "url", "hf_hub_id", "state_dict"))
    if pretrained and not known.cfgs[tag].has_weights and not elsewhere:
        what = f"{name}.{tag}" if known.is_pretrained else name
        raise ValueError(
            f"pretrained=True: no weights of {what} ship with cbsa. Those that do: "
            f"{', '.join(SHIPPED) or 'none'}. A checkpoint of the authors loads with "
            "cbsa.models.load_reference_checkpoint(model, path); "
            "pretrained=False gives random weights"
        )
    return tag


def _refuse_dropout(name: str, kwargs: dict[str, Any]) -> None:
    """Take out the rates that timm's training script always gives: 0 is what these models have."""
    for key in ("drop_rate", "drop_path_rate"):
        if rate := kwargs.pop(key, 0):
            raise ValueError(f"{key}={rate}: {name} has neither dropout nor drop path; leave it at 0")


def _register(name: str, arguments: dict[str, Any], what: str) -> None:
    def entry(pretrained: bool = False, **kwargs: Any) -> Transformer | ToST:
        original_tost = name.startswith("tost_cab_")
        if not original_tost:
            _refuse_dropout(name, kwargs)
        if name.startswith("crate_cbt_") and isinstance(depth := kwargs.get("depth"), int):
            kwargs.setdefault("attention", hybrid(depth))
        out_indices = kwargs.pop("out_indices", 3)
        given: dict[str, Any] = {}
        if not isinstance(kwargs.get("pretrained_cfg"), (dict, PretrainedCfg)):
            overlay = kwargs.get("pretrained_cfg_overlay")
            tag = _choose_tag(name, kwargs.get("pretrained_cfg"), pretrained, overlay)
            kwargs["pretrained_cfg"] = tag
            given = SHIPPED[f"{name}.{tag}"].arguments if tag != UNTRAINED else {}
        model: Any = build_model_with_cfg(
            ToST if original_tost else Transformer,
            name,
            pretrained,
            pretrained_filter_fn=checkpoint_filter_fn,
            feature_cfg={"out_indices": out_indices, "feature_cls": "getter"},
            **(arguments | given | kwargs),
        )
        return model  # type: ignore[no-any-return]

    entry.__name__ = entry.__qualname__ = name
    entry.__module__ = __name__
    entry.__doc__ = f"{what}."
    globals()[name] = register_model(entry)


for _name, (_arguments, _what) in MODELS.items():
    _register(_name, _arguments, _what)
