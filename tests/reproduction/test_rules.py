"""The rules by which claims are judged, on made-up results: each can hold and can fail."""

import pytest

from cbsa.reproduction.claim import (
    FAILS,
    HOLDS,
    NOT_HERE,
    NOT_YET,
    PARTLY,
    VERDICTS,
    judge,
    order_verdict,
)
from cbsa.reproduction.claims import SUBJECTS
from tests.reproduction.made_up import put, put_run

CLAIMS = {claim.name: claim for claims in SUBJECTS.values() for claim in claims}


def verdict(root, name):
    return judge(CLAIMS[name], root).finding.verdict


@pytest.mark.parametrize("name", CLAIMS)
def test_without_results_nothing_is_tested(tmp_path, name):
    judged = judge(CLAIMS[name], tmp_path)
    assert judged.finding.verdict in (NOT_YET, NOT_HERE)
    assert judged.finding.reason
    assert not judged.finding.measured
    assert not judged.sources


@pytest.mark.parametrize(
    ("ours", "expected", "pairs"),
    [
        ({"a": 3, "b": 2, "c": 1}, HOLDS, "3 of 3"),
        ({"a": 3, "b": 1, "c": 2}, PARTLY, "2 of 3"),
        ({"a": 1, "b": 2, "c": 3}, FAILS, "0 of 3"),
        ({"a": 1, "c": 1}, FAILS, "0 of 1"),  # a tie is no order
    ],
)
def test_orders_are_judged_by_their_pairs(ours, expected, pairs):
    found, words = order_verdict("abc", ours)
    assert found == expected
    assert words.startswith(pairs)


def test_an_order_of_one_is_none():
    with pytest.raises(ValueError, match="needs two of them, got a"):
        order_verdict("abc", {"a": 1})


FAIR = {"mssa": 48.0, "agent": 47.0, "cbsa": 46.0, "tssa": 40.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [({}, HOLDS), ({"agent": 45.0}, PARTLY), ({"tssa": 49.0, "mssa": 41.0}, FAILS)],
)
def test_fair_comparison(tmp_path, changes, expected):
    for name, top1 in (FAIR | changes).items():
        for seed in (0, 1):
            put_run(tmp_path, f"fair/{name}-t/seed{seed}", top1 + seed)
    assert verdict(tmp_path, "fair-t") == expected
    assert verdict(tmp_path, "fair-s") == NOT_YET
    measured = judge(CLAIMS["fair-t"], tmp_path).finding.measured
    mean = (FAIR | changes)["cbsa"] + 0.5
    assert f"CBSA-T {mean:.1f} % (2 seeds)" in measured


def test_a_failed_seed_is_no_result(tmp_path):
    for name, top1 in FAIR.items():
        put_run(tmp_path, f"fair/{name}-s/seed0", top1)
    assert verdict(tmp_path, "fair-s") == HOLDS
    put_run(tmp_path, "fair/tssa-s/seed0")
    assert verdict(tmp_path, "fair-s") == NOT_YET


def test_shorter_runs_do_not_rank(tmp_path):
    for run, top1 in (("cbt", 45.4), ("crate", 48.4)):
        put(tmp_path, f"tiny-imagenet/runs/{run}/summary.json", {"top1": top1})
    finding = judge(CLAIMS["fair-t"], tmp_path).finding
    assert finding.verdict == NOT_YET
    assert "MSSA-T 48.4 %, CBSA-T 45.4 %" in finding.measured
    assert "no rate tuned" in finding.reason


def test_small_models_stand_in_until_larger_ones_are_there(tmp_path):
    for name, top1 in FAIR.items():
        put_run(tmp_path, f"fair/{name}-t/seed0", 60.0 - top1, scale="pocket")
    small = judge(CLAIMS["fair-t"], tmp_path)
    assert (small.finding.verdict, small.finding.is_small) == (FAILS, True)
    assert small.finding.measured.startswith("CIFAR-10, 32 px, width 64")
    for seeds, expected in ((2, PARTLY), (3, HOLDS)):
        for name, top1 in FAIR.items():
            put_run(tmp_path, f"fair/{name}-t/seed{seeds - 1}", top1, scale="pocket")
            put_run(tmp_path, f"fair/{name}-t/seed0", top1, scale="pocket")
        assert verdict(tmp_path, "fair-t") == expected
    small = judge(CLAIMS["fair-t"], tmp_path)
    for name in list(FAIR)[:-1]:
        put_run(tmp_path, f"fair/{name}-t/seed0", FAIR[name])
    assert judge(CLAIMS["fair-t"], tmp_path) == small  # the larger scale is not whole: scales do not mix
    put_run(tmp_path, f"fair/{list(FAIR)[-1]}-t/seed0", FAIR[list(FAIR)[-1]])
    large = judge(CLAIMS["fair-t"], tmp_path)
    assert (large.finding.verdict, large.finding.is_small) == (HOLDS, False)
    assert all(source.startswith("benchmarks/results/studies/") for source in large.sources)


