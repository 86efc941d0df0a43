"""What decoders cost: the closed forms against PyTorch's counter, and the authors' numbers."""

import json

import pytest
import torch
from typer.testing import CliRunner

from cbsa import paper
from cbsa.cli import app
from cbsa.experiments import seg_cost
from cbsa.segmentation import CBTDecoder, DepictDecoder, MaskTransformer
from cbsa.segmentation.cost import counted_macs, decoder_cost, layer_macs, pairwise_similarities
from tests.test_package import ROOT, table_in

DIM, CLASSES, GRID = 24, 7, (4, 6)
N = 4 * 6 + CLASSES


@pytest.mark.parametrize("tied", [False, True])
def test_cbt(tied):
    """L(2N·d·Hp + 3N·m·Hp + 2m²·Hp); windows that divide the grid pool without products."""
    decoder = CBTDecoder(DIM, CLASSES, depth=2, num_heads=3, head_dim=5, representatives=(2, 3), tied=tied)
    inner, m = 15, 6
    layers = 2 * (2 * N * DIM * inner + 3 * N * m * inner + 2 * m * m * inner)
    assert layer_macs(decoder, GRID) == layers
    assert counted_macs(decoder, GRID) == layers + 24 * CLASSES * DIM
    assert pairwise_similarities(decoder, GRID) == 2 * 3 * (m * N + m * (m + 1) // 2)


def test_depict():
    decoder = DepictDecoder(DIM, CLASSES, depth=2, num_heads=3, head_dim=5)
    layers = 2 * (2 * N * DIM * 15 + 2 * N * N * 15)
    assert layer_macs(decoder, GRID) == layers
    assert counted_macs(decoder, GRID) == layers + 24 * CLASSES * DIM
    assert pairwise_similarities(decoder, GRID) == 2 * 3 * N * N


def test_depict_cross():
    decoder = DepictDecoder(
        DIM, CLASSES, mode="cross", depth=2, num_heads=3, head_dim=5, cross_depth=2, cross_head_dim=4
    )
    among_patches = 2 * (2 * 24 * DIM * 15 + 2 * 24 * 24 * 15)
    across = 2 * ((24 + 2 * CLASSES) * DIM * 12 + 2 * CLASSES * 24 * 12)
    assert layer_macs(decoder, GRID) == among_patches + across
    assert counted_macs(decoder, GRID) == among_patches + across + 24 * CLASSES * DIM
    assert pairwise_similarities(decoder, GRID) == 2 * 3 * 24 * 24 + 2 * 3 * 24 * CLASSES


def test_mask_transformer():
    decoder = MaskTransformer(DIM, CLASSES, depth=2, num_heads=3, mlp_ratio=2)
    layers = 2 * (4 * N * DIM**2 + 2 * N * N * DIM + 4 * N * DIM**2)
    maps = 24 * DIM**2 + 24 * DIM**2 + CLASSES * DIM**2
    assert layer_macs(decoder, GRID) == layers
    assert counted_macs(decoder, GRID) == layers + maps + 24 * CLASSES * DIM
    assert pairwise_similarities(decoder, GRID) == 2 * 3 * N * N


def test_counting_leaves_the_decoder_alone():
    decoder = CBTDecoder(DIM, CLASSES, depth=1).train()
    before = {name: tensor.clone() for name, tensor in decoder.state_dict().items()}
    cost = decoder_cost(decoder, GRID)
    assert cost.parameters == sum(p.numel() for p in decoder.parameters())
    assert decoder.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in decoder.state_dict().items())


@pytest.fixture(scope="module")
def rows():
    return {(row.decoder, row.size): row for row in seg_cost.run()}


@pytest.mark.parametrize("size", ["T", "S", "B", "L"])
def test_the_authors_parameters_and_flops(rows, size):
    parameters, flops, _ = paper.CBT_DECODERS[size]
    cost = rows["CBT", size].cost
    assert round(cost.parameters / 1e6, 3) == parameters
    assert round(2e-9 * cost.macs, 1) == flops


def test_the_papers_shares(rows):
    """20 % of the FLOPs; the 0.06 % of similarities are not found, which the command says."""
    best = rows["CBT", "L"]
    assert round(best.flops_share, 2) == paper.CBT_DECODER_SHARES[0]
    assert best.similarities_share == 27 * (100 * 1750 + 5050) / (2 * 16 * 1750**2)
    assert "5.0% of the similarities, which does not" in seg_cost.verdict(list(rows.values()))


def test_command(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "table-seg-cost", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for text in ("CBT-T", "0.377", "Segmenter-L", "22.30", "19.7%"):
        assert text in done.output
    data = json.loads((tmp_path / "table-seg-cost.json").read_text())
    assert len(data["costs"]) == 20
    assert data["authors_cbt_decoders"]["L"] == {"parameters_m": 5.713, "gflops": 22.3, "miou": 53.3}
    assert data["costs"][0]["cost"]["parameters"] == 376_830


def test_command_for_other_classes(tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "table-seg-cost", "--classes", "19", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert "The paper:" not in done.output  # its shares are for 150 classes
    assert CliRunner().invoke(app, ["reproduce", "table-seg-cost", "--classes", "1"]).exit_code == 2


def test_the_table_in_the_documentation(rows):
    table = table_in((ROOT / "docs" / "segmentation.md").read_text(), "CBT decoder | parameters")
    assert [line[0] for line in table] == list(paper.CBT_DECODERS)
    for size, *cells in table:
        row, (parameters, flops, _) = rows["CBT", size], paper.CBT_DECODERS[size]
        assert cells == [
            f"{row.cost.parameters / 1e6:.3f} M",
            f"{parameters:.3f} M",
            f"{2e-9 * row.cost.macs:.2f}",
            f"{flops:.1f}",
            f"{2e-9 * row.cost.counted_macs:.2f}",
            f"{row.flops_share:.1%}".replace("%", " %"),
            f"{row.similarities_share:.1%}".replace("%", " %"),
        ]