def test_small_ablations_share_the_unchanged_model_of_the_fair_comparison(tmp_path):
    put_run(tmp_path, "fair/cbsa-t/seed0", 60.0, scale="pocket")
    put_run(tmp_path, "ablations/tied/seed0", 55.0, scale="pocket")
    judged = judge(CLAIMS["over-parameterised"], tmp_path)
    assert (judged.finding.verdict, judged.finding.is_small) == (HOLDS, True)
    assert "benchmarks/results/pocket/fair/cbsa-t/seed0.json" in judged.sources


@pytest.mark.parametrize(
    ("r", "random", "expected"), [(0.84, 0.17, HOLDS), (0.84, 0.8, PARTLY), (0.6, 0.1, FAILS)]
)
def test_reduced_rates_correlate_more_than_at_random(tmp_path, r, random, expected):
    found = {"CBT": {"correlation": r}, "CBT, untrained": {"correlation": random}}
    put(tmp_path, "tiny-imagenet/fig-reduced-cr.json", {"correlations": found})
    for folder in ("digits", "digits/step"):
        small = {"CBT (digits)": {"correlation": 0.9}}
        put(tmp_path, f"{folder}/fig-reduced-cr.json", {"correlations": small})
    assert verdict(tmp_path, "reduced-rates") == expected


@pytest.mark.parametrize(
    ("term", "changes", "half", "signs"),
    [
        ([5, 6, 5, 4], [1, 1, -1, -1], HOLDS, HOLDS),
        ([5, 6, 5, 7], [1, 1, -1, -1], PARTLY, HOLDS),
        ([5, 6, 7, 8], [1, 1, 1, 1], FAILS, FAILS),
    ],
)
def test_compression_in_the_second_half(tmp_path, term, changes, half, signs):
    after = [a + b for a, b in zip(term, changes, strict=True)]
    rates = {"CBT": {"compression": term, "after_attention": after}}
    put(tmp_path, "tiny-imagenet/fig-coding-rate.json", {"by_layer": rates})
    assert verdict(tmp_path, "second-half") == half
    assert verdict(tmp_path, "both-signs") == signs


@pytest.mark.parametrize(
    ("pairs", "near", "higher"),
    [
        ([(10, 10.5), (20, 20.5), (30, 30.5)], HOLDS, HOLDS),
        ([(10, 7), (20, 14), (30, 31)], PARTLY, FAILS),
        ([(10, 30), (20, 10), (30, 20)], FAILS, FAILS),
    ],
)
def test_coding_rates_of_representatives(tmp_path, pairs, near, higher):
    rows = [{"model": "CBT", "tokens_before": a, "representatives_before": b} for a, b in pairs]
    put(tmp_path, "tiny-imagenet/fig-reduced-cr.csv", rows)
    assert verdict(tmp_path, "constraints") == near
    assert verdict(tmp_path, "scalpels") == higher


def scores(**families):
    return {name: {"foreground": v, "background": v, "boundary": v} for name, v in families.items()}


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (scores(CRATE=0.6, CBT=0.5), PARTLY),  # two of the paper's four
        (scores(CRATE=0.5, CBT=0.6), FAILS),
        (scores(CRATE=0.3, CBT=0.2), FAILS),  # no better than no map
    ],
)
def test_zero_shot_segmentation(tmp_path, best, expected):
    best |= {"CBT, untrained": scores(x=0.9)["x"]}  # does not count
    put(tmp_path, "tiny-imagenet/table-zero-shot.json", {"best": best, "all_pixels": scores(x=0.33)["x"]})
    assert verdict(tmp_path, "zero-shot") == expected


@pytest.mark.parametrize(("hybrid", "expected"), [(0.7, HOLDS), (0.3, FAILS)])
def test_hybrids_count_on_photographs(tmp_path, hybrid, expected):
    best = scores(CRATE=0.6, CBT=0.5)
    put(tmp_path, "tiny-imagenet/table-zero-shot.json", {"best": best})
    digits = {f"{name} (digits)": value for name, value in (best | scores(**{"CRATE+CBT": 0.9})).items()}
    put(tmp_path, "digits/table-zero-shot.json", {"best": digits})
    assert verdict(tmp_path, "zero-shot-hybrid") == NOT_YET
    put(tmp_path, "cifar10/table-zero-shot.json", {"best": best | scores(**{"CRATE+CBT": 1 - hybrid})})
    shipped = judge(CLAIMS["zero-shot-hybrid"], tmp_path).finding
    assert shipped.verdict == (FAILS if expected == HOLDS else HOLDS)
    assert shipped.measured.startswith("T models, CIFAR-10, 32 px")
    put(tmp_path, "tiny-imagenet/table-zero-shot.json", {"best": best | scores(**{"CRATE+CBT": hybrid})})
    assert verdict(tmp_path, "zero-shot-hybrid") == expected


def layers(**families):
    return [
        {"model": name, "layer": place, "foreground": value}
        for name, values in families.items()
        for place, value in enumerate(values)
    ]


def test_maps_by_layer(tmp_path):
    early = [0.5, 0.6, 0.7, 0.6, *[0.3] * 8]
    crate = [0.1, 0.1, 0.1, 0.1, 0.1, 0.5, 0.2, 0.6, 0.4, 0.1, 0.1, 0.1]
    put(tmp_path, "tiny-imagenet/table-zero-shot-layers.csv", layers(CBT=early, CRATE=crate))
    assert verdict(tmp_path, "maps-by-layer") == HOLDS
    assert verdict(tmp_path, "zero-shot-layers") == HOLDS  # CBT in 2, 3, 4 and CRATE in 6, 8, 9, as the paper
    put(tmp_path, "tiny-imagenet/table-zero-shot-layers.csv", layers(CBT=early[::-1], CRATE=crate))
    assert verdict(tmp_path, "maps-by-layer") == PARTLY  # ahead of CRATE, but late
    assert verdict(tmp_path, "zero-shot-layers") == FAILS


def noise(*scores):
    return [{"sigma": sigma, "mean": score} for sigma, score in zip((0, 0.01, 0.1, 0.5), scores, strict=True)]


@pytest.mark.parametrize(
    ("ours", "rival", "expected"),
    [
        (noise(40, 40, 39, 20), noise(40, 40, 5, 1), HOLDS),
        (noise(40, 40, 10, 2), noise(20, 20, 15, 10), FAILS),  # shares of their own, not points
    ],
)
def test_noise_on_decoders(tmp_path, ours, rival, expected):
    put(tmp_path, "camvid/fig-seg-noise.json", {"by_sigma": {"CBT": ours, "Segmenter": rival}})
    assert verdict(tmp_path, "noise-on-decoders") == expected


def test_noise_on_decoders_that_learnt_little_decides_nothing(tmp_path):
    scores = {"CBT": noise(20, 20, 18, 2), "DEPICT": noise(24, 24, 12, 1), "Segmenter": noise(22, 11, 1, 1)}
    put(tmp_path, "cpu/camvid/fig-seg-noise.json", {"by_sigma": scores})
    finding = judge(CLAIMS["noise-on-decoders"], tmp_path).finding
    assert finding.verdict == NOT_YET
    assert "about 22 %" in finding.measured
    assert "DEPICT 100% at 0.01, 50% at 0.1, 4% at 0.5" in finding.measured
    put(tmp_path, "camvid/fig-seg-noise.json", {"by_sigma": scores})  # the study has been run
    assert verdict(tmp_path, "noise-on-decoders") == HOLDS


def test_segmentation_decoders(tmp_path):
    def put_scores(**miou):
        found = {name.replace("_", "-"): {"test": {"miou": value}} for name, value in miou.items()}
        put(tmp_path, "camvid/results.json", {"decoders": found})

    put_scores(cbt=60, depict=59, segmenter=58, cbt_tied=57)
    assert [verdict(tmp_path, name) for name in ("decoder-miou", "decoder-tied")] == [HOLDS, HOLDS]
    put_scores(cbt=58.5, depict=59, segmenter=58, cbt_tied=59)
    assert [verdict(tmp_path, name) for name in ("decoder-miou", "decoder-tied")] == [PARTLY, FAILS]


def test_segmentation_decoders_while_the_study_is_not_done(tmp_path):
    """A training alone has scores of the validation split; the study's count once they are there."""
    for name, miou in {"cbt": 57.2, "cbt-tied": 57.9, "depict": 57, "segmenter": 59}.items():
        put(tmp_path, f"h200/camvid_training/{name}/summary.json", {"miou": miou})
    assert [verdict(tmp_path, name) for name in ("decoder-miou", "decoder-tied")] == [PARTLY, FAILS]
    test_segmentation_decoders(tmp_path)


def adapted(run, top1, swapped=10.0):
    stages = {"original": 60.0, "swapped": swapped, "fine_tuned": top1}
    accuracies = {stage: {"top1": value, "loss": 2.0} for stage, value in stages.items()}
    return {"run": run, "style": run.partition("-")[0], "epochs": 3, **accuracies}


ADAPTED = ("adapted-cbsa", "adapted-agent", "adapted-deviation")


@pytest.mark.parametrize(
    ("cbsa", "agent", "verdicts"),
    [
        (adapted("cbsa-none", 50.0, 18.0), adapted("agent-none", 53.0), [HOLDS, HOLDS, HOLDS]),
        (adapted("cbsa-none", 49.6, 19.5), adapted("agent-none", 51.5), [HOLDS, PARTLY, PARTLY]),
        (adapted("cbsa-none", 49.0, 21.0), adapted("agent-none", 50.5), [FAILS, FAILS, FAILS]),
    ],
)
def test_adapted_vits(tmp_path, cbsa, agent, verdicts):
    """What the paper does counts: no distillation, the recipe's representatives, ReLU."""
    runs = [cbsa, agent, adapted("linear-none", 51.0, 20.0), adapted("softmax-none", 61.0, 60.0)]
    others = ("cbsa-both", "cbsa-6x6-none", "agent-both", "linear-elu-none", "cbsa-both-groups3")
    runs += [adapted(run, 90.0, 90.0) for run in others]
    put(tmp_path, "adapt/adapt_study.json", {"runs": runs})
    assert [verdict(tmp_path, name) for name in ADAPTED] == verdicts


def test_adapted_vits_are_judged_by_the_study_on_a_cpu_where_there_is_no_larger_one(tmp_path):
    def finding(name):
        return judge(CLAIMS[name], tmp_path).finding

    assert finding("adapted-cbsa").verdict == NOT_YET
    runs = [adapted(f"{style}-none", 51.0, 20.0) for style in ("cbsa", "agent", "linear", "softmax")]
    put(tmp_path, "cpu/adapt/adapt_study.json", {"runs": runs[:2]})
    assert "adapt_study.json::linear-none" in finding("adapted-cbsa").reason
    put(tmp_path, "cpu/adapt/adapt_study.json", {"runs": runs})
    for name in ADAPTED:
        assert "CIFAR-10, 32 px, width 64, six layers, on a CPU" in finding(name).measured
    assert "cbsa 20.0 % (loss 2.00)" in finding("adapted-deviation").measured  # before fine-tuning
    put(tmp_path, "adapt/adapt_study.json", {"runs": runs})
    for name in ADAPTED:
        assert "Tiny-ImageNet" in finding(name).measured


def test_ablations(tmp_path):
    put_run(tmp_path, "gap/cbsa/seed0", 46.0)
    for name, top1 in (("learned", 40.0), ("tied", 45.5), ("exact", 46.5), ("no-contraction", 48.0)):
        put_run(tmp_path, f"ablations/{name}/seed0", top1)
    found = {
        name: verdict(tmp_path, name)
        for name in ("learned-representatives", "over-parameterised", "softmax-contraction", "no-contraction")
    }
    assert list(found.values()) == [HOLDS, PARTLY, HOLDS, FAILS]


def ranks(label, init, rank, effective):
    values = {"rank": rank, "effective_rank": effective, "maximum": 64}
    return [{"model": label, "layer": layer, "init": init, **values} for layer in range(2)]


@pytest.mark.parametrize(
    ("rank", "effective", "expected"), [(5, 3, HOLDS), (60, 3, PARTLY), (60.0, 40.0, FAILS)]
)
def test_ranks(tmp_path, rank, effective, expected):
    rows = [*ranks("CBT, untrained", "learned", 1, 1), *ranks("CBT", "pool", 64, 30)]
    rows += ranks("CBT, learned (digits)", "learned", rank, effective)
    put(tmp_path, "digits/fig-rank.csv", rows)
    assert verdict(tmp_path, "rank-learned") == NOT_YET  # digits decide nothing
    put(tmp_path, "studies/ablations/rank/fig-rank.csv", rows)
    assert verdict(tmp_path, "rank-learned") == expected
    put(tmp_path, "tiny-imagenet/fig-rank.csv", rows)
    assert verdict(tmp_path, "rank-pooled") == HOLDS


def test_the_study_of_analyses_comes_before_earlier_runs(tmp_path):
    best = scores(CRATE=0.5, CBT=0.6)
    put(tmp_path, "tiny-imagenet/table-zero-shot.json", {"best": best, "all_pixels": scores(x=0.3)["x"]})
    assert verdict(tmp_path, "zero-shot") == FAILS
    names = {"MSSA-S": 0.6, "CBSA-S": 0.5, "CRATE+CBT-S": 0.7, "ViT-S (MHSA and MLP)": 0.1, "CBSA-T": 0.9}
    content = {"best": scores(**names), "all_pixels": scores(x=0.05)["x"]}
    put(tmp_path, "studies/analyses/zero-shot/table-zero-shot.json", content)
    judged = judge(CLAIMS["zero-shot"], tmp_path)
    assert judged.sources == ("benchmarks/results/studies/analyses/zero-shot/table-zero-shot.json",)
    assert judged.finding.verdict == PARTLY  # without ToST
    assert "S models" in judged.finding.measured
    assert "CBT 0.50" in judged.finding.measured
    assert verdict(tmp_path, "zero-shot-hybrid") == HOLDS


@pytest.mark.parametrize(("terms", "expected"), [((600, 500), PARTLY), ((500, 600), FAILS)])
def test_the_last_layer_of_two_sizes(tmp_path, terms, expected):
    rates = {f"CBSA-{size}": {"compression": [700, term]} for size, term in zip("TS", terms, strict=True)}
    put(tmp_path, "studies/analyses/coding-rate/fig-coding-rate.json", {"by_layer": rates})
    for size, top1 in (("t", 45.0), ("s", 50.0)):
        put_run(tmp_path, f"fair/cbsa-{size}/seed0", top1)
    assert verdict(tmp_path, "last-layer") == expected


def test_transfer(tmp_path):
    put_run(tmp_path, "transfer/cbt-t-cifar10/seed0", 90.0, dataset="parquet")
    put_run(tmp_path, "transfer/crate-t-cifar10/seed0", 91.0, dataset="cifar10", model="crate_tiny_patch4_64")
    assert verdict(tmp_path, "transfer-cifar10") == HOLDS
    assert verdict(tmp_path, "transfer-pets") == NOT_YET
    put_run(tmp_path, "transfer/cbt-s-cifar10/seed0", 89.0, model="cbt_small_patch4_64")
    assert verdict(tmp_path, "transfer-cifar10") == PARTLY


def test_damaged_results_are_named(tmp_path):
    put(tmp_path, "cpu/fig-3d.json", {"snapshots": []})
    with pytest.raises(ValueError, match=r"claim synthetic: .*benchmarks/results/cpu/fig-3d\.json"):
        verdict(tmp_path, "synthetic")


def test_a_test_that_is_gone_proves_nothing(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_theorems.py").write_text("def test_something_else():\n    pass\n")
    judged = judge(CLAIMS["linear-attention"], tmp_path)
    assert judged.finding.verdict == NOT_YET
    assert "test_principal_directions" in judged.finding.reason
    assert judged.finding.verdict in VERDICTS
